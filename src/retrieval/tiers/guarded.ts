// A tier that cannot hold up a request. It watches each call, tells the caller when waiting is no
// longer worth it, and skips a tier that keeps failing (Failure `unavailable`) until a trial that
// no request waits for succeeds. It never skips reads of this machine's own disk for being slow, or
// for one unreadable file: the block may be nowhere else. It judges reads and writes apart: a full
// disk can still be read.
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { orAborted, withDeadline } from '../../core/deadline.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createHistogram, type Histogram } from '../../observe/histogram.ts'
import { createLastFew } from '../last-few.ts'

export type GuardOptions = {
  readonly clock: Clock
  readonly log: Log
  /** When a read is given up. By default what the tier says of itself. */
  readonly deadlineMs?: number
  readonly writeDeadlineMs?: number
  /** Failures in a row that open the breaker. */
  readonly failures?: number
  /** Until the first trial of a tier that is passed over, and at most. */
  readonly pause?: Pause
}

type Pause = { readonly firstMs: number; readonly maxMs: number }

export type GuardedTier = Tier & {
  /** Reads are passed over now. */
  readonly isDown: boolean
  /** Calls that failed or took too long. */
  readonly failures: number
  /** How long a caller waits for a read before the next tier or an upstream is asked too. */
  readonly patienceMs: number
  /** How long its answers took. */
  readonly took: { readonly reads: Histogram; readonly writes: Histogram }
}

type Times = {
  /** How long an answer is waited for before anything is known. */
  readonly firstMs: number
  /** However quick the tier is as a rule, this is not slow. */
  readonly minMs: number
  /** An answer is due after so many times what it takes as a rule. */
  readonly factor: number
  /** A tier that takes longer as a rule is not waited for. */
  readonly maxMs: number
  /** How long a caller waits while its call is in a queue of this process. */
  readonly lineMs: number
}

const readTimes: Times = { firstMs: 100, minMs: 25, factor: 2, maxMs: 500, lineMs: 250 }
// A block on this machine is worth waiting for longer than asking an upstream, also while the
// machine is busy.
const localTimes: Times = { firstMs: 250, minMs: 250, factor: 2, maxMs: 1000, lineMs: 500 }
// An upload may be 200 ms later for a store that hangs, and waits longer for one that is known to
// take longer.
const writeTimes: Times = { firstMs: 150, minMs: 25, factor: 1.5, maxMs: 500, lineMs: 1000 }

const defaultDeadlineMs = 1000
const writesTake = 10
const probeMs = 10_000
const defaultFailures = 3
// Until the first trial; doubles with each that fails. A store is used again within five seconds,
// however long it was away.
const defaultPause: Pause = { firstMs: 1000, maxMs: 3500 }
const maxAtOnce = 8192
const kept = 32
const minSlowMs = 400
const slowFactor = 2
const maxOverdue = 2
const shareKept = 0.6
const maxStrays = 8
// A timer of ours that rings later than this tells of our own delay, and is set again.
const lateMs = 10
const againMs = 25
// How much longer a caller waits if this process itself was held up: rarely the cause with a remote
// store, mostly with a disk.
const heldUpMs = { elsewhere: 50, here: 500 } as const
// So many times its deadline a call has in any case: a process that is held up all the time would
// wait for ever.
const maxTimes = 10

export function guarded(tier: Tier, options: GuardOptions): GuardedTier {
  const { clock } = options
  const { records, atHand, traits } = tier
  const deadlineMs = options.deadlineMs ?? tier.deadlineMs ?? defaultDeadlineMs
  const writeDeadlineMs = options.writeDeadlineMs ?? deadlineMs * writesTake
  const reads = new Calls('reads', tier, traits.shared ? readTimes : localTimes, deadlineMs, options)
  const writes = new Calls('writes', tier, writeTimes, writeDeadlineMs, options)
  // This machine's own disk is waited for also where it has mostly had nothing.
  const hadIt = traits.shared ? (bytes: Uint8Array | undefined): boolean => bytes !== undefined : undefined

  return {
    name: tier.name,
    traits,
    deadlineMs,
    get: (cid, signal, call) => reads.run(signal, call, (own, begun) => tier.get(cid, own, { begun }), hadIt),
    ...(atHand && { atHand: (cid, how) => (reads.isOpen ? undefined : atHand(cid, how)) }),
    put: (cid, bytes, signal, call) => writes.run(signal, call, (own, begun) => tier.put(cid, bytes, own, { begun })),
    has: (cid, signal, call) => reads.run(signal, call, (own, begun) => tier.has(cid, own, { begun })),
    delete: (cid, signal, call) => writes.run(signal, call, (own, begun) => tier.delete(cid, own, { begun })),
    ...(tier.lacks && { lacks: (cid) => tier.lacks?.(cid) ?? false }),
    ...(tier.holds && { holds: (cid) => tier.holds?.(cid) ?? false }),
    ...(records && {
      records: {
        read: (key, signal, call) => reads.run(signal, call, (own, begun) => records.read(key, own, { begun })),
        replace: (key, bytes, how, signal, call) =>
          writes.run(signal, call, (own, begun) => records.replace(key, bytes, how, own, { begun })),
      },
    }),
    async probe(signal) {
      try {
        const late = () => silent(tier.name, probeMs)
        await withDeadline({ ms: probeMs, clock, signal, late }, async (own) => tier.probe?.(own))
      } catch (error) {
        if (!signal?.aborted) for (const calls of [reads, writes]) calls.trip(error)
        throw error
      }
    },
    close: () => tier.close(),
    took: { reads: reads.took, writes: writes.took },
    get isDown() {
      return reads.isOpen
    },
    get failures() {
      return reads.failures + writes.failures
    },
    get patienceMs() {
      return reads.isOpen ? 0 : reads.patienceMs
    },
  }
}

/** A call, as the tier makes it. */
type Work<T> = (signal: AbortSignal, begun: () => void) => Promise<T>

/**
 * The calls of one kind to one tier: how long one is waited for, which ones count against the tier,
 * and whether it is asked at all.
 */
class Calls {
  readonly name: string
  readonly clock: Clock
  readonly announces: boolean
  /**
   * A call that is slow for this tier counts as a failure at once, and not only when it is given
   * up.
   */
  readonly slowIsFailure: boolean
  readonly deadlineMs: number
  readonly times: Times
  readonly took = createHistogram()
  readonly live = new Set<WatchedCall>()
  /** Calls whose callers left, and whose ends are still worth knowing. */
  readonly strays = new Set<WatchedCall>()
  failures = 0
  readonly #what: 'reads' | 'writes'
  /** A call that fails quickly says nothing about the next one. */
  readonly #silenceOnly: boolean
  readonly #maxFailures: number
  readonly #log: Log
  // How long its answers take.
  readonly #last = createLastFew(kept)
  #p90Ms: number | undefined
  #p10Ms = 0
  #overdueInRow = 0
  #leftInRow = 0
  /** How many of the last reads found something, the latest counting most. */
  #hadShare = 1
  // The breaker.
  #failuresInRow = 0
  readonly #pause: Pause
  #pauseMs: number
  #openUntil: number | undefined
  #trial: WatchedCall | undefined

  constructor(what: 'reads' | 'writes', tier: Tier, times: Times, deadlineMs: number, options: GuardOptions) {
    this.#what = what
    this.name = tier.name
    this.times = times
    this.deadlineMs = deadlineMs
    this.announces = tier.announces ?? false
    this.slowIsFailure = tier.traits.shared
    this.#silenceOnly = what === 'reads' && !tier.traits.shared
    this.#pause = options.pause ?? defaultPause
    this.#pauseMs = this.#pause.firstMs
    this.#maxFailures = options.failures ?? defaultFailures
    this.clock = options.clock
    this.#log = options.log
  }

  /** `hadIt`, of a read: whether the answer is that there is something. */
  async run<T>(
    signal: AbortSignal | undefined,
    call: Call | undefined,
    work: Work<T>,
    hadIt?: (answer: T) => boolean,
  ): Promise<T> {
    signal?.throwIfAborted()
    if (this.live.size >= maxAtOnce) throw crowded(this.name)
    const { isOpen } = this
    const isTrial = isOpen && !this.#trial && this.clock.monotonic() >= (this.#openUntil ?? 0)
    if (isOpen && !isTrial && !call?.anyway) throw this.#passedOver()
    const isWaitedFor = !isOpen || call?.anyway === true
    const one = new WatchedCall(this, isWaitedFor ? call?.overdue : undefined, hadIt !== undefined)
    if (isTrial) this.#trial = one
    const over = this.#settled(one, one.begin(work), !isOpen || isTrial, hadIt)
    if (!isWaitedFor) {
      over.catch(() => {})
      throw this.#passedOver()
    }
    return orAborted(signal, over).catch((error: unknown) => {
      if (signal?.aborted) this.#left(one, over, error)
      throw error
    })
  }

  async #settled<T>(
    one: WatchedCall,
    work: Promise<T>,
    counts: boolean,
    hadIt: ((answer: T) => boolean) | undefined,
  ): Promise<T> {
    try {
      const answer = await work
      const { beganAt } = one
      if (beganAt !== undefined) this.#answered(this.clock.monotonic() - beganAt, hadIt?.(answer))
      // A late answer is an answer.
      if (counts) this.#close()
      return answer
    } catch (error) {
      const isTelling = one.isEnded
        ? !one.isLeft
        : isTheirs(error) && (!this.#silenceOnly || isFailure(error, 'timeout'))
      if (isTelling && counts) this.blame(one, error)
      else if (this.#trial === one) this.#trial = undefined
      throw error
    } finally {
      one.stop()
      this.live.delete(one)
    }
  }

  /** A caller that has waited long enough leaves a call whose end is worth knowing. */
  #left(one: WatchedCall, over: Promise<unknown>, why: unknown): void {
    one.isLeft = true
    over.catch(() => {})
    if (!one.isTold || this.strays.size >= maxStrays) return one.end(why)
    this.strays.add(one)
    over.catch(() => {}).finally(() => this.strays.delete(one))
  }

  // How long an answer is waited for.

  #answered(ms: number, had: boolean | undefined): void {
    this.took.observe(ms / 1000)
    if (had !== undefined) this.#hadShare = this.#hadShare * shareKept + (had ? 1 - shareKept : 0)
    this.#overdueInRow = this.#leftInRow = 0
    this.#last.add(ms)
    this.#p90Ms = this.#last.quantile(0.9)
    this.#p10Ms = this.#last.quantile(0.1) ?? 0
  }

  /** A caller goes on without the answer, which is not due yet. */
  leftEarly(): void {
    this.#leftInRow++
  }

  overdue(): void {
    this.#overdueInRow++
    // If no call to the tier is worth waiting for, those in the queue for it are not either.
    if (this.patienceMs === 0) for (const one of this.live) if (one.beganAt === undefined) one.tell()
  }

  /** An answer is due after this. */
  get dueMs(): number {
    const { firstMs, minMs, factor } = this.times
    return Math.min(this.deadlineMs, this.#p90Ms === undefined ? firstMs : Math.max(minMs, this.#p90Ms * factor))
  }

  /** A call that takes longer than this is slow, for this tier. */
  get slowMs(): number {
    return Math.min(this.deadlineMs, Math.max(minSlowMs, this.dueMs * slowFactor))
  }

  /** Not at all once two callers in a row went on without its answer and one call is late. */
  get patienceMs(): number {
    const { dueMs } = this
    const isSilent = this.#overdueInRow >= maxOverdue || (this.#overdueInRow > 0 && this.#leftInRow >= maxOverdue)
    return isSilent || dueMs > this.times.maxMs ? 0 : dueMs
  }

  /** The same for a read, which may find nothing: less where it has mostly had nothing lately. */
  get readPatienceMs(): number {
    const ms = Math.max(this.times.minMs, this.dueMs * this.#hadShare)
    // To wait for less than its quickest answers take would only delay the caller.
    return ms < this.#p10Ms ? 0 : Math.min(this.patienceMs, ms)
  }

  // The circuit breaker.

  get isOpen(): boolean {
    return this.#openUntil !== undefined
  }

  /** Counts a call against the tier, once. */
  blame(one: WatchedCall, error: unknown): void {
    if (one.isBlamed) return
    one.isBlamed = true
    this.failures++
    // A call that began before the breaker opened has nothing to add.
    if (this.#trial === one || (!this.isOpen && ++this.#failuresInRow >= this.#maxFailures)) this.#open(error)
  }

  /** Something else has found out that the tier is no use. */
  trip(error: unknown): void {
    if (!this.isOpen) this.#open(error)
  }

  /**
   * Releases all callers that wait for the tier, and cancels its calls that are still in our queue.
   */
  #open(error: unknown): void {
    const wasOpen = this.isOpen
    this.#openUntil = this.clock.monotonic() + this.#pauseMs
    this.#pauseMs = Math.min(this.#pauseMs * 2, this.#pause.maxMs)
    this.#trial = undefined
    if (wasOpen) return
    const reason = error instanceof Failure ? error.message : 'an unexpected error'
    this.#log('warn', 'tier.circuit-open', { tier: this.name, what: this.#what, reason })
    for (const one of this.live) {
      one.tell()
      if (one.beganAt === undefined) one.end(this.#passedOver())
    }
  }

  #close(): void {
    this.#failuresInRow = 0
    this.#pauseMs = this.#pause.firstMs
    this.#trial = undefined
    if (!this.isOpen) return
    this.#openUntil = undefined
    this.#log('info', 'tier.circuit-closed', { tier: this.name, what: this.#what })
  }

  #passedOver(): Failure {
    const retryAfterMs = Math.max(0, (this.#openUntil ?? 0) - this.clock.monotonic())
    const said = `tier ${this.name} is passed over: its last calls failed`
    return new Failure('unavailable', said, { source: 'tier', retryAfterMs })
  }
}

/**
 * One call. Its clock begins when the tier really works on it: first the caller is told that it is
 * overdue, then it counts as slow, once, and in the end it is given up.
 */
class WatchedCall {
  beganAt: number | undefined
  isTold = false
  isLeft = false
  isBlamed = false
  readonly #calls: Calls
  readonly #overdue: Call['overdue']
  /** It may find nothing, and is waited for by how often the tier had something. */
  readonly #isRead: boolean
  readonly #own = new AbortController()
  #cut: ((why: unknown) => void) | undefined
  #dueMs = 0
  #stop: (() => void) | undefined

  constructor(calls: Calls, overdue: Call['overdue'], isRead: boolean) {
    this.#calls = calls
    this.#overdue = overdue
    this.#isRead = isRead
  }

  begin<T>(work: Work<T>): Promise<T> {
    const { live, announces, clock, times } = this.#calls
    live.add(this)
    if (announces) this.#stop = clock.after(times.lineMs, () => this.tell())
    else this.#begun()
    // A store of a program's own may throw at once, where it should reject: so does this.
    return new Promise((resolve, reject) => {
      this.#cut = reject
      work(this.#own.signal, () => this.#begun()).then(resolve, reject)
    })
  }

  /**
   * Tells the caller, once, that it need not wait for this alone. `isWell`: the tier is not slow.
   */
  tell(isWell = false): void {
    if (this.isTold) return
    this.isTold = true
    this.#overdue?.(isWell)
  }

  end(why: unknown): void {
    this.#own.abort(why)
    this.#cut?.(why)
  }

  get isEnded(): boolean {
    return this.#own.signal.aborted
  }

  stop(): void {
    this.#stop?.()
  }

  #begun(): void {
    if (this.beganAt !== undefined || this.isEnded) return
    const { clock, patienceMs, readPatienceMs, dueMs, slowMs } = this.#calls
    this.#stop?.()
    this.beganAt = clock.monotonic()
    this.#dueMs = dueMs
    const due = (ms: number) => this.#ring(ms, () => this.#due(slowMs))
    // A tier that usually takes longer than is worth waiting for is not waited for at all.
    if (patienceMs === 0) this.tell()
    if (patienceMs === 0 || !this.#isRead || readPatienceMs >= patienceMs) return due(dueMs)
    const early = () => {
      this.#calls.leftEarly()
      this.tell(true)
      due(dueMs - readPatienceMs)
    }
    if (readPatienceMs === 0) early()
    else this.#stop = clock.after(readPatienceMs, early)
  }

  #due(slowMs: number): void {
    this.#calls.overdue()
    this.tell()
    this.#ring(slowMs - this.#dueMs, () => this.#slow(slowMs))
  }

  #slow(slowMs: number): void {
    const { name, deadlineMs, slowIsFailure } = this.#calls
    if (slowIsFailure) this.#calls.blame(this, silent(name, slowMs))
    this.#ring(deadlineMs - slowMs, () => this.end(silent(name, deadlineMs)))
  }

  /** Rings after `ms` in which this process was not held up. */
  #ring(ms: number, action: () => void): void {
    const { clock } = this.#calls
    const dueAt = clock.monotonic() + ms
    this.#stop = clock.after(ms, () => {
      if (clock.monotonic() - dueAt <= lateMs) return action()
      this.#heldUp()
      if (!this.isEnded) this.#ring(Math.min(ms, againMs), action)
    })
  }

  #heldUp(): void {
    const { clock, name, deadlineMs, slowIsFailure } = this.#calls
    const ms = clock.monotonic() - (this.beganAt ?? 0)
    if (ms > this.#dueMs + (slowIsFailure ? heldUpMs.elsewhere : heldUpMs.here)) this.tell()
    if (ms > deadlineMs * maxTimes) this.end(silent(name, ms))
  }
}

const notTheirs: ReadonlySet<string> = new Set(['cancelled', 'too-large', 'malformed', 'unsupported', 'overloaded'])

/**
 * A failure that says something about the tier, and not about what was asked of it, who asked, or
 * our own queue.
 */
const isTheirs = (error: unknown): boolean => !(isFailure(error) && notTheirs.has(error.kind))

const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name} took longer than ${Math.round(ms)} ms`, { source: 'tier' })

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: more than ${maxAtOnce} calls wait for it`, { source: 'tier' })
