// One tier of a stack, which cannot hold up a request. Calls beyond the tier's concurrency are
// queued, each is measured, and its caller learns when another source should be asked too. A
// circuit breaker opens after failures in a row: then calls fail at once (`unavailable`) until a
// trial that no request waits for succeeds. Reads and writes have a breaker each, since a full disk
// can still be read. Reads of this machine's disk open it only by silence: slow or unreadable blocks
// may be nowhere else. Bytes from a tier that other programs may write to are hashed: corrupt bytes
// are a miss, and are deleted.
import type { CID } from 'multiformats/cid'
import type { Records, StoredRecord, Tier, TierTraits } from '../../../backends/tiers/contract.ts'
import { type Block, proves } from '../../core/cid.ts'
import { type Clock, onceLate, withDeadline } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createSemaphore, type Semaphore } from '../../core/semaphore.ts'
import { createHistogram, type Histogram } from '../../observe/requests.ts'
import { verifiedPeek } from './verified-peek.ts'
import { type FillStats, WriteBehind } from './write-behind.ts'

/** Options and callbacks of one call. */
export type Call = {
  /** Ask even if the breaker is open, since no other source is left. */
  readonly ignoresBreaker?: boolean
  /** The call takes so long that another source should be asked, too. The call goes on. */
  readonly onSoftTimeout?: () => void
}

export type TierHit = { readonly bytes: Uint8Array; readonly tier: string }

export type TierStats = FillStats & {
  readonly tier: string
  readonly hits: number
  readonly misses: number
  /** Calls that failed or were not answered in time. */
  readonly outages: number
  /** Blocks that did not match their CID. */
  readonly corrupt: number
}

export type GuardedRecords = Pick<Records, 'replace'> & {
  read(key: string, signal?: AbortSignal, call?: Call): Promise<StoredRecord | undefined>
}

export type GuardOptions = {
  readonly clock: Clock
  readonly log: Log
  /** The maximum of its write-behind queue. */
  readonly maxBytes: number
}

/** A tier that may be slow. */
export type SlowTier = GuardedTier & { readonly writeBehind: WriteBehind }

type Kind = 'reads' | 'writes'

const defaultTimeoutMs = 1000
const writeFactor = 10
const maxQueued = 8192
// A caller waits for twice the typical duration of an answer, within these, before it asks another
// source too. One of which that is more than the maximum is asked beside them from the start.
const minSoftTimeoutMs = 25
const maxSoftTimeoutMs = 500
/** Failures in a row that open the breaker. One less, and no caller waits for the tier alone. */
const maxFailures = 3
const trialMs = 1000
/** The time that `close` waits for the write-behind queue. */
const drainMs = 5000

/** Outlives the stack in a reload. */
export class GuardedTier {
  readonly tier: Tier
  readonly name: string
  readonly traits: TierTraits
  /** Undefined for a tier in memory, which is written to directly. */
  readonly writeBehind: WriteBehind | undefined
  readonly peek?: NonNullable<Tier['peek']>
  readonly putAll?: (blocks: readonly Block[], signal?: AbortSignal, call?: Call) => Promise<void>
  readonly records?: GuardedRecords
  /** Durations of answers. */
  readonly took: { readonly reads: Histogram; readonly writes: Histogram }
  readonly #clock: Clock
  readonly #log: Log
  readonly #reads: Calls
  readonly #writes: Calls
  hits = 0
  misses = 0
  outages = 0
  corrupt = 0

  constructor(tier: Tier, options: GuardOptions) {
    const { name, traits, records, timeoutMs = defaultTimeoutMs } = tier
    const reads = new Calls('reads', tier, timeoutMs, options)
    const writes = new Calls('writes', tier, timeoutMs * writeFactor, options)
    this.tier = tier
    this.name = name
    this.traits = traits
    this.#clock = options.clock
    this.#log = options.log
    this.#reads = reads
    this.#writes = writes
    this.took = { reads: reads.took, writes: writes.took }
    // A tier may be an instance of a class.
    if (tier.peek) {
      const peek: Tier['peek'] = (cid, how) => (reads.isOpen ? undefined : tier.peek?.(cid, how))
      this.peek = traits.trusted ? peek : verifiedPeek(peek)
    }
    if (tier.putAll)
      this.putAll = (blocks, signal, call) => writes.run(signal, call, async (own) => tier.putAll?.(blocks, own))
    if (records)
      this.records = {
        read: (key, signal, call) => reads.run(signal, call, (own) => records.read(key, own)),
        replace: (key, bytes, how, signal) =>
          writes.run(signal, undefined, (own) => records.replace(key, bytes, how, own)),
      }
    this.writeBehind = tier.putNow ? undefined : new WriteBehind({ ...options, tier: this })
  }

  /** Reads fail at once now. */
  get isDown(): boolean {
    return this.#reads.isOpen
  }

  async get(cid: CID, signal?: AbortSignal, call?: Call): Promise<Uint8Array | undefined> {
    const bytes = await this.#read(cid, signal, call)
    if (bytes === undefined || this.traits.trusted || proves(cid, bytes)) return bytes
    this.corrupt++
    this.#log('warn', 'tier.corrupt', { tier: this.name, cid: cid.toString(), bytes: bytes.byteLength })
    // Not on the reader's signal: an impatient client leaves no corrupt block behind.
    await this.writeBehind?.mend(cid, (own, mending) => this.#removeCorrupt(cid, own, mending))
    return undefined
  }

  #read(cid: CID, signal: AbortSignal | undefined, call: Call | undefined): Promise<Uint8Array | undefined> {
    return this.#reads.run(signal, call, (own) => this.tier.get(cid, own), true)
  }

  /** Deletes the block if it is still corrupt. */
  async #removeCorrupt(cid: CID, signal: AbortSignal, call: Call): Promise<void> {
    try {
      const bytes = await this.#read(cid, signal, call)
      signal.throwIfAborted()
      if (bytes && !proves(cid, bytes)) await this.delete(cid, signal, call)
    } catch (error) {
      if (isFailure(error, 'cancelled')) return
      this.#log('warn', 'tier.corrupt-kept', { tier: this.name, cid: cid.toString(), error: String(error) })
    }
  }

  has(cid: CID, signal?: AbortSignal): Promise<boolean> {
    return this.#reads.run(signal, undefined, (own) => this.tier.has(cid, own))
  }

  put(cid: CID, bytes: Uint8Array, signal?: AbortSignal, call?: Call): Promise<void> {
    return this.#writes.run(signal, call, (own) => this.tier.put(cid, bytes, own))
  }

  delete(cid: CID, signal?: AbortSignal, call?: Call): Promise<void> {
    return this.#writes.run(signal, call, (own) => this.tier.delete(cid, own))
  }

  /** A tier that fails is skipped from then on. */
  async probe(signal?: AbortSignal): Promise<void> {
    const { timeoutMs: ms } = this.#writes
    try {
      const late = () => silent(this.name, ms)
      await withDeadline({ ms, clock: this.#clock, signal, late }, async (own) => this.tier.probe?.(own))
    } catch (error) {
      if (!signal?.aborted) for (const calls of [this.#reads, this.#writes]) calls.open(error)
      throw error
    }
  }

  hit(bytes: Uint8Array): TierHit {
    this.hits++
    return { bytes, tier: this.name }
  }

  outage(error: unknown): Failure {
    this.outages++
    if (isFailure(error)) return error
    this.#log('error', 'tier.error', { tier: this.name, error: String(error) })
    const said = `tier ${this.name}: internal error; the log has it as tier.error`
    return new Failure('internal', said, { source: 'ours', cause: error })
  }

  get stats(): TierStats {
    const { name: tier, hits, misses, outages, corrupt, writeBehind } = this
    return { tier, hits, misses, outages, corrupt, ...(writeBehind?.stats ?? noFills) }
  }

  /** Writes what waits for the tier, within the time. The tier stays open. */
  async close(): Promise<void> {
    await this.writeBehind?.close(drainMs)
  }
}

const noFills: FillStats = { written: 0, dropped: 0, failed: 0, queued: 0, queuedBytes: 0 }

type Caller = Call & { readonly signal?: AbortSignal | undefined }
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
  readonly slots: Semaphore
  readonly #live = new Set<GuardedCall>()
  /** Rises quickly with the last answers and falls slowly; undefined before the first. */
  #typicalMs: number | undefined
  #missesInRow = 0
  /** Calls that were slow or failed since the last answer. */
  #failures = 0
  /** The next trial; undefined while the breaker is closed. */
  #trialAt: number | undefined
  #trial: GuardedCall | undefined

  constructor(kind: Kind, tier: Tier, timeoutMs: number, { clock, log }: GuardOptions) {
    this.kind = kind
    this.tier = tier
    this.clock = clock
    this.timeoutMs = timeoutMs
    this.#log = log
    const said = `tier ${tier.name}: more than ${maxQueued} calls wait for it`
    const full = () => new Failure('overloaded', said, { source: 'tier' })
    this.slots = createSemaphore({ max: tier.concurrency?.[kind] ?? maxQueued, maxQueued, full })
  }

  get isOpen(): boolean {
    return this.#trialAt !== undefined
  }

  /** `mayMiss`: an answer of undefined is a miss, and worth less. */
  run<T>(signal: AbortSignal | undefined, call: Call | undefined, work: Work<T>, mayMiss = false): Promise<T> {
    if (signal?.aborted) return Promise.reject(signal.reason)
    const isTrial = this.isOpen && !this.#trial && this.clock.monotonic() >= (this.#trialAt as number)
    const isWaitedFor = !this.isOpen || call?.ignoresBreaker === true
    if (!isWaitedFor && !isTrial) return Promise.reject(this.#skipped())
    const one = new GuardedCall(this, work, mayMiss, isWaitedFor ? { ...call, signal } : {})
    if (isTrial) this.#trial = one
    this.#live.add(one)
    void one.run()
    if (isWaitedFor) return one.done as Promise<T>
    one.done.catch(() => {})
    return Promise.reject(this.#skipped())
  }

  /** The call is over. */
  left(one: GuardedCall): void {
    this.#live.delete(one)
    if (this.#trial === one) this.#trial = undefined
  }

  /**
   * `ms`: the time after which a caller asks another source too. `slowMs`: the time after which an
   * answer is slow. A read that mostly misses is worth less with each miss since the last hit.
   */
  softTimeout(mayMiss: boolean): { readonly ms: number; readonly slowMs: number } {
    const { shared } = this.tier.traits
    const typicalMs = this.#typicalMs ?? 0
    // A block on this machine is worth waiting for, and so is the first write: without it an upload
    // is delivered later.
    const isFirstWrite = this.#typicalMs === undefined && this.kind === 'writes'
    const minMs = shared && !isFirstWrite ? minSoftTimeoutMs : maxSoftTimeoutMs
    const fullMs = Math.min(this.timeoutMs, Math.max(minMs, 2 * typicalMs))
    const missesInRow = shared && mayMiss ? this.#missesInRow : 0
    const ms = Math.min(fullMs, Math.max(minMs, fullMs / (1 + missesInRow)))
    const slowMs = Math.min(this.timeoutMs, Math.max(maxSoftTimeoutMs, 4 * typicalMs))
    const isWorthIt = this.#isWorthWaiting && fullMs <= maxSoftTimeoutMs && ms >= typicalMs
    return { ms: isWorthIt ? ms : 0, slowMs }
  }

  get #isWorthWaiting(): boolean {
    return this.#failures < maxFailures - 1
  }

  answered(ms: number, isMiss: boolean): void {
    this.#missesInRow = isMiss ? this.#missesInRow + 1 : 0
    this.took.observe(ms / 1000)
    const typicalMs = this.#typicalMs ?? ms
    this.#typicalMs = typicalMs + (ms - typicalMs) / (ms > typicalMs ? 2 : 8)
    this.#failures = 0
    // A late answer is an answer.
    if (!this.isOpen) return
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
    if (isOurs || isHarmless || (this.isOpen && this.#trial !== one)) return
    this.#count(one)
    if (this.isOpen || this.#failures >= maxFailures) this.open(error)
  }

  /** Queued calls are not waited for where the running ones are not worth it. */
  #count(one: GuardedCall): void {
    if (!one.isCounted) this.#failures++
    one.isCounted = true
    if (!this.#isWorthWaiting) for (const other of this.#live) if (other.isQueued) other.tell()
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
      if (one.isQueued) one.cancel(this.#skipped())
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
  isCounted = false
  isQueued = true
  readonly #calls: Calls
  readonly #work: Work<unknown>
  readonly #mayMiss: boolean
  readonly #caller: Caller
  readonly #own = new AbortController()
  readonly #settled = Promise.withResolvers<unknown>()
  #stopTimer: (() => void) | undefined
  #isTold = false
  #isOver = false

  constructor(calls: Calls, work: Work<unknown>, mayMiss: boolean, caller: Caller) {
    this.#calls = calls
    this.#work = work
    this.#mayMiss = mayMiss
    this.#caller = caller
    caller.signal?.addEventListener('abort', this.#leave, { once: true })
  }

  get done(): Promise<unknown> {
    return this.#settled.promise
  }

  async run(): Promise<void> {
    const { tier, slots } = this.#calls
    this.#after(maxSoftTimeoutMs, () => this.tell())
    try {
      // In its slot: calls to a tier that does not open must not pile up.
      const work = async () => {
        await tier.open?.()?.catch(() => {})
        if (!this.#isOver) await this.#begin()
      }
      await slots.run(work, this.#own.signal)
    } catch (error) {
      this.#fail(error)
    }
  }

  /** Settles when the tier has stopped working on it. */
  async #begin(): Promise<void> {
    const { clock, timeoutMs, tier } = this.#calls
    this.isQueued = false
    const { ms, slowMs } = this.#calls.softTimeout(this.#mayMiss)
    const beganAt = clock.monotonic()
    this.#stopTimer?.()
    const onSlow = () => {
      this.#calls.slow(this, slowMs)
      this.#after(timeoutMs - slowMs, () => this.#fail(silent(tier.name, timeoutMs)))
    }
    const onSoftTimeout = () => {
      this.#after(slowMs - ms, onSlow)
      this.tell()
    }
    if (ms > 0) this.#after(ms, onSoftTimeout)
    else onSoftTimeout()
    const answer = await this.#work(this.#own.signal)
    if (!this.#end()) return
    this.#calls.answered(clock.monotonic() - beganAt, this.#mayMiss && answer === undefined)
    this.#settled.resolve(answer)
  }

  /** Tells the caller, once, not to wait for this alone. */
  tell(): void {
    if (this.#isTold) return
    this.#isTold = true
    this.#caller.onSoftTimeout?.()
  }

  /** Ends it for a reason that says nothing about the tier. */
  cancel(why: unknown): void {
    if (!this.#end()) return
    this.#own.abort(why)
    this.#settled.reject(why)
  }

  readonly #leave = (): void => {
    const why = this.#caller.signal?.reason
    if (this.#isTold && this.#calls.kind === 'reads') this.#settled.reject(why)
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
    this.#caller.signal?.removeEventListener('abort', this.#leave)
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
