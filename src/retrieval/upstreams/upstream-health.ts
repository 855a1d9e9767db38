// An upstream: a circuit breaker, slots and the queue before them, budgets and estimates, all
// learned from how each question ends. A question to an upstream that is out is refused; its flight
// waits, where waiting helps.
//
// | state            | begins with                                        | ends with                           | asked meanwhile, if no other is ready |
// | ---------------- | -------------------------------------------------- | ----------------------------------- | ------------------------------------- |
// | ready            |                                                    |                                     | as the queue allows                   |
// | unhealthy        | failures at three moments, a probe                 | a good answer or probe, or the time | once a second                         |
// | rate-limited     | a 429 or a 503 with `Retry-After`, also to a probe | the time: `Retry-After`, or a guess | if that is a guess: once a second     |
// | incompatible     | a probe                                            | a probe, a good answer              | once a second                         |
// | quarantined      | bytes of another hash                              | the time, a good answer             | once a second                         |
// | budget-exhausted | its requests of this minute                        | the time                            | never                                 |
import { LRUCache } from 'lru-cache'
import type { ProbeReport } from '../../../backends/upstreams/contract.ts'
import { upTo } from '../../core/cache.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, isFailure, wordsOf } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createHistogram } from '../../observe/requests.ts'
import { ClientLine, type LoopScheduler } from '../loop-scheduler.ts'
import type { AskKind, Question, Rank } from './attempts.ts'
import {
  ConcurrencyWindow,
  Estimate,
  guessedFirstMs,
  LastFew,
  MinuteBudget,
  memoryMs,
  minRateBytes,
  minuteMs,
  stalledMs,
} from './estimates.ts'

const hourMs = 60 * minuteMs

export const upstreamStates = [
  ...(['ready', 'rate-limited', 'unhealthy', 'quarantined', 'incompatible'] as const),
  'budget-exhausted',
] as const
type UpstreamState = (typeof upstreamStates)[number]

/** The time in which it is out for one cause: a backoff that doubles up to `maxMs`. */
class Outage {
  readonly state: UpstreamState
  readonly #firstMs: number
  readonly #maxMs: number
  /** Backoffs in a row, and when the first of them began. */
  count = 0
  since = 0
  at = Number.NEGATIVE_INFINITY
  until = Number.NEGATIVE_INFINITY

  constructor(state: UpstreamState, firstMs = 1_000, maxMs = minuteMs) {
    this.state = state
    this.#firstMs = firstMs
    this.#maxMs = maxMs
  }

  /** Begins for this long, or for the next backoff. Returns the time. */
  begin(now: number, namedMs?: number): number {
    if (now - this.until > memoryMs) this.count = 0
    if (this.count === 0) this.since = now
    const ms = namedMs ?? Math.min(this.#maxMs, this.#firstMs * 2 ** this.count++)
    this.at = now
    this.until = now + ms
    return ms
  }

  end(now: number): void {
    this.until = Math.min(this.until, now)
  }
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
}

type Standing = {
  readonly state: UpstreamState
  /** Until it is ready; undefined: unknown. */
  readonly untilMs: number | undefined
  /**
   * Until a flight may ask it while no other is ready: 0 where it is ready, or is to be tried
   * although it is out; Infinity where that is unknown or far, or not worth waiting for.
   */
  readonly backInMs: number
}

const maxCidBudgets = 10_000
const defaultConnections = 32
const failuresToOutage = 3
/** An outage is waited for by clients for so long. */
const briefMs = 10_000
const minLateMs = 250
const tryEveryMs = 1_000
export const probesApartMs = 250
const maxQueued = 10_000
const recheckMs = 100
// A slot in this many goes to a file that has not begun: large files must not keep out all others.
const firstShare = 4
// Searches get this share of the connections while readers wait, and leave them as much otherwise.
const searchShare = 1 / 8
// On a busy machine a healthy upstream answers late too.
const minBeforeEvictionMs = 2_000

export class UpstreamHealth {
  readonly counts = { asked: 0, won: 0, notFound: 0, throttled: 0, failed: 0, hashMismatch: 0, lost: 0 }
  /** `recent`: milliseconds to the first byte of the last answers. */
  readonly measured = { firstByte: createHistogram(), duration: createHistogram(), recent: new LastFew(64), bytes: 0 }
  /** `at`: milliseconds since the epoch. */
  lastError: { readonly at: number; readonly why: string } | undefined
  readonly #options: UpstreamHealthOptions
  readonly #clock: Clock

  // The circuit breaker.
  readonly #quarantined = new Outage('quarantined', 5_000, hourMs)
  readonly #incompatible = new Outage('incompatible')
  readonly #limited = new Outage('rate-limited')
  readonly #unhealthy = new Outage('unhealthy')
  /** In the order in which they count. */
  readonly #outages = [this.#quarantined, this.#incompatible, this.#limited, this.#unhealthy]
  /** The upstream did not say for how long it limits the rate. */
  #isGuess = false
  /** Moments at which it failed since its last answer. */
  #failures = 0
  #failedAt = Number.NEGATIVE_INFINITY
  /** The time of its last proved bytes, or of its last "not found". */
  #answeredAt = Number.NEGATIVE_INFINITY
  /** While it is out, it is tried again then. */
  #tryAt = 0
  #isLoggedOut = false

  // Estimates and budgets.
  readonly #estimates: Readonly<Record<AskKind, Estimate>> = { block: new Estimate(), dag: new Estimate() }
  readonly #budget: MinuteBudget | undefined
  readonly #cidBudgets = new LRUCache<string, MinuteBudget>(upTo(maxCidBudgets))
  #sendsAllUntil = Number.NEGATIVE_INFINITY

  // Its slots and its queue.
  readonly #window: ConcurrencyWindow
  readonly #maxOpen: number
  readonly #ranks: Readonly<Record<Rank, ClientLine<Question>>> = {
    begun: new ClientLine(),
    first: new ClientLine(),
    search: new ClientLine(),
  }
  #begunInARow = 0
  /** Those without an answer, in the order in which they were asked. */
  readonly #unanswered = new Set<Question>()
  #sending = 0
  /** When the newest was asked of those that are answered. */
  #newestAnswered = Number.NEGATIVE_INFINITY
  /** Open questions from before an outage are likely lost. */
  #lostBefore = Number.NEGATIVE_INFINITY
  #isRecheckDue = false

  // Probes.
  readonly #probers = new Set<() => void>()

  constructor(options: UpstreamHealthOptions) {
    const { clock, connections = defaultConnections, perMinute } = options
    this.#options = options
    this.#clock = clock
    this.#maxOpen = connections
    this.#window = new ConcurrencyWindow(connections)
    this.#budget = perMinute === undefined ? undefined : new MinuteBudget(perMinute)
  }

  // Its state.

  /**
   * Its state for this CID. `wasAsked`: by this flight, which does not try it again before it is
   * ready.
   */
  state(key: string, wasAsked = false): Standing {
    const now = this.#now
    const out = this.#outAt(now)
    const waitMs = this.#budgetWaitMs(key, now)
    const backInMs = out ? Math.max(waitMs, this.#backInMs(out, wasAsked, now)) : waitMs
    if (out) return { state: out.state, untilMs: leftMs(out, now), backInMs }
    return waitMs > 0 ? { state: 'budget-exhausted', untilMs: waitMs, backInMs } : readyState
  }

  #backInMs(out: Outage, wasAsked: boolean, now: number): number {
    const at = wasAsked || !this.#allowsTrial(out) ? out.until : Math.min(out.until, this.#tryAt)
    const ms = Math.max(0, at - now)
    if (ms === 0 || out === this.#limited) return ms
    // A probe may end it sooner.
    return out === this.#unhealthy && this.outMs < briefMs ? Math.min(ms, probesApartMs) : Number.POSITIVE_INFINITY
  }

  /** It may be back so soon that nobody knows yet whether it has what the others lack. */
  get isOutBriefly(): boolean {
    const out = this.#outAt(this.#now)
    return out === this.#limited || (out === this.#unhealthy && this.outMs < minuteMs)
  }

  get #now(): number {
    return this.#clock.monotonic()
  }

  #outAt(now: number): Outage | undefined {
    for (const one of this.#outages) if (one.until > now) return one
    return undefined
  }

  /** The time since it became unhealthy, with pauses in which only probes succeeded. */
  get outMs(): number {
    const { count, since } = this.#unhealthy
    return count === 0 ? 0 : this.#now - since
  }

  // Its cost.

  /** The expected cost of asking it now, with guesses for the unknown. */
  load(kind: AskKind): number {
    const cost = Math.max(this.#estimates[kind].costMs(minRateBytes), this.silentMs)
    return cost * (1 + this.pending / defaultConnections) + this.waitMs
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

  /** The time that a question would wait in the queue, if it were asked now. */
  get waitMs(): number {
    const now = this.#now
    const readers = this.#readers
    const isFull = readers > 0 || !this.#hasRoom(now)
    return isFull ? ((readers + 1) / this.#window.size) * this.#answerMs : 0
  }

  get isCrowded(): boolean {
    return this.#window.isCrowded(this.#now)
  }

  /** For how long it has owed answers without giving one to any client. */
  get silentMs(): number {
    const now = this.#now
    for (const { at } of this.#unanswered) if (at >= this.#answeredAt) return now - at
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

  /**
   * Begins it, or queues it; refuses it as `overloaded`, or as `unavailable` while the upstream is
   * out.
   */
  ask(question: Question, now: number): void {
    const { state, backInMs } = this.state(question.key)
    if (backInMs > 0)
      return question.refused(state === 'budget-exhausted' ? this.#overloaded(backInMs) : this.#unavailable(), now)
    if (state !== 'ready') this.#tryAt = now + tryEveryMs
    const line = this.#ranks[question.rank]
    if ((question.rank === 'search' ? line.size : this.#readers) >= maxQueued)
      return question.refused(this.#overloaded(), now)
    this.#takeBudget(question.key, now)
    if (question.rank !== 'search' && this.#readers === 0 && this.#hasRoom(now)) return this.#begin(question, now)
    line.add(question, question.client)
    this.#serve()
  }

  leaveQueue(question: Question): boolean {
    return this.#ranks[question.rank].delete(question, question.client)
  }

  /** Until its budgets allow a request for this CID. */
  #budgetWaitMs(key: string, now: number): number {
    return Math.max(this.#budget?.waitMs(now) ?? 0, this.#cidBudgets.get(key)?.waitMs(now) ?? 0)
  }

  #takeBudget(key: string, now: number): void {
    this.#budget?.take(now)
    const { perCidPerMinute } = this.#options
    if (perCidPerMinute === undefined) return
    const budget = this.#cidBudgets.get(key) ?? new MinuteBudget(perCidPerMinute)
    budget.take(now)
    this.#cidBudgets.set(key, budget)
  }

  get #answerMs(): number {
    return this.measured.recent.quantile(0.5) ?? guessedFirstMs
  }

  get lateMs(): number {
    return Math.max(minLateMs, this.typicalMs('dag') ?? this.typicalMs('block') ?? 0)
  }

  /** More proved bytes, for which readers waited this long since the last. */
  brought(question: Question, bytes: number, waitedMs: number, now: number): void {
    this.measured.bytes += bytes
    const estimate = this.#estimates[question.kind]
    // It has begun before.
    if (question.bytes > bytes || (bytes === 0 && question.bytes > 0)) return estimate.moved(bytes, waitedMs)
    if (bytes === 0) return
    const ms = now - question.at
    estimate.began(ms)
    this.measured.firstByte.observe(ms / 1000)
    this.measured.recent.add(ms)
    this.#window.answered(ms, now, this.#readers > 0 || this.#isFull(now, this.#window.size - 1))
    this.#answered(question.at, now)
    this.#hasAnswer(question)
  }

  /**
   * All that is learned from its end. An absence or a silence says nothing of the upstream until
   * another one turns out to have the content: `lacked`.
   */
  ended(question: Question, now: number): void {
    const { how } = question
    const estimate = this.#estimates[question.kind]
    const hasBegun = question.bytes > 0
    if (how === 'failed') this.#blame(question, now)
    else if (!hasBegun) {
      this.counts.lost++
      estimate.notYet(now - question.at)
    } else if (how === 'behind') estimate.lost(stalledMs)
    else this.counts.won++
    this.measured.duration.observe((now - question.at) / 1000)
    estimate.ended(now)
    if (!this.#unanswered.delete(question)) this.#sending--
    this.#serve()
  }

  #blame(question: Question, now: number): void {
    const { counts } = this
    const { kind, at, error } = question
    const why = isFailure(error) ? error.kind : 'internal'
    switch (why) {
      case 'cancelled':
      case 'overloaded': // this gateway could not ask
        return
      case 'not-found':
      case 'refused':
        counts.notFound++
        this.#hasAnswer(question)
        if (why === 'not-found') this.#answered(at, now)
        return
      case 'throttled':
        return this.throttled(error as Failure, at)
      case 'hash-mismatch':
        return this.#sentFalseBytes(now)
      default:
        counts.failed++
        if (question.bytes > 0) this.#estimates[kind].lost(stalledMs)
        else if (why !== 'timeout') this.#failed(question)
        // Silent for an unknown reason: if it has answered no client since, a probe will tell.
        else if (this.#answeredAt < at) this.suspect()
    }
  }

  /** Another upstream has what this one did not bring. */
  lacked(question: Question): void {
    const estimate = this.#estimates[question.kind]
    if (!isFailure(question.error, 'timeout')) return estimate.lost(Math.max(1, question.ms / 4))
    estimate.notYet(question.ms)
    this.#failed(question)
  }

  // Its slots and the queue before them, the only one on the way to it: time in it is never held
  // against the upstream. Files that have begun go first, so that a burst does not end with many
  // beginnings and no complete file; searches for what may be nowhere go last. In each rank clients
  // alternate. A late question becomes a search when one that was asked later is answered before it,
  // and gives its slot to a reader.

  /** Its slot is free, and those that were asked before it take long. */
  #hasAnswer(question: Question): void {
    if (!this.#unanswered.delete(question)) return
    this.#sending++
    this.#overtake(question.at)
  }

  /** A question that was asked then has been answered. */
  #overtake(at: number): void {
    this.#newestAnswered = Math.max(this.#newestAnswered, at)
    this.#serve()
  }

  /** Gives slots to those in the queue, if a change allows that now. */
  #serve(): void {
    while (this.#readers + this.#ranks.search.size > 0) {
      const now = this.#clock.monotonic()
      const reader = this.#nextReader
      const searcher = this.#ranks.search.next
      if (reader && this.#hasRoom(now)) this.#serveNext(reader, now)
      else if (reader && this.#evict(now)) continue
      else if (searcher && this.#hasSearchRoom(reader !== undefined, now)) this.#serveNext(searcher, now)
      else return this.#recheckSoon()
    }
  }

  #recheckSoon(): void {
    if (this.#isRecheckDue) return
    this.#isRecheckDue = true
    this.#clock.after(recheckMs, () => this.#recheck())
  }

  #recheck(): void {
    this.#isRecheckDue = false
    // Their time would be over before an answer.
    const endsAt = this.#now + this.#answerMs
    for (const one of this.#queued) if (one.giveUpAt <= endsAt) this.#refuse(one, () => this.#overloaded())
    this.#serve()
  }

  get #queued(): Question[] {
    return Object.values(this.#ranks).flatMap((line) => [...line])
  }

  #serveNext(question: Question, now: number): void {
    this.#ranks[question.rank].take()
    this.#begin(question, now)
  }

  #begin(question: Question, now: number): void {
    if (question.rank !== 'search') this.#begunInARow = question.rank === 'begun' ? this.#begunInARow + 1 : 0
    this.#unanswered.add(question)
    this.#tryAt = now + tryEveryMs
    this.counts.asked++
    this.#estimates[question.kind].asked(now)
    question.begun(now)
  }

  /**
   * Thousands are refused at once, and each then asks elsewhere: spread over event-loop iterations.
   */
  #refuse(question: Question, why: () => Failure): void {
    if (!this.leaveQueue(question)) return
    const failure = why()
    void this.#options.turns.waitTurn().then(() => {
      if (question.isQueued) question.refused(failure, this.#clock.monotonic())
    })
  }

  #overloaded(waitMs = this.waitMs): Failure {
    return new Failure('overloaded', `${this.#options.name} is overloaded: its queue is too long to be asked in time`, {
      source: 'ours',
      retryAfterMs: Math.min(minuteMs / 2, waitMs),
    })
  }

  get #readers(): number {
    return this.#ranks.begun.size + this.#ranks.first.size
  }

  get #nextReader(): Question | undefined {
    const first = this.#ranks.first.next
    return first && this.#begunInARow >= firstShare - 1 ? first : (this.#ranks.begun.next ?? first)
  }

  #isSearch(question: Question, now: number): boolean {
    const { rank, at } = question
    return rank === 'search' || at < this.#lostBefore || (this.#isOvertaken(question) && now - at >= this.lateMs)
  }

  #searches(now: number): Question[] {
    return [...this.#unanswered].filter((one) => this.#isSearch(one, now))
  }

  /** At least so many of the questions are no searches. */
  #isFull(now: number, size: number): boolean {
    const open = this.#unanswered.size
    return open >= size && open - this.#searches(now).length >= size
  }

  #hasRoom(now: number): boolean {
    return this.pending < this.#maxOpen && !this.#isFull(now, this.#window.size)
  }

  #hasSearchRoom(isReaderWaiting: boolean, now: number): boolean {
    if (this.pending >= this.#maxOpen) return false
    const { size } = this.#window
    const hasShare = this.#searches(now).length < Math.max(1, Math.floor(size * searchShare))
    return hasShare || (!isReaderWaiting && this.#unanswered.size < size * (1 - searchShare))
  }

  /** Ends the oldest search that has had its time, if searches hold more than their share. */
  #evict(now: number): boolean {
    const { lateMs } = this
    const searches = this.#searches(now)
    for (const one of this.#unanswered) if (now - one.at >= lateMs && !searches.includes(one)) this.suspect()
    const [search] = searches
    if (!search || this.pending < this.#maxOpen || searches.length <= Math.floor(this.#maxOpen * searchShare))
      return false
    if (now - search.at < Math.max(lateMs, minBeforeEvictionMs)) return false
    // An upstream that answered later questions first is searching: it had its time.
    const hadTime = this.#isOvertaken(search) && !this.#window.isCrowded(now)
    search.evict(this.#eviction(now - search.at, hadTime), now)
    return true
  }

  #eviction(ms: number, hadTime: boolean): Failure {
    const what = `${this.#options.name} was stopped after ${Math.round(ms)} ms without an answer`
    if (hadTime) {
      const facts = { isSearching: true }
      return new Failure('timeout', `${what}, while it answered others`, { source: 'upstream', facts })
    }
    const retryAfterMs = Math.max(1_000, this.waitMs)
    return new Failure('overloaded', `${what}: other requests need its connections`, { source: 'ours', retryAfterMs })
  }

  #isOvertaken({ at }: Question): boolean {
    return at < this.#newestAnswered && at >= this.#lostBefore
  }

  // The circuit breaker.

  #answered(beganAt: number, now: number): void {
    this.#answeredAt = now
    const limited = this.#limited
    const before = this.#outAt(now)?.state
    if (before === undefined && this.#failures + this.#unhealthy.count + limited.count === 0 && !this.#isLoggedOut)
      return
    const isCalm = now - this.#unhealthy.at >= briefMs
    this.#failures = this.#unhealthy.count = 0
    for (const one of [this.#unhealthy, this.#incompatible, this.#quarantined]) one.end(now)
    if (beganAt >= limited.at) {
      limited.count = 0
      if (this.#isGuess) limited.end(now)
    }
    // An upstream that comes and goes is logged once.
    if (this.#isLoggedOut && isCalm) {
      this.#isLoggedOut = false
      this.#log('info', 'upstream.recovered')
    }
    this.#changed(before, now)
  }

  /** It failed before anything came, or was silent although another one had the content. */
  #failed({ kind, at, error }: Question): void {
    const now = this.#now
    this.#estimates[kind].lost(stalledMs)
    this.#note(error)
    this.#window.failed(at, now)
    // Questions that were under way at its last failure fail of the same cause.
    if (at >= this.#failedAt) {
      this.#failedAt = now
      if (++this.#failures >= failuresToOutage) this.#beUnhealthy(error, now)
    }
    this.suspect()
  }

  #beUnhealthy(error: unknown, now: number): void {
    this.#failedAt = now
    this.#note(error)
    this.#out(this.#unhealthy, now)
    if (this.#isLoggedOut) return
    this.#isLoggedOut = true
    this.#log('warn', 'upstream.unhealthy', { why: wordsOf(error) })
  }

  /** It refused a question that began then for its rate. */
  throttled(error: Failure, beganAt = this.#now): void {
    const now = this.#now
    const limited = this.#limited
    this.counts.throttled++
    this.#window.failed(beganAt, now)
    this.#note(error)
    const { retryAfterMs } = error
    const wasOut = limited.until > now
    // Several refusals of one moment are one, and a time that was named counts before a guess.
    if (retryAfterMs === undefined && (beganAt < limited.at || (wasOut && !this.#isGuess))) return
    this.#isGuess = retryAfterMs === undefined
    const forMs = this.#out(limited, now, retryAfterMs === undefined ? undefined : Math.min(hourMs, retryAfterMs))
    if (!wasOut) this.#log('warn', 'upstream.rate-limited', { forMs })
  }

  /** Several false answers under way at once are one. */
  #sentFalseBytes(now: number): void {
    const why = 'it sent bytes that do not hash to their CID'
    this.counts.hashMismatch++
    this.#note(why)
    if (this.#quarantined.until <= now)
      this.#log('error', 'upstream.quarantined', { forMs: this.#out(this.#quarantined, now), why })
  }

  #out(outage: Outage, now: number, namedMs?: number): number {
    const before = this.#outAt(now)?.state
    const ms = outage.begin(now, namedMs)
    this.#changed(before, now)
    return ms
  }

  #changed(before: UpstreamState | undefined, now: number): void {
    const state = this.#outAt(now)?.state
    if (state === before) return
    if (state === undefined) return this.#serve()
    if (state === 'unhealthy') {
      // Open questions must not hold slots when it is back.
      this.#window.close(now)
      this.#lostBefore = now
    }
    for (const question of this.#queued) this.#refuse(question, () => this.#unavailable())
    if (state === 'unhealthy') this.suspect()
  }

  /** Clients' questions tell too whether it is back; all that it sends is proved. */
  #allowsTrial({ state }: Outage): boolean {
    return state !== 'rate-limited' || this.#isGuess
  }

  #log(level: 'info' | 'warn' | 'error', event: string, facts: Readonly<Record<string, unknown>> = {}): void {
    this.#options.log(level, event, { upstream: this.#options.name, ...facts })
  }

  #note(error: unknown): void {
    this.lastError = { at: this.#clock.now(), why: wordsOf(error).slice(0, 500) }
  }

  #unavailable(): Failure {
    const { state, backInMs } = this.state('')
    return new Failure('unavailable', `${this.#options.name} cannot be asked now (${state})`, {
      source: 'upstream',
      retryAfterMs: Number.isFinite(backInMs) ? backInMs : undefined,
    })
  }

  // Probes.

  probed(report: ProbeReport): void {
    const now = this.#now
    const before = this.#outAt(now)?.state
    const incompatible = this.#incompatible
    const wasCompatible = incompatible.until <= now
    // Recent proved bytes say more than a probe: some gateways do not know the empty block that it
    // asks for.
    const usable = report.usable || now - this.#answeredAt < memoryMs
    if (usable) {
      this.#unhealthy.end(now)
      incompatible.end(now)
    } else {
      this.#note(report.findings.join('; ') || 'a probe found it unusable')
      incompatible.begin(now, Number.POSITIVE_INFINITY)
    }
    if (report.hasFalseBytes) {
      this.counts.asked++
      this.counts.hashMismatch++
    }
    const { findings } = report
    if (usable && !wasCompatible) this.#log('info', 'upstream.compatible', { findings })
    if (!usable && wasCompatible) this.#log('warn', 'upstream.incompatible', { findings })
    this.#changed(before, now)
    if (!report.usable) return
    // A probe of a gateway with both formats asks two questions, one after the other.
    for (const estimate of Object.values(this.#estimates)) estimate.probed(report.car ? report.ms / 2 : report.ms)
    this.#overtake(now - report.ms)
  }

  /** A probe that began then failed. */
  unreachable(error: unknown, beganAt: number): void {
    const now = this.#now
    const isThrottled = isFailure(error, 'throttled')
    const isAnswer = isThrottled || (isFailure(error, 'upstream-error') && error.facts.isIll === true)
    const isProven = this.#failures === 0 && now - this.#answeredAt < memoryMs
    if (isAnswer && isProven && !this.#outAt(now)) return
    if (isThrottled) {
      this.counts.asked++
      return this.throttled(error, beganAt)
    }
    // An upstream that answered clients meanwhile is reachable.
    if (this.#answeredAt < beganAt) this.#beUnhealthy(error, now)
  }

  /** Calls `listener` when a probe should tell soon whether it is out. Returns how to stop that. */
  onProbeWanted(listener: () => void): () => void {
    this.#probers.add(listener)
    return () => this.#probers.delete(listener)
  }

  suspect(): void {
    for (const listener of this.#probers) listener()
  }
}

const readyState: Standing = { state: 'ready', untilMs: 0, backInMs: 0 }

const leftMs = ({ until }: Outage, now: number): number | undefined =>
  Number.isFinite(until) ? until - now : undefined
