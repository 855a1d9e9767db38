// Where the event loop has no core beside it, V8's helper takes turns with it for as long as it marks the heap: the loop comes first.
import { readdirSync, readFileSync } from 'node:fs'
import { availableParallelism, getPriority, setPriority } from 'node:os'

// A third of the loop's share. With less, the loop waits for it at the end of each mark.
const behind = 5
const lowest = 19
const tasks = '/proc/self/task'

/** Linux alone has priorities for threads. Where it is not allowed, or they have no names (Node 22), nothing happens. */
export function putHelpersBehindTheLoop(cores = availableParallelism()): void {
  if (process.platform !== 'linux' || cores > 1) return
  try {
    for (const thread of readdirSync(tasks).map(Number))
      if (/^(?:node-)?V8Worker\n$/.test(readFileSync(`${tasks}/${thread}/comm`, 'utf8')))
        setPriority(thread, Math.min(lowest, getPriority(thread) + behind))
  } catch {}
}
