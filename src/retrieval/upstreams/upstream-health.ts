// One upstream: a circuit breaker, a concurrency window with a queue in front of it, budgets and estimates, all learned from how each
// question ends. Its queue is the only one on the way to the upstream, so the time in it is never held against the upstream.
//
// | state            | begins with                        | ends with                                         | asked meanwhile               |
// | ---------------- | ---------------------------------- | ------------------------------------------------- | ----------------------------- |
// | ready            |                                    |                                                   | as the window allows          |
// | unhealthy        | failures at three moments, a probe | a good answer or probe; without probes the time   | without probes: once a second |
// | rate-limited     | a 429, also to a probe             | the time: `Retry-After`, else a guess             | if that is a guess: the same  |
// | incompatible     | a probe                            | a probe, a good answer                            | once a second                 |
// | quarantined      | bytes of another hash              | the time, a good answer                           | once a second                 |
// | budget-exhausted | its requests of this minute        | the time                                          | never                         |
//
// Whether one that is not ready is asked at all, the pool decides: where no other upstream is ready.
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
import { ConcurrencyWindow, Estimate, guessedFirstMs, MinuteBudget, minuteMs } from './estimates.ts'
import { RankedLine } from './ranked-line.ts'

const hourMs = 60 * minuteMs
/** For so long an event is remembered: an absence, proved bytes, a hash mismatch. */
const memoryMs = 10 * minuteMs

/** In the order in which they count. A backoff doubles up to `maxMs`, and is forgotten after `forgetMs` without another. */
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

/** What it is out for, or was last, and its last failure. `at`: milliseconds since the epoch. */
export type Told = {
  readonly why: string | undefined
  readonly lastTrouble: { readonly at: number; readonly why: string } | undefined
}

export type Others = {
  /** Another upstream could be asked instead. */
  readonly hasOthers: () => boolean
  /** The time for the queue and the answer. */
  readonly patienceMs?: number
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
  /** The same as in `Others`, which count before it. */
  readonly patienceMs?: number | undefined
  readonly random?: (() => number) | undefined
}

/** One CID at this upstream. */
type KeyRecord = { missedUntil: number; falseUntil: number; readonly budget: MinuteBudget | undefined }

const maxKeys = 10_000
const defaultConnections = 32
export const defaultPatienceMs = 4_000
const failuresToOutage = 3
const jitter = 0.25
const briefMs = 10_000
const usualBytes = { block: 256 * 1024, dag: 1024 * 1024 } as const
const missWeight = 0.05
// Falling behind others is less than breaking off: the others may just have been quick.
const behindShare = 0.3
const lateUnknownMs = 1_000
const minLateMs = 250
const tryEveryMs = 1_000
// The queue.
const maxQueued = 10_000
const recheckMs = 100
// Searches for what may be nowhere get this share of the connections, and more only while no reader wants them.
const searchShare = 1 / 8
const idleSearchShare = 3 / 4
const enoughOvertook = 2
// On a busy machine a healthy upstream answers late too.
const minBeforeEvictionMs = 2_000
// Probes.
const probesApartMs = 250
const maxProbesApartMs = 3_500

export const createUpstreamHealth = (options: UpstreamHealthOptions): UpstreamHealth => new UpstreamHealth(options)

export class UpstreamHealth {
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
  readonly #pools = new Set<Others>()

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
  #isLoggedOut = false
  #told: Told = { why: undefined, lastTrouble: undefined }

  // Estimates and budgets.
  readonly #estimates: Readonly<Record<AskKind, Estimate>>
  readonly #window: ConcurrencyWindow
  readonly #budget: MinuteBudget | undefined
  readonly #keys = new LRUCache<string, KeyRecord>(upTo(maxKeys))
  #missShare = 0
  #missMs = 0
  #answerMs = guessedFirstMs
  #sendsAllUntil = Number.NEGATIVE_INFINITY

  // The questions.
  readonly #line = new RankedLine<Question>()
  /** Those without an answer, in the order in which they were asked. */
  readonly #unanswered = new Set<Question>()
  #searching = 0
  #sending = 0
  #answeredAt = Number.NEGATIVE_INFINITY
  /** One that is out is tried again then. */
  #tryAt = 0
  #stopTimer: (() => void) | undefined

  // Probes.
  readonly #probers = new Set<() => void>()
  #probeAt = Number.POSITIVE_INFINITY
  #probedAt = Number.NEGATIVE_INFINITY
  #foundWellAt = Number.NEGATIVE_INFINITY
  #waitedForUntil = Number.NEGATIVE_INFINITY
  /** It answers, and fails at what a probe asks for: only a client's question tells whether it works. */
  #failsProbes = false

  constructor(options: UpstreamHealthOptions) {
    const { name, clock, connections = defaultConnections, perMinute } = options
    this.#name = name
    this.#clock = clock
    this.#options = options
    this.#estimates = { block: new Estimate(clock), dag: new Estimate(clock) }
    this.#window = new ConcurrencyWindow(connections)
    this.#budget = perMinute === undefined ? undefined : new MinuteBudget(perMinute)
  }

  // Whether it may be asked.

  /** Whether it may be asked for this, and if not, how long until it may again; undefined: unknown. */
  state(key: string): { readonly state: UpstreamState; readonly untilMs: number | undefined } {
    const now = this.#now
    const out = this.#outAt(now)
    if (out) return { state: out.state, untilMs: leftMs(out, now) }
    const record = this.#keys.size > 0 ? this.#keys.get(key) : undefined
    if (record && record.falseUntil > now) return { state: 'quarantined', untilMs: record.falseUntil - now }
    const budgetMs = Math.max(this.#budget?.waitMs(now) ?? 0, record?.budget?.waitMs(now) ?? 0)
    return budgetMs > this.#patienceMs ? { state: 'budget-exhausted', untilMs: budgetMs } : readyState
  }

  get told(): Told {
    return this.#told
  }

  /** It is unhealthy since a moment ago, and probed often. */
  get isRestingBriefly(): boolean {
    return this.#outAt(this.#now)?.state === 'unhealthy' && this.#outMs < briefMs
  }

  /** It is ready, and has answered a client or a probe since then. */
  isBackSince(at: number): boolean {
    return this.#outAt(this.#now) === undefined && Math.max(this.#answeredAt, this.#foundWellAt) > at
  }

  /** It is rate-limited, for less time than a client waits. */
  get coolsInTime(): boolean {
    const now = this.#now
    const out = this.#outAt(now)
    return out?.state === 'rate-limited' && out.until - now < this.#patienceMs
  }

  /** Rate-limited by a guess, it is tried again after this; undefined otherwise. */
  get triesInMs(): number | undefined {
    const now = this.#now
    return this.#outAt(now)?.state === 'rate-limited' && this.#isGuess ? Math.max(0, this.#tryAt - now) : undefined
  }

  /** It may be back so soon that nobody knows yet whether it has what the others lack. */
  get isOutBriefly(): boolean {
    const state = this.#outAt(this.#now)?.state
    return state === 'rate-limited' || (state === 'unhealthy' && this.#outMs < outages.unhealthy.maxMs)
  }

  /** It is ready, or may be in a moment. */
  get mayComeBack(): boolean {
    const isReady = this.#outAt(this.#now) === undefined
    return this.coolsInTime || (this.#probers.size > 0 && (isReady || this.isRestingBriefly))
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

  get #patienceMs(): number {
    let newest: Others | undefined
    for (const one of this.#pools) newest = one
    return newest?.patienceMs ?? this.#options.patienceMs ?? defaultPatienceMs
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

  // What it costs.

  /** The expected cost of asking it now, for 1 MiB of a DAG or one block, with guesses for the unknown. */
  load(kind: AskKind): number {
    const now = this.#now
    const cost = Math.max(this.#estimates[kind].costMs(usualBytes[kind], now), this.silentMs)
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

  /** How long it would take for so many bytes if it were asked now. */
  expectedMs(kind: AskKind, bytes: number): number {
    return Math.max(this.#estimates[kind].expectedMs(bytes), this.silentMs) + this.waitMs
  }

  /** Asked for a part of a file as a CAR, it sends all of it. */
  get sendsAll(): boolean {
    return this.#now < this.#sendsAllUntil
  }

  heedsNoRanges(): void {
    this.#sendsAllUntil = this.#now + memoryMs
  }

  /** How long a question would wait in the queue now. */
  get waitMs(): number {
    const held = this.#heldMs(this.#now)
    const { readers } = this.#line
    const crowd = readers > 0 || !this.#hasRoom ? ((readers + 1) / this.#window.size) * this.#answerMs : 0
    return Math.max(crowd, Number.isFinite(held) ? held : minuteMs)
  }

  get isCrowded(): boolean {
    return this.#window.isCrowded(this.#now)
  }

  /** For how long it has owed answers without giving one to any client. */
  get silentMs(): number {
    // Questions before the newest answer say nothing.
    for (const { at } of this.#unanswered) if (at >= this.#answeredAt) return this.#now - at
    return 0
  }

  /** The questions that it works on. */
  get pending(): number {
    return this.#unanswered.size + this.#sending
  }

  get budget(): { readonly perMinute: number; readonly used: number } | undefined {
    return this.#budget && { perMinute: this.#budget.perMinute, used: this.#budget.used(this.#now) }
  }

  // A question, from the queue to its end.

  /** Begins it, or queues it; refuses it as `overloaded`, or as `unavailable` while the upstream is out. */
  ask(question: Question, waitedMs: number, now: number): void {
    question.giveUpAt = now + this.#patienceMs - waitedMs
    this.#enter(question, now)
  }

  #enter(question: Question, now: number): void {
    question.stopWait = undefined
    question.place = 'new'
    if (this.#options.perCidPerMinute !== undefined && !question.hasBudget) {
      const own = this.#recordOf(question.key).budget
      const ms = own?.waitMs(now) ?? 0
      if (now + ms > question.giveUpAt) return question.refused(this.#overloaded(ms), now)
      if (ms > 0) return this.#delay(question, ms)
      own?.take(now)
      question.hasBudget = true
    }
    const out = this.#outAt(now)
    if (out) {
      // One that said when it may be asked again is waited for, if that is in time.
      if (out.state === 'rate-limited' && !this.#mayEnter(now)) {
        if (out.until > question.giveUpAt) return question.refused(this.#unavailable(now), now)
        return this.#delay(question, out.until - now)
      }
      if (out.state === 'unhealthy') this.#suspect()
      if (!this.#mayEnter(now)) return question.refused(this.#unavailable(now), now)
    }
    const isSearch = question.rank === 'search'
    if ((isSearch ? this.#line.searchers : this.#line.readers) >= maxQueued)
      return question.refused(this.#tooLate(now), now)
    // Most find no queue and a free slot.
    if (!isSearch && this.#line.size === 0 && this.#hasRoom && this.#heldMs(now) === 0) {
      this.#line.passed(question.rank)
      return this.#open(question, now)
    }
    question.place = 'line'
    question.queuedAt = now
    this.#line.add(question)
    this.#serve()
    if (question.place !== 'line') return
    const ms = Math.max(0, question.giveUpAt - this.#answerMs - now)
    question.stopWait = this.#clock.after(ms, () => this.#refuseInTurn(question, () => this.#tooLate(this.#now)))
  }

  #delay(question: Question, ms: number): void {
    question.place = 'delayed'
    question.stopWait = this.#clock.after(Math.max(1, ms), () => this.#enter(question, this.#now))
  }

  /** Thousands are refused at the same moment, and each then asks elsewhere: spread over event-loop iterations. */
  #refuseInTurn(question: Question, why: () => Failure): void {
    if (!this.#leave(question)) return
    const failure = why()
    question.place = 'delayed'
    void this.#options.turns.inLine().then(() => {
      if (question.place === 'delayed') question.refused(failure, this.#now)
    })
  }

  #leave(question: Question): boolean {
    question.stopWait?.()
    question.stopWait = undefined
    const stood = question.place === 'line' && this.#line.delete(question)
    if (stood && this.#line.size === 0) this.#stopTimer?.()
    return stood
  }

  leaveLine(question: Question): void {
    this.#leave(question)
  }

  #open(question: Question, now: number): void {
    const isSearch = question.rank === 'search'
    question.stopWait?.()
    question.stopWait = undefined
    question.wasFull = this.#asked + 1 >= this.#window.size || this.#line.readers > 0
    question.place = isSearch ? 'searching' : 'asked'
    if (isSearch) this.#searching++
    this.#unanswered.add(question)
    this.#budget?.take(now)
    this.#tryAt = now + tryEveryMs
    this.counts.asked++
    this.#estimates[question.kind].asked(now)
    question.begun(now)
  }

  get #asked(): number {
    return this.#unanswered.size - this.#searching
  }

  get #hasRoom(): boolean {
    return this.#asked < this.#window.size && this.pending < this.#maxOpen
  }

  get #maxOpen(): number {
    return this.#options.connections ?? defaultConnections
  }

  #hasSearchRoom(isReaderWaiting: boolean): boolean {
    const { size } = this.#window
    const hasShare = this.#searching < Math.max(1, Math.floor(size * searchShare))
    const isIdle = !isReaderWaiting && this.#unanswered.size < size * idleSearchShare
    return this.pending < this.#maxOpen && (hasShare || isIdle)
  }

  /** Gives slots to those in the queue, if a change allows that now. */
  #serve(): void {
    this.#stopTimer?.()
    this.#stopTimer = undefined
    for (;;) {
      const { reader, searcher } = this.#line
      if (!reader && !searcher) return
      const now = this.#now
      const held = this.#heldMs(now)
      if (held > 0) return this.#serveIn(held)
      let next: Question | undefined
      if (reader && this.#hasRoom) next = reader
      else if (reader && this.#makeRoom(now)) continue
      else if (searcher && this.#hasSearchRoom(reader !== undefined)) next = searcher
      if (!next) return this.#serveIn(recheckMs)
      this.#line.served(next)
      this.#open(next, now)
    }
  }

  #serveIn(ms: number): void {
    this.#stopTimer?.()
    this.#stopTimer = Number.isFinite(ms) ? this.#clock.after(Math.max(1, ms), () => this.#serve()) : undefined
  }

  /** A late question becomes a search, and a search may have to go. False: nothing could be done for a reader that waits. */
  #makeRoom(now: number): boolean {
    const late = this.#lateMs
    let hasLate = false
    for (const question of this.#unanswered) {
      if (question.place !== 'asked') continue
      if (now - question.at < late) break
      hasLate = true
      if (question.overtakenBy < enoughOvertook) continue
      question.place = 'searching'
      this.#searching++
      return true
    }
    // Late questions hold slots, and none was overtaken: is the upstream alive?
    if (hasLate) this.#suspect()
    return this.#evict(now, late)
  }

  /** Gives up the oldest search that has had its time, if searches hold more than their share of the connections. */
  #evict(now: number, late: number): boolean {
    const max = this.#maxOpen
    if (this.pending < max || this.#searching <= Math.floor(max * searchShare)) return false
    let search: Question | undefined
    for (const one of this.#unanswered)
      if (one.place === 'searching') {
        search = one
        break
      }
    if (!search || now - search.at < Math.max(late, minBeforeEvictionMs)) return false
    const hadTime = search.overtakenBy >= enoughOvertook && !search.isLost && !this.#window.isCrowded(now)
    const reason = evicted(this.#name, now - search.at, hadTime, this.waitMs)
    this.#release(search)
    search.place = 'evicted'
    search.eviction = reason
    search.asker.evicted(search, reason)
    return true
  }

  /** The question takes long, and the upstream has answered others meanwhile. */
  isOvertaken(question: Question): boolean {
    if (question.place === 'searching') return true
    return question.overtakenBy >= enoughOvertook && this.#now - question.at >= this.#lateMs
  }

  get #lateMs(): number {
    const { block, dag } = this.#estimates
    return Math.max(minLateMs, dag.typicalMs ?? block.typicalMs ?? lateUnknownMs)
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
    this.#window.answered(ms, now, question.wasFull)
    this.#missShare -= this.#missShare * missWeight
    if (this.#keys.size > 0) this.#notMissed(question.key)
    this.#answered(question.at, now)
    this.#hasSlotAnswered(question, now)
  }

  #notMissed(key: string): void {
    const record = this.#keys.get(key)
    if (record) record.missedUntil = 0
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
    } else if (why === 'behind') this.#estimates[question.kind].brokeOff(behindShare)
    this.#end(question, now)
  }

  /** The answer is what to hold against it if another upstream turns out to have the content. */
  failed(question: Question, error: unknown, now: number): (() => void) | undefined {
    const ms = now - question.at
    const kind = kindOf(error)
    const isEvicted = question.eviction !== undefined
    const isBegun = question.bytes > 0
    const isAnswer = kind === 'not-found' || kind === 'refused'
    if (!isBegun && (kind === 'not-found' || kind === 'timeout' || isEvicted))
      this.#recordOf(question.key).missedUntil = now + memoryMs
    if (kind === 'hash-mismatch') this.#recordOf(question.key).falseUntil = now + minuteMs
    if (kind === 'not-found') this.#missMs += (ms - this.#missMs) * (this.#missMs === 0 ? 1 : missWeight)
    if (!isEvicted && kind !== 'timeout' && kind !== 'cancelled' && kind !== 'overloaded') {
      this.#answeredAt = now
      if (isAnswer) this.#hasSlotAnswered(question, now)
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

  /** An absence or a silence says nothing of the upstream until another one turns out to have the content. */
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
        this.#window.failed(at, now)
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
        if (isBegun) this.#estimates[of].brokeOff(1)
        else if (kind !== 'timeout') this.#failed(error, of, at)
        else {
          // Silent for an unknown reason: if it has answered no client since, a probe will tell.
          if (this.#answeredAt < at) this.#suspect()
          return () => this.#failed(error, of, at)
        }
        return undefined
    }
  }

  #hasSlotAnswered(question: Question, now: number): void {
    this.#answerMs += (now - question.at - this.#answerMs) / 10
    if (question.place !== 'asked' && question.place !== 'searching') return
    this.#release(question)
    question.place = 'sending'
    this.#sending++
    this.#overtake(question.at, 1)
  }

  /** So many questions that began then were answered: those that began before them take long by themselves. */
  #overtake(beganAt: number, answers: number): void {
    for (const question of this.#unanswered) {
      if (question.at >= beganAt) break
      question.overtakenBy += answers
    }
    if (this.#line.size > 0) this.#serve()
  }

  #release(question: Question): void {
    if (question.place === 'sending') this.#sending--
    else if (this.#unanswered.delete(question) && question.place === 'searching') this.#searching--
  }

  #end(question: Question, now: number): void {
    this.measured.duration.observe((now - question.at) / 1000)
    this.#estimates[question.kind].ended(now)
    this.#release(question)
    question.place = 'over'
    if (this.#line.size > 0) this.#serve()
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
    // One that comes and goes is logged once.
    if (this.#isLoggedOut && isCalm) {
      this.#isLoggedOut = false
      this.#options.log('info', 'upstream.recovered', { upstream: this.#name })
    }
    this.#changed(before, now)
  }

  /** It failed before anything came, or was silent although another one had the content. */
  #failed(error: unknown, of: AskKind, beganAt: number): void {
    const now = this.#now
    this.#estimates[of].brokeOff(1)
    this.#note(error, false)
    this.#window.failed(beganAt, now)
    // Questions that were under way at its last failure fail of the same cause.
    if (beganAt >= this.#failedAt) {
      const { unhealthy } = this.#outages
      if (unhealthy.count > 0 && now - unhealthy.until > outages.unhealthy.forgetMs) this.#failures = 0
      this.#failedAt = now
      if (++this.#failures >= failuresToOutage) this.#unhealthy(error, now)
    }
    this.#suspect()
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
    if (state === 'unhealthy') {
      this.#window.close(now)
      // Its open questions are most likely lost, and must not be in the way when it is back.
      for (const question of this.#unanswered) {
        question.place = 'searching'
        question.isLost = true
      }
      this.#searching = this.#unanswered.size
    }
    // A request that waits for an upstream that has just become unhealthy waits for the next probe, if no other can be asked.
    if (state !== undefined && (state !== 'unhealthy' || this.#hasOthers)) this.#turnAway(now)
    this.#serve()
    if (state === 'unhealthy') this.#probeChanged()
  }

  get #hasOthers(): boolean {
    for (const pool of this.#pools) if (pool.hasOthers()) return true
    return false
  }

  /** Refuses those that were queued before that. */
  #turnAway(before: number): void {
    for (const question of this.#line.all())
      if (question.queuedAt <= before) this.#refuseInTurn(question, () => this.#unavailable(this.#now))
  }

  /** Until one may be asked, for other reasons than the slots; Infinity: until something changes. */
  #heldMs(now: number): number {
    const out = this.#outAt(now)
    if (!out) return this.#budget?.waitMs(now) ?? 0
    const tryMs = Math.max(0, this.#tryAt - now)
    if (out.state === 'quarantined' || out.state === 'incompatible') return tryMs
    return this.#isTriedNowAndThen(out) ? Math.min(out.until - now, tryMs) : out.until - now
  }

  /** Probes decide when an outage ends; without them the upstream is tried. All that it sends is proved. */
  #isTriedNowAndThen({ state }: Outage): boolean {
    if (state === 'unhealthy') return this.#probers.size === 0 || this.#failsProbes
    return state !== 'rate-limited' || this.#isGuess
  }

  #mayEnter(now: number): boolean {
    const out = this.#outAt(now)
    if (!out || (out.state === 'unhealthy' && !this.#isTriedNowAndThen(out))) return true
    return this.#tryAt <= now && this.#isTriedNowAndThen(out)
  }

  #note(error: unknown, isOut: boolean): void {
    const why = wordsOf(error).slice(0, 500)
    this.#told = { why: isOut ? why : this.#told.why, lastTrouble: { at: this.#clock.now(), why } }
  }

  #tooLate(now: number): Failure {
    return this.#outAt(now) ? this.#unavailable(now) : this.#overloaded(this.waitMs)
  }

  #overloaded(waitMs: number): Failure {
    return new Failure('overloaded', `${this.#name} is overloaded: its queue is too long to be asked in time`, {
      source: 'ours',
      retryAfterMs: Math.min(minuteMs / 2, waitMs),
    })
  }

  #unavailable(now: number): Failure {
    const out = this.#outAt(now)
    return new Failure('unavailable', `${this.#name} cannot be asked now (${out?.state ?? 'ready'})`, {
      source: 'upstream',
      retryAfterMs: this.triesInMs ?? (out ? leftMs(out, now) : 0),
    })
  }

  // Probes.

  probed(report: ProbeReport): void {
    const now = this.#now
    this.#wasProbed(now)
    this.#failsProbes = false
    if (report.lied) this.#countProbe('hashMismatch')
    if (report.usable) this.#window.open()
    const before = this.#outAt(now)?.state
    const { incompatible, unhealthy } = this.#outages
    const wasCompatible = incompatible.until <= now
    // Recent proved bytes say more than a probe: some gateways do not know the empty block that it asks for.
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
    this.#overtake(now - report.ms, enoughOvertook)
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
    // The upstream may be back in a moment: a client that came just now waits for the next probe.
    this.#turnAway(this.#outMs < briefMs ? Math.min(beganAt, now - minBeforeEvictionMs) : beganAt)
  }

  /** Probes are counted where the upstream is out for its answer, so that the counters tell why. */
  #countProbe(what: 'hashMismatch' | 'throttled'): void {
    this.counts.asked++
    this.counts[what]++
  }

  /** Until the next probe besides the regular ones; Infinity: none. */
  get lookInMs(): number {
    const now = this.#now
    const wanted = Math.max(0, this.#probeAt - now)
    if (this.#outAt(now)?.state !== 'unhealthy') return wanted
    // Often at first, and while a request waits for it.
    const ms = this.#isWaitedFor(now) ? 0 : this.#outMs / 2
    return Math.min(wanted, Math.max(0, this.#probedAt + Math.min(maxProbesApartMs, probesApartMs + ms) - now))
  }

  /** Calls `listener` when `lookInMs` may have changed, until the returned function is called. */
  onSuspicion(listener: () => void): () => void {
    this.#probers.add(listener)
    return () => this.#probers.delete(listener)
  }

  /** A request that failed at it waits until it is back. */
  waitedFor(): void {
    const now = this.#now
    const was = this.#isWaitedFor(now)
    this.#waitedForUntil = now + 2 * probesApartMs
    if (!was) this.#probeChanged()
  }

  #isWaitedFor(now: number): boolean {
    return this.#line.size > 0 || now < this.#waitedForUntil
  }

  #suspect(): void {
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

  /** It belongs to this pool, and maybe to others, until the returned function is called. */
  join(pool: Others): () => void {
    this.#pools.add(pool)
    return () => void this.#pools.delete(pool)
  }
}

const readyState = { state: 'ready', untilMs: 0 } as const
const hashMismatch = 'it sent bytes that do not hash to their CID'

const leftMs = ({ until }: Outage, now: number): number | undefined =>
  Number.isFinite(until) ? until - now : undefined

export const kindOf = (error: unknown): FailureKind => (isFailure(error) ? error.kind : 'internal')

function evicted(name: string, ms: number, hadTime: boolean, waitMs: number): Failure {
  const what = `${name} was let go after ${Math.round(ms)} ms without an answer`
  // One that answered later questions first is searching: it had its time.
  if (hadTime)
    return new Failure('timeout', `${what}, while it answered others`, {
      source: 'upstream',
      facts: { isSearching: true },
    })
  return new Failure('overloaded', `${what}: other requests need its connections`, {
    source: 'ours',
    retryAfterMs: Math.max(1_000, waitMs),
  })
}
