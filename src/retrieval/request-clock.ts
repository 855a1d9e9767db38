// The deadlines of one request: one for everything until its first byte goes out, then one for each block.
import type { CID } from 'multiformats/cid'
import type { Clock } from '../core/clock.ts'
import { cancelled, type Failure, isFailure } from '../core/failure.ts'
import { noTimeLeft, outOfTime } from './session-failures.ts'
import type { LoopTurns } from './turns/loop-turns.ts'

// With less than this share of the time left, an upstream is not really asked, so the answer is no proof of absence.
const leastShare = 1 / 8

export interface RequestClock {
  /** Runs `work` until the request is out of time or its client has left; then the work's own signal aborts. */
  inTime<T>(cid: CID, work: (own: AbortSignal) => Promise<T>): Promise<T>
  /** The same for work that goes on without this request. */
  within<T>(cid: CID, work: Promise<T>): Promise<T>
  begun(): void
  /** Less than half of the time is left: a 404 from here on is no proof of absence. */
  isLate(): boolean
  hasBegun(): boolean
  /** Throws where no time is left to ask an upstream. */
  refuseLate(cid: CID): void
  /** It was out of time, and is told so in a turn of the loop that had time for it. */
  hadItsTurn(): boolean
}

export function createRequestClock(options: {
  readonly clock: Clock
  readonly turns: LoopTurns
  readonly signal: AbortSignal
  readonly waitedMs: number
  readonly deadlineMs: number
  readonly blockDeadlineMs: number
}): RequestClock {
  const { clock, turns, signal } = options
  const deadlineAt = clock.monotonic() + options.deadlineMs - options.waitedMs
  let hasBegun = false
  let hadItsTurn = false

  const left = (): Failure => (isFailure(signal.reason) ? signal.reason : cancelled())

  function whenLate(cid: CID, tell: (late: Failure) => void): () => void {
    const ms = hasBegun ? options.blockDeadlineMs : Math.max(0, deadlineAt - clock.monotonic())
    const isTooLate = !hasBegun && ms < options.deadlineMs * leastShare
    let isStopped = false
    // Thousands of requests that wait in vain come to their deadline in one turn of the loop: what follows takes many turns.
    const late = async () => {
      await turns.inLine()
      if (isStopped) return
      hadItsTurn = true
      tell(isTooLate ? noTimeLeft(cid) : outOfTime(cid, ms))
    }
    const stop = clock.after(ms, () => void late())
    return () => {
      isStopped = true
      stop()
    }
  }

  return {
    hasBegun: () => hasBegun,
    refuseLate(cid) {
      if (hasBegun || clock.monotonic() < deadlineAt) return
      // It has stood in a line already.
      hadItsTurn = true
      throw noTimeLeft(cid)
    },
    hadItsTurn: () => hadItsTurn,
    begun() {
      hasBegun = true
    },
    isLate: () => deadlineAt - clock.monotonic() < options.deadlineMs / 2,
    within(cid, work) {
      return new Promise((resolve, reject) => {
        const leave = () => end(() => reject(left()))
        const stop = whenLate(cid, (late) => end(() => reject(late)))
        const end = (settle: () => void) => {
          stop()
          signal.removeEventListener('abort', leave)
          settle()
        }
        signal.addEventListener('abort', leave, { once: true })
        work.then(
          (value) => end(() => resolve(value)),
          (error: unknown) => end(() => reject(error)),
        )
        if (signal.aborted) leave()
      })
    },
    async inTime(cid, work) {
      const own = new AbortController()
      const leave = () => own.abort(left())
      const stop = whenLate(cid, (late) => own.abort(late))
      if (signal.aborted) leave()
      signal.addEventListener('abort', leave, { once: true })
      const ended = Promise.withResolvers<never>()
      own.signal.addEventListener('abort', () => ended.reject(own.signal.reason), { once: true })
      try {
        own.signal.throwIfAborted()
        return await Promise.race([work(own.signal), ended.promise])
      } finally {
        stop()
        signal.removeEventListener('abort', leave)
      }
    },
  }
}
