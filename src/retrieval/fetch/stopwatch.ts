// Measures how long readers waited for upstreams. The clock runs only while a reader waits, and hardly while this process is
// busy: bytes that an upstream has sent may lie in our own buffer then.
import type { Clock } from '../../core/clock.ts'

export interface Stopwatch {
  run(): void
  stop(): void
  readonly ms: number
}

const busyCounts = 0.1

export function createStopwatch(clock: Clock): Stopwatch {
  let sum = 0
  let since: number | undefined
  const now = (): number => clock.idle() * (1 - busyCounts) + clock.monotonic() * busyCounts
  return {
    run() {
      since ??= now()
    },
    stop() {
      if (since !== undefined) sum += now() - since
      since = undefined
    },
    get ms() {
      return sum + (since === undefined ? 0 : now() - since)
    },
  }
}
