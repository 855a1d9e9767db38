// The slots of an upstream and the queue before them, the only one on the way to it: time in it is
// never held against the upstream. Files that have begun go first, so that a burst does not end
// with many beginnings and no complete file; searches for what may be nowhere go last. In each rank
// clients alternate. A late question becomes a search when two that were asked later are answered
// before it, and gives its slot to a reader.
import { Failure } from '../../core/failure.ts'
import { ClientLine } from '../loop-scheduler.ts'
import type { Question } from './attempts.ts'
import { ConcurrencyWindow, minuteMs } from './estimates.ts'
import type { UpstreamHealth, UpstreamHealthOptions } from './upstream-health.ts'

/** `begun`: its client has a part of it. */
export type Rank = 'begun' | 'first' | 'search'

const maxQueued = 10_000
const recheckMs = 100
// A slot in this many goes to a file that has not begun: large files must not keep out all others.
const firstShare = 4
// Searches get this share of the connections, and more only while no reader wants them.
const searchShare = 1 / 8
const idleSearchShare = 3 / 4
// On a busy machine a healthy upstream answers late too.
const minBeforeEvictionMs = 2_000

export class UpstreamQueue {
  readonly window: ConcurrencyWindow
  readonly #options: UpstreamHealthOptions
  readonly #maxOpen: number
  readonly #owner: UpstreamHealth
  readonly #ranks: Readonly<Record<Rank, ClientLine<Question>>> = {
    begun: new ClientLine(),
    first: new ClientLine(),
    search: new ClientLine(),
  }
  #begunInARow = 0
  /** Those without an answer, in the order in which they were asked. */
  readonly #unanswered = new Set<Question>()
  #sending = 0
  /** When the last two were asked of those that are answered. */
  #newestAnswered = [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY] as const
  /** Open questions from before an outage are likely lost. */
  #lostBefore = Number.NEGATIVE_INFINITY
  #stopTimer: (() => void) | undefined

  constructor(options: UpstreamHealthOptions, connections: number, owner: UpstreamHealth) {
    this.#options = options
    this.#maxOpen = connections
    this.#owner = owner
    this.window = new ConcurrencyWindow(connections)
  }

  /** The questions that the upstream works on. */
  get pending(): number {
    return this.#unanswered.size + this.#sending
  }

  /** The time that a question would wait here now. */
  get waitMs(): number {
    const now = this.#options.clock.monotonic()
    const readers = this.#readers
    const isFull = readers > 0 || !this.#hasRoom(now)
    const crowdMs = isFull ? ((readers + 1) / this.window.size) * this.#owner.answerMs : 0
    return Math.max(crowdMs, Math.min(minuteMs, this.#owner.heldMs(now)))
  }

  /** For how long a question that was asked since then has had no answer. */
  silentMs(since: number, now: number): number {
    for (const { at } of this.#unanswered) if (at >= since) return now - at
    return 0
  }

  /** The upstream answers others meanwhile: it searches for this. */
  isOvertaken({ at }: Question): boolean {
    return at < this.#newestAnswered[1] && at >= this.#lostBefore
  }

  /** Begins it, now or later; refuses it where its time would be over before an answer. */
  add(question: Question, now: number): void {
    const { rank } = question
    const line = this.#ranks[rank]
    if ((rank === 'search' ? line.size : this.#readers) >= maxQueued) return question.refused(this.overloaded(), now)
    line.add(question, question.client)
    this.serve()
    if (!question.isQueued) return
    const ms = Math.max(0, question.giveUpAt - this.#owner.answerMs - now)
    question.stopWait = this.#options.clock.after(ms, () => this.#refuse(question, () => this.overloaded()))
  }

  #begin(question: Question, now: number): void {
    const { rank } = question
    question.stopWait?.()
    if (rank !== 'search') this.#begunInARow = rank === 'begun' ? this.#begunInARow + 1 : 0
    this.#unanswered.add(question)
    this.#owner.begin(question, now)
  }

  leave(question: Question): boolean {
    question.stopWait?.()
    return this.#ranks[question.rank].delete(question, question.client)
  }

  /** The upstream answers it: its slot is free, and those that were asked before it take long. */
  answered(question: Question): void {
    if (!this.#unanswered.delete(question)) return
    this.#sending++
    this.overtake(question.at)
  }

  /** Proved bytes came this long after it was asked. */
  learn(ms: number, now: number): void {
    this.window.answered(ms, now, this.#readers > 0 || this.#isFull(now, this.window.size - 1))
  }

  /** A question that was asked then has been answered. */
  overtake(at: number): void {
    const [newest, before] = this.#newestAnswered
    this.#newestAnswered = [Math.max(newest, at), Math.max(before, Math.min(newest, at))]
    this.serve()
  }

  ended(question: Question): void {
    if (!this.#unanswered.delete(question)) this.#sending--
    this.serve()
  }

  /** Open questions must not hold slots when the upstream is back. */
  outage(now: number): void {
    this.window.close(now)
    this.#lostBefore = now
  }

  refuseAll(why: () => Failure): void {
    for (const rank of Object.values(this.#ranks)) for (const question of [...rank]) this.#refuse(question, why)
  }

  /** Gives slots to those in the queue, if a change allows that now. */
  serve(): void {
    this.#stopTimer?.()
    this.#stopTimer = undefined
    while (this.#readers + this.#ranks.search.size > 0) {
      const now = this.#options.clock.monotonic()
      const heldMs = this.#owner.heldMs(now)
      if (heldMs > 0) return this.#serveIn(heldMs)
      const reader = this.#nextReader
      const searcher = this.#ranks.search.next
      if (reader && this.#hasRoom(now)) this.#serveNext(reader, now)
      else if (reader && this.#evict(now)) continue
      else if (searcher && this.#hasSearchRoom(reader !== undefined, now)) this.#serveNext(searcher, now)
      else return this.#serveIn(recheckMs)
    }
  }

  #serveIn(ms: number): void {
    this.#stopTimer = this.#options.clock.after(Math.max(1, ms), () => this.serve())
  }

  #serveNext(question: Question, now: number): void {
    const line = this.#ranks[question.rank]
    // Other clients go before the next one of its client.
    line.turn(question.client)
    line.delete(question, question.client)
    this.#begin(question, now)
  }

  /**
   * Thousands are refused at once, and each then asks elsewhere: spread over event-loop iterations.
   */
  #refuse(question: Question, why: () => Failure): void {
    if (!this.leave(question)) return
    const failure = why()
    void this.#options.turns.waitTurn().then(() => {
      if (question.isQueued) question.refused(failure, this.#options.clock.monotonic())
    })
  }

  overloaded(waitMs = this.waitMs): Failure {
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
    return rank === 'search' || at < this.#lostBefore || (this.isOvertaken(question) && now - at >= this.#owner.lateMs)
  }

  #asked(now: number): number {
    let asked = 0
    for (const question of this.#unanswered) if (!this.#isSearch(question, now)) asked++
    return asked
  }

  /** At least so many of the questions are no searches. */
  #isFull(now: number, size: number): boolean {
    return this.#unanswered.size >= size && this.#asked(now) >= size
  }

  #hasRoom(now: number): boolean {
    return this.pending < this.#maxOpen && !this.#isFull(now, this.window.size)
  }

  #hasSearchRoom(isReaderWaiting: boolean, now: number): boolean {
    if (this.pending >= this.#maxOpen) return false
    const { size } = this.window
    const searches = this.#unanswered.size - this.#asked(now)
    const hasShare = searches < Math.max(1, Math.floor(size * searchShare))
    return hasShare || (!isReaderWaiting && this.#unanswered.size < size * idleSearchShare)
  }

  /** Ends the oldest search that has had its time, if searches hold more than their share. */
  #evict(now: number): boolean {
    const { lateMs } = this.#owner
    const searches = [...this.#unanswered].filter((one) => this.#isSearch(one, now))
    for (const one of this.#unanswered) if (now - one.at >= lateMs && !this.#isSearch(one, now)) this.#owner.suspect()
    const [search] = searches
    if (!search || this.pending < this.#maxOpen || searches.length <= Math.floor(this.#maxOpen * searchShare))
      return false
    if (now - search.at < Math.max(lateMs, minBeforeEvictionMs)) return false
    // An upstream that answered later questions first is searching: it had its time.
    const hadTime = this.isOvertaken(search) && !this.window.isCrowded(now)
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
}
