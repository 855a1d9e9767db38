// A process with more than its share of the connections lets go of some, each behind an answer: their clients come again, and
// most of them to another process.
import type { Clock } from '../../core/clock.ts'

export interface LettingGo {
  /** The connection of this answer ends with it. */
  next(): boolean
  close(): void
}

const everyMs = 250

/** `beyondShare`: how many connections this process has too many, now. */
export function createLettingGo(clock: Clock, beyondShare: () => number): LettingGo {
  let left = 0
  let cancel = () => {}
  function look(): void {
    left = beyondShare()
    cancel = clock.after(everyMs, look)
  }
  look()
  return {
    next() {
      if (left === 0) return false
      left--
      return true
    },
    close: () => cancel(),
  }
}
