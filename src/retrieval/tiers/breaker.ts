// Keeps calls away from something that keeps failing, and lets one through now and then to see whether it is back. Time
// comes in from outside; nothing runs here.
import type { Clock } from '../../core/clock.ts'

/** Leave to make one call. Exactly one outcome counts, but good news after bad (late, not lost) is believed. */
export interface Permit {
  succeeded(): void
  failed(): void
  /** Nothing was learned: the caller left, or asked for something impossible. */
  cancelled(): void
}

export interface Breaker {
  readonly state: 'closed' | 'open' | 'trying'
  /** Undefined: do not call now. */
  enter(): Permit | undefined
  /** Until the next trial; 0 when closed. */
  readonly retryAfterMs: number
  /** Opens at once: something else has found out that it is no use. */
  trip(): void
}

export type BreakerOptions = {
  readonly clock: Clock
  /** Failures in a row that open it. */
  readonly failures?: number
  /** Until the first trial; doubles with each that fails. */
  readonly firstMs?: number
  readonly mostMs?: number
  readonly onChange?: (state: 'open' | 'closed') => void
}

export function createBreaker(options: BreakerOptions): Breaker {
  const { clock, failures: most = 3, firstMs = 1000, mostMs = 30_000, onChange } = options
  let failures = 0
  let backOffMs = firstMs
  let openUntil: number | undefined
  let trial: Permit | undefined

  function open(): void {
    const isNew = openUntil === undefined
    openUntil = clock.monotonic() + backOffMs
    backOffMs = Math.min(backOffMs * 2, mostMs)
    trial = undefined
    if (isNew) onChange?.('open')
  }

  function close(): void {
    failures = 0
    backOffMs = firstMs
    trial = undefined
    if (openUntil === undefined) return
    openUntil = undefined
    onChange?.('closed')
  }

  function permit(): Permit {
    let isFailed = false
    const own: Permit = {
      succeeded: close,
      failed() {
        if (isFailed) return
        isFailed = true
        if (trial === own) return open()
        // A call that began before the breaker opened has nothing to add.
        if (openUntil === undefined && ++failures >= most) open()
      },
      cancelled() {
        if (trial === own) trial = undefined
      },
    }
    return own
  }

  return {
    get state() {
      if (openUntil === undefined) return 'closed'
      return trial ? 'trying' : 'open'
    },
    enter() {
      if (openUntil === undefined) return permit()
      if (trial || clock.monotonic() < openUntil) return undefined
      trial = permit()
      return trial
    },
    get retryAfterMs() {
      return openUntil === undefined ? 0 : Math.max(0, openUntil - clock.monotonic())
    },
    trip() {
      if (openUntil === undefined) open()
    },
  }
}
