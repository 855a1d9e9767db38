// So many requests in any minute, and no more: freely while half of them are left, then ever more slowly, so that there
// is never nothing for the rest of a minute.
import type { Clock } from '../../core/clock.ts'

export interface Allowance {
  /** Milliseconds until one may go; 0 when one may go now. */
  readonly waitMs: number
  /** One goes now, whether or not it was its turn. */
  take(): void
  /** How many went in the last minute. */
  readonly used: number
}

const minuteMs = 60_000
const slotMs = 5_000
// How much of what is left may be used up in a minute at most, were it to go on like this.
const haste = 9

export function createAllowance(perMinute: number, clock: Clock): Allowance {
  // The requests of the last minute, by the slot they fell into; the oldest first.
  const slots: { readonly from: number; count: number }[] = []
  let used = 0
  let lastAt = Number.NEGATIVE_INFINITY

  const forget = (now: number) => {
    for (let first = slots[0]; first && now >= first.from + slotMs + minuteMs; first = slots[0]) {
      used -= first.count
      slots.shift()
    }
  }

  return {
    get waitMs() {
      const now = clock.monotonic()
      forget(now)
      const left = perMinute - used
      const [oldest] = slots
      if (left <= 0 && oldest) return oldest.from + slotMs + minuteMs - now
      if (left * 2 > perMinute) return 0
      return Math.max(0, Math.ceil(lastAt + minuteMs / (haste * left) - now))
    },
    get used() {
      forget(clock.monotonic())
      return used
    },
    take() {
      const now = clock.monotonic()
      forget(now)
      const newest = slots.at(-1)
      if (newest && now < newest.from + slotMs) newest.count++
      else slots.push({ from: now, count: 1 })
      used++
      lastAt = now
    },
  }
}
