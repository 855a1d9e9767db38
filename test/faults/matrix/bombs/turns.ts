// Loaded before a gateway by `--import`, for the fault matrix: how long a turn of its event loop takes, by the clock, and by what its thread
// works in it, of which a busy machine makes no more. At SIGUSR2 it writes the longest ones into a file and begins anew.
import { renameSync, writeFileSync } from 'node:fs'
import { isMainThread } from 'node:worker_threads'

export type Turns = {
  readonly longestMs: number
  /** Of processor time, the collector of garbage included where it stops the thread. */
  readonly maxWorkMs: number
}

/** Names the file. */
export const turnsTo = 'CIDGATE_TEST_TURNS_TO'

const file = process.env[turnsTo]
if (file !== undefined && isMainThread) {
  const workedMs = (): number => {
    const { user, system } = process.threadCpuUsage()
    return (user + system) / 1000
  }
  let [at, worked, longestMs, maxWorkMs] = [performance.now(), workedMs(), 0, 0]
  // A turn begins with the timers that are due, and this one always is when the turn before took as long as a millisecond.
  setInterval(() => {
    const [now, sum] = [performance.now(), workedMs()]
    longestMs = Math.max(longestMs, now - at)
    maxWorkMs = Math.max(maxWorkMs, sum - worked)
    at = now
    worked = sum
  }, 1).unref()
  process.on('SIGUSR2', () => {
    // Whole, when it is there.
    writeFileSync(`${file}.new`, JSON.stringify({ longestMs, maxWorkMs } satisfies Turns))
    renameSync(`${file}.new`, file)
    longestMs = 0
    maxWorkMs = 0
  })
}
