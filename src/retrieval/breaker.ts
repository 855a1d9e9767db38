// Something that fails again and again is left alone for a while, then tried once: 1 s at first, doubling to 30 s.
import type { Clock } from '../clock.ts'

export interface Breaker {
  /** `closed`: go on. `open`: leave it. `trial`: this once, to see whether it is back; say how it went. */
  ask(): 'closed' | 'open' | 'trial'
  succeeded(): void
  failed(): void
  readonly isOpen: boolean
}

const firstPauseMs = 1_000
const mostPauseMs = 30_000

export function createBreaker(options: {
  readonly failures: number
  readonly clock: Clock
  readonly onChange?: (isOpen: boolean) => void
}): Breaker {
  const { failures, clock, onChange } = options
  let inARow = 0
  let pauseMs = firstPauseMs
  let until: number | undefined
  let trying = false
  return {
    ask() {
      if (until === undefined) return 'closed'
      if (trying || clock.monotonic() < until) return 'open'
      trying = true
      return 'trial'
    },
    succeeded() {
      inARow = 0
      trying = false
      pauseMs = firstPauseMs
      if (until === undefined) return
      until = undefined
      onChange?.(false)
    },
    failed() {
      inARow++
      const wasOpen = until !== undefined
      if (!wasOpen && inARow < failures) return
      if (wasOpen && !trying) return // it was on its way when the breaker opened
      trying = false
      until = clock.monotonic() + pauseMs
      pauseMs = Math.min(mostPauseMs, pauseMs * 2)
      if (!wasOpen) onChange?.(true)
    },
    get isOpen() {
      return until !== undefined
    },
  }
}
