// Free space on the disk of a folder.
import { statfs } from 'node:fs/promises'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'

const patienceMs = 1000

/** Undefined if the disk does not report it, or not in time. */
export async function roomAt(
  folder: string,
  clock: Clock,
): Promise<{ readonly freeBytes: number; readonly bytes: number } | undefined> {
  const late = () => new Failure('timeout', `${folder} did not answer in time`, { source: 'ours' })
  try {
    const { bavail, blocks, bsize } = await withDeadline({ ms: patienceMs, clock, late }, () => statfs(folder))
    return { freeBytes: bavail * bsize, bytes: blocks * bsize }
  } catch {
    return undefined
  }
}
