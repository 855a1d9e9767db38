// A lock on a folder that the operating system releases when the process ends, however it ends: the lock of an empty
// SQLite file, the only such lock in Node. It also holds between containers, where every process may have pid 1.
import { stat } from 'node:fs/promises'
import { type Facts, Failure } from '../core/failure.ts'

export interface Lock {
  /** Whether the locked file is still in its place. */
  isInPlace(): Promise<boolean>
  release(): void
}

/** `taken`: by another process. `no-locks`: there are none on this file system. `unwritable`: the file cannot be made. */
export type LockTrouble = Facts['trouble']

export const troubleOf = (error: unknown): LockTrouble | undefined =>
  error instanceof Failure ? error.facts.trouble : undefined

/** Never waits. Rejects with a Failure that has a `trouble`. */
export async function lockFile(file: string): Promise<Lock> {
  const { DatabaseSync } = sqlite()
  let database: InstanceType<typeof DatabaseSync> | undefined
  try {
    database = new DatabaseSync(file)
    database.exec('PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE')
  } catch (cause) {
    database?.close()
    throw notLocked(file, cause)
  }
  const locked = database
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

/** Suppresses Node's warning that node:sqlite is experimental: operators cannot act on it. */
function sqlite(): typeof import('node:sqlite') {
  const { emitWarning } = process
  process.emitWarning = () => {}
  try {
    const found = process.getBuiltinModule('node:sqlite')
    if (!found) throw trouble('no-locks', 'this Node was built without node:sqlite')
    return found
  } finally {
    process.emitWarning = emitWarning
  }
}

// Result codes of SQLite.
const troubles: Readonly<Record<number, LockTrouble>> = { 5: 'taken', 6: 'taken', 10: 'no-locks', 22: 'no-locks' }

function notLocked(file: string, cause: unknown): Failure {
  const code = cause instanceof Error && 'errcode' in cause ? Number(cause.errcode) & 0xff : Number.NaN
  const why = cause instanceof Error ? cause.message : 'an unknown error'
  return trouble(troubles[code] ?? 'unwritable', `${file} cannot be locked: ${why}`, cause)
}

const trouble = (kind: LockTrouble, message: string, cause?: unknown): Failure =>
  new Failure('refused', message, { source: 'ours', cause, facts: { trouble: kind } })
