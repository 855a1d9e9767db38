// The real time, as far ahead as a test wants (timers run as ever, and what has a date grows old at once), and with more
// patience than a gateway has.
import { type Clock, systemClock } from '../../src/core/clock.ts'

const slower = 30
/** A longer timer would fire at once. */
const maxMs = 2 ** 31 - 1

export interface ShiftedClock extends Clock {
  shift(ms: number): void
}

/** With `still`, dates stand but for `shift`, and ages hardly grow: seconds of a busy machine do not show in a `max-age`. */
export function createShiftedClock({ still = false } = {}): ShiftedClock {
  let ahead = 0
  const began = systemClock.now()
  return {
    ...systemClock,
    now: () => (still ? began : systemClock.now()) + ahead,
    monotonic: () => systemClock.monotonic() / (still ? slower : 1) + ahead,
    shift(ms) {
      ahead += ms
    },
  }
}

/**
 * Runs at a thirtieth of the speed. On a busy machine a disk is late, and what is late has others asked beside it: with this
 * clock a test may say who was asked.
 */
export const patientClock: Clock = {
  ...systemClock,
  monotonic: () => systemClock.monotonic() / slower,
  idle: () => systemClock.idle() / slower,
  after: (ms, action) => systemClock.after(Math.min(ms * slower, maxMs), action),
  sleep: (ms, signal) => systemClock.sleep(Math.min(ms * slower, maxMs), signal),
}
