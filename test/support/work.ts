// What a piece of work costs, however busy the machine is with other things.
import assert from 'node:assert/strict'

/** Milliseconds of this thread's processor time. The work may not wait for anything. */
export function workMs(work: () => void): number {
  const before = process.threadCpuUsage()
  work()
  const { user, system } = process.threadCpuUsage(before)
  return (user + system) / 1000
}

/** The least of three, since V8 may collect the garbage of other tests meanwhile. The work must be the same each time. */
export const calmestWorkMs = (work: () => void): number => Math.min(workMs(work), workMs(work), workMs(work))

/** Asserts that it takes less than this. A machine that is busy for a moment makes it slow once, and not three times. */
export async function takesLess(maxMs: number, measure: () => Promise<number>): Promise<void> {
  const took: number[] = []
  while (took.length < 3) {
    const ms = await measure()
    if (ms < maxMs) return
    took.push(Math.round(ms))
  }
  assert.fail(`it took ${took.join(', ')} ms, and has to take less than ${maxMs}`)
}
