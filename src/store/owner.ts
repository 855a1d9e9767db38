// A folder has one owner among the processes: a lock in it, a file that names the owner, and a
// check now and then that the folder was not removed. The lock is that of an empty SQLite file, the
// only one in Node that the operating system releases when the process ends, however it ends. It
// also holds between containers, where every process may have pid 1.
import { rmSync, writeFileSync } from 'node:fs'
import { readFile, stat } from 'node:fs/promises'
import { hostname, userInfo } from 'node:os'
import { join } from 'node:path'
import type { Clock } from '../core/clock.ts'
import { codeOf, isDiskFull, makeFolders, tryToWrite } from '../core/disk/files.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { openLock, troubleOf } from './database.ts'

/** Returns what leaves the folder. */
export type Leave = () => void

export type OwnerOptions = { readonly clock: Clock; readonly log: Log }

const checkMs = 10_000

const recordOf = (folder: string): string => join(folder, 'owner.json')

/**
 * Makes this process the owner of the folder. Rejects with a Failure: `refused` where another one
 * is, `disk-error` where nothing can be written. Continues without a lock where the file system has
 * none, or is full.
 */
export async function ownFolder(folder: string, { clock, log }: OwnerOptions): Promise<Leave> {
  let lock: Lock | undefined
  let isReleased = false
  let said = ''
  let cancel = () => {}

  async function take(): Promise<void> {
    await makeFolders(folder)
    const taken = await lockFile(join(folder, 'owner.lock'))
    if (isReleased) return taken.release()
    lock = taken
    said = ''
    writeRecord(folder, clock)
  }

  function complain(error: unknown): void {
    const why = wordsOf(error)
    if (why !== said) log('error', 'data.lock-failed', { folder, why })
    said = why
  }

  /** A process that removes the folder removes the lock with it: lock its replacement. */
  async function check(): Promise<void> {
    if ((await lock?.isInPlace()) || isReleased) return
    lock?.release()
    lock = undefined
    await take().catch(complain)
  }

  function checkLater(): void {
    cancel = clock.after(checkMs, () => {
      void check().finally(() => {
        if (!isReleased) checkLater()
      })
    })
  }

  const unwritable = await tryToWrite(folder).catch((error: Error) => error)
  const isFull = isDiskFull(unwritable)
  if (unwritable && !isFull) throw cannotWrite(folder, unwritable)
  try {
    await take()
  } catch (error) {
    const trouble = troubleOf(error) ?? ''
    if (trouble === 'taken') throw await takenBy(folder)
    if (!isFull && !['failing', 'no-locks'].includes(trouble))
      throw new Failure('refused', `${folder} cannot be locked: ${wordsOf(error)}`, { source: 'ours', cause: error })
    complain(error)
  }
  checkLater()
  return () => {
    isReleased = true
    cancel()
    if (lock) rmSync(recordOf(folder), { force: true })
    lock?.release()
  }
}

function cannotWrite(path: string, cause: Error): Failure {
  const code = codeOf(cause) ?? cause.message
  const said = ['EEXIST', 'ENOTDIR'].includes(code)
    ? `${path} is not a folder: a file is in its place, or in the place of one above it (expected a folder, or a path where one can be made)`
    : `${path} cannot be written to by ${user()}: ${code} (expected a folder of that user, or another folder)`
  return new Failure('disk-error', said, { source: 'ours', cause })
}

/** In a container the user may be a number without a name. */
function user(): string {
  const uid = process.getuid?.()
  try {
    const { username } = userInfo()
    return uid === undefined ? `user ${username}` : `user ${username} (${uid})`
  } catch {
    return `user ${uid}`
  }
}

/** The owner's record, for people: the lock alone decides. */
type OwnerRecord = { readonly pid: number; readonly host: string; readonly since: string }

function writeRecord(folder: string, clock: Clock): void {
  const record: OwnerRecord = { pid: process.pid, host: hostname(), since: new Date(clock.now()).toISOString() }
  try {
    writeFileSync(recordOf(folder), `${JSON.stringify(record)}\n`)
  } catch {
    // Without the record, the next process only says that another one has the folder.
  }
}

async function takenBy(folder: string): Promise<Failure> {
  let who = 'another process'
  try {
    const { pid, host, since } = JSON.parse(await readFile(recordOf(folder), 'utf8')) as OwnerRecord
    who = `process ${pid} on ${host} since ${since}`
  } catch {}
  const said = `${folder} is in use by another cidgate: ${who} (expected one process to a folder: stop that one, or set another folder)`
  return new Failure('refused', said, { source: 'ours' })
}

interface Lock {
  /** True while the locked file is in its place. */
  isInPlace(): Promise<boolean>
  release(): void
}

/** Never waits. Rejects with an error of the engine. */
export async function lockFile(file: string): Promise<Lock> {
  const locked = openLock(file)
  const { dev, ino } = await stat(file)
  return {
    isInPlace: () =>
      stat(file).then(
        (found) => found.dev === dev && found.ino === ino,
        () => false,
      ),
    release: () => locked.close(),
  }
}
