// The calls of one kind (reads, or writes) to one tier, each with a clock of its own that begins when the call really does:
// first it is no longer waited for, then it counts as slow, once, and in the end it is given up. A clock of ours that rings
// late tells of our own delay, and is set again.
import type { Call } from '../../../backends/tiers/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { orAborted } from '../../core/deadline.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { type Breaker, createBreaker, type Permit } from './breaker.ts'
import { createResponseTimes, type ResponseTimes } from './response-times.ts'

export type WatchOptions = {
  readonly clock: Clock
  /** Of the tier. */
  readonly name: string
  readonly announces: boolean
  /** A call that is slow for this tier counts as a failure at once, and not only when it is given up. */
  readonly slowIsFailure: boolean
  /** A call that fails quickly says nothing about the next one. */
  readonly silenceOnly?: boolean | undefined
  readonly deadlineMs: number
  readonly firstMs: number
  readonly leastMs: number
  readonly factor: number
  readonly mostMs: number
  /** How long a caller waits while its call is in a queue of this process. */
  readonly lineMs: number
  readonly breaker: { readonly failures?: number; readonly firstMs?: number; readonly mostMs?: number }
  readonly onChange: (state: 'open' | 'closed', reason: string) => void
}

/** A call, as the tier makes it. */
export type Work<T> = (signal: AbortSignal, begun: () => void) => Promise<T>

export interface Watch {
  /** `hadIt`, of a read: whether the answer is that there is something. */
  run<T>(
    signal: AbortSignal | undefined,
    call: Call | undefined,
    work: Work<T>,
    hadIt?: (answer: T) => boolean,
  ): Promise<T>
  /** Something else has found out that it is no use. */
  trip(reason: string): void
  readonly isOpen: boolean
  readonly patienceMs: number
  /** Calls that failed or took too long. */
  readonly failures: number
}

type Live = { tell(isWell?: boolean): void; end(reason: unknown): void; readonly hasBegun: boolean }

const mostAtOnce = 8192
const mostStrays = 8
const lateMs = 10
const againMs = 25
// How much longer a caller waits if this process itself was held up: rarely the cause with a remote store, mostly with a disk.
const heldUpMs = { elsewhere: 50, here: 500 } as const

export function createWatch(options: WatchOptions): Watch {
  const { clock, name, announces, slowIsFailure, silenceOnly = false, deadlineMs, lineMs } = options
  const times: ResponseTimes = createResponseTimes(options)
  const breaker: Breaker = createBreaker({ ...options.breaker, clock, onChange: changed })
  const live = new Set<Live>()
  let reason = ''
  let failures = 0
  let strays = 0

  /** Releases all callers that wait for the tier, and cancels its calls that are still in our queue. */
  function changed(state: 'open' | 'closed'): void {
    options.onChange(state, reason)
    if (state === 'closed') return
    for (const one of live) {
      one.tell()
      if (!one.hasBegun) one.end(passedOver(name, breaker.retryAfterMs))
    }
  }

  function blame(error: unknown, permit: Permit): void {
    failures++
    reason = isFailure(error) ? error.message : 'an unexpected error'
    permit.failed()
  }

  /** Rings after `ms` in which we were not held up ourselves; `late` is told of each time we were. */
  function ring(ms: number, action: () => void, late = () => {}): () => void {
    const due = clock.monotonic() + ms
    let stop = clock.after(ms, () => {
      if (clock.monotonic() - due <= lateMs) return action()
      late()
      stop = ring(Math.min(ms, againMs), action, late)
    })
    return () => stop()
  }

  /** If no call to the tier is worth waiting for, the calls in the queue for it are not either. */
  function tellLine(): void {
    if (times.patienceMs === 0) for (const one of live) if (!one.hasBegun) one.tell()
  }

  function start<T>(permit: Permit, overdue: Call['overdue'], work: Work<T>, hadIt?: (answer: T) => boolean) {
    const own = new AbortController()
    const cut = Promise.withResolvers<never>()
    let beganAt: number | undefined
    let isTold = false
    let isLeft = false
    let isBlamed = false
    const one = {
      get hasBegun() {
        return beganAt !== undefined
      },
      tell(isWell = false) {
        if (isTold) return
        isTold = true
        overdue?.(isWell)
      },
      end(why: unknown) {
        own.abort(why)
        cut.reject(why)
      },
      /** Who has waited long enough leaves a call that is worth knowing the end of. */
      leave(why: unknown) {
        if (isLeft) return
        isLeft = true
        if (!isTold || strays >= mostStrays) return one.end(why)
        strays++
        over.catch(() => {}).finally(() => strays--)
      },
    }
    let stop = announces ? clock.after(lineMs, () => one.tell()) : () => {}
    let stopEarly = () => {}
    const begun = () => {
      if (beganAt !== undefined || own.signal.aborted) return
      beganAt = clock.monotonic()
      stop()
      const since = beganAt
      const { patienceMs, readPatienceMs, dueMs, slowMs } = times
      const late = () => {
        if (clock.monotonic() - since > dueMs + (slowIsFailure ? heldUpMs.elsewhere : heldUpMs.here)) one.tell()
      }
      const due = () => {
        times.overdue()
        one.tell()
        tellLine()
        stop = ring(slowMs - dueMs, slow)
      }
      const slow = () => {
        isBlamed = slowIsFailure
        if (isBlamed) blame(silent(name, slowMs), permit)
        stop = ring(deadlineMs - slowMs, () => one.end(silent(name, deadlineMs)))
      }
      // Who usually takes longer than is worth waiting for is not waited for at all.
      if (patienceMs === 0) one.tell()
      else if (hadIt && readPatienceMs < patienceMs) stopEarly = clock.after(readPatienceMs, () => one.tell(true))
      stop = ring(dueMs, due, late)
    }
    live.add(one)
    if (!announces) begun()
    // A store of a program's own may throw at once, where it should reject: its clocks have to end then, too.
    const asked = (): Promise<T> => {
      try {
        return work(own.signal, begun)
      } catch (error) {
        return Promise.reject(error)
      }
    }
    const over = Promise.race([asked(), cut.promise])
      .then(
        (answer) => {
          if (beganAt !== undefined) times.answered(clock.monotonic() - beganAt, hadIt?.(answer))
          permit.succeeded()
          return answer
        },
        (error: unknown) => {
          const isCut = own.signal.aborted
          const isTelling = isCut ? !isLeft : isTheirs(error) && (!silenceOnly || isFailure(error, 'timeout'))
          if (!isTelling) permit.cancelled()
          else if (!isBlamed) blame(error, permit)
          throw error
        },
      )
      .finally(() => {
        stop()
        stopEarly()
        live.delete(one)
      })
    over.catch(() => {})
    return { over, leave: one.leave }
  }

  return {
    async run(signal, call, work, hadIt) {
      signal?.throwIfAborted()
      if (live.size >= mostAtOnce) throw crowded(name)
      const isTrial = breaker.state !== 'closed'
      const permit = breaker.enter() ?? (call?.anyway ? notAsked : undefined)
      if (!permit) throw passedOver(name, breaker.retryAfterMs)
      const isWaitedFor = !isTrial || call?.anyway === true
      const { over, leave } = start(permit, isWaitedFor ? call?.overdue : undefined, work, hadIt)
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

const notTheirs: ReadonlySet<string> = new Set(['cancelled', 'too-large', 'malformed', 'unsupported', 'overloaded'])

/** A failure that says something about the tier, and not about what was asked of it, who asked, or our own line. */
const isTheirs = (error: unknown): boolean => !(isFailure(error) && notTheirs.has(error.kind))

export const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name} took longer than ${Math.round(ms)} ms`, { source: 'tier' })

const passedOver = (name: string, retryAfterMs: number): Failure =>
  new Failure('unavailable', `tier ${name} is passed over: it failed lately`, { source: 'tier', retryAfterMs })

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name} is being asked too much at once`, { source: 'tier' })
