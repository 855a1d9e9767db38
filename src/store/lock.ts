// A lock on a folder that the operating system releases when the process ends, however it ends: the lock of an empty
// SQLite file, the only such lock in Node. It also holds between containers, where every process may have pid 1.
import { stat } from 'node:fs/promises'
import { type Facts, Failure, wordsOf } from '../core/failure.ts'
import { type Connection, openLock, type Trouble, troubleOf } from './engine.ts'

export interface Lock {
  /** Whether the locked file is still in its place. */
  isInPlace(): Promise<boolean>
  release(): void
}

/** `taken`: by another process. `no-locks`: there are none on this file system. `unwritable`: the file cannot be made. */
export type LockTrouble = Facts['trouble']

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
