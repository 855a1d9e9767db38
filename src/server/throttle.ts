// Throttles clients that ignore `Retry-After`. A refusal is cheap, but a flood of them delays every
// other client: so their connection is paused, longer each time. A client that waits as requested
// is never paused.
import type { Clock } from '../core/clock.ts'

export interface Throttle {
  /** The response to the `ordinal`th request of this connection had a Retry-After. */
  refused(throttled: Throttled, ordinal: number): void
  /** Its response was sent, and the connection goes on. */
  answered(throttled: Throttled): void
  /** The number of pauses. */
  readonly held: number
}

/** A connection; `refusals` belongs to `Throttle`. */
export interface Throttled {
  refusals: Refusals | undefined
  /** Pauses reading until `release` is called. */
  hold(): void
  release(): void
}

/** Consecutive refusals. `at`: the time of the last one, or of the last resumption. */
export type Refusals = { count: number; at: number; ordinal: number }

/** A page sends a few requests at once. */
const free = 2
const firstMs = 100
/** `Retry-After` is at least one second. */
const maxMs = 1000
/** Jitter, so that clients refused together do not return together. */
const jitter = 0.25
/** The maximum resumed per event-loop iteration, which handles them all before other events. */
const maxInOneTurn = 32

export function createThrottle({
  clock,
  random = Math.random,
}: {
  readonly clock: Pick<Clock, 'after' | 'monotonic'>
  readonly random?: () => number
}): Throttle {
  let over: Throttled[] = []
  let held = 0

  function readAgain(): void {
    const now = over.slice(0, maxInOneTurn)
    over = over.slice(maxInOneTurn)
    if (over.length > 0) setImmediate(readAgain)
    for (const one of now) {
      if (one.refusals) one.refusals.at = clock.monotonic()
      one.release()
    }
  }

  return {
    refused(throttled, ordinal) {
      const at = clock.monotonic()
      const before = throttled.refusals
      const isInARow = before && at - before.at <= maxMs && ordinal <= before.ordinal + 1
      throttled.refusals = { count: isInARow ? before.count + 1 : 1, at, ordinal }
    },
    answered(throttled) {
      const { count = 0 } = throttled.refusals ?? {}
      if (count <= free) return
      held++
      throttled.hold()
      const ms = Math.min(maxMs, firstMs * 2 ** (count - free - 1)) * (1 + jitter * (2 * random() - 1))
      clock.after(ms, () => {
        if (over.length === 0) setImmediate(readAgain)
        over.push(throttled)
      })
    },
    get held() {
      return held
    },
  }
}
