// An upstream: a circuit breaker, a queue, budgets and estimates, all learned from how each
// question ends. A question to an upstream that is out is refused; its flight waits, where waiting
// helps.
//
// | state            | begins with                        | ends with                           | asked meanwhile, if no other is ready |
// | ---------------- | ---------------------------------- | ----------------------------------- | ------------------------------------- |
// | ready            |                                    |                                     | as the queue allows                   |
// | unhealthy        | failures at three moments, a probe | a good answer or probe, or the time | without probes: once a second         |
// | rate-limited     | a 429, also to a probe             | the time: `Retry-After`, or a guess | if that is a guess: the same          |
// | incompatible     | a probe                            | a probe, a good answer              | once a second                         |
// | quarantined      | bytes of another hash              | the time, a good answer             | once a second                         |
// | budget-exhausted | its requests of this minute        | the time                            | never                                 |
import { LRUCache } from 'lru-cache'
import type { ProbeReport } from '../../../backends/upstreams/contract.ts'
import { upTo } from '../../core/cache.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, type FailureKind, isFailure, wordsOf } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createHistogram, type Histogram } from '../../observe/requests.ts'
import { createLastFew, type LastFew } from '../last-few.ts'
import type { LoopScheduler } from '../loop-scheduler.ts'
import type { AskKind, LetGo, Question } from './attempts.ts'
import { Estimate, MinuteBudget, minuteMs } from './estimates.ts'
import { enoughOvertook, type QueueOwner, UpstreamQueue } from './upstream-queue.ts'

const hourMs = 60 * minuteMs
/** For so long an event is remembered: an absence, proved bytes, a hash mismatch. */
const memoryMs = 10 * minuteMs

/**
 * In the order in which they count. A backoff doubles up to `maxMs`, and is forgotten after
 * `forgetMs` without another.
 */
const outages = {
  quarantined: { firstMs: 5_000, maxMs: hourMs, forgetMs: memoryMs },
  incompatible: { firstMs: Number.POSITIVE_INFINITY, maxMs: Number.POSITIVE_INFINITY, forgetMs: 0 },
  'rate-limited': { firstMs: 1_000, maxMs: minuteMs, forgetMs: memoryMs },
  unhealthy: { firstMs: 1_000, maxMs: minuteMs, forgetMs: 10_000 },
} as const

type OutState = keyof typeof outages
const outStates = Object.keys(outages) as OutState[]

export const upstreamStates = [
  ...(['ready', 'rate-limited', 'unhealthy', 'quarantined', 'incompatible'] as const),
  'budget-exhausted',
] as const
export type UpstreamState = (typeof upstreamStates)[number]

class Outage {
  readonly state: OutState
  /** Backoffs in a row. */
  count = 0
  since = 0
  at = Number.NEGATIVE_INFINITY
  until = Number.NEGATIVE_INFINITY
  constructor(state: OutState) {
    this.state = state
  }
}

export type UpstreamCount = 'asked' | 'won' | 'notFound' | 'throttled' | 'failed' | 'hashMismatch' | 'lost'

/** For the operator alone. `recent`: milliseconds to the first byte of the last answers. */
export type UpstreamMeasured = {
  readonly firstByte: Histogram
  readonly duration: Histogram
  readonly recent: LastFew
  bytes: number
}

/** Why it is out, or was last, and its last failure. `at`: milliseconds since the epoch. */
export type LastError = {
  readonly why: string | undefined
  readonly last: { readonly at: number; readonly why: string } | undefined
}

export type UpstreamHealthOptions = {
  readonly name: string
  readonly clock: Clock
  /** Shared by everything that yields on this loop. */
  readonly turns: LoopScheduler
  readonly log: Log
  readonly connections?: number | undefined
  readonly perMinute?: number | undefined
  readonly perCidPerMinute?: number | undefined
  readonly random?: (() => number) | undefined
}

/** A CID at this upstream. */
type KeyRecord = { missedUntil: number; falseUntil: number; readonly budget: MinuteBudget | undefined }

const maxKeys = 10_000
const defaultConnections = 32
// A shorter wait for the budget is one in the queue.
const maxBudgetWaitMs = 4_000
const failuresToOutage = 3
const jitter = 0.25
/** An outage is waited for by clients, and probed often, for so long. */
const briefMs = 10_000
const expectedBytes = { block: 256 * 1024, dag: 1024 * 1024 } as const
const missWeight = 0.05
const minLateMs = 250
const tryEveryMs = 1_000
const probesApartMs = 250
const maxProbesApartMs = 3_500

export const createUpstreamHealth = (options: UpstreamHealthOptions): UpstreamHealth => new UpstreamHealth(options)

export class UpstreamHealth implements QueueOwner {
  readonly counts: Record<UpstreamCount, number> = {
    ...{ asked: 0, won: 0, notFound: 0, throttled: 0, failed: 0, hashMismatch: 0, lost: 0 },
  }
  readonly measured: UpstreamMeasured = {
    firstByte: createHistogram(),
    duration: createHistogram(),
    recent: createLastFew(64),
    bytes: 0,
  }
  readonly #name: string
  readonly #clock: Clock
  readonly #options: UpstreamHealthOptions
  readonly #queue: UpstreamQueue

  // The circuit breaker.
  readonly #outages = Object.fromEntries(outStates.map((state) => [state, new Outage(state)])) as Record<
    OutState,
    Outage
  >
  #outUntil = Number.NEGATIVE_INFINITY
  /** The upstream did not say for how long it limits the rate. */
  #isGuess = false
  /** Moments at which it failed since its last answer. */
  #failures = 0
  #failedAt = Number.NEGATIVE_INFINITY
  #provenAt = Number.NEGATIVE_INFINITY
  #answeredAt = Number.NEGATIVE_INFINITY
  /** While it is out, it is tried again then. */
  #tryAt = 0
  #isLoggedOut = false
  #lastError: LastError = { why: undefined, last: undefined }

  // Estimates and budgets.
  readonly #estimates: Readonly<Record<AskKind, Estimate>>
  readonly #budget: MinuteBudget | undefined
  readonly #keys = new LRUCache<string, KeyRecord>(upTo(maxKeys))
  #missShare = 0
  #missMs = 0
  #sendsAllUntil = Number.NEGATIVE_INFINITY

  // Probes.
  readonly #probers = new Set<() => void>()
  #probeAt = Number.POSITIVE_INFINITY
  #probedAt = Number.NEGATIVE_INFINITY
  #foundWellAt = Number.NEGATIVE_INFINITY
  #waitedForUntil = Number.NEGATIVE_INFINITY
  /**
   * It answers, and fails at what a probe asks for: only a client's question tells whether it
   * works.
   */
  #failsProbes = false

  constructor(options: UpstreamHealthOptions) {
    const { name, clock, connections = defaultConnections, perMinute } = options
    this.#name = name
    this.#clock = clock
    this.#options = options
    this.#queue = new UpstreamQueue(options, connections, this)
    this.#estimates = { block: new Estimate(clock), dag: new Estimate(clock) }
    this.#budget = perMinute === undefined ? undefined : new MinuteBudget(perMinute)
  }

  // Its state.

  /** Its state for this CID, and the time until it is ready; undefined: unknown. */
  state(key: string): { readonly state: UpstreamState; readonly untilMs: number | undefined } {
    const now = this.#now
    const out = this.#outAt(now)
    if (out) return { state: out.state, untilMs: leftMs(out, now) }
    const record = this.#keys.size > 0 ? this.#keys.get(key) : undefined
    if (record && record.falseUntil > now) return { state: 'quarantined', untilMs: record.falseUntil - now }
    const ownMs = record?.budget?.waitMs(now) ?? 0
    const untilMs = Math.max(ownMs, this.#budget?.waitMs(now) ?? 0)
    return ownMs > 0 || untilMs > maxBudgetWaitMs ? { state: 'budget-exhausted', untilMs } : readyState
  }

  /**
   * Until it may be asked for this while no other is ready: 0 where it is ready, or is to be tried
   * although it is out; Infinity where that is unknown or far. `failedAt`: when it failed the flight
   * that asks; it is back for that flight when it has answered a client or a probe since.
   */
  backInMs(key: string, failedAt = Number.NEGATIVE_INFINITY): number {
    const now = this.#now
    const out = this.#outAt(now)
    if (!out) {
      const hasAnswered = failedAt < 0 || Math.max(this.#answeredAt, this.#foundWellAt) > failedAt
      if (!hasAnswered) return this.#probers.size > 0 ? probesApartMs : Number.POSITIVE_INFINITY
      const { state, untilMs } = this.state(key)
      return state === 'quarantined' ? Number.POSITIVE_INFINITY : (untilMs ?? 0)
    }
    // These two last: a flight asks such an upstream once at most, and does not wait for it.
    if (out.state === 'incompatible' || out.state === 'quarantined')
      return failedAt < 0 && this.#tryAt <= now ? 0 : Number.POSITIVE_INFINITY
    const budgetMs = this.#budget?.waitMs(now) ?? 0
    if (this.#isTried(out)) return Math.max(budgetMs, Math.min(out.until, this.#tryAt) - now, 0)
    if (out.state === 'rate-limited') return Math.max(budgetMs, out.until - now)
    return this.#outMs < briefMs ? probesApartMs : Number.POSITIVE_INFINITY
  }

  get lastError(): LastError {
    return this.#lastError
  }

  /** It may be back so soon that nobody knows yet whether it has what the others lack. */
  get isOutBriefly(): boolean {
    const state = this.#outAt(this.#now)?.state
    return state === 'rate-limited' || (state === 'unhealthy' && this.#outMs < outages.unhealthy.maxMs)
  }

  /** This was asked for lately and not found. */
  isDoubted(key: string): boolean {
    return this.#keys.size > 0 && (this.#keys.get(key)?.missedUntil ?? 0) > this.#now
  }

  get #now(): number {
    return this.#clock.monotonic()
  }

  #outAt(now: number): Outage | undefined {
    if (now >= this.#outUntil) return undefined
    for (const state of outStates) if (this.#outages[state].until > now) return this.#outages[state]
    return undefined
  }

  /** The time since it became unhealthy, with pauses in which only probes succeeded. */
  get #outMs(): number {
    const { count, since } = this.#outages.unhealthy
    return count === 0 ? 0 : this.#now - since
  }

  #recordOf(key: string): KeyRecord {
    let record = this.#keys.get(key)
    if (!record) {
      const { perCidPerMinute } = this.#options
      const budget = perCidPerMinute === undefined ? undefined : new MinuteBudget(perCidPerMinute)
      this.#keys.set(key, (record = { missedUntil: 0, falseUntil: 0, budget }))
    }
    return record
  }

  // Its cost.

  /**
   * The expected cost of asking it now, for 1 MiB of a DAG or one block, with guesses for the
   * unknown.
   */
  load(kind: AskKind): number {
    const now = this.#now
    const cost = Math.max(this.#estimates[kind].costMs(expectedBytes[kind], now), this.silentMs)
    const missMs = (this.#missShare / Math.max(missWeight, 1 - this.#missShare)) * this.#missMs
    return cost * (1 + this.pending / defaultConnections) + missMs + this.waitMs
  }

  isUntried(kind: AskKind): boolean {
    return this.#estimates[kind].isUntried(this.#now)
  }

  typicalMs(kind: AskKind): number | undefined {
    return this.#estimates[kind].typicalMs
  }

  rate(kind: AskKind): number | undefined {
    return this.#estimates[kind].rate
  }

  /** The time for so many bytes if it were asked now. */
  expectedMs(kind: AskKind, bytes: number): number {
    return Math.max(this.#estimates[kind].expectedMs(bytes), this.silentMs) + this.waitMs
  }

  /** Asked for a part of a file as a CAR, it sends all of it. */
  get sendsAll(): boolean {
    return this.#now < this.#sendsAllUntil
  }

  ignoresRanges(): void {
    this.#sendsAllUntil = this.#now + memoryMs
  }

  /** The time of a question in the queue, if it were asked now. */
  get waitMs(): number {
    return this.#queue.waitMs
  }

  get isCrowded(): boolean {
    return this.#queue.window.isCrowded(this.#now)
  }

  /** For how long it has owed answers without giving one to any client. */
  get silentMs(): number {
    return this.#queue.silentMs(this.#answeredAt, this.#now)
  }

  get pending(): number {
    return this.#queue.pending
  }

  get budget(): { readonly perMinute: number; readonly used: number } | undefined {
    return this.#budget && { perMinute: this.#budget.perMinute, used: this.#budget.used(this.#now) }
  }

  // A question, from the queue to its end.

  /**
   * Begins it, or queues it; refuses it as `overloaded`, or as `unavailable` while the upstream is
   * out.
   */
  ask(question: Question, now: number): void {
    const out = this.#outAt(now)
    if (out) {
      if (out.state === 'unhealthy') this.suspect()
      if (!this.#isTried(out) || this.#tryAt > now) return question.refused(this.#unavailable(now), now)
      return this.#queue.begin(question, now)
    }
    if (this.#options.perCidPerMinute !== undefined) {
      const { budget } = this.#recordOf(question.key)
      const ms = budget?.waitMs(now) ?? 0
      if (ms > 0) return question.refused(this.#queue.overloaded(ms), now)
      budget?.take(now)
    }
    this.#queue.add(question, now)
  }

  leaveQueue(question: Question): void {
    this.#queue.leave(question)
  }

  begin(question: Question, now: number): void {
    this.#budget?.take(now)
    this.#tryAt = now + tryEveryMs
    this.counts.asked++
    this.#estimates[question.kind].asked(now)
    question.begun(now)
  }

  heldMs(now: number): number {
    return this.#budget?.waitMs(now) ?? 0
  }

  get lateMs(): number {
    const { block, dag } = this.#estimates
    return Math.max(minLateMs, dag.typicalMs ?? block.typicalMs ?? 0)
  }

  /** More proved bytes, for which readers waited this long since the last. */
  brought(question: Question, bytes: number, waitedMs: number, now: number): void {
    this.measured.bytes += bytes
    const estimate = this.#estimates[question.kind]
    // It has begun before.
    if (question.bytes > bytes || (bytes === 0 && question.bytes > 0)) return estimate.moved(bytes, waitedMs)
    if (bytes === 0) return
    const ms = now - question.at
    this.#answeredAt = now
    estimate.began(ms, now)
    this.measured.firstByte.observe(ms / 1000)
    this.measured.recent.add(ms)
    this.#queue.window.answered(ms, now, question.wasFull)
    this.#missShare -= this.#missShare * missWeight
    const record = this.#keys.size > 0 ? this.#keys.get(question.key) : undefined
    if (record) record.missedUntil = 0
    this.#answered(question.at, now)
    this.#queue.answered(question, now)
  }

  /** It gave all that it was asked for. */
  done(question: Question, now: number): void {
    this.counts.won++
    this.#estimates[question.kind].finished()
    this.#end(question, now)
  }

  /** Given up without a failure: others brought enough, or it fell behind. */
  letGo(question: Question, why: LetGo, now: number): void {
    if (question.bytes === 0) {
      this.counts.lost++
      this.#estimates[question.kind].notYet(now - question.at, now)
    } else if (why === 'behind') this.#estimates[question.kind].brokeOff()
    this.#end(question, now)
  }

  /** The answer is what to hold against it if another upstream turns out to have the content. */
  failed(question: Question, error: unknown, now: number): (() => void) | undefined {
    const ms = now - question.at
    const kind = kindOf(error)
    const { isEvicted } = question
    const isBegun = question.bytes > 0
    const isAnswer = kind === 'not-found' || kind === 'refused'
    if (!isBegun && (kind === 'not-found' || kind === 'timeout' || isEvicted))
      this.#recordOf(question.key).missedUntil = now + memoryMs
    if (kind === 'hash-mismatch') this.#recordOf(question.key).falseUntil = now + minuteMs
    if (kind === 'not-found') this.#missMs += (ms - this.#missMs) * (this.#missMs === 0 ? 1 : missWeight)
    if (!isEvicted && kind !== 'timeout' && kind !== 'cancelled' && kind !== 'overloaded') {
      this.#answeredAt = now
      if (isAnswer) this.#queue.answered(question, now)
    }
    if (isEvicted) {
      this.counts.lost++
      return void this.#end(question, now)
    }
    const later = this.#blame(error, kind, question.kind, question.at, isBegun)
    this.#end(question, now)
    if (kind !== 'timeout' || !later) return later
    return () => {
      this.#estimates[question.kind].notYet(ms, this.#now)
      later()
    }
  }

  /** It failed at something that was no question of a race. */
  brokeOff(error: unknown): void {
    this.#blame(error, kindOf(error), 'block', this.#now, false)
  }

  /**
   * An absence or a silence says nothing of the upstream until another one turns out to have the
   * content.
   */
  #blame(error: unknown, kind: FailureKind, of: AskKind, at: number, isBegun: boolean): (() => void) | undefined {
    const { counts } = this
    const now = this.#now
    switch (kind) {
      case 'cancelled':
      case 'overloaded': // this gateway could not ask
        return undefined
      case 'not-found':
      case 'refused':
        counts.notFound++
        if (kind === 'not-found') this.#answered(at, now)
        return () => {
          this.#missShare += (1 - this.#missShare) * missWeight
        }
      case 'throttled':
        counts.throttled++
        this.#queue.window.failed(at, now)
        this.#throttled(error as Failure, at, now)
        return undefined
      case 'hash-mismatch':
        counts.hashMismatch++
        // Several false answers under way at once are one.
        this.#note(hashMismatch, true)
        if (this.#outages.quarantined.until <= now) {
          const forMs = this.#out('quarantined', now)
          this.#options.log('error', 'upstream.quarantined', { upstream: this.#name, forMs, why: hashMismatch })
        }
        return undefined
      default:
        counts.failed++
        if (isBegun) this.#estimates[of].brokeOff()
        else if (kind !== 'timeout') this.#failed(error, of, at)
        else {
          // Silent for an unknown reason: if it has answered no client since, a probe will tell.
          if (this.#answeredAt < at) this.suspect()
          return () => this.#failed(error, of, at)
        }
        return undefined
    }
  }

  #end(question: Question, now: number): void {
    this.measured.duration.observe((now - question.at) / 1000)
    this.#estimates[question.kind].ended(now)
    this.#queue.ended(question)
  }

  // The circuit breaker.

  #answered(beganAt: number, now: number): void {
    this.#provenAt = now
    const { unhealthy, quarantined, incompatible, 'rate-limited': limited } = this.#outages
    if (this.#failures === 0 && unhealthy.count + limited.count === 0 && now >= this.#outUntil && !this.#isLoggedOut)
      return
    const before = this.#outAt(now)?.state
    const isCalm = now - unhealthy.at >= briefMs
    this.#failures = unhealthy.count = 0
    unhealthy.until = incompatible.until = Math.min(unhealthy.until, now)
    quarantined.until = Math.min(quarantined.until, now)
    if (beganAt >= limited.at) {
      limited.count = 0
      if (this.#isGuess) limited.until = Math.min(limited.until, now)
    }
    // An upstream that comes and goes is logged once.
    if (this.#isLoggedOut && isCalm) {
      this.#isLoggedOut = false
      this.#options.log('info', 'upstream.recovered', { upstream: this.#name })
    }
    this.#changed(before, now)
  }

  /** It failed before anything came, or was silent although another one had the content. */
  #failed(error: unknown, of: AskKind, beganAt: number): void {
    const now = this.#now
    this.#estimates[of].brokeOff()
    this.#note(error, false)
    this.#queue.window.failed(beganAt, now)
    // Questions that were under way at its last failure fail of the same cause.
    if (beganAt >= this.#failedAt) {
      const { unhealthy } = this.#outages
      if (unhealthy.count > 0 && now - unhealthy.until > outages.unhealthy.forgetMs) this.#failures = 0
      this.#failedAt = now
      if (++this.#failures >= failuresToOutage) this.#unhealthy(error, now)
    }
    this.suspect()
  }

  #unhealthy(error: unknown, now: number): void {
    this.#failedAt = now
    this.#note(error, true)
    this.#out('unhealthy', now)
    if (this.#isLoggedOut) return
    this.#isLoggedOut = true
    this.#options.log('warn', 'upstream.unhealthy', { upstream: this.#name, why: wordsOf(error) })
  }

  #throttled(error: Failure, beganAt: number, now: number): void {
    const limited = this.#outages['rate-limited']
    this.#note(error, true)
    const { retryAfterMs } = error
    const wasOut = limited.until > now
    // Several refusals of one moment are one, and a time that was named counts before a guess.
    if (retryAfterMs === undefined && (beganAt < limited.at || (wasOut && !this.#isGuess))) return
    const named = retryAfterMs === undefined ? undefined : Math.min(hourMs, retryAfterMs)
    this.#isGuess = named === undefined
    const forMs = this.#out('rate-limited', now, named)
    if (!wasOut) this.#options.log('warn', 'upstream.rate-limited', { upstream: this.#name, forMs })
  }

  /** It is in this state for the next backoff, or so long. */
  #out(state: OutState, now: number, named?: number): number {
    const before = this.#outAt(now)?.state
    const one = this.#outages[state]
    const { firstMs, maxMs, forgetMs } = outages[state]
    if (now - one.until > forgetMs) one.count = 0
    if (one.count === 0) one.since = now
    const ms = named ?? Math.min(maxMs, firstMs * 2 ** one.count)
    if (named === undefined) one.count++
    const { random = Math.random } = this.#options
    one.at = now
    one.until = now + (state === 'unhealthy' ? ms * (1 + jitter * random()) : ms)
    this.#outUntil = Math.max(this.#outUntil, one.until)
    this.#changed(before, now)
    return ms
  }

  #changed(before: OutState | undefined, now: number): void {
    this.#outUntil = Math.max(...outStates.map((state) => this.#outages[state].until))
    const state = this.#outAt(now)?.state
    if (state === before) return
    if (state === 'unhealthy') this.#queue.outage(now)
    if (state === undefined) this.#queue.serve()
    else this.#queue.refuseAll(() => this.#unavailable(this.#now))
    if (state === 'unhealthy') this.#probeChanged()
  }

  /**
   * Probes decide when an outage ends; without them the upstream is tried. All that it sends is
   * proved.
   */
  #isTried({ state }: Outage): boolean {
    if (state === 'unhealthy') return this.#probers.size === 0 || this.#failsProbes
    return state !== 'rate-limited' || this.#isGuess
  }

  #note(error: unknown, isOut: boolean): void {
    const why = wordsOf(error).slice(0, 500)
    this.#lastError = { why: isOut ? why : this.#lastError.why, last: { at: this.#clock.now(), why } }
  }

  #unavailable(now: number): Failure {
    const out = this.#outAt(now)
    return new Failure('unavailable', `${this.#name} cannot be asked now (${out?.state ?? 'ready'})`, {
      source: 'upstream',
      retryAfterMs: out && this.#isTried(out) ? Math.max(0, this.#tryAt - now) : out && leftMs(out, now),
    })
  }

  // Probes.

  probed(report: ProbeReport): void {
    const now = this.#now
    this.#wasProbed(now)
    this.#failsProbes = false
    if (report.lied) this.#countProbe('hashMismatch')
    if (report.usable) this.#queue.window.open()
    const before = this.#outAt(now)?.state
    const { incompatible, unhealthy } = this.#outages
    const wasCompatible = incompatible.until <= now
    // Recent proved bytes say more than a probe: some gateways do not know the empty block that it
    // asks for.
    const usable = report.usable || now - this.#provenAt < memoryMs
    if (!usable) this.#note(report.findings.join('; ') || 'a probe found it unusable', true)
    else unhealthy.until = Math.min(unhealthy.until, now)
    incompatible.until = usable ? now : Number.POSITIVE_INFINITY
    if (usable !== wasCompatible) {
      const [upstream, findings] = [this.#name, report.findings]
      this.#options.log(usable ? 'info' : 'warn', usable ? 'upstream.compatible' : 'upstream.incompatible', {
        upstream,
        findings,
      })
    }
    this.#changed(before, now)
    if (!report.usable) return
    this.#foundWellAt = now
    // A probe of a gateway with both formats asks two questions, one after the other.
    for (const estimate of Object.values(this.#estimates)) estimate.probed(report.car ? report.ms / 2 : report.ms)
    this.#queue.overtake(now - report.ms, enoughOvertook)
  }

  /** A probe that began then failed. */
  unreachable(error: unknown, beganAt: number): void {
    const now = this.#now
    this.#wasProbed(now)
    const isThrottled = isFailure(error, 'throttled')
    const isAnswer = isThrottled || (isFailure(error, 'upstream-error') && error.facts.isIll === true)
    const isProven = this.#failures === 0 && now - this.#provenAt < memoryMs
    if (isAnswer && isProven && !this.#outAt(now)) return
    this.#failsProbes = isAnswer
    if (isThrottled) {
      this.#countProbe('throttled')
      return this.#throttled(error, beganAt, now)
    }
    this.#unhealthy(error, now)
  }

  /** Probes are counted where the upstream is out for its answer, so that the counters tell why. */
  #countProbe(what: 'hashMismatch' | 'throttled'): void {
    this.counts.asked++
    this.counts[what]++
  }

  /** Until the next probe besides the regular ones; Infinity: none. */
  get probeInMs(): number {
    const now = this.#now
    const wanted = Math.max(0, this.#probeAt - now)
    if (this.#outAt(now)?.state !== 'unhealthy') return wanted
    // Often at first, and while a request waits for it.
    const ms = now < this.#waitedForUntil ? 0 : this.#outMs / 2
    return Math.min(wanted, Math.max(0, this.#probedAt + Math.min(maxProbesApartMs, probesApartMs + ms) - now))
  }

  /** Calls `listener` when `probeInMs` may have changed, until the returned function is called. */
  onSuspicion(listener: () => void): () => void {
    this.#probers.add(listener)
    return () => this.#probers.delete(listener)
  }

  /** A flight waits until it is back. */
  waitedFor(): void {
    const now = this.#now
    const isNew = now >= this.#waitedForUntil
    this.#waitedForUntil = now + 2 * probesApartMs
    if (!this.#outAt(now)) this.suspect()
    if (isNew) this.#probeChanged()
  }

  suspect(): void {
    const at = Math.max(this.#now, this.#probedAt + probesApartMs)
    if (at >= this.#probeAt) return
    this.#probeAt = at
    this.#probeChanged()
  }

  #wasProbed(now: number): void {
    this.#probedAt = now
    this.#probeAt = Number.POSITIVE_INFINITY
  }

  #probeChanged(): void {
    for (const listener of this.#probers) listener()
  }
}

const readyState = { state: 'ready', untilMs: 0 } as const
const hashMismatch = 'it sent bytes that do not hash to their CID'

const leftMs = ({ until }: Outage, now: number): number | undefined =>
  Number.isFinite(until) ? until - now : undefined

export const kindOf = (error: unknown): FailureKind => (isFailure(error) ? error.kind : 'internal')
