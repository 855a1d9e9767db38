// The real time, as far ahead as a test wants: timers run as ever, and what has a date grows old at once.
import { type Clock, systemClock } from '../../src/core/clock.ts'

export interface ShiftedClock extends Clock {
  shift(ms: number): void
}

export function createShiftedClock(): ShiftedClock {
  let ahead = 0
  return {
    ...systemClock,
    now: () => systemClock.now() + ahead,
    monotonic: () => systemClock.monotonic() + ahead,
    shift(ms) {
      ahead += ms
    },
  }
}
