// A tier that cannot hold up a request. The guard measures each call, tells the caller when waiting
// is no longer worth it, and opens a circuit breaker after failures in a row: then calls fail at
// once (`unavailable`) until a trial that no request waits for succeeds. Reads and writes are judged
// apart, since a full disk can still be read. Reads of this machine's disk open the breaker only by
// silence: slow or unreadable blocks may be nowhere else.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { type Clock, onceLate, withDeadline } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createHistogram, type Histogram } from '../../observe/requests.ts'

export type GuardOptions = {
  readonly clock: Clock
  readonly log: Log
  /** The timeout of a read; by default that of the tier. */
  readonly timeoutMs?: number
}

export type GuardedTier = Tier & {
  /** Reads fail at once now. */
  readonly isDown: boolean
  /** Durations of answers. */
  readonly took: { readonly reads: Histogram; readonly writes: Histogram }
}

const defaultTimeoutMs = 1000
const writeFactor = 10
const maxCalls = 8192
// How long a caller waits before it asks another source too: before anything was measured, and then
// twice the usual duration. A tier beyond the maximum is asked beside other sources from the start.
const firstPatienceMs = 150
const minPatienceMs = 25
const herePatienceMs = 250
const maxPatienceMs = 500
/** Failures in a row that open the breaker. Waiting ends one call before. */
const maxFailures = 3
const trialMs = 1000

export function guarded(tier: Tier, { clock, log, timeoutMs }: GuardOptions): GuardedTier {
  const { name, traits, records } = tier
  const readMs = timeoutMs ?? tier.deadlineMs ?? defaultTimeoutMs
  const writeMs = readMs * writeFactor
  const reads = new Calls('reads', tier, readMs, clock, log)
  const writes = new Calls('writes', tier, writeMs, clock, log)
  // A block on this machine is worth waiting for, also where it is mostly absent.
  const isHit = traits.shared ? (bytes: Uint8Array | undefined): boolean => bytes !== undefined : undefined

  return {
    ...passedOn(tier),
    deadlineMs: readMs,
    get: (cid, signal, call) => reads.run(signal, call, (own, begun) => tier.get(cid, own, { begun }), isHit),
    ...(tier.atHand && { atHand: (cid, how) => (reads.isOpen ? undefined : tier.atHand?.(cid, how)) }),
    put: (cid, bytes, signal, call) => writes.run(signal, call, (own, begun) => tier.put(cid, bytes, own, { begun })),
    ...(tier.putAll && {
      putAll: (blocks, signal, call) =>
        writes.run(signal, call, async (own, begun) => tier.putAll?.(blocks, own, { begun })),
    }),
    has: (cid, signal, call) => reads.run(signal, call, (own, begun) => tier.has(cid, own, { begun })),
    delete: (cid, signal, call) => writes.run(signal, call, (own, begun) => tier.delete(cid, own, { begun })),
    ...(records && {
      records: {
        read: (key, signal, call) => reads.run(signal, call, (own, begun) => records.read(key, own, { begun })),
        replace: (key, bytes, how, signal, call) =>
          writes.run(signal, call, (own, begun) => records.replace(key, bytes, how, own, { begun })),
      },
    }),
    async probe(signal) {
      try {
        const late = () => silent(name, writeMs)
        await withDeadline({ ms: writeMs, clock, signal, late }, async (own) => tier.probe?.(own))
      } catch (error) {
        if (!signal?.aborted) for (const calls of [reads, writes]) calls.open(error)
        throw error
      }
    },
    took: { reads: reads.took, writes: writes.took },
    get isDown() {
      return reads.isOpen
    },
  }
}

/** The members that a wrapper of a tier leaves as they are; a tier may be an instance of a class. */
export const passedOn = (tier: Tier) => ({
  name: tier.name,
  traits: tier.traits,
  ...(tier.deadlineMs !== undefined && { deadlineMs: tier.deadlineMs }),
  ...(tier.announces !== undefined && { announces: tier.announces }),
  ...(tier.lacks && { lacks: (cid: CID) => tier.lacks?.(cid) ?? false }),
  ...(tier.holds && { holds: (cid: CID) => tier.holds?.(cid) ?? false }),
  ...(tier.noteRead && { noteRead: (cid: CID) => tier.noteRead?.(cid) }),
  close: () => tier.close(),
})

/** A call, as the tier makes it. */
type Work<T> = (signal: AbortSignal, begun: () => void) => Promise<T>

/** The calls of one kind to one tier: how long its answers take, and the circuit breaker. */
class Calls {
  readonly what: 'reads' | 'writes'
  readonly name: string
  readonly clock: Clock
  readonly timeoutMs: number
  readonly isShared: boolean
  readonly announces: boolean
  readonly took = createHistogram()
  readonly live = new Set<GuardedCall<unknown>>()
  readonly #log: Log
  /** Rises quickly with the last answers and falls slowly; undefined before the first. */
  #typicalMs: number | undefined
  #missesInRow = 0
  #lateInRow = 0
  #failuresInRow = 0
  /** The next trial; undefined while the breaker is closed. */
  #trialAt: number | undefined
  #trial: GuardedCall<unknown> | undefined

  constructor(what: 'reads' | 'writes', tier: Tier, timeoutMs: number, clock: Clock, log: Log) {
    this.what = what
    this.name = tier.name
    this.clock = clock
    this.timeoutMs = timeoutMs
    this.isShared = tier.traits.shared
    this.announces = tier.announces ?? false
    this.#log = log
  }

  get isOpen(): boolean {
    return this.#trialAt !== undefined
  }

  /** `isHit`, of a read that may find nothing: whether its answer is a hit. */
  run<T>(
    signal: AbortSignal | undefined,
    call: Call | undefined,
    work: Work<T>,
    isHit?: (answer: T) => boolean,
  ): Promise<T> {
    if (signal?.aborted) return Promise.reject(signal.reason)
    if (this.live.size >= maxCalls) return Promise.reject(crowded(this.name))
    const isTrial = this.isOpen && !this.#trial && this.clock.monotonic() >= (this.#trialAt as number)
    const isWaitedFor = !this.isOpen || call?.anyway === true
    if (!isWaitedFor && !isTrial) return Promise.reject(this.skipped())
    const counts = !this.isOpen || isTrial
    const one = new GuardedCall(this, isWaitedFor ? { signal, overdue: call?.overdue } : {}, counts, isHit)
    if (isTrial) this.#trial = one as GuardedCall<unknown>
    const done = one.start(work)
    if (isWaitedFor) return done
    done.catch(() => {})
    return Promise.reject(this.skipped())
  }

  // How long an answer is waited for.

  /** An answer is late after this. */
  get lateMs(): number {
    const minMs = this.isShared ? minPatienceMs : herePatienceMs
    const firstMs = this.isShared ? firstPatienceMs : herePatienceMs
    return Math.min(this.timeoutMs, this.#typicalMs === undefined ? firstMs : Math.max(minMs, 2 * this.#typicalMs))
  }

  get isWorthWaiting(): boolean {
    return this.#lateInRow < maxFailures - 1 && this.lateMs <= maxPatienceMs
  }

  /** For a read that may find nothing: less with each miss since the last hit, or nothing at all. */
  get patienceMs(): number {
    const ms = Math.max(minPatienceMs, this.lateMs / (1 + this.#missesInRow))
    return ms < (this.#typicalMs ?? 0) ? 0 : Math.min(ms, this.lateMs)
  }

  late(): void {
    this.#lateInRow++
    // Calls in the queue of a tier that is not worth waiting for are not either.
    if (!this.isWorthWaiting) for (const one of this.live) if (one.beganAt === undefined) one.tell()
  }

  answered(ms: number | undefined, isHit: boolean | undefined): void {
    if (isHit !== undefined) this.#missesInRow = isHit ? 0 : this.#missesInRow + 1
    if (ms === undefined) return
    this.took.observe(ms / 1000)
    this.#lateInRow = 0
    const usual = this.#typicalMs ?? ms
    this.#typicalMs = usual + (ms - usual) / (ms > usual ? 2 : 8)
  }

  // The circuit breaker.

  close(): void {
    this.#failuresInRow = 0
    this.#trial = undefined
    if (!this.isOpen) return
    this.#trialAt = undefined
    this.#log('info', 'tier.circuit-closed', { tier: this.name, what: this.what })
  }

  failed(one: GuardedCall<unknown>, error: unknown): void {
    const isTrial = this.#trial === one
    if (isTrial) this.#trial = undefined
    const isOurs = isFailure(error) && ours.has(error.kind)
    const isHarmless = this.what === 'reads' && !this.isShared && !isFailure(error, 'timeout')
    if (isOurs || isHarmless) return
    // A call that began before the breaker opened has nothing to add.
    if (isTrial || (!this.isOpen && ++this.#failuresInRow >= maxFailures)) this.open(error)
  }

  /** The end of a call that tells nothing. */
  left(one: GuardedCall<unknown>): void {
    if (this.#trial === one) this.#trial = undefined
  }

  /** Tells all callers, and ends calls that are still in our queue. */
  open(error: unknown): void {
    const wasOpen = this.isOpen
    this.#trialAt = this.clock.monotonic() + trialMs
    if (wasOpen) return
    const reason = error instanceof Failure ? error.message : 'an unexpected error'
    this.#log('warn', 'tier.circuit-open', { tier: this.name, what: this.what, reason })
    for (const one of this.live) {
      one.tell()
      if (one.beganAt === undefined) one.cancel(this.skipped())
    }
  }

  skipped(): Failure {
    const retryAfterMs = Math.max(0, (this.#trialAt ?? 0) - this.clock.monotonic()) || trialMs
    const said = `tier ${this.name} is passed over: its last calls failed`
    return new Failure('unavailable', said, { source: 'tier', retryAfterMs })
  }
}

type Caller = { readonly signal?: AbortSignal | undefined; readonly overdue?: Call['overdue'] }

/**
 * One call. Its time begins when the tier really works on it: the caller is told to ask others too,
 * then the call is late, then slow, and finally cancelled. A read goes on after a caller that was
 * told has left, so that a slow tier is measured.
 */
class GuardedCall<T> {
  beganAt: number | undefined
  readonly #calls: Calls
  readonly #caller: Caller
  readonly #counts: boolean
  readonly #isHit: ((answer: T) => boolean) | undefined
  readonly #own = new AbortController()
  #reject: (error: unknown) => void = () => {}
  #stopTimer = () => {}
  #isTold = false
  #isBlamed = false
  #isOver = false

  constructor(calls: Calls, caller: Caller, counts: boolean, isHit: ((answer: T) => boolean) | undefined) {
    this.#calls = calls
    this.#caller = caller
    this.#counts = counts
    this.#isHit = isHit
  }

  start(work: Work<T>): Promise<T> {
    const { live, announces, clock } = this.#calls
    live.add(this as GuardedCall<unknown>)
    this.#caller.signal?.addEventListener('abort', this.#leave, { once: true })
    return new Promise((resolve, reject) => {
      this.#reject = reject
      if (announces) this.#stopTimer = clock.after(maxPatienceMs, () => this.tell())
      else this.#begun()
      const settled = (answer: T) => {
        if (!this.#end()) return
        const ms = this.beganAt === undefined ? undefined : clock.monotonic() - this.beganAt
        this.#calls.answered(ms, this.#isHit?.(answer))
        // A late answer is an answer.
        if (this.#counts) this.#calls.close()
        resolve(answer)
      }
      try {
        work(this.#own.signal, () => this.#begun()).then(settled, (error: unknown) => this.#fail(error))
      } catch (error) {
        // A tier of a library's user throws where it should reject.
        this.#fail(error)
      }
    })
  }

  /** Tells the caller, once, not to wait for this alone. `isWell`: the tier is not slow. */
  tell(isWell = false): void {
    if (this.#isTold) return
    this.#isTold = true
    this.#caller.overdue?.(isWell)
  }

  /** Ends it for a reason that says nothing about the tier. */
  cancel(why: unknown): void {
    if (!this.#end()) return
    this.#calls.left(this as GuardedCall<unknown>)
    this.#own.abort(why)
    this.#reject(why)
  }

  readonly #leave = (): void => {
    const why = this.#caller.signal?.reason
    if (this.#isTold && this.#calls.what === 'reads') this.#reject(why)
    else this.cancel(why)
  }

  #end(): boolean {
    if (this.#isOver) return false
    this.#isOver = true
    this.#stopTimer()
    this.#calls.live.delete(this as GuardedCall<unknown>)
    this.#caller.signal?.removeEventListener('abort', this.#leave)
    return true
  }

  #fail(error: unknown): void {
    if (!this.#end()) return
    this.#blame(error)
    this.#own.abort(error)
    this.#reject(error)
  }

  /** Counts against the tier, once. */
  #blame(error: unknown): void {
    if (this.#counts && !this.#isBlamed) this.#calls.failed(this as GuardedCall<unknown>, error)
    this.#isBlamed = true
  }

  #begun(): void {
    if (this.beganAt !== undefined || this.#isOver) return
    this.#stopTimer()
    const { clock, isWorthWaiting, lateMs } = this.#calls
    this.beganAt = clock.monotonic()
    if (!isWorthWaiting) this.tell()
    const patienceMs = this.#isHit ? this.#calls.patienceMs : lateMs
    if (patienceMs === 0) this.tell(true)
    if (this.#isTold || patienceMs === lateMs) return this.#lateAfter(lateMs, lateMs)
    this.#after(patienceMs, () => {
      this.tell(true)
      this.#lateAfter(lateMs - patienceMs, lateMs)
    })
  }

  #lateAfter(ms: number, lateMs: number): void {
    const { timeoutMs, isShared, name } = this.#calls
    const slowMs = Math.min(timeoutMs, Math.max(maxPatienceMs, 2 * lateMs))
    this.#after(ms, () => {
      this.#calls.late()
      this.tell()
      this.#after(slowMs - lateMs, () => {
        if (isShared) this.#blame(silent(name, slowMs))
        this.#after(timeoutMs - slowMs, () => this.#fail(silent(name, timeoutMs)))
      })
    })
  }

  #after(ms: number, action: () => void): void {
    this.#stopTimer = onceLate(this.#calls.clock, ms, action)
  }
}

/** Failures that tell of the request, the caller or our own queue, and not of the tier. */
const ours: ReadonlySet<string> = new Set(['cancelled', 'too-large', 'malformed', 'unsupported', 'overloaded'])

const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name} took longer than ${Math.round(ms)} ms`, { source: 'tier' })

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: more than ${maxCalls} calls wait for it`, { source: 'tier' })
