// Clients that ignore `Retry-After` are throttled. Each refusal costs little, and a flood of them makes every other client wait: so
// their connection is not read for a while, for longer each time. A client that waits as long as the refusal said is not.
import type { Clock } from '../core/clock.ts'

export interface Throttle {
  /** The `ordinal`th request of this connection was told to come later. */
  refused(throttled: Throttled, ordinal: number): void
  /** Its answer is out, and the connection goes on. */
  answered(throttled: Throttled): void
  /** How often a connection was not read for a while. */
  readonly held: number
}

/** A connection: `refusals` is kept for `Throttle`. */
export interface Throttled {
  refusals: Refusals | undefined
  /** It is read again when `release` is called. */
  hold(): void
  release(): void
}

/** Refusals in a row; `at`: of the last one, or of the moment in which it was read again. */
export type Refusals = { count: number; at: number; ordinal: number }

/** A page asks for a few things at once. */
const free = 2
const firstMs = 100
/** `Retry-After` is a second at least. */
const maxMs = 1000
/** More or less than that: those who were refused together are not to come back together. */
const jitter = 0.25
/** Read again in one turn of the loop, which answers each of them before it comes to anybody else. */
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
