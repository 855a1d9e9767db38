// A tier that cannot hold up a request. The guard queues calls beyond the tier's concurrency,
// measures each, tells the caller when another source should be asked too, and opens a circuit
// breaker after failures in a row: then calls fail at once (`unavailable`) until a trial that no
// request waits for succeeds. Reads and writes have a breaker each, since a full disk can still be
// read. Reads of this machine's disk open it only by silence: slow or unreadable blocks may be
// nowhere else.
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { type Clock, onceLate, withDeadline } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createHistogram, type Histogram } from '../../observe/requests.ts'

export type GuardOptions = { readonly clock: Clock; readonly log: Log }

export type GuardedTier = Tier & {
  /** Reads fail at once now. */
  readonly isDown: boolean
  /** Durations of answers. */
  readonly took: { readonly reads: Histogram; readonly writes: Histogram }
}

type Kind = 'reads' | 'writes'

const defaultTimeoutMs = 1000
const writeFactor = 10
const maxCalls = 8192
// A caller waits for twice the typical duration of an answer, within these, before it asks another
// source too. A tier slower than the maximum is asked beside other sources from the start.
const minSoftTimeoutMs = 25
const maxSoftTimeoutMs = 500
/** Failures in a row that open the breaker. One less, and no caller waits for the tier alone. */
const maxFailures = 3
const trialMs = 1000

export function guarded(tier: Tier, { clock, log }: GuardOptions): GuardedTier {
  const { records } = tier
  const readMs = tier.timeoutMs ?? defaultTimeoutMs
  const reads = new Calls('reads', tier, readMs, clock, log)
  const writes = new Calls('writes', tier, readMs * writeFactor, clock, log)

  return {
    name: tier.name,
    traits: tier.traits,
    // A tier may be an instance of a class.
    ...(tier.hasNow && { hasNow: (cid) => tier.hasNow?.(cid) }),
    ...(tier.noteRead && { noteRead: (cid) => tier.noteRead?.(cid) }),
    get: (cid, signal, call) => reads.run(signal, call, (own) => tier.get(cid, own), true),
    ...(tier.peek && { peek: (cid, how) => (reads.isOpen ? undefined : tier.peek?.(cid, how)) }),
    put: (cid, bytes, signal, call) => writes.run(signal, call, (own) => tier.put(cid, bytes, own)),
    ...(tier.putAll && {
      putAll: (blocks, signal, call) => writes.run(signal, call, async (own) => tier.putAll?.(blocks, own)),
    }),
    has: (cid, signal, call) => reads.run(signal, call, (own) => tier.has(cid, own)),
    delete: (cid, signal, call) => writes.run(signal, call, (own) => tier.delete(cid, own)),
    ...(records && {
      records: {
        read: (key, signal, call) => reads.run(signal, call, (own) => records.read(key, own)),
        replace: (key, bytes, how, signal, call) =>
          writes.run(signal, call, (own) => records.replace(key, bytes, how, own)),
      },
    }),
    async probe(signal) {
      try {
        const late = () => silent(tier.name, writes.timeoutMs)
        await withDeadline({ ms: writes.timeoutMs, clock, signal, late }, async (own) => tier.probe?.(own))
      } catch (error) {
        if (!signal?.aborted) for (const calls of [reads, writes]) calls.open(error)
        throw error
      }
    },
    took: { reads: reads.took, writes: writes.took },
    get isDown() {
      return reads.isOpen
    },
    close: () => tier.close(),
  }
}

type Work<T> = (signal: AbortSignal) => Promise<T>

/**
 * The calls of one kind to one tier: their queue, how long answers take, and the circuit breaker.
 */
class Calls {
  readonly kind: Kind
  readonly tier: Tier
  readonly clock: Clock
  readonly timeoutMs: number
  readonly took = createHistogram()
  readonly #log: Log
  readonly #live = new Set<GuardedCall>()
  readonly #queue = new Set<GuardedCall>()
  #running = 0
  #opening: Promise<void> | undefined
  /** Rises quickly with the last answers and falls slowly; undefined before the first. */
  #typicalMs: number | undefined
  #missesInRow = 0
  /** Calls that were slow or failed since the last answer. */
  #failures = 0
  /** The next trial; undefined while the breaker is closed. */
  #trialAt: number | undefined
  #trial: GuardedCall | undefined

  constructor(kind: Kind, tier: Tier, timeoutMs: number, clock: Clock, log: Log) {
    this.kind = kind
    this.tier = tier
    this.clock = clock
    this.timeoutMs = timeoutMs
    this.#log = log
  }

  get isOpen(): boolean {
    return this.#trialAt !== undefined
  }

  /** `mayMiss`: an answer of undefined is a miss, and worth less. */
  run<T>(signal: AbortSignal | undefined, call: Call | undefined, work: Work<T>, mayMiss = false): Promise<T> {
    if (signal?.aborted) return Promise.reject(signal.reason)
    if (this.#live.size >= maxCalls) return Promise.reject(crowded(this.tier.name))
    const isTrial = this.isOpen && !this.#trial && this.clock.monotonic() >= (this.#trialAt as number)
    const isWaitedFor = !this.isOpen || call?.ignoresBreaker === true
    if (!isWaitedFor && !isTrial) return Promise.reject(this.#skipped())
    const one = new GuardedCall(this, work, mayMiss, !this.isOpen || isTrial)
    if (isTrial) this.#trial = one
    if (isWaitedFor) one.waitFor(signal, call?.onSoftTimeout)
    this.#live.add(one)
    this.#queue.add(one)
    this.#opening ??= this.tier.open?.()?.then(this.#opened, this.#opened)
    this.#beginNext()
    if (this.#queue.has(one)) one.stayQueued()
    if (isWaitedFor) return one.done as Promise<T>
    one.done.catch(() => {})
    return Promise.reject(this.#skipped())
  }

  readonly #opened = (): void => {
    this.#opening = undefined
    this.#beginNext()
  }

  #beginNext(): void {
    for (const one of this.#queue) {
      if (this.#opening || this.#running >= (this.tier.concurrency?.[this.kind] ?? maxCalls)) return
      this.#queue.delete(one)
      this.#running++
      one.begin().then(this.#worked, this.#worked)
    }
  }

  readonly #worked = (): void => {
    this.#running--
    this.#beginNext()
  }

  /** The call is over. */
  left(one: GuardedCall): void {
    this.#live.delete(one)
    this.#queue.delete(one)
    if (this.#trial === one) this.#trial = undefined
  }

  /**
   * `ms`: the time after which a caller asks another source too. `slowMs`: the time after which an
   * answer is slow. A read that mostly misses is worth less with each miss since the last hit.
   */
  softTimeout(mayMiss: boolean): { readonly ms: number; readonly slowMs: number } {
    const { shared } = this.tier.traits
    // A block on this machine is worth waiting for, and so is the first write: without it an upload
    // is delivered later.
    const minMs = shared ? minSoftTimeoutMs : maxSoftTimeoutMs
    const typicalMs = this.#typicalMs ?? 0
    const firstMs = this.#typicalMs === undefined && this.kind === 'writes' ? maxSoftTimeoutMs : minMs
    const fullMs = Math.min(this.timeoutMs, Math.max(firstMs, 2 * typicalMs))
    const ms = shared && mayMiss ? Math.max(minMs, fullMs / (1 + this.#missesInRow)) : fullMs
    const slowMs = Math.min(this.timeoutMs, Math.max(maxSoftTimeoutMs, 4 * typicalMs))
    const isWorthIt = this.#isWorthWaiting && fullMs <= maxSoftTimeoutMs && ms >= typicalMs
    return { ms: isWorthIt ? Math.min(ms, fullMs) : 0, slowMs }
  }

  get #isWorthWaiting(): boolean {
    return this.#failures < maxFailures - 1
  }

  answered(ms: number, isMiss: boolean, counts: boolean): void {
    this.#missesInRow = isMiss ? this.#missesInRow + 1 : 0
    this.took.observe(ms / 1000)
    const typicalMs = this.#typicalMs ?? ms
    this.#typicalMs = typicalMs + (ms - typicalMs) / (ms > typicalMs ? 2 : 8)
    this.#failures = 0
    // A late answer is an answer.
    if (!counts || !this.isOpen) return
    this.#trialAt = undefined
    this.#log('info', 'tier.circuit-closed', { tier: this.tier.name, what: this.kind })
  }

  slow(one: GuardedCall, ms: number): void {
    if (this.tier.traits.shared) return this.failed(one, silent(this.tier.name, ms))
    this.#count(one)
  }

  failed(one: GuardedCall, error: unknown): void {
    const isOurs = isFailure(error) && ours.has(error.kind)
    const isHarmless = this.kind === 'reads' && !this.tier.traits.shared && !isFailure(error, 'timeout')
    // A call that began before the breaker opened has nothing to add.
    if (!one.counts || isOurs || isHarmless || (this.isOpen && this.#trial !== one)) return
    this.#count(one)
    if (this.isOpen || this.#failures >= maxFailures) this.open(error)
  }

  /** Queued calls are not waited for where the running ones are not worth it. */
  #count(one: GuardedCall): void {
    if (!one.isCounted) this.#failures++
    one.isCounted = true
    if (!this.#isWorthWaiting) for (const other of this.#queue) other.tell()
  }

  /** Opens the breaker: tells all callers, and ends the calls that are still queued. */
  open(error: unknown): void {
    const wasOpen = this.isOpen
    this.#trialAt = this.clock.monotonic() + trialMs
    if (wasOpen) return
    const reason = error instanceof Failure ? error.message : 'an unexpected error'
    this.#log('warn', 'tier.circuit-open', { tier: this.tier.name, what: this.kind, reason })
    for (const one of this.#live) {
      one.tell()
      if (this.#queue.has(one)) one.cancel(this.#skipped())
    }
  }

  #skipped(): Failure {
    const retryAfterMs = Math.max(0, (this.#trialAt ?? 0) - this.clock.monotonic()) || trialMs
    const said = `tier ${this.tier.name} is skipped: its circuit breaker is open`
    return new Failure('unavailable', said, { source: 'tier', retryAfterMs })
  }
}

/**
 * One call. Its time begins when the tier works on it: the caller is told to ask others too, then
 * the call is slow, and finally it fails. A read goes on after a caller that was told has left, so
 * that a slow tier is measured.
 */
class GuardedCall {
  readonly done: Promise<unknown>
  /** It may open or close the breaker. */
  readonly counts: boolean
  isCounted = false
  readonly #calls: Calls
  readonly #work: Work<unknown>
  readonly #mayMiss: boolean
  readonly #own = new AbortController()
  #signal: AbortSignal | undefined
  #onSoftTimeout: (() => void) | undefined
  #resolve: (answer: unknown) => void = () => {}
  #reject: (error: unknown) => void = () => {}
  #stopTimer: (() => void) | undefined
  #isTold = false
  #isOver = false

  constructor(calls: Calls, work: Work<unknown>, mayMiss: boolean, counts: boolean) {
    this.#calls = calls
    this.#work = work
    this.#mayMiss = mayMiss
    this.counts = counts
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
  }

  waitFor(signal: AbortSignal | undefined, onSoftTimeout: (() => void) | undefined): void {
    this.#signal = signal
    this.#onSoftTimeout = onSoftTimeout
    signal?.addEventListener('abort', this.#leave, { once: true })
  }

  stayQueued(): void {
    this.#after(maxSoftTimeoutMs, () => this.tell())
  }

  /** Settles when the tier has stopped working on it. */
  async begin(): Promise<void> {
    const { clock, timeoutMs, tier } = this.#calls
    const { ms, slowMs } = this.#calls.softTimeout(this.#mayMiss)
    const beganAt = clock.monotonic()
    this.#stopTimer?.()
    if (ms === 0) this.tell()
    const slow = () => {
      this.#calls.slow(this, slowMs)
      this.#after(timeoutMs - slowMs, () => this.#fail(silent(tier.name, timeoutMs)))
    }
    this.#after(ms, () => {
      if (ms < slowMs) this.#after(slowMs - ms, slow)
      else slow()
      this.tell()
    })
    try {
      const answer = await this.#work(this.#own.signal)
      if (!this.#end()) return
      this.#calls.answered(clock.monotonic() - beganAt, this.#mayMiss && answer === undefined, this.counts)
      this.#resolve(answer)
    } catch (error) {
      this.#fail(error)
    }
  }

  /** Tells the caller, once, not to wait for this alone. */
  tell(): void {
    if (this.#isTold) return
    this.#isTold = true
    this.#onSoftTimeout?.()
  }

  /** Ends it for a reason that says nothing about the tier. */
  cancel(why: unknown): void {
    if (!this.#end()) return
    this.#own.abort(why)
    this.#reject(why)
  }

  readonly #leave = (): void => {
    const why = this.#signal?.reason
    if (this.#isTold && this.#calls.kind === 'reads') this.#reject(why)
    else this.cancel(why)
  }

  #fail(error: unknown): void {
    if (this.#isOver) return
    this.#calls.failed(this, error)
    this.cancel(error)
  }

  #end(): boolean {
    if (this.#isOver) return false
    this.#isOver = true
    this.#stopTimer?.()
    this.#calls.left(this)
    this.#signal?.removeEventListener('abort', this.#leave)
    return true
  }

  #after(ms: number, action: () => void): void {
    if (!this.#isOver) this.#stopTimer = onceLate(this.#calls.clock, ms, action)
  }
}

/** Failures that tell of the request, the caller or our own queue, and not of the tier. */
const ours: ReadonlySet<string> = new Set(['cancelled', 'too-large', 'malformed', 'unsupported', 'overloaded'])

const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name} took longer than ${Math.round(ms)} ms`, { source: 'tier' })

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: more than ${maxCalls} calls wait for it`, { source: 'tier' })
