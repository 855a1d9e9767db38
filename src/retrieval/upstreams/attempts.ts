// The attempts of one flight: its questions and their record, when it may ask an upstream again,
// and the Failure of a flight that got nothing.
import type { CID } from 'multiformats/cid'
import type { UpstreamRequest } from '../../../backends/upstreams/contract.ts'
import { blockKey } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, type FailureKind, isFailure, isUnreachable } from '../../core/failure.ts'
import type { OpenSpan, Trace, TracePoint } from '../../core/wire/trace.ts'
import type { Attempt } from '../../observe/requests.ts'
import { stalledMs } from './estimates.ts'
import type { Member, Plan } from './pool.ts'
import { probesApartMs } from './upstream-health.ts'

export type AskKind = 'block' | 'dag'

/** `begun`: its client has a part of it. */
export type Rank = 'begun' | 'first' | 'search'

/** Nothing more is wanted of it: what was wanted is here, or it fell behind others. */
export type LetGo = 'enough' | 'behind'

/** The end of a question. */
export type Ended = LetGo | 'failed'

/**
 * Receives what becomes of a question at its upstream. Its methods may be called while `ask` runs.
 */
export interface Asker {
  /** The question has its slot: the upstream is to be asked. */
  begun(question: Question): void
  /** It has none, or lost it to readers because it takes long. It is over. */
  refused(question: Question, error: Failure): void
}

const queued = 'queued'

export class Question {
  readonly attempts: Attempts
  readonly member: Member
  readonly kind: AskKind
  readonly cid: CID
  readonly key: string
  readonly asker: Asker
  rank: Rank = 'first'
  giveUpAt = 0
  span: OpenSpan | undefined
  /** Undefined until its asker has sent it. */
  request: UpstreamRequest | undefined
  /** When it was asked, or began to wait for that. */
  at = 0
  waitedMs = 0
  /** Undefined while the upstream works on it. */
  outcome: string | undefined = queued
  ms = 0
  bytes = 0
  broughtAt = 0
  /** Why it brought nothing, or no more. */
  error: unknown
  /** Undefined for a question that never had a slot. */
  how: Ended | undefined

  constructor(attempts: Attempts, member: Member, kind: AskKind, cid: CID, key: string, asker: Asker) {
    this.attempts = attempts
    this.member = member
    this.kind = kind
    this.cid = cid
    this.key = key
    this.asker = asker
  }

  get client(): string {
    return this.attempts.client.client
  }

  get isQueued(): boolean {
    return this.outcome === queued
  }

  get isOver(): boolean {
    return this.outcome !== undefined && this.outcome !== queued
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
    this.error = error
    this.#note(error.kind, now)
    this.asker.refused(this, error)
  }

  /** Readers need its slot. Called by its upstream. */
  evict(reason: Failure, now: number): void {
    this.end('failed', now, reason)
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
    if (bytes > 0) this.attempts.isThereNow()
  }

  /** Once. */
  end(how: Ended, now: number, error?: unknown): void {
    if (this.isOver) return
    const { health } = this.member
    if (this.isQueued) {
      health.leaveQueue(this)
      return this.#note('lost', now)
    }
    this.how = how
    this.error = error
    this.#note(this.#outcomeOf(how), now)
    health.ended(this, now)
    if (this.attempts.isThere && this.hasLacked) health.lacked(this)
  }

  /** The upstream had its time: the content may be nowhere. */
  get isMissed(): boolean {
    return isFailure(this.error, 'not-found') || isFailure(this.error, 'timeout')
  }

  /** An absence or a silence, which is no fault of an upstream unless another one has the content. */
  get hasLacked(): boolean {
    const { how, error, bytes } = this
    const isSilent = bytes === 0 && isFailure(error, 'timeout')
    return how === 'failed' && (isSilent || isFailure(error, 'not-found') || isFailure(error, 'refused'))
  }

  #outcomeOf(how: Ended): string {
    const { bytes, error } = this
    if (how === 'failed') {
      const kind = isFailure(error) ? error.kind : 'internal'
      return bytes === 0 ? kind : `began, then ${kind === 'timeout' ? 'stalled' : kind}`
    }
    return bytes === 0 ? 'lost' : how === 'behind' ? 'began, then fell behind' : 'won'
  }

  /** Its record so far. */
  attempt(now: number): Attempt {
    const { outcome, bytes, isOver, isQueued } = this
    const upstream = this.member.upstream.name
    const ms = isOver ? this.ms : Math.round(now - this.at)
    if (isQueued) return { upstream, outcome: queued, ms }
    const sending = now - this.broughtAt < stalledMs ? 'sending' : 'stalled'
    return { upstream, outcome: outcome ?? (bytes === 0 ? 'pending' : sending), ms, ...(bytes > 0 && { bytes }) }
  }

  #note(outcome: string, now: number): void {
    this.ms = Math.round(now - this.at)
    this.outcome = outcome
    if (this.span) this.#endSpan(this.span, outcome)
    this.attempts.noted(this)
  }

  /** Names and numbers alone: messages of failures may repeat what a service said. */
  #endSpan(span: OpenSpan, outcome: string): void {
    const facts = {
      'cidgate.upstream': this.member.upstream.name,
      'cidgate.outcome': outcome,
      'cidgate.bytes': this.bytes,
      'cidgate.cid': this.cid.toString(),
      'cidgate.waited_ms': Math.round(this.waitedMs),
    }
    span.end(facts, !harmless.has(outcome))
  }
}

const maxKept = 32
// An upstream that was asked so early in a race, and said nothing, had its full time.
const fullShare = 3 / 4
const maxTries = 3

/** The client that wants it. */
export type Wanting = {
  /** The address of the first client that asked. */
  readonly client: string
  /** The client has a part of the file already. */
  readonly hasBegun: boolean
  /** A background search: readers go first. */
  readonly isSearch?: boolean
  /**
   * The CID at the root of the path that the client asked for: who holds that may hold what is
   * below it.
   */
  readonly root?: CID | undefined
}

const anybody: Wanting = { client: '', hasBegun: false }

/** Outcomes of an upstream that could not be asked. */
const refusals: ReadonlySet<string> = new Set(['upstream-error', 'throttled', 'unavailable'])

/** Outcomes that say whether the upstream has the CID, or that it had its time. */
const isAnswer = (outcome: string): boolean =>
  ['not-found', 'refused', 'timeout'].includes(outcome) || outcome.startsWith('began, ')

/** Outcomes that are no fault: somebody has to lose a race, and most upstreams lack most things. */
const harmless: ReadonlySet<string> = new Set([
  ...['won', 'lost', 'not-found', 'cancelled'],
  ...['began, then fell behind', 'began, then cancelled'],
])

/** After these the same question may bring more later. */
const retried: ReadonlySet<FailureKind> = new Set(['unavailable', 'throttled', 'upstream-error', 'overloaded'])

export class Attempts {
  readonly clock: Clock
  /** That began the flight: those that join it later change nothing. */
  readonly client: Wanting
  readonly #timeoutMs: number
  readonly #trace: Trace | undefined
  readonly #parent: TracePoint | undefined
  readonly #beganAt: number
  readonly #made: Question[] = []
  /** The upstreams that brought nothing more, until they are asked again. */
  readonly #spent = new Map<Member, { readonly tries: number; readonly backAt: number }>()
  /** By their names. */
  readonly #skipped = new Map<string, Attempt>()
  /** Why the routers named nobody. */
  #lookupFailure: unknown
  /** An upstream brought a part of it. */
  isThere = false

  /**
   * `timeoutMs`: for the queue of an upstream and for its recovery; the upstream times its answer.
   * `trace`: questions are recorded below
   * the request that began the race, and not below one that joined it later.
   */
  constructor(clock: Clock, timeoutMs: number, client: Wanting = anybody, trace?: Trace) {
    this.client = client
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
    question.giveUpAt = (this.isThere ? now : this.#beganAt) + this.#timeoutMs
    question.span = this.#trace?.ask(`upstream ${kind}`, this.#parent)
    question.rank = this.#rank
    this.#made.push(question)
    member.health.ask(question, now)
    return question
  }

  /** The rank of the next question. */
  get #rank(): Rank {
    if (this.isThere) return 'begun'
    if (this.client.isSearch || this.#made.some(({ isMissed }) => isMissed)) return 'search'
    return this.client.hasBegun ? 'begun' : 'first'
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

  isThereNow(): void {
    if (this.isThere) return
    this.isThere = true
    for (const question of this.#made) if (question.hasLacked) question.member.health.lacked(question)
  }

  /** The errors of the questions, in their order, and of the routers. */
  get failures(): readonly unknown[] {
    return [...this.#made.map(({ error }) => error), this.#lookupFailure].filter((error) => error !== undefined)
  }

  /**
   * It brings nothing more because of this error; without one it is not asked again. An upstream
   * that was down, stalled or broke off is asked again when it is back, and later each time: while
   * the client has time, an outage of a moment is no reason for an error.
   */
  spend(member: Member, error?: unknown): void {
    const tries = (this.#spent.get(member)?.tries ?? 0) + (isFailure(error, 'unavailable') ? 0 : 1)
    const wasSilent = isFailure(error, 'timeout') && error.facts.isSearching !== true
    const mayRecover = wasSilent || (isFailure(error) && retried.has(error.kind))
    // A member that was not asked is back when its state says so; a probe may end that sooner.
    const ms = tries === 0 ? 0 : probesApartMs * 2 ** (tries - 1)
    const isOver = !mayRecover || tries >= maxTries
    this.#spent.set(member, { tries, backAt: isOver ? Number.POSITIVE_INFINITY : this.clock.monotonic() + ms })
  }

  /** Not asked for so long. Undefined: it brings something, or was not asked. */
  spentMs(member: Member): number | undefined {
    const spent = this.#spent.get(member)
    return spent && Math.max(0, spent.backAt - this.clock.monotonic())
  }

  /** The flight waits for one that is back after this. */
  mayWait(backInMs: number): boolean {
    // Where an upstream does not have it, the client gets a quick answer.
    const isDenied = this.#made.some(({ outcome }) => outcome === 'not-found')
    return !isDenied && this.clock.monotonic() + backInMs < this.#beganAt + this.#timeoutMs
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
    return this.#made.length + this.#skipped.size > 0
  }

  /**
   * A missing answer says nothing: no slot was found, an upstream brought its part, so that the time
   * was spent on something else, or no upstream had its time, since it was asked late or was crowded.
   */
  hasBeenCrowded(): boolean {
    const now = this.clock.monotonic()
    const fullMs = (now - this.#beganAt) * fullShare
    const saysNothing = ({ outcome = '' }: Question) => ['overloaded', queued, 'won'].includes(outcome)
    const hadTime = ({ outcome, at, member }: Question) =>
      outcome === undefined ? now - at > fullMs && !member.health.isCrowded : isAnswer(outcome)
    return this.#made.some(saysNothing) || (this.#wasAnyone && !this.#made.some(hadTime))
  }

  skip(skipped: readonly Attempt[]): void {
    for (const one of skipped) if (this.#skipped.size < maxKept) this.#skipped.set(one.upstream, one)
  }

  /** Adds the routers that were asked, and why they named nobody. */
  looked(attempts: readonly Attempt[], failure: unknown): void {
    this.skip(attempts)
    this.#lookupFailure = failure
  }

  /** The record so far; questions without an answer are `pending`. */
  list(): Attempt[] {
    const now = this.clock.monotonic()
    return [...this.#made.map((question) => question.attempt(now)), ...this.#skipped.values()]
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
  const isAny = (kind: FailureKind) => failures.some((failure) => isFailure(failure, kind))
  // An overloaded upstream may have it: no absence to be remembered.
  if (isAny('overloaded')) return overloaded(cid, failures)
  const unasked = isUnasked || failures.some(wasNotAsked)
  const sure = skipped.length === 0 && failures.every((failure) => isFailure(failure, 'not-found'))
  const retryAfterMs = earliest([...failures.map(retryOf), soonestMs])
  const cause = failures.find((failure) => isFailure(failure)) ?? failures[0]
  const options = { source: 'upstream', cause } as const
  const absence = { ...options, facts: { sure, unasked }, retryAfterMs: unasked ? retryAfterMs : undefined }
  if (isAny('not-found')) return new Failure('not-found', `no upstream has ${cid} at present`, absence)
  if (isAny('timeout')) return new Failure('timeout', `no upstream sent ${cid} in time`, absence)
  const alone = failures.length === 0 && skipped.length === 0
  const asked = failures.every(wasNotAsked)
    ? 'no upstream could be asked for it'
    : 'each upstream that was asked failed'
  const why = alone ? 'it has no upstreams configured' : asked
  const facts = { sure: false, alone }
  const what = `${cid} is in no tier of this gateway, and ${why}`
  return new Failure('unavailable', what, { ...options, facts, retryAfterMs })
}

/**
 * All upstreams that could be asked are overloaded: the client should retry, and this is never an
 * absence.
 */
export function overloaded(cid: CID, failures: readonly unknown[] = []): Failure {
  const busy = failures.filter((failure) => isFailure(failure, 'overloaded'))
  return new Failure('overloaded', `all upstreams are overloaded: none could be asked for ${cid} in time; retry`, {
    source: 'upstream',
    facts: { sure: false },
    cause: busy[0],
    retryAfterMs: earliest(busy.map(retryOf)),
  })
}

/** The upstream rate-limited the request, or did not get it. */
const wasNotAsked = (failure: unknown): boolean =>
  isFailure(failure) && (failure.kind === 'throttled' || failure.kind === 'unavailable' || isUnreachable(failure))

const retryOf = (failure: unknown): number | undefined => (isFailure(failure) ? failure.retryAfterMs : undefined)

function earliest(all: readonly (number | undefined)[]): number | undefined {
  const known = all.filter((ms) => ms !== undefined && ms > 0) as number[]
  return known.length === 0 ? undefined : Math.min(...known)
}
