// The attempts of one flight: its questions and their record, when it may ask an upstream again,
// and the Failure of a flight that got nothing.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, type FailureKind, isFailure, isUnreachable } from '../../core/failure.ts'
import type { OpenSpan, Trace, TracePoint } from '../../core/wire/trace.ts'
import type { Attempt } from '../../observe/request-record.ts'
import type { Member, Plan } from './pool.ts'
import type { Rank } from './upstream-queue.ts'

export type AskKind = 'block' | 'dag'

/**
 * Why a question is given up although it did not fail: others brought what was wanted, or it fell
 * behind them.
 */
export type LetGo = 'enough' | 'behind'

/**
 * Receives what becomes of a question at its upstream. Its methods may be called while `ask` runs.
 */
export interface Asker {
  /** The question has its slot: the upstream is to be asked. */
  begun(question: Question): void
  /** It has none, or lost it to readers because it takes long. It is over. */
  refused(question: Question, error: Failure): void
}

const waitsForSlot = 'queued'
// An upstream that sent nothing of use for so long is called stalled in the account.
const stalledMs = 1_000

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

  place: 'queued' | 'asked' | 'sending' | 'over' = 'queued'
  giveUpAt = 0
  /** When it was asked, or began to wait for that. */
  at = 0
  waitedMs = 0
  /** Stops the timer for the end of its time in the queue. */
  stopWait: (() => void) | undefined

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
    return this.place === 'queued'
  }

  get isOver(): boolean {
    return this.place === 'over'
  }

  /** Requests sent by `work` belong to this question in a trace. */
  within<Result>(work: () => Result): Result {
    return this.span ? this.span.run(work) : work()
  }

  /** It has its slot since then. Called by its upstream. */
  begun(now: number): void {
    this.waitedMs = now - this.at
    this.at = now
    this.outcome = undefined
    this.asker.begun(this)
  }

  /** It has none. Called by its upstream. */
  refused(error: Failure, now: number): void {
    this.place = 'over'
    this.#note(error.kind, now)
    this.attempts.fail(error)
    this.asker.refused(this, error)
  }

  /** Readers need its slot. Called by its upstream. */
  evict(reason: Failure, now: number): void {
    this.#note(reason.kind, now)
    this.member.health.evicted(this, now)
    this.attempts.evicted(reason)
    this.asker.refused(this, reason)
  }

  /**
   * A proved block that was wanted came from here. `waitedMs`: how long readers waited for it since
   * the one before.
   */
  brought(bytes: number, waitedMs: number, now: number): void {
    if (this.isOver) return
    this.bytes += bytes
    if (bytes > 0) this.broughtAt = now
    this.member.health.brought(this, bytes, waitedMs, now)
    if (bytes > 0) this.attempts.isThereNow(now)
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
    this.member.health.failed(this, error, now)
    this.attempts.failed(this, error, now)
  }

  /** It is not needed any more before it was asked. */
  leave(now: number): void {
    if (!this.isQueued) return
    this.member.health.leaveQueue(this)
    this.place = 'over'
    this.#note('lost', now)
  }

  /** Its record so far. */
  attempt(now: number): Attempt {
    const { outcome, bytes } = this
    const upstream = this.member.upstream.name
    if (outcome === waitsForSlot) return { upstream, outcome, ms: Math.round(now - this.at) }
    const brought = bytes > 0 && { bytes }
    if (outcome !== undefined) return { upstream, outcome, ms: this.ms, ...brought }
    const sending = now - this.broughtAt < stalledMs ? 'sending' : 'stalled'
    return { upstream, outcome: bytes === 0 ? 'pending' : sending, ms: Math.round(now - this.at), ...brought }
  }

  /** Its upstream answers others meanwhile. */
  get isOvertaken(): boolean {
    return this.outcome === undefined && this.member.health.isSearching(this)
  }

  get foundNoSlot(): boolean {
    return this.outcome === 'overloaded' || this.outcome === waitsForSlot
  }

  #end(outcome: string, now: number): boolean {
    if (this.isOver) return false
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

const maxKept = 32
// An upstream that was asked so early in a race, and said nothing, had its full time.
const fullShare = 3 / 4

/** The client that wants it. */
export type Wanting = {
  /** The address of the first client that asked. */
  readonly client: string
  /** The client has a part of the file already. */
  readonly hasBegun: boolean
  /**
   * The CID at the root of the path that the client asked for: who holds that may hold what is
   * below it.
   */
  readonly root?: CID | undefined
}

/** Outcomes of an upstream that could not be asked. */
const refusals: ReadonlySet<string> = new Set(['upstream-error', 'throttled', 'unavailable'])

const anybody: Wanting = { client: '', hasBegun: false }

/**
 * Outcomes that say whether the upstream has the CID, or that it had its time: one that begins was not kept from it.
 */
const isAnswer = (outcome: string): boolean =>
  ['not-found', 'refused', 'timeout', 'won'].includes(outcome) || outcome.startsWith('began, ')

/** The same question may bring more later. One that is overloaded ended a question for others. */
const mayRecover = (error: unknown): boolean =>
  (isFailure(error) && retried.has(error.kind)) || (isFailure(error, 'timeout') && error.facts.isSearching !== true)

const retried: ReadonlySet<FailureKind> = new Set(['unavailable', 'throttled', 'upstream-error', 'overloaded'])

/** Outcomes that are no fault: somebody has to lose a race, and most upstreams lack most things. */
const harmless: ReadonlySet<string> = new Set([
  ...['won', 'lost', 'not-found', 'cancelled'],
  ...['began, then fell behind', 'began, then cancelled'],
])

/** An upstream that brought nothing more to the flight, until it is asked again. */
type Spent = { readonly tries: number; readonly backAt: number }

const maxTries = 3
const firstRetryMs = 250

export class Attempts {
  /** The errors of the questions, in their order. */
  readonly failures: unknown[] = []
  readonly client: string
  readonly #hasBegun: boolean
  readonly clock: Clock
  readonly #timeoutMs: number
  readonly #trace: Trace | undefined
  readonly #parent: TracePoint | undefined
  readonly #beganAt: number
  readonly #made: Question[] = []
  readonly #spent = new Map<Member, Spent>()
  #skipped: Attempt[] | undefined
  /** Held against an upstream only if another one has it. */
  #heldBack: { readonly question: Question; readonly error: unknown }[] | undefined
  #isThere = false
  /** An upstream was asked for it and brought nothing: it may be nowhere. */
  #isDoubted = false
  /** An upstream does not have it: the client gets a quick answer. */
  #isDenied = false

  /**
   * `timeoutMs`: for the queue of an upstream and the answer. `trace`: questions are recorded below
   * the request that began the race, and not below one that joined it later.
   */
  constructor(clock: Clock, timeoutMs: number, { client, hasBegun }: Wanting = anybody, trace?: Trace) {
    this.client = client
    this.#hasBegun = hasBegun
    this.clock = clock
    this.#timeoutMs = timeoutMs
    this.#trace = trace
    this.#parent = trace?.here()
    this.#beganAt = clock.monotonic()
  }

  /** Asks, now or when the upstream has a slot for it. */
  ask(member: Member, kind: AskKind, cid: CID, asker: Asker, key = blockKey(cid)): Question {
    const now = this.clock.monotonic()
    const question = new Question(this, member, kind, cid, key, asker)
    question.at = now
    // A flight that has begun has time again.
    question.giveUpAt = (this.#isThere ? now : this.#beganAt) + this.#timeoutMs
    question.span = this.#trace?.ask(`upstream ${kind}`, this.#parent)
    question.rank = this.#rankOf(member, key)
    this.#made.push(question)
    member.health.ask(question, now)
    return question
  }

  /** The rank of the next question. */
  #rankOf(member: Member, key: string): Rank {
    if (this.#isThere) return 'begun'
    if (this.#isDoubted || member.health.isDoubted(key)) return 'search'
    if (this.#hasBegun) return 'begun'
    return this.#made.some((one) => one.isOvertaken) ? 'search' : 'first'
  }

  /**
   * Parts of one file that an upstream brought are one attempt, and so is what exceeds the limit.
   */
  noted(question: Question): void {
    const { member, outcome, bytes, ms } = question
    const same = this.#made.find((one) => one !== question && one.member === member && one.outcome === outcome)
    if (!same || (this.#made.length <= maxKept && (bytes === 0 || same.bytes === 0))) return
    this.#made.splice(this.#made.indexOf(question), 1)
    same.bytes += bytes
    same.ms = Math.max(same.ms, ms)
  }

  isThereNow(now: number): void {
    if (this.#isThere) return
    this.#isThere = true
    for (const { question, error } of this.#heldBack ?? []) question.member.health.lacked(question, error, now)
    this.#heldBack = undefined
  }

  failed(question: Question, error: unknown, now: number): void {
    this.fail(error)
    const isAbsent = isFailure(error, 'not-found')
    if (!isAbsent && !isFailure(error, 'timeout') && !isFailure(error, 'refused')) return
    this.#isDoubted ||= !isFailure(error, 'refused')
    if (question.bytes > 0 && !isAbsent) return
    if (this.#isThere) question.member.health.lacked(question, error, now)
    else if ((this.#heldBack ??= []).length < maxKept) this.#heldBack.push({ question, error })
  }

  evicted(reason: Failure): void {
    this.fail(reason)
    this.#isDoubted = true
  }

  fail(error: unknown): void {
    if (this.failures.length < maxKept) this.failures.push(error)
  }

  /**
   * It brings nothing more because of this error; without one it is not asked again. `hasBegun`: it
   * brought a part, or others did before it. An upstream that was down, or broke off, is asked again
   * when it is back, and later each time: while the client has time, an outage of a moment is no
   * reason for an error.
   */
  spend(member: Member, error?: unknown, hasBegun = false): void {
    const tries = this.#spent.get(member)?.tries ?? 0
    if (isFailure(error, 'not-found')) this.#isDenied = true
    // It was not asked: its state says when it may be.
    const isOut = isFailure(error, 'unavailable')
    const retryMs = isOut ? 0 : (hasBegun ? stalledMs : firstRetryMs) * 2 ** tries
    const isOver = tries === maxTries - 1 || !mayRecover(error)
    const backAt = isOver ? Number.POSITIVE_INFINITY : this.clock.monotonic() + retryMs
    this.#spent.set(member, { tries: isOut ? tries : tries + 1, backAt })
  }

  /** Until it may be asked for this again, 0: now; undefined: it was not asked. */
  backInMs(member: Member, key: string): number | undefined {
    const spent = this.#spent.get(member)
    return spent && Math.max(spent.backAt - this.clock.monotonic(), member.health.backInMs(key))
  }

  /** The flight waits for one that is back after this. */
  mayWait(backInMs: number): boolean {
    return !this.#isDenied && this.clock.monotonic() + backInMs < this.#beganAt + this.#timeoutMs
  }

  /**
   * Every upstream that was to be asked broke off before its first byte, sent this gateway away, or
   * was out.
   */
  wasRefused(): boolean {
    const made = this.#made
    return this.#wasAnyone && made.every(({ outcome }) => outcome !== undefined && refusals.has(outcome))
  }

  get #wasAnyone(): boolean {
    return this.#made.length > 0 || this.#skipped !== undefined
  }

  /**
   * A missing answer says nothing: no slot was found, what was asked is there, or no upstream had its time, since it was asked late or
   * was crowded.
   */
  hasBeenCrowded(): boolean {
    const made = this.#made
    const now = this.clock.monotonic()
    const fullMs = (now - this.#beganAt) * fullShare
    const hadTime = ({ outcome, at, member }: Question) =>
      outcome === undefined ? now - at > fullMs && !member.health.isCrowded : isAnswer(outcome)
    // An upstream brought its part: the time was spent on something else.
    const isThere = made.some(({ isWhole }) => isWhole)
    return made.some(({ foundNoSlot }) => foundNoSlot) || isThere || (this.#wasAnyone && !made.some(hadTime))
  }

  skip(skipped: readonly Attempt[]): void {
    if (skipped.length > 0) this.#skipped = [...(this.#skipped ?? []), ...skipped].slice(0, maxKept)
  }

  /** Adds the routers that were asked, and why they named nobody. */
  looked(attempts: readonly Attempt[], failure: unknown): void {
    this.skip(attempts)
    if (failure !== undefined) this.fail(failure)
  }

  /** The record so far; questions without an answer are `pending`. */
  list(): Attempt[] {
    const now = this.clock.monotonic()
    return [...this.#made.map((question) => question.attempt(now)), ...(this.#skipped ?? [])]
  }

  /** Names and numbers alone: messages of failures may repeat what a service said. */
  endSpan({ span, member, outcome = '', bytes, cid, waitedMs }: Question): void {
    const facts = {
      'cidgate.upstream': member.upstream.name,
      'cidgate.outcome': outcome,
      'cidgate.bytes': bytes,
      'cidgate.cid': cid.toString(),
      'cidgate.waited_ms': Math.round(waitedMs),
    }
    span?.end(facts, !harmless.has(outcome))
  }
}

/**
 * `facts.sure`: every upstream that exists was asked and said no; otherwise the absence is not proved. `facts.alone`: no
 * upstream exists (an archive), so what its tiers say is all there is to know. `facts.unasked`: an upstream that may have it could not
 * be asked, and may be back at any moment.
 */
export function outcomeOf(
  cid: CID,
  failures: readonly unknown[],
  { skipped, isUnasked, retryAfterMs: soonestMs }: Pick<Plan, 'skipped' | 'isUnasked' | 'retryAfterMs'>,
): Failure {
  const kinds = failures.map((failure) => (isFailure(failure) ? failure.kind : 'internal'))
  const facts = {
    sure: skipped.length === 0 && kinds.every((kind) => kind === 'not-found'),
    unasked: isUnasked || failures.some(wasNotAsked),
  }
  const retryAfterMs = facts.unasked ? earliest([...failures.map(retryOf), soonestMs]) : undefined
  const cause = failures.find((failure) => isFailure(failure)) ?? failures[0]
  // An overloaded upstream may have it: no absence to be remembered.
  const busy = failures.filter((failure) => isFailure(failure, 'overloaded'))
  if (busy.length > 0) return overloaded(cid, busy)
  if (kinds.includes('not-found')) {
    return new Failure('not-found', `no upstream has ${cid} at present`, {
      source: 'upstream',
      facts,
      cause,
      retryAfterMs,
    })
  }
  if (kinds.includes('timeout')) {
    return new Failure('timeout', `no upstream sent ${cid} in time`, { source: 'upstream', facts, cause, retryAfterMs })
  }
  const alone = failures.length === 0 && skipped.length === 0
  const why = alone ? 'it has no upstreams configured' : 'no upstream could be asked for it'
  return new Failure('unavailable', `${cid} is in no tier of this gateway, and ${why}`, {
    source: 'upstream',
    facts: { sure: false, alone },
    cause,
    retryAfterMs: earliest([...failures.map(retryOf), soonestMs]),
  })
}

/**
 * All upstreams that could be asked are overloaded: the client should retry, and this is never an
 * absence.
 */
export function overloaded(cid: CID, failures: readonly Failure[] = []): Failure {
  return new Failure('overloaded', `all upstreams are overloaded: none could be asked for ${cid} in time; retry`, {
    source: 'upstream',
    facts: { sure: false },
    cause: failures[0],
    retryAfterMs: earliest(failures.map(retryOf)),
  })
}

/** It throttled the question, or did not get it. */
const wasNotAsked = (failure: unknown): boolean =>
  isFailure(failure) && (failure.kind === 'throttled' || failure.kind === 'unavailable' || isUnreachable(failure))

const retryOf = (failure: unknown): number | undefined => (isFailure(failure) ? failure.retryAfterMs : undefined)

function earliest(all: readonly (number | undefined)[]): number | undefined {
  const known = all.filter((ms) => ms !== undefined && ms > 0) as number[]
  return known.length === 0 ? undefined : Math.min(...known)
}
