// How long something is left alone that failed: doubled with each failure in a row, up to a bound.
import type { Clock } from './clock.ts'

export interface Backoff {
  /** Until it may be tried again; 0: now. */
  readonly remainingMs: number
  /**
   * `askedMs`: the wait that the other side asked for, which counts instead of ours, up to the same
   * bound.
   */
  failed(askedMs?: number): void
  succeeded(): void
}

export function createBackoff({
  clock,
  firstMs,
  maxMs,
}: {
  readonly clock: Clock
  readonly firstMs: number
  readonly maxMs: number
}): Backoff {
  let nextMs = firstMs
  let until = Number.NEGATIVE_INFINITY
  return {
    get remainingMs() {
      return Math.max(0, until - clock.monotonic())
    },
    failed(askedMs) {
      until = clock.monotonic() + Math.min(maxMs, askedMs ?? nextMs)
      nextMs = Math.min(maxMs, nextMs * 2)
    },
    succeeded() {
      nextMs = firstMs
      until = Number.NEGATIVE_INFINITY
    },
  }
}
