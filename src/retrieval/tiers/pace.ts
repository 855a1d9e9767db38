// How long one tier takes, and how long its answer is worth waiting for: as long as it usually takes, at most for so long,
// and not at all once it has left two calls in a row unanswered.
import type { Clock } from '../../core/clock.ts'

export type PaceOptions = {
  readonly clock: Clock
  /** Before anything is known. */
  readonly firstMs: number
  /** However quick it usually is, this is not slow. */
  readonly leastMs: number
  /** An answer is due after so many times what it usually takes. */
  readonly factor: number
  /** Who usually takes longer is not waited for. */
  readonly mostMs: number
  /** A call that takes longer is given up. */
  readonly deadlineMs: number
}

export interface Pace {
  /** An answer, so long after its call had begun. */
  answered(ms: number): void
  /** A call that has had `dueMs` and no answer. */
  overdue(): void
  /** An answer is due after this. */
  readonly dueMs: number
  /** A call that takes longer than this is slow, for this tier. */
  readonly slowMs: number
  /** What a caller waits before somebody else is asked too. */
  readonly patienceMs: number
}

const kept = 32
const forgetMs = 300_000
const leastSlowMs = 400
const slowFactor = 2
const mostOverdue = 2

export function createPace({ clock, firstMs, leastMs, factor, mostMs, deadlineMs }: PaceOptions): Pace {
  let last: number[] = []
  let usualMs: number | undefined
  let at = clock.monotonic()
  let overdueInRow = 0

  function due(): number {
    if (usualMs !== undefined && clock.monotonic() - at > forgetMs) {
      last = []
      usualMs = undefined
    }
    return Math.min(deadlineMs, usualMs === undefined ? firstMs : Math.max(leastMs, usualMs * factor))
  }

  return {
    answered(ms) {
      overdueInRow = 0
      at = clock.monotonic()
      if (last.push(ms) > kept) last.shift()
      // 90 of 100 came within this.
      usualMs = [...last].sort((one, other) => one - other)[Math.floor(last.length * 0.9)]
    },
    overdue() {
      overdueInRow++
    },
    get dueMs() {
      return due()
    },
    get slowMs() {
      return Math.min(deadlineMs, Math.max(leastSlowMs, due() * slowFactor))
    },
    get patienceMs() {
      const ms = due()
      return overdueInRow >= mostOverdue || ms > mostMs ? 0 : ms
    },
  }
}
