// One question to one upstream: its place in the line, its slot, and its entry in the account of the flight. It ends once, whatever
// became of it.
import type { CID } from 'multiformats/cid'
import { type Failure, isFailure } from '../../core/failure.ts'
import type { OpenSpan } from '../../core/wire/trace.ts'
import type { Attempt } from '../../observe/request-record.ts'
import type { Rank } from '../line.ts'
import type { Attempts } from './attempts.ts'
import type { Member } from './pool.ts'

export type AskKind = 'block' | 'dag'

/** Why a question is given up although it did not fail: others brought what was wanted, or it fell behind them. */
export type LetGo = 'enough' | 'behind'

/** What a question is asked for. Its methods may be called while `ask` runs. */
export interface Asker {
  /** The question has its slot: the upstream is to be asked. */
  begun(question: Question): void
  /** There was no slot in time, or the upstream went out meanwhile. */
  refused(question: Question, error: Failure): void
  /** Readers need the slot, because the question has taken long already. It is over. */
  evicted(question: Question, reason: Failure): void
}

/** Where it is at its upstream. `searching`: what it asks for may be nowhere; `sending`: the upstream answers it with bytes. */
export type Place = 'new' | 'delayed' | 'line' | 'asked' | 'searching' | 'sending' | 'evicted' | 'over'

const waitsForSlot = 'queued'
// An upstream that sent nothing of use for so long is called stalled in the account.
const stalledMs = 1000

export class Question {
  readonly member: Member
  readonly kind: AskKind
  readonly cid: CID
  readonly key: string
  readonly asker: Asker
  readonly attempts: Attempts
  readonly client: string
  rank: Rank = 'first'
  span: OpenSpan | undefined

  place: Place = 'new'
  giveUpAt = 0
  queuedAt = 0
  /** When it was asked, or began to wait for that. */
  at = 0
  waitedMs = 0
  wasFull = false
  hasBudget = false
  overtakenBy = 0
  /** The upstream went out before it answered. */
  isLost = false
  /** Stops what it waits for: the end of a delay, or of its time in line. */
  stopWait: (() => void) | undefined
  /** Why its slot was taken for others. */
  eviction: Failure | undefined

  outcome: string | undefined = waitsForSlot
  ms = 0
  bytes = 0
  broughtAt = 0
  /** The upstream gave all that it was asked for. */
  isWhole = false

  constructor(attempts: Attempts, member: Member, kind: AskKind, cid: CID, key: string, asker: Asker) {
    this.attempts = attempts
    this.member = member
    this.kind = kind
    this.cid = cid
    this.key = key
    this.asker = asker
    this.client = attempts.client
  }

  get isQueued(): boolean {
    return this.place === 'new' || this.place === 'delayed' || this.place === 'line'
  }

  get isOver(): boolean {
    return this.place === 'over'
  }

  /** What is sent meanwhile belongs to this question, where it is recorded in a trace. */
  within<Result>(work: () => Result): Result {
    return this.span ? this.span.run(work) : work()
  }

  /** It has its slot since then. Called by its upstream. */
  begun(now: number): void {
    this.waitedMs = now - this.at
    this.at = now
    this.outcome = undefined
    this.attempts.begun(this)
    this.asker.begun(this)
  }

  /** It has none. Called by its upstream. */
  refused(error: Failure, now: number): void {
    this.place = 'over'
    this.attempts.leftLine(this)
    this.#note(error.kind, now)
    this.attempts.fail(error)
    this.asker.refused(this, error)
  }

  /** A proved block that was wanted came from here. `waitedMs`: how long readers waited for it since the one before. */
  brought(bytes: number, waitedMs: number, now: number): void {
    if (this.isOver) return
    this.bytes += bytes
    if (bytes > 0) this.broughtAt = now
    this.member.health.brought(this, bytes, waitedMs, now)
    if (bytes > 0) this.attempts.isThereNow()
  }

  /** The upstream gave all that it was asked for. */
  done(now: number): void {
    if (!this.#end('won', now)) return
    this.isWhole = true
    this.member.health.done(this, now)
  }

  letGo(why: LetGo, now: number): void {
    if (this.isQueued) return this.leave(now)
    const lost = why === 'behind' ? 'began, then fell behind' : 'won'
    if (this.#end(this.bytes === 0 ? 'lost' : lost, now)) this.member.health.letGo(this, why, now)
  }

  failed(error: unknown, now: number): void {
    if (this.isQueued) return this.leave(now)
    const kind = isFailure(error) ? error.kind : 'internal'
    const word = kind === 'timeout' ? 'stalled' : kind
    if (!this.#end(this.bytes === 0 ? kind : `began, then ${word}`, now)) return
    this.attempts.failed(this, kind, this.member.health.failed(this, error, now))
    this.attempts.fail(error)
  }

  /** It is not wanted any more before it was asked. */
  leave(now: number): void {
    if (!this.isQueued) return
    this.member.health.leaveLine(this)
    this.place = 'over'
    this.attempts.leftLine(this)
    this.#note('lost', now)
  }

  /** What can be said of it now. */
  attempt(now: number): Attempt {
    const { outcome, bytes } = this
    const upstream = this.member.upstream.name
    if (outcome === waitsForSlot) return { upstream, outcome, ms: Math.round(now - this.at) }
    const brought = bytes > 0 && { bytes }
    if (outcome !== undefined) return { upstream, outcome, ms: this.ms, ...brought }
    const sending = now - this.broughtAt < stalledMs ? 'sending' : 'stalled'
    return { upstream, outcome: bytes === 0 ? 'pending' : sending, ms: Math.round(now - this.at), ...brought }
  }

  get foundNoSlot(): boolean {
    return this.outcome === 'overloaded' || this.outcome === waitsForSlot
  }

  #end(outcome: string, now: number): boolean {
    if (this.isOver) return false
    this.attempts.ended()
    this.#note(outcome, now)
    return true
  }

  #note(outcome: string, now: number): void {
    this.ms = Math.round(now - this.at)
    this.outcome = outcome
    if (this.span) this.attempts.endSpan(this)
    this.attempts.noted(this)
  }
}
