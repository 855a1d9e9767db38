// The time of one request: until its first byte goes out there is one deadline for everything it asks, whoever is asked;
// from then on each block has its own.
import type { CID } from 'multiformats/cid'
import type { Clock } from '../core/clock.ts'
import { cancelled, isFailure } from '../core/failure.ts'
import { outOfTime } from './session-failures.ts'

export interface RequestClock {
  /** `work`, until this request is out of time or its client is gone. The work's own signal aborts then. */
  inTime<T>(cid: CID, work: (own: AbortSignal) => Promise<T>): Promise<T>
  begun(): void
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
    async inTime(cid, work) {
      const own = new AbortController()
      const leave = () => own.abort(isFailure(signal.reason) ? signal.reason : cancelled())
      const ms = hasBegun ? options.blockDeadlineMs : Math.max(0, deadlineAt - clock.monotonic())
      const stop = clock.after(ms, () => own.abort(outOfTime(cid, ms)))
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
