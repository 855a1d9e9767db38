// The deadlines of one request: one for everything until its first byte goes out, then one for each block.
import type { CID } from 'multiformats/cid'
import type { Clock } from '../core/clock.ts'
import { cancelled, isFailure } from '../core/failure.ts'
import { noTimeLeft, outOfTime } from './session-failures.ts'

// With less than this share of the time left, an upstream is not really asked, so the answer is no proof of absence.
const leastShare = 1 / 8

export interface RequestClock {
  /** Runs `work` until the request is out of time or its client has left; then the work's own signal aborts. */
  inTime<T>(cid: CID, work: (own: AbortSignal) => Promise<T>): Promise<T>
  begun(): void
  /** Less than half of the time is left: a 404 from here on is no proof of absence. */
  readonly isLate: boolean
  readonly hasBegun: boolean
}

export function createRequestClock(options: {
  readonly clock: Clock
  readonly signal: AbortSignal
  readonly deadlineMs: number
  readonly blockDeadlineMs: number
}): RequestClock {
  const { clock, signal } = options
  const deadlineAt = clock.monotonic() + options.deadlineMs
  let hasBegun = false
  return {
    get hasBegun() {
      return hasBegun
    },
    begun() {
      hasBegun = true
    },
    get isLate() {
      return deadlineAt - clock.monotonic() < options.deadlineMs / 2
    },
    async inTime(cid, work) {
      const own = new AbortController()
      const leave = () => own.abort(isFailure(signal.reason) ? signal.reason : cancelled())
      const ms = hasBegun ? options.blockDeadlineMs : Math.max(0, deadlineAt - clock.monotonic())
      const isTooLate = !hasBegun && ms < options.deadlineMs * leastShare
      const stop = clock.after(ms, () => own.abort(isTooLate ? noTimeLeft(cid) : outOfTime(cid, ms)))
      if (signal.aborted) leave()
      signal.addEventListener('abort', leave, { once: true })
      const left = Promise.withResolvers<never>()
      own.signal.addEventListener('abort', () => left.reject(own.signal.reason), { once: true })
      try {
        own.signal.throwIfAborted()
        return await Promise.race([work(own.signal), left.promise])
      } finally {
        stop()
        signal.removeEventListener('abort', leave)
      }
    },
  }
}
