// One upstream: whether it may be asked now (health.ts), what asking costs (record.ts), its slots and the line before them, and what
// each question teaches as it ends. The line is the only one on the way to it, so that time spent there is never held against it.
import { LRUCache } from 'lru-cache'
import type { ProbeReport } from '../../../backends/upstreams/contract.ts'
import { upTo } from '../../core/cache.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, type FailureKind, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createHistogram, type Histogram } from '../../observe/histogram.ts'
import { createLastFew, type LastFew } from '../last-few.ts'
import { RankedLine } from '../line.ts'
import type { LoopTurns } from '../turns/loop-turns.ts'
import { type Allowance, createAllowance } from './allowance.ts'
import { createHealth, type Health, healthStates, type Told } from './health.ts'
import { createProbeSchedule, type ProbeSchedule } from './probes.ts'
import type { AskKind, LetGo, Question } from './question.ts'
import {
  createDoubts,
  createHits,
  createPerformance,
  createWindow,
  type Doubts,
  type Hits,
  type Performance,
  type Window,
} from './record.ts'

export const upstreamStates = [...healthStates, 'budget-exhausted'] as const
export type UpstreamState = (typeof upstreamStates)[number]

export type UpstreamCount = 'asked' | 'won' | 'notFound' | 'throttled' | 'failed' | 'hashMismatch' | 'lost'

/** For the operator alone. `recent`: milliseconds to the first byte of the last answers. */
export type UpstreamMeasured = {
  readonly firstByte: Histogram
  readonly duration: Histogram
  readonly recent: LastFew
  bytes: number
}

export type Others = {
  /** Whether another upstream could be asked instead. */
  readonly hasOthers: () => boolean
  /** How long a question waits for its slot and the answer. */
  readonly patienceMs?: number
}

export type UpstreamHealthOptions = {
  readonly name: string
  readonly clock: Clock
  /** Shared with all that takes turns on this loop. */
  readonly turns: LoopTurns
  readonly log: Log
  readonly connections?: number | undefined
  readonly perMinute?: number | undefined
  readonly perCidPerMinute?: number | undefined
  /** How long a question waits for its slot and the answer, unless its pool says something else. */
  readonly patienceMs?: number | undefined
  readonly random?: (() => number) | undefined
}

const usualBytes = { block: 256 * 1024, dag: 1024 * 1024 } as const
const defaultConnections = 32
const defaultPatienceMs = 4_000
const connectionsThatSlow = 32
const lateLeastMs = 250
const lateUnknownMs = 1_000
const longOutMs = 60_000
const recentAnswers = 64
const doubtedMs = 600_000
const falsifiedMs = 60_000
// Falling behind others is less than giving out: the others may just have been very quick.
const behindWeight = 0.3
// The line.
const maxQueued = 10_000
const lookAgainMs = 100
const minRetryMs = 1000
const outMs = 60_000
const typicalWeight = 0.1
const guessedMs = 300
// Its slots: searches for what may be nowhere have a small share, and more only while no reader wants it.
const searchShare = 1 / 8
const idleSearchShare = 3 / 4
const enoughOvertook = 2
// A question is given up for others only when it is surely a long one: on a busy machine an upstream that is well answers late too.
const minBeforeEvictionMs = 2000
// Sooner where the upstream answered later ones meanwhile, and usually takes a small part of that.
const minOvertakenMs = 1000
const lateTimes = 4
// One that is out is tried so often where there is no other.
const tryEveryMs = 1_000
const maxCids = 10_000
const maxRetryMs = 30_000
// Probes.
const probeAnswers = 2
const briefRestMs = 10_000
const briefWaitMs = 2_000

export const createUpstreamHealth = (options: UpstreamHealthOptions): UpstreamHealth => new UpstreamHealth(options)

export class UpstreamHealth {
  readonly counts: Record<UpstreamCount, number> = {
    ...{ asked: 0, won: 0, notFound: 0, throttled: 0, failed: 0, hashMismatch: 0, lost: 0 },
  }
  readonly measured: UpstreamMeasured = {
    firstByte: createHistogram(),
    duration: createHistogram(),
    recent: createLastFew(recentAnswers),
    bytes: 0,
  }
  readonly #name: string
  readonly #clock: Clock
  readonly #turns: LoopTurns
  readonly #maxOpen: number
  readonly #options: UpstreamHealthOptions
  readonly #joined = new Set<Others>()
  readonly #health: Health
  readonly #work: Readonly<Record<AskKind, Performance>>
  readonly #window: Window
  readonly #hits: Hits = createHits()
  readonly #doubts: Doubts
  /** Of these it sent something else: another one has to answer. */
  readonly #falsified: Doubts
  readonly #minute: Allowance | undefined
  readonly #cids: LRUCache<string, Allowance> | undefined
  readonly #schedule: ProbeSchedule

  // The questions, all in the order in which they were asked.
  readonly #line = new RankedLine<Question>()
  readonly #asked = new Set<Question>()
  readonly #searching = new Set<Question>()
  #sending = 0
  readonly #unanswered = new Set<Question>()
  #answeredAt = Number.NEGATIVE_INFINITY
  #answerMs = guessedMs
  #tryAt = 0
  #stopTimer: (() => void) | undefined

  #foundWellAt = Number.NEGATIVE_INFINITY
  #sendsAllUntil = Number.NEGATIVE_INFINITY
  /** The upstream answers, and fails at what a probe asks for: only a client's question tells whether it can do its work. */
  #failsProbes = false

  constructor(options: UpstreamHealthOptions) {
    const { name, clock, turns, log, connections = defaultConnections, perMinute, perCidPerMinute, random } = options
    this.#name = name
    this.#clock = clock
    this.#turns = turns
    this.#maxOpen = connections
    this.#options = options
    this.#health = createHealth({ name, clock, log, random })
    this.#work = { block: createPerformance(clock), dag: createPerformance(clock) }
    this.#window = createWindow(connections, clock)
    this.#doubts = createDoubts(clock, doubtedMs)
    this.#falsified = createDoubts(clock, falsifiedMs)
    this.#minute = perMinute === undefined ? undefined : createAllowance(perMinute, clock)
    this.#cids = perCidPerMinute === undefined ? undefined : new LRUCache<string, Allowance>(upTo(maxCids))
    this.#schedule = createProbeSchedule({ clock, health: this.#health, isQueuedFor: () => this.#line.size > 0 })
  }

  // Whether it may be asked.

  /** Whether the upstream may be asked for this, and if not, why and when again; undefined: not known. */
  state(key: string): { readonly state: UpstreamState; readonly untilMs: number | undefined } {
    const { state, untilMs } = this.#health
    if (state !== 'ready') return { state, untilMs }
    const falseMs = this.#falsified.size > 0 ? this.#falsified.leftMs(key) : 0
    if (falseMs > 0) return { state: 'quarantined', untilMs: falseMs }
    const budgetMs = Math.max(this.#minute?.waitMs ?? 0, this.#allowanceOf(key)?.waitMs ?? 0)
    return budgetMs > this.#patienceMs ? { state: 'budget-exhausted', untilMs: budgetMs } : readyState
  }

  /** The upstream began to rest a moment ago, and is probed often. */
  get isRestingBriefly(): boolean {
    return this.#health.state === 'unhealthy' && this.#health.outMs < briefRestMs
  }

  /** The upstream is well, and has answered a client or a probe since then. */
  isBackSince(at: number): boolean {
    return this.#health.state === 'ready' && Math.max(this.#answeredAt, this.#foundWellAt) > at
  }

  /** The upstream is throttling, and for less time than a client waits. */
  get coolsInTime(): boolean {
    return this.#health.state === 'rate-limited' && (this.#health.untilMs ?? 0) < this.#patienceMs
  }

  /** How long until the upstream is tried although it cools down, which it does by a guess; undefined otherwise. */
  get triesInMs(): number | undefined {
    if (this.#health.state !== 'rate-limited' || !this.#health.isGuess) return undefined
    return Math.max(0, this.#tryAt - this.#clock.monotonic())
  }

  /** The upstream is out, and may be back so soon that what it lacks is not known: an outage of a minute is no absence of a moment. */
  get isOutBriefly(): boolean {
    const { state, outMs } = this.#health
    return state === 'rate-limited' || (state === 'unhealthy' && outMs < longOutMs)
  }

  /** The upstream is well, or began to rest a moment ago and is probed. */
  get mayComeBack(): boolean {
    return this.coolsInTime || (this.#schedule.areOn && (this.#health.state === 'ready' || this.isRestingBriefly))
  }

  /** A request that failed at the upstream waits until it is well: for a moment, it is looked at often. */
  waitedFor(): void {
    this.#schedule.waitedFor()
  }

  /** Whether this was looked for lately and not found. */
  isDoubted(key: string): boolean {
    return this.#doubts.size > 0 && this.#doubts.has(key)
  }

  get #patienceMs(): number {
    let newest: Others | undefined
    for (const one of this.#joined) newest = one
    return newest?.patienceMs ?? this.#options.patienceMs ?? defaultPatienceMs
  }

  // What it costs.

  /** The expected cost of asking the upstream now, for 1 MiB of a DAG or one block: with guesses for the unknown. */
  load(kind: AskKind): number {
    const cost = Math.max(this.#work[kind].costMs(usualBytes[kind]), this.silentMs)
    return cost * (1 + this.pending / connectionsThatSlow) + this.#hits.costMs + this.waitMs
  }

  /** Nothing is known of the upstream in this kind of work, or nothing new. */
  isUntried(kind: AskKind): boolean {
    return this.#work[kind].isUntried
  }

  /** How long the upstream may take to begin without being late; undefined while nothing is known. */
  usualMs(kind: AskKind): number | undefined {
    return this.#work[kind].usualMs
  }

  /** Wanted bytes a millisecond while readers wait; undefined while nothing is known. */
  rate(kind: AskKind): number | undefined {
    return this.#work[kind].rate
  }

  /** Asked for a part of a file as a CAR, the upstream sends all of it. */
  get sendsAll(): boolean {
    return this.#clock.monotonic() < this.#sendsAllUntil
  }

  heedsNoRanges(): void {
    this.#sendsAllUntil = this.#clock.monotonic() + doubtedMs
  }

  /** How long the upstream would take for so many bytes if it were asked now: with guesses for the unknown. */
  expectedMs(kind: AskKind, bytes: number): number {
    return Math.max(this.#work[kind].expectedMs(bytes), this.silentMs) + this.waitMs
  }

  /** How long a question would wait for its slot now. */
  get waitMs(): number {
    const wait = this.#heldMs()
    const { readers } = this.#line
    const crowd = readers > 0 || !this.#hasRoom ? ((readers + 1) / this.#window.size) * this.#answerMs : 0
    return Math.max(crowd, Number.isFinite(wait) ? wait : outMs)
  }

  /** Answers of the upstream came late just now: more is asked of it than it can do. */
  get isCrowded(): boolean {
    return this.#window.isCrowded
  }

  /** For how long the upstream has owed answers without giving any to any client. */
  get silentMs(): number {
    // Questions are in the order in which they began: those before the newest answer say nothing.
    for (const { at } of this.#unanswered) if (at >= this.#answeredAt) return this.#clock.monotonic() - at
    return 0
  }

  /** The questions that are under way at it. */
  get pending(): number {
    return this.#asked.size + this.#searching.size + this.#sending
  }

  get budget(): { readonly perMinute: number; readonly used: number } | undefined {
    const { perMinute } = this.#options
    return this.#minute && perMinute !== undefined ? { perMinute, used: this.#minute.used } : undefined
  }

  // A question, from its line to its end.

  /** Begins it, or has it wait until it can begin. Else it is refused: `overloaded`, or `unavailable` while the upstream is out. */
  ask(question: Question, waitedMs: number, now: number): void {
    question.giveUpAt = now + this.#patienceMs - waitedMs
    this.#enter(question, now)
  }

  #enter(question: Question, now: number): void {
    question.stopWait = undefined
    question.place = 'new'
    const own = question.hasBudget ? undefined : this.#allowanceOf(question.key)
    if (own) {
      const ms = own.waitMs
      if (now + ms > question.giveUpAt) return question.refused(overloaded(this.#name, ms), now)
      if (ms > 0) return this.#delay(question, ms)
      own.take()
      question.hasBudget = true
    }
    const { state } = this.#health
    if (state !== 'ready') {
      // One that said when it can be asked again is waited for, where that is in time.
      if (state === 'rate-limited' && !this.#mayEnter()) {
        const ms = this.#health.untilMs ?? 0
        if (now + ms > question.giveUpAt) return question.refused(this.#out(), now)
        return this.#delay(question, Math.max(1, ms))
      }
      if (state === 'unhealthy') this.#schedule.suspect()
      if (!this.#mayEnter()) return question.refused(this.#out(), now)
    }
    const isSearch = question.rank === 'search'
    const { readers, searchers } = this.#line
    if ((isSearch ? searchers : readers) >= maxQueued) return question.refused(this.#tooLate(), now)
    // Most find no line and a free slot.
    if (!isSearch && readers + searchers === 0 && this.#hasRoom && this.#heldMs() === 0) {
      this.#line.passed(question.rank)
      return this.#open(question, now)
    }
    question.place = 'line'
    question.queuedAt = now
    this.#line.add(question)
    this.#look()
    if (question.place !== 'line') return
    const patienceMs = Math.max(0, question.giveUpAt - this.#answerMs - now)
    question.stopWait = this.#clock.after(patienceMs, () => this.#refuseInTurn(question, () => this.#tooLate()))
  }

  #delay(question: Question, ms: number): void {
    question.place = 'delayed'
    question.stopWait = this.#clock.after(ms, () => this.#enter(question, this.#clock.monotonic()))
  }

  /** Thousands wait in vain for the same moment, and each then looks elsewhere: they learn of it in turns of the loop that have time. */
  #refuseInTurn(question: Question, why: () => Failure): void {
    if (!this.#leave(question)) return
    const failure = why()
    question.place = 'delayed'
    void this.#turns.inLine().then(() => {
      if (question.place === 'delayed') question.refused(failure, this.#clock.monotonic())
    })
  }

  #leave(question: Question): boolean {
    question.stopWait?.()
    question.stopWait = undefined
    const stood = question.place === 'line' && this.#line.delete(question)
    // Nothing waits for the next look any more.
    if (stood && this.#line.size === 0) this.#stopTimer?.()
    return stood
  }

  /** It is not wanted any more. */
  leaveLine(question: Question): void {
    this.#leave(question)
  }

  #open(question: Question, now: number): void {
    const isSearch = question.rank === 'search'
    question.stopWait?.()
    question.stopWait = undefined
    question.place = isSearch ? 'searching' : 'asked'
    ;(isSearch ? this.#searching : this.#asked).add(question)
    this.#minute?.take()
    this.#tryAt = now + tryEveryMs
    question.wasFull = this.#asked.size >= this.#window.size || this.#line.readers > 0
    this.counts.asked++
    this.#unanswered.add(question)
    this.#work[question.kind].asked()
    question.begun(now)
  }

  /** Gives slots away, if a change allows that now. */
  #look(): void {
    this.#stopTimer?.()
    this.#stopTimer = undefined
    for (;;) {
      const { reader, searcher } = this.#line
      if (!reader && !searcher) return
      const wait = this.#heldMs()
      if (wait > 0) return this.#lookIn(wait)
      let next: Question | undefined
      if (reader && this.#hasRoom) next = reader
      else if (reader && this.#makeRoom()) continue
      else if (searcher && this.#hasSearchRoom(reader !== undefined)) next = searcher
      if (!next) return this.#lookIn(lookAgainMs)
      this.#line.served(next)
      this.#open(next, this.#clock.monotonic())
    }
  }

  #lookIn(ms: number): void {
    this.#stopTimer?.()
    this.#stopTimer = Number.isFinite(ms) ? this.#clock.after(Math.max(1, ms), () => this.#look()) : undefined
  }

  get #hasRoom(): boolean {
    return this.#asked.size < this.#window.size && this.pending < this.#maxOpen
  }

  #hasSearchRoom(isReaderWaiting: boolean): boolean {
    const { size } = this.#window
    const hasShare = this.#searching.size < Math.max(1, Math.floor(size * searchShare))
    const isIdle = !isReaderWaiting && this.#asked.size + this.#searching.size < size * idleSearchShare
    return this.pending < this.#maxOpen && (hasShare || isIdle)
  }

  /** Whether something was done for a reader that finds no room: a late question is a search, and searches may have to go. */
  #makeRoom(): boolean {
    const now = this.#clock.monotonic()
    const late = this.#lateMs
    const [oldest] = this.#asked
    if (oldest && now - oldest.at >= late) {
      if (this.#demote(now, late)) return true
      // All slots are held by questions that are late, and readers wait: is the upstream alive?
      this.#schedule.suspect()
    }
    return this.#evict(now, late)
  }

  /** Makes the oldest late question that was overtaken a search. */
  #demote(now: number, late: number): boolean {
    for (const question of this.#asked) {
      if (now - question.at < late) return false
      if (question.overtakenBy < enoughOvertook) continue
      this.#asked.delete(question)
      this.#searching.add(question)
      question.place = 'searching'
      return true
    }
    return false
  }

  /** Gives up the oldest search that has had its time, if searches have more than their share of the connections. */
  #evict(now: number, late: number): boolean {
    const [search] = this.#searching
    const max = this.#maxOpen
    if (!search || this.pending < max || this.#searching.size <= Math.floor(max * searchShare)) return false
    const hadTime = search.overtakenBy >= enoughOvertook && !search.isLost && !this.#window.isCrowded
    const soonest = hadTime
      ? Math.min(minBeforeEvictionMs, Math.max(minOvertakenMs, late * lateTimes))
      : minBeforeEvictionMs
    if (now - search.at < Math.max(late, soonest)) return false
    this.#searching.delete(search)
    const reason = givenUp(this.#name, now - search.at, hadTime, this.waitMs)
    search.eviction = reason
    search.asker.evicted(search, reason)
    return true
  }

  /** The question takes long, and the upstream has answered others meanwhile. */
  isOvertaken(question: Question): boolean {
    if (question.place === 'searching') return true
    return question.overtakenBy >= enoughOvertook && this.#clock.monotonic() - question.at >= this.#lateMs
  }

  /** A question that takes longer than this is late. */
  get #lateMs(): number {
    return Math.max(lateLeastMs, this.#work.dag.usualMs ?? this.#work.block.usualMs ?? lateUnknownMs)
  }

  /** Wanted bytes came, for which readers waited this long since the last ones. The first tell how quick it begins. */
  brought(question: Question, bytes: number, waitedMs: number, now: number): void {
    this.measured.bytes += bytes
    const performance = this.#work[question.kind]
    // What it brought in all is more than this: it has begun.
    if (question.bytes > bytes || (bytes === 0 && question.bytes > 0)) return performance.moved(bytes, waitedMs)
    if (bytes === 0) return
    this.#hasAnswered(question, now)
    this.#slotAnswered(question, now)
    const ms = now - question.at
    performance.began(ms)
    this.measured.firstByte.observe(ms / 1000)
    this.measured.recent.add(ms)
    this.#window.answered(ms, question.at, question.wasFull)
    this.#judged(() => this.#health.answered(question.at))
    this.#hits.has()
    if (this.#doubts.size > 0) this.#doubts.delete(question.key)
  }

  /** The upstream gave all that it was asked for. */
  done(question: Question, now: number): void {
    this.counts.won++
    this.#work[question.kind].finished()
    this.#end(question, now)
  }

  /** Given up without having failed: others brought enough, or it fell behind what it usually does. */
  letGo(question: Question, why: LetGo, now: number): void {
    const performance = this.#work[question.kind]
    if (question.bytes === 0) {
      this.counts.lost++
      performance.notYet(now - question.at)
    } else if (why === 'behind') performance.gaveOut(behindWeight)
    this.#end(question, now)
  }

  /**
   * A failure that may be no fault of the upstream (no upstream has the CID) does not count yet: call the returned function
   * when another one turns out to have it.
   */
  failed(question: Question, error: unknown, now: number): (() => void) | undefined {
    const ms = now - question.at
    const kind = kindOf(error)
    const isEvicted = question.eviction !== undefined
    const isBegun = question.bytes > 0
    if (!isBegun && (kind === 'not-found' || kind === 'timeout' || isEvicted)) this.#doubts.add(question.key)
    if (kind === 'hash-mismatch') this.#falsified.add(question.key)
    if (kind === 'not-found') this.#hits.saidNo(ms)
    if (kind !== 'timeout' && kind !== 'cancelled' && kind !== 'overloaded' && !isEvicted)
      this.#hasAnswered(question, now)
    if (kind === 'not-found' || kind === 'refused') this.#slotAnswered(question, now)
    if (isEvicted) {
      this.counts.lost++
      return void this.#end(question, now)
    }
    const later = this.#blame(error, kind, question.kind, question.at, isBegun)
    this.#end(question, now)
    if (kind !== 'timeout' || !later) return later
    return () => {
      this.#work[question.kind].notYet(ms)
      later()
    }
  }

  /** The upstream failed at something that was no question of a race. */
  brokeOff(error: unknown): void {
    this.#blame(error, kindOf(error), 'block', this.#clock.monotonic(), false)
  }

  /**
   * What a failure says of the upstream: that it lacks something, asks for patience, lies, or is not well. An absence says nothing of it
   * until another upstream turns out to have the thing: the answer is what to say then.
   */
  #blame(error: unknown, kind: FailureKind, of: AskKind, at: number, isBegun: boolean): (() => void) | undefined {
    const { counts } = this
    switch (kind) {
      case 'cancelled':
      case 'overloaded': // this gateway had no means to ask
        return undefined
      case 'not-found':
      case 'refused':
        counts.notFound++
        if (kind === 'not-found') this.#judged(() => this.#health.answered(at))
        return () => this.#hits.lacks()
      case 'throttled':
        counts.throttled++
        this.#window.failed(at)
        if (isFailure(error)) this.#judged(() => this.#health.throttled(error, at))
        return undefined
      case 'hash-mismatch':
        counts.hashMismatch++
        this.#judged(() => this.#health.lied())
        return undefined
      default:
        counts.failed++
        if (isBegun) this.#work[of].gaveOut(1)
        else if (kind !== 'timeout') this.#notWell(error, of, at)
        else {
          // The upstream was silent, and the reason is not known yet. If it has given no answer to any client since, a probe will tell.
          if (this.#answeredAt < at) this.#schedule.suspect()
          return () => this.#notWell(error, of, at)
        }
        return undefined
    }
  }

  /** The upstream failed before anything came, or was silent although another one had the block. */
  #notWell(error: unknown, of: AskKind, at: number): void {
    this.#work[of].gaveOut(1)
    this.#judged(() => this.#health.failed(error, at))
    this.#window.failed(at)
    this.#schedule.suspect()
  }

  #hasAnswered(question: Question, now: number): void {
    this.#unanswered.delete(question)
    this.#answeredAt = now
  }

  /** The upstream answered: with bytes (it goes on) or in words. */
  #slotAnswered(question: Question, now: number): void {
    this.#answerMs += (now - question.at - this.#answerMs) * typicalWeight
    if (!this.#asked.delete(question) && !this.#searching.delete(question)) return
    question.place = 'sending'
    this.#sending++
    this.#alive(question.at, 1)
  }

  /** The upstream answered a question, or so many, that began then: those that began before it take long by themselves. */
  #alive(beganAt: number, answers: number): void {
    for (const question of this.#asked) if (question.at < beganAt) question.overtakenBy += answers
    for (const question of this.#searching) if (question.at < beganAt) question.overtakenBy += answers
    if (this.#line.size > 0) this.#look()
  }

  #end(question: Question, now: number): void {
    this.measured.duration.observe((now - question.at) / 1000)
    this.#unanswered.delete(question)
    this.#work[question.kind].ended()
    if (question.place === 'sending') this.#sending--
    else if (!this.#asked.delete(question)) this.#searching.delete(question)
    question.place = 'over'
    if (this.#line.size > 0) this.#look()
  }

  // Its health.

  /** Runs `judge`, and acts on a change of the state. */
  #judged(judge: () => void): void {
    const before = this.#health.state
    judge()
    const { state } = this.#health
    if (state === before) return
    if (state === 'unhealthy') {
      this.#window.close()
      // Its open questions are most likely lost, and must not be in the way when it is back.
      for (const question of this.#asked) {
        question.place = 'searching'
        this.#searching.add(question)
      }
      for (const question of this.#searching) question.isLost = true
      this.#asked.clear()
      this.#schedule.rested()
    }
    // A request that waits for an upstream that has just gone to rest waits for the next probe, if no other can be asked.
    if (state !== 'ready' && (state !== 'unhealthy' || this.#hasOthers)) this.#turnAway(this.#clock.monotonic())
    this.#look()
    if (state === 'unhealthy') this.#schedule.changed()
  }

  get #hasOthers(): boolean {
    for (const others of this.#joined) if (others.hasOthers()) return true
    return false
  }

  /** The upstream is out: callers queued before that moment need not wait for it. */
  #turnAway(before: number): void {
    for (const question of this.#line.all())
      if (question.queuedAt <= before) this.#refuseInTurn(question, () => this.#out())
  }

  /** Whether probes decide when a rest is over. Without, it is tried now and then. */
  get #isProbed(): boolean {
    return this.#schedule.areOn && !this.#failsProbes
  }

  /** Milliseconds until one may be asked, for reasons besides the slots; Infinity: not before something changes. */
  #heldMs(): number {
    const { state, untilMs = Number.POSITIVE_INFINITY } = this.#health
    const tryMs = Math.max(0, this.#tryAt - this.#clock.monotonic())
    switch (state) {
      case 'ready':
        return this.#minute?.waitMs ?? 0
      case 'unhealthy':
        return this.#isProbed ? untilMs : Math.min(untilMs, tryMs)
      case 'rate-limited':
        return this.#health.isGuess ? Math.min(untilMs, tryMs) : untilMs
      default:
        return tryMs
    }
  }

  /**
   * One that rests without probes, that no probe found usable, that sent a false block, or that cools down by a guess, is tried now and
   * then: all it sends is proved.
   */
  #mayEnter(): boolean {
    const { state } = this.#health
    if (state === 'ready' || (state === 'unhealthy' && this.#isProbed)) return true
    return this.#tryAt <= this.#clock.monotonic() && (state !== 'rate-limited' || this.#health.isGuess)
  }

  #allowanceOf(key: string): Allowance | undefined {
    const { perCidPerMinute } = this.#options
    if (this.#cids === undefined || perCidPerMinute === undefined) return undefined
    let found = this.#cids.get(key)
    if (!found) this.#cids.set(key, (found = createAllowance(perCidPerMinute, this.#clock)))
    return found
  }

  #tooLate(): Failure {
    return this.#health.state === 'ready' ? overloaded(this.#name, this.waitMs) : this.#out()
  }

  #out(): Failure {
    return new Failure('unavailable', `${this.#name} cannot be asked now (${this.#health.state})`, {
      source: 'upstream',
      retryAfterMs: this.triesInMs ?? this.#health.untilMs,
    })
  }

  // Probes.

  probed(report: ProbeReport): void {
    this.#failsProbes = false
    const now = this.#clock.monotonic()
    this.#schedule.made()
    if (report.lied) this.#countProbe('hashMismatch')
    if (report.usable) this.#window.open()
    this.#judged(() => this.#health.looked(report.usable, report.findings))
    if (!report.usable) return
    this.#foundWellAt = now
    // A probe of a gateway that can do both asks two questions, one after the other.
    for (const performance of Object.values(this.#work)) performance.probed(report.car ? report.ms / 2 : report.ms)
    this.#alive(now - report.ms, probeAnswers)
  }

  /** A probe that began then did not get through. */
  unreachable(error: unknown, beganAt: number): void {
    this.#schedule.made()
    const isThrottled = isFailure(error, 'throttled')
    const isAnswer = isThrottled || (isFailure(error, 'upstream-error') && error.facts.isIll === true)
    if (isAnswer && this.#health.state === 'ready' && this.#health.isProven) return
    this.#failsProbes = isAnswer
    if (isThrottled) {
      this.#countProbe('throttled')
      return this.#judged(() => this.#health.throttled(error, beganAt))
    }
    this.#judged(() => this.#health.unreachable(error))
    this.#schedule.rested()
    // The upstream may be back in a moment: a client that came just now waits for the next probe.
    const isBrief = this.#health.outMs < briefRestMs
    this.#turnAway(isBrief ? Math.min(beganAt, this.#clock.monotonic() - briefWaitMs) : beganAt)
  }

  /** A probe is counted where the upstream is out for what it answered: who reads the counters finds out why. */
  #countProbe(what: 'hashMismatch' | 'throttled'): void {
    this.counts.asked++
    this.counts[what]++
  }

  /** When the upstream should be probed before its turn: `look` is called when that may have changed. */
  get lookInMs(): number {
    return this.#schedule.inMs
  }

  /** The returned function takes `look` back: while one gateway takes over from another, both probe. */
  onSuspicion(look: () => void): () => void {
    return this.#schedule.onSuspicion(look)
  }

  /** The upstream is part of this pool until the returned function is called, and may be part of others. The newest pool sets its patience. */
  join(others: Others): () => void {
    this.#joined.add(others)
    return () => void this.#joined.delete(others)
  }

  /** What it is out for, or was last, and what it last did wrong: for the operator. */
  get told(): Told {
    return this.#health.told
  }
}

const readyState = { state: 'ready', untilMs: 0 } as const

export const kindOf = (error: unknown): FailureKind => (isFailure(error) ? error.kind : 'internal')

const overloaded = (name: string, waitMs: number): Failure =>
  new Failure('overloaded', `${name} is overloaded: its queue is too long to be asked in time`, {
    source: 'ours',
    retryAfterMs: Math.min(maxRetryMs, waitMs),
  })

function givenUp(name: string, ms: number, hadTime: boolean, waitMs: number): Failure {
  const what = `${name} was let go after ${Math.round(ms)} ms without an answer`
  // An upstream that answered later questions first is searching: it had its time for what it has.
  if (hadTime)
    return new Failure('timeout', `${what}, while it answered others`, {
      source: 'upstream',
      facts: { isSearching: true },
    })
  return new Failure('overloaded', `${what}: other requests need its connections`, {
    source: 'ours',
    retryAfterMs: Math.max(minRetryMs, waitMs),
  })
}
