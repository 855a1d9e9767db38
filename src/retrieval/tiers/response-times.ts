// The response times of one tier, and how long its answer is worth waiting for: as long as it usually takes, at most for so long, less
// where it has mostly had nothing lately, and not at all once two callers in a row went on without its answer and one call is late.
import type { Clock } from '../../core/clock.ts'
import { createLastFew } from '../last-few.ts'

export type ResponseTimesOptions = {
  readonly clock: Clock
  /** Before anything is known. */
  readonly firstMs: number
  /** However quick it usually is, this is not slow. */
  readonly leastMs: number
  /** An answer is due after so many times what it usually takes. */
  readonly factor: number
  /** A tier that usually takes longer is not waited for. */
  readonly mostMs: number
  /** A call that takes longer is given up. */
  readonly deadlineMs: number
}

export interface ResponseTimes {
  /** An answer, so long after its call had begun. `had`: whether it had what was asked, where that is the question. */
  answered(ms: number, had?: boolean): void
  /** A caller goes on without the answer, which is not due yet. */
  leftEarly(): void
  /** A call that has had `dueMs` and no answer. */
  overdue(): void
  /** An answer is due after this. */
  readonly dueMs: number
  /** A call that takes longer than this is slow, for this tier. */
  readonly slowMs: number
  /** How long a caller waits before the next tier or an upstream is asked too. */
  readonly patienceMs: number
  /** The same for a read: it may find nothing. */
  readonly readPatienceMs: number
}

const kept = 32
const forgetMs = 300_000
const leastSlowMs = 400
const slowFactor = 2
const mostOverdue = 2
const shareKept = 0.6

export function createResponseTimes({
  clock,
  firstMs,
  leastMs,
  factor,
  mostMs,
  deadlineMs,
}: ResponseTimesOptions): ResponseTimes {
  const last = createLastFew(kept)
  let usualMs: number | undefined
  let quickMs = 0
  let at = clock.monotonic()
  let overdueInRow = 0
  let leftInRow = 0
  /** How many of the last reads found something, the latest counting most. */
  let hadShare = 1

  function patience(): number {
    const ms = due()
    const isSilent = overdueInRow >= mostOverdue || (overdueInRow > 0 && leftInRow >= mostOverdue)
    return isSilent || ms > mostMs ? 0 : ms
  }

  function due(): number {
    if (usualMs !== undefined && clock.monotonic() - at > forgetMs) {
      last.clear()
      usualMs = undefined
    }
    return Math.min(deadlineMs, usualMs === undefined ? firstMs : Math.max(leastMs, usualMs * factor))
  }

  return {
    answered(ms, had) {
      if (had !== undefined) hadShare = hadShare * shareKept + (had ? 1 - shareKept : 0)
      overdueInRow = leftInRow = 0
      at = clock.monotonic()
      last.add(ms)
      // 90 of 100 came within this.
      usualMs = last.quantile(0.9)
      quickMs = last.quantile(0.1) ?? 0
    },
    leftEarly() {
      leftInRow++
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
      return patience()
    },
    get readPatienceMs() {
      const ms = Math.max(leastMs, due() * hadShare)
      // To wait for less than its quickest answers take would only delay the caller.
      return ms < quickMs ? 0 : Math.min(patience(), ms)
    },
  }
}
