// All that one flight asks: its questions and their record, which upstreams it may ask again, and the Failure of a flight that got nothing.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, type FailureKind, isFailure, isUnreachable } from '../../core/failure.ts'
import type { OpenSpan, Trace, TracePoint } from '../../core/wire/trace.ts'
import type { Attempt } from '../../observe/request-record.ts'
import type { Member, Plan } from './pool.ts'
import type { Rank } from './ranked-line.ts'

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

const maxKept = 32
// An upstream that was asked so early in a race, and said nothing, had its full time.
const fullShare = 3 / 4

/** The client that wants it. */
export type Wanting = {
  /** The address of the first client that asked. */
  readonly client: string
  /** The client has a part of the file already. */
  readonly hasBegun: boolean
  /** The CID at the root of the path that the client asked for: who holds that may hold what is below it. */
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

/** Outcomes that are no fault: somebody has to lose a race, and most upstreams lack most things. */
const harmless: ReadonlySet<string> = new Set([
  ...['won', 'lost', 'not-found', 'cancelled'],
  ...['began, then fell behind', 'began, then cancelled'],
])

export class Attempts {
  /** What the questions failed with, in the order in which they did. */
  readonly failures: unknown[] = []
  readonly client: string
  readonly #hasBegun: boolean
  readonly clock: Clock
  readonly #trace: Trace | undefined
  readonly #parent: TracePoint | undefined
  readonly #beganAt: number
  readonly #made: Question[] = []
  #skipped: Attempt[] | undefined
  /** What is held against an upstream only if another one has it. */
  #heldBack: (() => void)[] | undefined
  #isThere = false
  /** An upstream looked for it and brought nothing: it may be nowhere. */
  #isDoubted = false
  /** Those that wait for their slots. */
  #waiting: Set<Question> | undefined
  #asking = 0

  /** `trace`: questions are recorded below the request that began the race, and not below one that joined it later. */
  constructor(clock: Clock, { client, hasBegun }: Wanting = anybody, trace?: Trace) {
    this.client = client
    this.#hasBegun = hasBegun
    this.clock = clock
    this.#trace = trace
    this.#parent = trace?.here()
    this.#beganAt = clock.monotonic()
  }

  /** Asks, now or when the upstream has a slot for it. */
  ask(member: Member, kind: AskKind, cid: CID, asker: Asker, key = blockKey(cid)): Question {
    const now = this.clock.monotonic()
    const question = new Question(this, member, kind, cid, key, asker)
    question.at = now
    this.#made.push(question)
    question.span = this.#trace?.ask(`upstream ${kind}`, this.#parent)
    question.rank = this.#rankOf(member, key)
    // What has begun has time again.
    member.health.ask(question, this.#isThere ? 0 : now - this.#beganAt, now)
    if (question.isQueued) (this.#waiting ??= new Set()).add(question)
    return question
  }

  /** The same for who pulls the answer on a signal of its own, which also aborts when the slot is taken for others. */
  enter(
    member: Member,
    kind: AskKind,
    cid: CID,
    own: AbortController,
    key?: string,
  ): { readonly question: Question; readonly slot: Promise<void> } {
    const { promise: slot, resolve, reject } = Promise.withResolvers<void>()
    const asker: Asker = {
      begun: () => resolve(),
      refused: (_question, error) => reject(error),
      evicted: (_question, reason) => own.abort(reason),
    }
    const question = this.ask(member, kind, cid, asker, key)
    const leave = () => {
      question.leave(this.clock.monotonic())
      reject(own.signal.reason)
    }
    own.signal.addEventListener('abort', leave, { once: true })
    return { question, slot: slot.finally(() => own.signal.removeEventListener('abort', leave)) }
  }

  /** How much the next question matters. */
  #rankOf(member: Member, key: string): Rank {
    if (this.#isThere) return 'begun'
    if (this.#isDoubted || member.health.isDoubted(key)) return 'search'
    if (this.#hasBegun) return 'begun'
    const isOvertaken = this.#made.some((one) => one.outcome === undefined && one.member.health.isOvertaken(one))
    return isOvertaken ? 'again' : 'first'
  }

  begun(question: Question): void {
    this.#waiting?.delete(question)
    this.#asking++
  }

  leftLine(question: Question): void {
    this.#waiting?.delete(question)
  }

  /** The flight is over. */
  leaveLines(): void {
    for (const question of this.#waiting ?? []) question.leave(this.clock.monotonic())
  }

  ended(): void {
    this.#asking--
  }

  /** Beyond the limit, an ended question is kept as a part of one with the same outcome. */
  noted(question: Question): void {
    const at = this.#made.indexOf(question, maxKept)
    if (at === -1) return
    const { member, outcome, bytes, ms } = question
    const same = this.#made.find((one) => one !== question && one.member === member && one.outcome === outcome)
    if (!same && bytes > 0) return
    this.#made.splice(at, 1)
    if (!same) return
    same.bytes += bytes
    same.ms = Math.max(same.ms, ms)
  }

  isThereNow(): void {
    if (this.#isThere) return
    this.#isThere = true
    for (const hold of this.#heldBack ?? []) hold()
    this.#heldBack = undefined
  }

  /** `hold`: what to hold against its upstream if another one has it. */
  failed({ eviction }: Question, kind: FailureKind, hold: (() => void) | undefined): void {
    if (kind === 'not-found' || kind === 'timeout' || eviction) this.#isDoubted = true
    if (this.#isThere) hold?.()
    else if (hold) {
      this.#heldBack ??= []
      if (this.#heldBack.length < maxKept) this.#heldBack.push(hold)
    }
  }

  fail(error: unknown): void {
    if (this.failures.length < maxKept) this.failures.push(error)
  }

  /** Every open question still waits in its upstream's queue: no upstream is working on it. */
  isQueued(): boolean {
    return this.#asking === 0 && this.#waiting !== undefined && this.#waiting.size > 0
  }

  /** Every upstream that was to be asked broke off before its first byte, or sent this gateway away. */
  wasRefused(): boolean {
    return this.#made.length > 0 && this.#made.every(({ outcome }) => outcome !== undefined && refusals.has(outcome))
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
    // What brought its part is there: the time went by in front of something else.
    const isThere = made.some(({ isWhole }) => isWhole)
    return made.some(({ foundNoSlot }) => foundNoSlot) || isThere || (made.length > 0 && !made.some(hadTime))
  }

  skip(skipped: readonly Attempt[]): void {
    if (skipped.length > 0) this.#skipped = [...(this.#skipped ?? []), ...skipped].slice(0, maxKept)
  }

  /** Adds the routers that were asked, and why they named nobody. */
  looked(attempts: readonly Attempt[], failure: unknown): void {
    this.skip(attempts)
    if (failure !== undefined) this.fail(failure)
  }

  /** What can be said now; those still running are `no answer yet`. */
  list(): Attempt[] {
    const now = this.clock.monotonic()
    return [...inOne(this.#made.map((question) => question.attempt(now))), ...(this.#skipped ?? [])]
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

/** Parts of one file that an upstream brought are one attempt. */
function inOne(attempts: readonly Attempt[]): Attempt[] {
  const all = new Map<string, Attempt>()
  for (const one of attempts) {
    const key = `${one.upstream} ${one.outcome}`
    const before = all.get(key)
    if (before?.bytes === undefined || one.bytes === undefined) all.set(before ? `${key} ${all.size}` : key, one)
    else all.set(key, { ...before, ms: Math.max(before.ms, one.ms), bytes: before.bytes + one.bytes })
  }
  return [...all.values()]
}

// An upstream that was down, or broke off before its first byte, is asked again when it is back: while the client has time, an outage of
// a moment is no reason for an error.

type Spent = {
  readonly at: number
  readonly wasAsked: boolean
  /** The upstream sent a time to retry: it is not asked before. */
  readonly wasThrottled?: boolean
  readonly isFinal: boolean
  readonly tries: number
}

export const lookAgainMs = 200
const maxTries = 6

export class Tries {
  readonly #clock: Clock
  readonly #giveUpAt: number
  readonly #spent = new Map<Member, Spent>()
  /** One that was asked does not have it: the client gets a quick answer. */
  #isDenied = false

  constructor(clock: Clock, giveUpAt: number) {
    this.#clock = clock
    this.#giveUpAt = giveUpAt
  }

  /** This upstream brought nothing, because of this error. */
  failed(member: Member, error: unknown): void {
    const tries = (this.#spent.get(member)?.tries ?? 0) + 1
    const wasAsked = !isFailure(error, 'unavailable')
    const wasThrottled = isFailure(error, 'throttled')
    const wasSilent = isFailure(error, 'timeout') && error.facts.isSearching !== true
    const mayPass = wasThrottled || isFailure(error, 'upstream-error') || wasSilent
    const isFinal = tries >= maxTries || (wasAsked && !mayPass)
    if (isFailure(error, 'not-found')) this.#isDenied = true
    this.#spent.set(member, { at: this.#clock.monotonic(), wasAsked, wasThrottled, isFinal, tries })
  }

  /** This upstream is not asked again, however its answer ends. */
  over(member: Member): void {
    this.#spent.set(member, { at: this.#clock.monotonic(), wasAsked: true, isFinal: true, tries: 1 })
  }

  /** The upstreams that are not to be asked now. */
  get spent(): Member[] {
    return [...this.#spent].filter(([member, one]) => !isBack(this.#clock, member, one)).map(([member]) => member)
  }

  /** Those that failed. */
  get members(): Iterable<Member> {
    return this.#spent.keys()
  }

  /** Those that failed, and may be asked again now. */
  get back(): Member[] {
    const isHoped = ([member, one]: [Member, Spent]) => this.#mayHope(member) && isBack(this.#clock, member, one)
    return [...this.#spent].filter(isHoped).map(([member]) => member)
  }

  /** Whether one of those that failed may be asked again in time. Each of these is told that it is waited for. */
  hopes(isUnderWay: (member: Member) => boolean = () => false): boolean {
    let hopes = false
    for (const member of this.#spent.keys()) {
      if (isUnderWay(member) || !this.#mayHope(member)) continue
      member.health.waitedFor()
      hopes = true
    }
    return hopes
  }

  #mayHope(member: Member): boolean {
    const one = this.#spent.get(member)
    if (this.#isDenied || this.#clock.monotonic() >= this.#giveUpAt || one?.isFinal !== false) return false
    return one.wasThrottled ? isInTime(member) : member.health.mayComeBack
  }
}

const isInTime = ({ health }: Member): boolean => health.state('').state === 'ready' || health.coolsInTime

function isBack(clock: Clock, member: Member, { at, wasAsked, wasThrottled, isFinal }: Spent): boolean {
  if (isFinal) return false
  if (wasThrottled) return isInTime(member)
  if (wasAsked) return member.health.isBackSince(at)
  return clock.monotonic() - at >= lookAgainMs && member.health.mayComeBack
}

/**
 * `facts.sure`: every upstream that exists was asked and said no; otherwise the absence is not proved. `facts.alone`: no
 * upstream exists (an archive), so what its tiers say is all there is to know. `facts.unasked`: an upstream that may have it could not
 * be asked, and may be back at any moment.
 */
export function outcomeOf(
  cid: CID,
  failures: readonly unknown[],
  { skipped, isUnasked, soonestMs }: Omit<Plan, 'steps'>,
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

/** All upstreams that could be asked are overloaded: the client should retry, and this is never an absence. */
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
