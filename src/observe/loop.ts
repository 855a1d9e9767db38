// Measures event loop delay. It must be closed: Node goes on measuring otherwise.
import { monitorEventLoopDelay } from 'node:perf_hooks'

export interface LoopWatch {
  /** The 99th percentile since the last read. */
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
