// A lock on a folder that the operating system takes back when the process ends, however it ends: that of an empty SQLite
// file, the one way to such a lock in Node. It holds between containers, too, where every process may have the number 1.
import { stat } from 'node:fs/promises'
import { type Facts, Failure } from '../core/failure.ts'

export interface Lock {
  /** Whether the file that is locked is still the one at its place. */
  isInPlace(): Promise<boolean>
  release(): void
}

/** `taken`: by another process. `no-locks`: there are none on this file system. `unwritable`: the file cannot be made. */
export type LockTrouble = Facts['trouble']

export const troubleOf = (error: unknown): LockTrouble | undefined =>
  error instanceof Failure ? error.facts.trouble : undefined

/** Never waits. Rejects where it cannot be had, with a Failure that has a trouble. */
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

/** Where Node still calls it an experiment, the line that says so is for nobody who runs a gateway. */
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
