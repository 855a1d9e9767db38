// One call to a tier, from the moment it is made. Its clocks begin when the tier really works on it: first the caller is told that
// it is overdue, then it counts as slow, once, and in the end it is given up.
import type { Call } from '../../../backends/tiers/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import type { Permit } from './breaker.ts'
import type { ResponseTimes } from './response-times.ts'

export type CallOptions = {
  readonly clock: Clock
  /** Of the tier. */
  readonly name: string
  /** The tier says when a call leaves its queue in this process. */
  readonly announces: boolean
  /** A call that is slow for this tier counts as a failure at once, and not only when it is given up. */
  readonly slowIsFailure: boolean
  /** A call that fails quickly says nothing about the next one. */
  readonly silenceOnly?: boolean | undefined
  readonly deadlineMs: number
  /** Called with how long each answer took. */
  readonly onAnswered?: ((ms: number) => void) | undefined
  /** How long a caller waits while its call is in a queue of this process. */
  readonly lineMs: number
}

/** What the calls of one kind to one tier share. */
export type CallsShared = {
  readonly options: CallOptions
  readonly times: ResponseTimes
  readonly live: Set<LiveCall>
  /** Calls whose callers left, and whose ends are still worth knowing. */
  readonly strays: Set<LiveCall>
  blame(error: unknown, permit: Permit): void
}

export interface LiveCall {
  /** Tells the caller, once, that it need not wait for this alone. `isWell`: the tier is not slow. */
  tell(isWell?: boolean): void
  end(reason: unknown): void
  /** Whether the tier works on it. */
  hasBegun(): boolean
}

/** A call, as the tier makes it. */
export type TierWork<T> = (signal: AbortSignal, begun: () => void) => Promise<T>

const mostStrays = 8
const lateMs = 10
const againMs = 25
// How much longer a caller waits if this process itself was held up: rarely the cause with a remote store, mostly with a disk.
const heldUpMs = { elsewhere: 50, here: 500 } as const
// So many times its deadline a call has in any case: a process that is held up all the time would wait for ever.
const mostTimes = 10

export function startCall<T>(
  shared: CallsShared,
  permit: Permit,
  overdue: Call['overdue'],
  work: TierWork<T>,
  hadIt?: (answer: T) => boolean,
): { readonly over: Promise<T>; leave(why: unknown): void } {
  const { options, times, live, strays, blame } = shared
  const { clock, announces, silenceOnly = false } = options
  const own = new AbortController()
  const cut = Promise.withResolvers<never>()
  let isTold = false
  let isLeft = false
  const call: LiveCall = {
    hasBegun: () => timers.beganAt !== undefined,
    tell(isWell = false) {
      if (isTold) return
      isTold = true
      overdue?.(isWell)
    },
    end(why) {
      own.abort(why)
      cut.reject(why)
    },
  }
  const timers = createTimers(shared, call, permit, hadIt !== undefined)
  const begun = () => {
    if (!own.signal.aborted) timers.begin()
  }
  /** A caller that has waited long enough leaves a call whose end is worth knowing. */
  function leave(why: unknown): void {
    if (isLeft) return
    isLeft = true
    if (!isTold || strays.size >= mostStrays) return call.end(why)
    strays.add(call)
    over.catch(() => {}).finally(() => strays.delete(call))
  }
  live.add(call)
  if (!announces) begun()
  const over = Promise.race([called(work, own.signal, begun), cut.promise])
    .then(
      (answer) => {
        const { beganAt } = timers
        if (beganAt !== undefined) {
          const ms = clock.monotonic() - beganAt
          times.answered(ms, hadIt?.(answer))
          options.onAnswered?.(ms)
        }
        permit.succeeded()
        return answer
      },
      (error: unknown) => {
        const isTelling = own.signal.aborted
          ? !isLeft
          : isTheirs(error) && (!silenceOnly || isFailure(error, 'timeout'))
        if (!isTelling) permit.cancelled()
        else if (!timers.isBlamed) blame(error, permit)
        throw error
      },
    )
    .finally(() => {
      timers.stop()
      live.delete(call)
    })
  over.catch(() => {})
  return { over, leave }
}

/**
 * A store of a program's own may throw at once, where it should reject: the clocks of its call have to end then, too.
 */
function called<T>(work: TierWork<T>, signal: AbortSignal, begun: () => void): Promise<T> {
  try {
    return work(signal, begun)
  } catch (error) {
    return Promise.reject(error)
  }
}

/** The clocks of one call. `isRead`: it may find nothing, and is waited for by how often the tier had something. */
function createTimers({ options, times, live, blame }: CallsShared, call: LiveCall, permit: Permit, isRead: boolean) {
  const { clock, name, announces, slowIsFailure, deadlineMs, lineMs } = options
  const mostHeldUpMs = slowIsFailure ? heldUpMs.elsewhere : heldUpMs.here
  let stop = announces ? clock.after(lineMs, () => call.tell()) : () => {}
  let stopEarly = () => {}
  let late = () => {}

  function leaveEarly(): void {
    times.leftEarly()
    call.tell(true)
  }

  function due(dueMs: number, slowMs: number): void {
    times.overdue()
    call.tell()
    // If no call to the tier is worth waiting for, those in the queue for it are not either.
    if (times.patienceMs === 0) for (const one of live) if (!one.hasBegun()) one.tell()
    stop = ring(clock, slowMs - dueMs, () => slow(slowMs), late)
  }

  function slow(slowMs: number): void {
    timers.isBlamed = slowIsFailure
    if (slowIsFailure) blame(silent(name, slowMs), permit)
    stop = ring(clock, deadlineMs - slowMs, () => call.end(silent(name, deadlineMs)), late)
  }

  const timers = {
    beganAt: undefined as number | undefined,
    isBlamed: false,
    begin() {
      if (timers.beganAt !== undefined) return
      const since = clock.monotonic()
      timers.beganAt = since
      stop()
      const { patienceMs, readPatienceMs, dueMs, slowMs } = times
      // A tier that usually takes longer than is worth waiting for is not waited for at all.
      if (patienceMs === 0) call.tell()
      else if (isRead && readPatienceMs === 0) leaveEarly()
      else if (isRead && readPatienceMs < patienceMs) stopEarly = clock.after(readPatienceMs, leaveEarly)
      late = () => {
        const ms = clock.monotonic() - since
        if (ms > dueMs + mostHeldUpMs) call.tell()
        if (ms > deadlineMs * mostTimes) call.end(silent(name, ms))
      }
      stop = ring(clock, dueMs, () => due(dueMs, slowMs), late)
    },
    stop() {
      stop()
      stopEarly()
    },
  }
  return timers
}

/** Rings after `ms` in which this process was not held up; calls `late` each time it was. */
function ring(clock: Clock, ms: number, action: () => void, late: () => void): () => void {
  const due = clock.monotonic() + ms
  let stop = clock.after(ms, () => {
    if (clock.monotonic() - due <= lateMs) return action()
    late()
    stop = ring(clock, Math.min(ms, againMs), action, late)
  })
  return () => stop()
}

const notTheirs: ReadonlySet<string> = new Set(['cancelled', 'too-large', 'malformed', 'unsupported', 'overloaded'])

/** A failure that says something about the tier, and not about what was asked of it, who asked, or our own queue. */
const isTheirs = (error: unknown): boolean => !(isFailure(error) && notTheirs.has(error.kind))

export const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name} took longer than ${Math.round(ms)} ms`, { source: 'tier' })
