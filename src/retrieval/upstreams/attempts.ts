// The account of one flight while it runs: who was asked, what became of it, and who has not answered yet.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import type { FailureKind } from '../../core/failure.ts'
import type { Trace, TracePoint } from '../../core/wire/trace.ts'
import type { Attempt } from '../../observe/request-record.ts'
import type { Rank } from '../line.ts'
import type { Member } from './pool.ts'
import { type Asker, type AskKind, Question } from './question.ts'

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
