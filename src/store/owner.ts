// This process as the owner of a folder: the lock, a file beside it that names the owner, and a check now and then that
// the folder was not removed.
import { rmSync, writeFileSync } from 'node:fs'
import { readFile, stat } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'
import type { Clock } from '../core/clock.ts'
import { createShared, makeFolders } from '../core/disk/files.ts'
import { type Facts, Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { type Connection, openLock, type Trouble, troubleOf } from './engine.ts'

interface Owner {
  release(): void
}

/** Leaves the folder; the last gateway of the process releases it. */
export type Leave = () => Promise<void>

/** The owner's record, for people: the lock alone decides. */
export type OwnerRecord = { readonly pid: number; readonly host: string; readonly since: string }

export type OwnerOptions = {
  readonly clock: Clock
  readonly log: Log
  /** The disk is full: the folder is read all the same, and locked when there is room. */
  readonly isFull: boolean
}

const checkMs = 10_000
const recordMs = 1000
const recordPollMs = 50

const lockOf = (folder: string): string => join(folder, 'owner.lock')
const recordOf = (folder: string): string => join(folder, 'owner.json')

/** The lock of a folder, shared by the gateways of this process. Rejects as `own` does. */
export function createOwnership(folder: string): (options: OwnerOptions) => Promise<Leave> {
  const join = createShared<OwnerOptions, Promise<Owner>>(
    (options) => own(folder, options),
    async (owning) => (await owning.catch(() => undefined))?.release(),
  )
  return async (options) => {
    const { one, leave } = join(options)
    try {
      await one
      return leave
    } catch (error) {
      await leave()
      throw error
    }
  }
}

/** Rejects as `lockFile` does, except where the file system has no locks, or has no room for one yet. */
async function own(folder: string, { clock, log, isFull }: OwnerOptions): Promise<Owner> {
  let lock: Lock | undefined
  let released = false
  let said = ''
  let cancel = () => {}

  async function take(): Promise<void> {
    await makeFolders(folder)
    const taken = await lockFile(lockOf(folder))
    if (released) return taken.release()
    lock = taken
    said = ''
    writeRecord(folder, clock)
  }

  function complain(error: unknown): void {
    const why = error instanceof Error ? error.message : String(error)
    if (why !== said) log('error', 'data.lock-failed', { folder, why })
    said = why
  }

  /** A process that removes the folder removes the lock with it: lock its replacement. */
  async function check(): Promise<void> {
    if (await lock?.isInPlace()) return
    lock?.release()
    lock = undefined
    await take().catch(complain)
  }

  function checkLater(): void {
    cancel = clock.after(checkMs, () => {
      void check().finally(() => {
        if (!released) checkLater()
      })
    })
  }

  await take().catch((error: unknown) => {
    const trouble = lockTroubleOf(error)
    if (trouble !== 'no-locks' && !(isFull && trouble === 'unwritable')) throw error
    complain(error)
  })
  checkLater()
  return {
    release() {
      released = true
      cancel()
      if (lock) rmSync(recordOf(folder), { force: true })
      lock?.release()
    },
  }
}

function writeRecord(folder: string, clock: Clock): void {
  const record: OwnerRecord = { pid: process.pid, host: hostname(), since: new Date(clock.now()).toISOString() }
  try {
    writeFileSync(recordOf(folder), `${JSON.stringify(record)}\n`)
  } catch {
    // Without the record, the next process only says that another one has the folder.
  }
}

/** The record of a locked folder. The lock may be new and the record about to be written, so wait a moment. */
export async function recordIn(folder: string, clock: Clock): Promise<OwnerRecord | undefined> {
  for (const until = clock.monotonic() + recordMs; ; await clock.sleep(recordPollMs)) {
    const record = await readRecord(folder)
    if (record || clock.monotonic() >= until) return record
  }
}

async function readRecord(folder: string): Promise<OwnerRecord | undefined> {
  try {
    const { pid, host, since } = JSON.parse(await readFile(recordOf(folder), 'utf8')) as OwnerRecord
    return { pid, host, since }
  } catch {
    return undefined
  }
}

// A lock on a folder that the operating system releases when the process ends, however it ends: the lock of an empty
// SQLite file, the only such lock in Node. It also holds between containers, where every process may have pid 1.

interface Lock {
  /** True while the locked file is in its place. */
  isInPlace(): Promise<boolean>
  release(): void
}

/** `taken`: by another process. `no-locks`: there are none on this file system. `unwritable`: the file cannot be made. */
type LockTrouble = Facts['trouble']

export const lockTroubleOf = (error: unknown): LockTrouble | undefined =>
  error instanceof Failure ? error.facts.trouble : undefined

/** Never waits. Rejects with a Failure that has a `trouble`. */
export async function lockFile(file: string): Promise<Lock> {
  let locked: Connection
  try {
    locked = openLock(file)
  } catch (cause) {
    throw trouble(
      troubles[troubleOf(cause) ?? 'full'] ?? 'unwritable',
      `${file} cannot be locked: ${wordsOf(cause)}`,
      cause,
    )
  }
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

const troubles: Readonly<Partial<Record<Trouble, LockTrouble>>> = {
  taken: 'taken',
  failing: 'no-locks',
  'no-locks': 'no-locks',
}

const trouble = (kind: LockTrouble, message: string, cause?: unknown): Failure =>
  new Failure('refused', message, { source: 'ours', cause, facts: { trouble: kind } })
