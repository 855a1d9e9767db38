// A tier that cannot hold up a request. A reader waits as long as this tier usually takes, and no longer than 100 ms when
// it is usually quick; the call may go on until the tier's own deadline, to learn how slow it really is, or because
// this reader has nobody else to ask. What keeps
// failing is passed over at once (Failure `unavailable`) until a trial that nobody waits for comes back well. Reads and
// writes are judged apart: a full disk still reads.
import type { Patience, Tier } from '../../backends/tiers/contract.ts'
import type { Clock } from '../clock.ts'
import { orAborted, withDeadline } from '../deadline.ts'
import { Failure, isFailure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { type Breaker, createBreaker, type Permit } from './breaker.ts'

export type GuardOptions = {
  readonly clock: Clock
  readonly log: Log
  /** When a read is given up. By default what the tier says of itself. */
  readonly deadlineMs?: number
  readonly writeDeadlineMs?: number
  /** What a reader waits at least before passing on. */
  readonly patienceMs?: number
  readonly failures?: number
  readonly firstMs?: number
  readonly mostMs?: number
}

export type GuardedTier = Tier & {
  /** Reads are passed over now. */
  readonly isDown: boolean
  /** Calls that failed or took too long. */
  readonly failures: number
  /** What a reader waits now before passing on. */
  readonly patienceMs: number
}

const usualDeadlineMs = 1000
const usualPatienceMs = 100
const mostInFlight = 1024
const writesTake = 10
const probeMs = 10_000
const patienceFactor = 3
const forgetting = 0.05
const delayFactor = 1.3
const mostDelays = 5

export function guarded(tier: Tier, options: GuardOptions): GuardedTier {
  const { clock, log, patienceMs: leastPatienceMs = usualPatienceMs } = options
  const deadlineMs = options.deadlineMs ?? tier.deadlineMs ?? usualDeadlineMs
  const writeDeadlineMs = options.writeDeadlineMs ?? deadlineMs * writesTake
  const reads = breaker('reads')
  const writes = breaker('writes')
  let lastFailure = ''
  let failures = 0
  let slowestMs: number | undefined
  let inFlight = 0

  function breaker(what: string): Breaker {
    return createBreaker({
      ...options,
      onChange(state) {
        if (state === 'open') log('warn', 'tier.passed-over', { tier: tier.name, what, reason: lastFailure })
        else log('info', 'tier.back', { tier: tier.name, what })
      },
    })
  }

  /** Believes in slowness at once and in speed slowly. Before the first answer it may be starting: all the time it has. */
  function learn(ms: number): void {
    slowestMs = slowestMs === undefined || ms > slowestMs ? ms : slowestMs + (ms - slowestMs) * forgetting
  }

  const patience = (): number =>
    slowestMs === undefined ? deadlineMs : Math.min(deadlineMs, Math.max(leastPatienceMs, slowestMs * patienceFactor))

  function blame(error: unknown, permit: Permit): void {
    if (!isTheirs(error)) return permit.cancelled()
    failures++
    lastFailure = reasonOf(error)
    permit.failed()
  }

  /** One call up to the deadline, whoever waits for it. */
  async function watched<T>(permit: Permit, left: AbortSignal, work: (own: AbortSignal) => Promise<T>): Promise<T> {
    const began = clock.monotonic()
    inFlight++
    try {
      const late = () => silent(tier.name, deadlineMs)
      const answer = await withDeadline({ ms: deadlineMs, clock, signal: left, late }, work)
      learn(clock.monotonic() - began)
      permit.succeeded()
      return answer
    } catch (error) {
      if (left.aborted) permit.cancelled()
      else blame(error, permit)
      throw error
    } finally {
      inFlight--
    }
  }

  /** As long as is usual. A timer that rings late tells of our own delay, and is set again. */
  async function usually<T>(call: Promise<T>, slow: Failure, signal: AbortSignal | undefined): Promise<T> {
    for (let left = mostDelays; ; left--) {
      const ms = patience()
      const began = clock.monotonic()
      try {
        return await withDeadline({ ms, clock, signal, late: () => slow }, () => call)
      } catch (error) {
        const isDelayed = clock.monotonic() - began > ms * delayFactor
        if (error !== slow || !isDelayed || left === 0) throw error
      }
    }
  }

  async function read<T>(
    signal: AbortSignal | undefined,
    wanted: Patience,
    work: (own: AbortSignal) => Promise<T>,
  ): Promise<T> {
    signal?.throwIfAborted()
    if (inFlight >= mostInFlight) throw passedOver(tier.name, 0)
    const isTrial = reads.state !== 'closed'
    const permit = reads.enter() ?? (wanted === 'beyond' ? notAsked : undefined)
    if (!permit) throw passedOver(tier.name, reads.retryAfterMs)
    const left = new AbortController()
    const call = watched(permit, left.signal, work)
    call.catch(() => {})
    if (isTrial && wanted !== 'beyond') throw passedOver(tier.name, deadlineMs)
    const slow = silent(tier.name, patience())
    try {
      return wanted === 'usual' ? await usually(call, slow, signal) : await orAborted(signal, call)
    } catch (error) {
      if (signal?.aborted) left.abort(signal.reason)
      else if (error === slow) blame(error, permit)
      throw error
    }
  }

  async function write<T>(signal: AbortSignal | undefined, work: (own: AbortSignal) => Promise<T>): Promise<T> {
    signal?.throwIfAborted()
    const isTrial = writes.state !== 'closed'
    const permit = writes.enter()
    if (!permit) throw passedOver(tier.name, writes.retryAfterMs)
    // A trial goes on to be judged, whoever leaves.
    const left = isTrial ? undefined : signal
    const began = clock.monotonic()
    const late = () => silent(tier.name, writeDeadlineMs)
    const call = withDeadline({ ms: writeDeadlineMs, clock, signal: left, late }, work).then(
      (done) => {
        permit.succeeded()
        return done
      },
      (error: unknown) => {
        const waited = clock.monotonic() - began
        // Whoever leaves after longer than a tier may be silent says something about the tier.
        if (!left?.aborted) blame(error, permit)
        else if (waited >= deadlineMs) blame(silent(tier.name, waited), permit)
        else permit.cancelled()
        throw error
      },
    )
    if (!isTrial) return call
    call.catch(() => {})
    const notWaitedFor = () => passedOver(tier.name, deadlineMs)
    return withDeadline({ ms: deadlineMs, clock, signal, late: notWaitedFor }, () => call)
  }

  return {
    name: tier.name,
    traits: tier.traits,
    deadlineMs,
    get: (cid, signal, patience = 'usual') => read(signal, patience, (own) => tier.get(cid, own)),
    put: (cid, bytes, signal) => write(signal, (own) => tier.put(cid, bytes, own)),
    has: (cid, signal) => read(signal, 'usual', (own) => tier.has(cid, own)),
    delete: (cid, signal) => write(signal, (own) => tier.delete(cid, own)),
    async probe(signal) {
      try {
        const late = () => silent(tier.name, probeMs)
        await withDeadline({ ms: probeMs, clock, signal, late }, async (own) => tier.probe?.(own))
      } catch (error) {
        if (!signal?.aborted) {
          lastFailure = reasonOf(error)
          reads.trip()
          writes.trip()
        }
        throw error
      }
    },
    close: () => tier.close(),
    get isDown() {
      return reads.state !== 'closed'
    },
    get failures() {
      return failures
    },
    get patienceMs() {
      return patience()
    },
  }
}

/** The permit of a call that a breaker did not let through: it says nothing to it. */
const notAsked: Permit = { succeeded() {}, failed() {}, cancelled() {} }

/** A failure that says something about the tier, and not about what was asked of it or who asked. */
const isTheirs = (error: unknown): boolean =>
  !(
    isFailure(error) &&
    (error.kind === 'cancelled' ||
      error.kind === 'too-large' ||
      error.kind === 'malformed' ||
      error.kind === 'unsupported')
  )

const reasonOf = (error: unknown): string => (error instanceof Failure ? error.message : 'an unexpected error')

const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name} took longer than ${Math.round(ms)} ms`, { source: 'tier' })

const passedOver = (name: string, retryAfterMs: number): Failure =>
  new Failure('unavailable', `tier ${name} is passed over: it failed lately`, { source: 'tier', retryAfterMs })
