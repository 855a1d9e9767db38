// What a piece of work costs, however busy the machine is with other things.

/** Milliseconds of this thread's processor time. The work may not wait for anything. */
export function workMs(work: () => void): number {
  const before = process.threadCpuUsage()
  work()
  const { user, system } = process.threadCpuUsage(before)
  return (user + system) / 1000
}
