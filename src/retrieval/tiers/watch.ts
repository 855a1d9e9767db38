// The watch over the calls of one kind (reads, or writes) to one tier: how long a call is waited for, which ones count against the
// tier, and whether it is asked at all now. A clock of ours that rings late tells of our own delay, and is set again.
import type { Call } from '../../../backends/tiers/contract.ts'
import { orAborted } from '../../core/deadline.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { type Breaker, createBreaker, type Permit } from './breaker.ts'
import { createResponseTimes, type ResponseTimesOptions } from './response-times.ts'
import { type CallOptions, type CallsShared, type LiveCall, startCall, type TierWork } from './watched-call.ts'

export type WatchOptions = CallOptions &
  ResponseTimesOptions & {
    readonly breaker: { readonly failures?: number; readonly firstMs?: number; readonly mostMs?: number }
    readonly onChange: (state: 'open' | 'closed', reason: string) => void
  }

export interface Watch {
  /** `hadIt`, of a read: whether the answer is that there is something. */
  run<T>(
    signal: AbortSignal | undefined,
    call: Call | undefined,
    work: TierWork<T>,
    hadIt?: (answer: T) => boolean,
  ): Promise<T>
  /** Something else has found out that the tier is no use. */
  trip(reason: string): void
  readonly isOpen: boolean
  readonly patienceMs: number
  /** Calls that failed or took too long. */
  readonly failures: number
}

const mostAtOnce = 8192

export function createWatch(options: WatchOptions): Watch {
  const { clock, name } = options
  const times = createResponseTimes(options)
  const breaker: Breaker = createBreaker({ ...options.breaker, clock, onChange: changed })
  const live = new Set<LiveCall>()
  const shared: CallsShared = { options, times, live, strays: new Set(), blame }
  let reason = ''
  let failures = 0

  /** Releases all callers that wait for the tier, and cancels its calls that are still in our queue. */
  function changed(state: 'open' | 'closed'): void {
    options.onChange(state, reason)
    if (state === 'closed') return
    for (const one of live) {
      one.tell()
      if (!one.hasBegun()) one.end(passedOver(name, breaker.retryAfterMs))
    }
  }

  function blame(error: unknown, permit: Permit): void {
    failures++
    reason = isFailure(error) ? error.message : 'an unexpected error'
    permit.failed()
  }

  return {
    async run(signal, call, work, hadIt) {
      signal?.throwIfAborted()
      if (live.size >= mostAtOnce) throw crowded(name)
      const isTrial = breaker.state !== 'closed'
      const permit = breaker.enter() ?? (call?.anyway ? notAsked : undefined)
      if (!permit) throw passedOver(name, breaker.retryAfterMs)
      const isWaitedFor = !isTrial || call?.anyway === true
      const { over, leave } = startCall(shared, permit, isWaitedFor ? call?.overdue : undefined, work, hadIt)
      if (!isWaitedFor) throw passedOver(name, breaker.retryAfterMs)
      try {
        return await orAborted(signal, over)
      } catch (error) {
        if (signal?.aborted) leave(error)
        throw error
      }
    },
    trip(why) {
      reason = why
      breaker.trip()
    },
    get isOpen() {
      return breaker.state !== 'closed'
    },
    get patienceMs() {
      return breaker.state === 'closed' ? times.patienceMs : 0
    },
    get failures() {
      return failures
    },
  }
}

/** The permit of a call that a breaker did not let through: it says nothing to it. */
const notAsked: Permit = { succeeded() {}, failed() {}, cancelled() {} }

const passedOver = (name: string, retryAfterMs: number): Failure =>
  new Failure('unavailable', `tier ${name} is passed over: its last calls failed`, { source: 'tier', retryAfterMs })

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: more than ${mostAtOnce} calls wait for it`, { source: 'tier' })
