// Lowers the priority of V8's helper threads on a single core, where heap marking would compete
// with the event loop.
import { readdirSync, readFileSync } from 'node:fs'
import { availableParallelism, getPriority, setPriority } from 'node:os'

// A third of the loop's share. With less, the loop waits for the helpers at the end of each mark.
const behind = 5
const lowest = 19
const tasks = '/proc/self/task'

/**
 * Works on Linux only. Does nothing if it is not permitted, or if threads have no names (Node 22).
 */
export function lowerHelperPriority(cores = availableParallelism()): void {
  if (process.platform !== 'linux' || cores > 1) return
  try {
    for (const thread of readdirSync(tasks).map(Number))
      if (/^(?:node-)?V8Worker\n$/.test(readFileSync(`${tasks}/${thread}/comm`, 'utf8')))
        setPriority(thread, Math.min(lowest, getPriority(thread) + behind))
  } catch {}
}
