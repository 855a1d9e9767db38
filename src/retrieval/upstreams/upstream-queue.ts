// The slots of an upstream and the queue before them, the only one on the way to it: time in it is
// never held against the upstream. Files that have begun go first, so that a burst does not end
// with many beginnings and no complete file; then first questions, then hedges, then searches for
// what may be nowhere. In each rank clients alternate. A late question becomes a search when others
// overtake it, and gives its slot to a reader.
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import { ClientLine, type LoopScheduler } from '../loop-scheduler.ts'
import type { Question } from './attempts.ts'
import { ConcurrencyWindow, guessedFirstMs, minuteMs } from './estimates.ts'

/**
 * `begun`: its client has a part of it. `again`: another upstream was asked, and answers others.
 */
export type Rank = 'begun' | 'first' | 'again' | 'search'

export interface QueueOwner {
  /** Milliseconds until a question may go, for other reasons than the slots. */
  heldMs(now: number): number
  /** Answers are late after this. */
  readonly lateMs: number
  /** The question has its slot. */
  begin(question: Question, now: number): void
  /** Late questions hold all slots, and no other was answered meanwhile. */
  suspect(): void
}

const maxQueued = 10_000
const recheckMs = 100
// A slot in this many goes to a file that has not begun: large files must not keep out all others.
const firstShare = 4
// Searches get this share of the connections, and more only while no reader wants them.
const searchShare = 1 / 8
const idleSearchShare = 3 / 4
export const enoughOvertook = 2
// On a busy machine a healthy upstream answers late too.
const minBeforeEvictionMs = 2_000

export class UpstreamQueue {
  readonly window: ConcurrencyWindow
  readonly #name: string
  readonly #clock: Clock
  readonly #turns: LoopScheduler
  readonly #maxOpen: number
  readonly #owner: QueueOwner
  readonly #ranks: Readonly<Record<Rank, ClientLine<Question>>> = {
    begun: new ClientLine(),
    first: new ClientLine(),
    again: new ClientLine(),
    search: new ClientLine(),
  }
  #begunInARow = 0
  /** Those without an answer, in the order in which they were asked. */
  readonly #unanswered = new Set<Question>()
  #sending = 0
  #answerMs = guessedFirstMs
  #stopTimer: (() => void) | undefined

  constructor(
    options: { readonly name: string; readonly clock: Clock; readonly turns: LoopScheduler },
    connections: number,
    owner: QueueOwner,
  ) {
    this.#name = options.name
    this.#clock = options.clock
    this.#turns = options.turns
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
    const readers = this.#readers
    const crowd = readers > 0 || !this.#hasRoom ? ((readers + 1) / this.window.size) * this.#answerMs : 0
    return Math.max(crowd, Math.min(minuteMs, this.#owner.heldMs(this.#clock.monotonic())))
  }

  /** For how long a question that was asked since then has had no answer. */
  silentMs(since: number, now: number): number {
    for (const { at } of this.#unanswered) if (at >= since) return now - at
    return 0
  }

  /** Begins it, now or later; refuses it where its time would be over before an answer. */
  add(question: Question, now: number): void {
    const isSearch = question.rank === 'search'
    if ((isSearch ? this.#ranks.search.size : this.#readers) >= maxQueued)
      return question.refused(this.overloaded(), now)
    if (!isSearch && this.#size === 0 && this.#hasRoom && this.#owner.heldMs(now) === 0)
      return this.begin(question, now)
    this.#ranks[question.rank].add(question, question.client)
    this.serve()
    if (question.place !== 'queued') return
    const ms = Math.max(0, question.giveUpAt - this.#answerMs - now)
    question.stopWait = this.#clock.after(ms, () => this.#refuse(question, () => this.overloaded()))
  }

  /** Gives it a slot without a place in the queue. */
  begin(question: Question, now: number): void {
    const { rank } = question
    question.stopWait?.()
    if (rank !== 'search') this.#begunInARow = rank === 'begun' ? this.#begunInARow + 1 : 0
    question.isSearch = rank === 'search'
    question.wasFull = this.#asked + 1 >= this.window.size || this.#readers > 0
    question.place = 'asked'
    this.#unanswered.add(question)
    this.#owner.begin(question, now)
  }

  leave(question: Question): boolean {
    question.stopWait?.()
    const isQueued = this.#ranks[question.rank].delete(question, question.client)
    if (isQueued && this.#size === 0) this.#stopTimer?.()
    return isQueued
  }

  /** The upstream answers it: its slot is free, and those that were asked before it take long. */
  answered(question: Question, now: number): void {
    this.#answerMs += (now - question.at - this.#answerMs) / 10
    if (!this.#unanswered.delete(question)) return
    question.place = 'sending'
    this.#sending++
    this.overtake(question.at, 1)
  }

  /** So many questions that began then were answered: those before them take long by themselves. */
  overtake(beganAt: number, answers: number): void {
    for (const question of this.#unanswered) {
      if (question.at >= beganAt) break
      question.overtakenBy += answers
    }
    this.serve()
  }

  ended(question: Question): void {
    if (question.place === 'sending') this.#sending--
    else this.#unanswered.delete(question)
    question.place = 'over'
    this.serve()
  }

  /**
   * The upstream is out: open questions are likely lost, and must not hold slots when it is back.
   */
  outage(now: number): void {
    this.window.close(now)
    for (const question of this.#unanswered) {
      question.isSearch = true
      // Answers after the outage say nothing of them.
      question.overtakenBy = Number.NEGATIVE_INFINITY
    }
  }

  refuseAll(why: () => Failure): void {
    for (const rank of Object.values(this.#ranks)) for (const question of [...rank]) this.#refuse(question, why)
  }

  /** Gives slots to those in the queue, if a change allows that now. */
  serve(): void {
    this.#stopTimer?.()
    this.#stopTimer = undefined
    while (this.#size > 0) {
      const now = this.#clock.monotonic()
      const heldMs = this.#owner.heldMs(now)
      if (heldMs > 0) return this.#serveIn(heldMs)
      const reader = this.#nextReader
      const searcher = this.#ranks.search.next
      if (reader && this.#hasRoom) this.#serveNext(reader, now)
      else if (reader && this.#makeRoom(now)) continue
      else if (searcher && this.#hasSearchRoom(reader !== undefined)) this.#serveNext(searcher, now)
      else return this.#serveIn(recheckMs)
    }
  }

  #serveIn(ms: number): void {
    this.#stopTimer = this.#clock.after(Math.max(1, ms), () => this.serve())
  }

  #serveNext(question: Question, now: number): void {
    const line = this.#ranks[question.rank]
    // Other clients go before the next one of its client.
    line.turn(question.client)
    line.delete(question, question.client)
    this.begin(question, now)
  }

  /**
   * Thousands are refused at once, and each then asks elsewhere: spread over event-loop iterations.
   */
  #refuse(question: Question, why: () => Failure): void {
    if (!this.leave(question)) return
    const failure = why()
    void this.#turns.inLine().then(() => {
      if (question.place === 'queued') question.refused(failure, this.#clock.monotonic())
    })
  }

  overloaded(waitMs = this.waitMs): Failure {
    return new Failure('overloaded', `${this.#name} is overloaded: its queue is too long to be asked in time`, {
      source: 'ours',
      retryAfterMs: Math.min(minuteMs / 2, waitMs),
    })
  }

  get #readers(): number {
    const { begun, first, again } = this.#ranks
    return begun.size + first.size + again.size
  }

  get #size(): number {
    return this.#readers + this.#ranks.search.size
  }

  get #nextReader(): Question | undefined {
    const { begun, first, again } = this.#ranks
    const fresh = first.next ?? again.next
    return fresh !== undefined && this.#begunInARow >= firstShare - 1 ? fresh : (begun.next ?? fresh)
  }

  get #searches(): number {
    let searches = 0
    for (const { isSearch } of this.#unanswered) if (isSearch) searches++
    return searches
  }

  get #asked(): number {
    return this.#unanswered.size - this.#searches
  }

  get #hasRoom(): boolean {
    return this.#asked < this.window.size && this.pending < this.#maxOpen
  }

  #hasSearchRoom(isReaderWaiting: boolean): boolean {
    if (this.pending >= this.#maxOpen) return false
    const { size } = this.window
    const hasShare = this.#searches < Math.max(1, Math.floor(size * searchShare))
    return hasShare || (!isReaderWaiting && this.#unanswered.size < size * idleSearchShare)
  }

  /**
   * Makes a late question a search, or evicts a search. False: nothing could be done for a reader.
   */
  #makeRoom(now: number): boolean {
    const { lateMs } = this.#owner
    let hasLate = false
    for (const question of this.#unanswered) {
      if (now - question.at < lateMs) break
      if (question.isSearch) continue
      hasLate = true
      if (question.overtakenBy < enoughOvertook) continue
      question.isSearch = true
      return true
    }
    if (hasLate) this.#owner.suspect()
    return this.#evict(now, lateMs)
  }

  /** Ends the oldest search that has had its time, if searches hold more than their share. */
  #evict(now: number, lateMs: number): boolean {
    if (this.pending < this.#maxOpen || this.#searches <= Math.floor(this.#maxOpen * searchShare)) return false
    const search = [...this.#unanswered].find(({ isSearch }) => isSearch)
    if (!search || now - search.at < Math.max(lateMs, minBeforeEvictionMs)) return false
    // An upstream that answered later questions first is searching: it had its time.
    const hadTime = search.overtakenBy >= enoughOvertook && !this.window.isCrowded(now)
    search.evict(this.#eviction(now - search.at, hadTime), now)
    return true
  }

  #eviction(ms: number, hadTime: boolean): Failure {
    const what = `${this.#name} was stopped after ${Math.round(ms)} ms without an answer`
    if (hadTime) {
      const facts = { isSearching: true }
      return new Failure('timeout', `${what}, while it answered others`, { source: 'upstream', facts })
    }
    const retryAfterMs = Math.max(1_000, this.waitMs)
    return new Failure('overloaded', `${what}: other requests need its connections`, { source: 'ours', retryAfterMs })
  }
}
