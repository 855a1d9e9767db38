// How late the event loop is. Whoever watches it stops at the end: Node goes on measuring for a watch that nobody reads.
import { monitorEventLoopDelay } from 'node:perf_hooks'

export interface LoopWatch {
  /** The 99th percentile since the last look. */
  p99Seconds(): number
  close(): void
}

export function watchLoop(): LoopWatch {
  const delay = monitorEventLoopDelay({ resolution: 20 })
  delay.enable()
  return {
    p99Seconds() {
      const seconds = delay.percentile(99) / 1e9
      delay.reset()
      return seconds
    },
    close: () => void delay.disable(),
  }
}
