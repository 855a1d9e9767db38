// One block for all who want it: upstreams are asked one after another, and the first whose bytes hash to the CID wins. A failure
// begins the next question at once; lateness begins it beside the one under way, out of the hedge budget. From the second question
// on, p-any is the judge of the race. An upstream that failed is asked again when it is well: while the client has time, a moment's
// outage is no reason for an error.
import type { CID } from 'multiformats/cid'
import pAny from 'p-any'
import type { BlockAnswer } from '../../../backends/upstreams/contract.ts'
import { blockKey, proves } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import type { Trace } from '../../core/wire/trace.ts'
import { Attempts, type Wanting } from '../upstreams/attempts.ts'
import type { Step } from '../upstreams/order.ts'
import { outcomeOf } from '../upstreams/outcome.ts'
import type { Finding, Member, Pool } from '../upstreams/pool.ts'
import type { Asker, Question } from '../upstreams/question.ts'
import { lookAgainMs, Tries } from '../upstreams/tries.ts'

/** Who waits for a block: one of these is called, once, unless it has left. */
export interface BlockReader {
  settle(bytes: Uint8Array, upstream: string): void
  fail(error: unknown): void
}

export type FlightDeps = {
  readonly pool: Pool
  readonly clock: Clock
  readonly trace?: Trace | undefined
  /** Called with each proved block before any reader gets it. A promise: the readers wait for it. */
  readonly keep: (cid: CID, bytes: Uint8Array) => void | Promise<void>
  /** The judge of a race. Default: p-any. */
  readonly judge?: typeof pAny
}

type Won = { readonly question: Question; readonly bytes: Uint8Array }

/** A question as p-any sees it. */
type Racer = Promise<Won> & { cancel(): void }

const retryHedgeMs = 100
/** So many of those that routers named are raced at once. */
const maxFoundAtOnce = 3
/** One that nothing is known of is waited for so long before the next one is asked too. */
const foundPatienceMs = 300
const unwanted = cancelled('no caller waits for it any more')

export class BlockFlight implements Asker {
  readonly attempts: Attempts
  readonly #cid: CID
  readonly #key: string
  readonly #deps: FlightDeps
  readonly #onLand: () => void
  readonly #readers = new Set<BlockReader>()
  readonly #open = new Map<Question, Open>()
  readonly #underWay = new Set<Member>()
  #steps: Step<Member>[] = []
  /** What it is part of, for gateways that routers named. */
  readonly #root: CID
  #finding: Finding | undefined
  #stopNews: (() => void) | undefined
  #isFindingNoted = false
  /** Those of earlier plans. */
  #asked: Set<Member> | undefined
  /** Made when the first question failed. */
  #tries: Tries | undefined
  readonly #beganAt: number
  #race: (Promise<Won> & { cancel(): void }) | undefined
  #stopHedge: (() => void) | undefined
  #stopLook: (() => void) | undefined
  #isOver = false

  /** `onLand`: it brings nothing any more. */
  constructor(cid: CID, deps: FlightDeps, asker: Wanting, onLand: () => void) {
    this.#cid = cid
    this.#key = blockKey(cid)
    this.#root = asker.root ?? cid
    this.#deps = deps
    this.#onLand = onLand
    this.#beganAt = deps.clock.monotonic()
    this.attempts = new Attempts(deps.clock, asker, deps.trace)
  }

  /** The first reader has it begin. */
  join(reader: BlockReader): void {
    const isFirst = this.#readers.size === 0
    this.#readers.add(reader)
    if (!isFirst) return
    this.#deps.pool.began()
    this.#plan(true)
  }

  /** The last one that leaves stops the questions. */
  leave(reader: BlockReader): void {
    if (this.#readers.delete(reader) && this.#readers.size === 0) this.abort(unwanted)
  }

  abort(reason: Failure): void {
    if (this.#isOver) return
    this.#end()
    const now = this.#deps.clock.monotonic()
    for (const [question, open] of this.#open) {
      question.failed(reason, now)
      open.stop?.()
    }
    this.#open.clear()
    for (const reader of this.#readers) reader.fail(reason)
  }

  #plan(isFirst: boolean): void {
    const { pool } = this.#deps
    const { steps, ...left } = pool.plan('block', this.#cid, this.#asked, this.#root)
    if (isFirst) this.attempts.skip(left.skipped)
    this.#steps = [...steps]
    if (steps.length > 0) return void this.#askNext()
    this.#findMore()
    if (this.#finding?.isOver === false) return
    this.#noteFinding()
    this.#fail(outcomeOf(this.#cid, this.attempts.failures, left))
  }

  /** The first of those that may be asked now. `isHedge`: none has failed. */
  #askNext(isHedge = false): boolean {
    const index = isHedge ? this.#steps.findIndex(({ who }) => this.#mayHedge(who)) : 0
    const [step] = index < 0 ? [] : this.#steps.splice(index, 1)
    if (!step) return false
    this.#stopHedge?.()
    this.#stopHedge = undefined
    if (this.#steps.length > 0 || this.#deps.pool.find) this.#hedgeIn(step.patienceMs)
    this.#ask(step.who)
    return true
  }

  #hedgeIn(ms: number): void {
    this.#stopHedge = this.#deps.clock.after(ms, () => {
      this.#stopHedge = undefined
      this.#findMore()
      if (!this.#isOver && this.#steps.length > 0 && !this.#askNext(true)) this.#hedgeIn(retryHedgeMs)
    })
  }

  /** Time in the line is no slowness of an upstream: an upstream with room is asked instead, and no hedge is used. */
  #mayHedge(next: Member): boolean {
    if (next.isFound) return this.#foundAtOnce < maxFoundAtOnce && this.#deps.pool.mayHedge(next)
    if (this.attempts.isQueued()) return this.#steps.some(({ who }) => who.health.waitMs === 0)
    return this.#deps.pool.mayHedge(next)
  }

  /** Asks the routers too, for gateways that hold the root. */
  #findMore(): void {
    if (this.#finding || !this.#deps.pool.find) return
    const finding = this.#deps.pool.find(this.#root)
    this.#finding = finding
    if (!finding.isOver) this.#stopNews = finding.onNews(() => this.#hear(finding))
    this.#hear(finding)
  }

  /** The first that is named is asked at once, the others as those before them fail or are late. */
  #hear(finding: Finding): void {
    if (this.#isOver) return
    const known = new Set([...(this.#asked ?? []), ...this.#underWay, ...this.#steps.map(({ who }) => who)])
    for (const who of this.#tries?.members ?? []) known.add(who)
    const { steps } = this.#deps.pool.plan('block', this.#cid, known, this.#root)
    for (const { who } of steps) if (who.isFound) this.#steps.push({ who, patienceMs: foundPatienceMs })
    if (finding.isOver) this.#stopNews?.()
    if (this.#foundAtOnce === 0 && this.#steps[0]?.who.isFound) this.#askNext()
    else if (finding.isOver && this.#tries) this.#look()
    else if (finding.isOver && this.#underWay.size === 0 && this.#steps.length === 0) this.#planAgain()
  }

  get #foundAtOnce(): number {
    let count = 0
    for (const { isFound } of this.#underWay) if (isFound) count++
    return count
  }

  #noteFinding(): void {
    if (!this.#finding?.isOver || this.#isFindingNoted) return
    this.#isFindingNoted = true
    this.attempts.looked(this.#finding.attempts, this.#finding.failure)
  }

  #ask(member: Member): void {
    this.#underWay.add(member)
    this.attempts.ask(member, 'block', this.#cid, this, this.#key)
  }

  /** The question has its slot. */
  begun(question: Question): void {
    const open = new Open(this, question)
    // A question that begins beside others makes it a race.
    const others = [...this.#open.values()]
    this.#open.set(question, open)
    if (others.length > 0) this.#enterRace(others, open)
    open.begin(this.#cid)
  }

  #enterRace(others: readonly Open[], open: Open): void {
    const { judge = pAny } = this.#deps
    const before = this.#race ? [this.#race] : others.map((one) => one.racer())
    const race = judge<Won>([...before, open.racer()]) as Racer
    this.#race = race
    race.then(
      ({ question, bytes }) => this.#land(question, bytes),
      // Each failure has been told by its question.
      () => {
        if (this.#race === race) this.#race = undefined
      },
    )
  }

  refused(question: Question, error: Failure): void {
    this.#goOn(question, error)
  }

  evicted(question: Question, reason: Failure): void {
    const open = this.#open.get(question)
    open?.stop?.()
    this.failed(question, reason)
  }

  came(question: Question, bytes: Uint8Array): void {
    if (this.#isOver || question.isOver) return
    if (!proves(this.#cid, bytes)) return this.failed(question, hashMismatch(question.member.upstream.name, this.#cid))
    const now = this.#deps.clock.monotonic()
    question.brought(bytes.byteLength, 0, now)
    question.done(now)
    const open = this.#open.get(question)
    if (open?.isRacing) open.win({ question, bytes })
    else this.#land(question, bytes)
  }

  failed(question: Question, error: unknown): void {
    const open = this.#open.get(question)
    if (!open) return
    this.#open.delete(question)
    question.failed(error, this.#deps.clock.monotonic())
    open.lose(error)
    this.#goOn(question, error)
  }

  /** p-any has another winner. */
  lost(question: Question): void {
    this.#underWay.delete(question.member)
    const open = this.#open.get(question)
    this.#open.delete(question)
    question.letGo('enough', this.#deps.clock.monotonic())
    open?.stop?.()
  }

  /** Another one is asked at once, and this one when it is well again. */
  #goOn({ member }: Question, error: unknown): void {
    this.#underWay.delete(member)
    if (this.#isOver) return
    const { clock, pool } = this.#deps
    this.#tries ??= new Tries(clock, this.#beganAt + pool.patienceMs)
    this.#tries.failed(member, error)
    const { size } = this.#underWay
    this.#findMore()
    if (this.#isOver) return
    if (this.#underWay.size === size) this.#askNext()
    if (!this.#isOver) this.#look()
  }

  /** Asks those again that are well by now, and waits for those that may be in time. */
  #look(): void {
    this.#stopLook?.()
    this.#stopLook = undefined
    for (const member of this.#tries?.back ?? []) if (!this.#underWay.has(member)) this.#ask(member)
    if (this.#isOver) return
    if (this.#tries?.hopes((member) => this.#underWay.has(member)))
      this.#stopLook = this.#deps.clock.after(lookAgainMs, () => this.#look())
    else if (this.#underWay.size === 0 && this.#steps.length === 0) this.#planAgain()
  }

  /** All were asked, and none may be soon: one that was out at first may be well by now. */
  #planAgain(): void {
    this.#asked ??= new Set()
    for (const who of this.#tries?.members ?? []) this.#asked.add(who)
    this.#plan(false)
  }

  #land(question: Question, bytes: Uint8Array): void {
    if (this.#isOver) return
    this.#end()
    this.#open.delete(question)
    for (const other of this.#open.keys()) this.lost(other)
    const settle = () => {
      for (const reader of this.#readers) reader.settle(bytes, question.member.upstream.name)
    }
    const kept = this.#deps.keep(this.#cid, bytes)
    if (kept === undefined) settle()
    else void kept.then(settle)
  }

  #fail(failure: Failure): void {
    this.#end()
    for (const reader of this.#readers) reader.fail(failure)
  }

  #end(): void {
    this.#isOver = true
    this.#noteFinding()
    this.#stopNews?.()
    this.#stopHedge?.()
    this.#stopLook?.()
    this.attempts.leaveLines()
    this.#onLand()
  }
}

/** A question that its upstream works on. */
class Open implements BlockAnswer {
  readonly #flight: BlockFlight
  readonly #question: Question
  #deferred: PromiseWithResolvers<Won> | undefined
  stop: (() => void) | undefined

  constructor(flight: BlockFlight, question: Question) {
    this.#flight = flight
    this.#question = question
  }

  begin(cid: CID): void {
    const { upstream } = this.#question.member
    this.#question.within(() => {
      if (upstream.ask) this.stop = upstream.ask(cid, this)
      else {
        const own = new AbortController()
        this.stop = () => own.abort(lost)
        upstream.block(cid, own.signal).then(
          (bytes) => this.came(bytes),
          (error: unknown) => this.failed(error),
        )
      }
    })
  }

  came(bytes: Uint8Array): void {
    this.#flight.came(this.#question, bytes)
  }

  failed(error: unknown): void {
    this.#flight.failed(this.#question, error)
  }

  get isRacing(): boolean {
    return this.#deferred !== undefined
  }

  racer(): Racer {
    const deferred = Promise.withResolvers<Won>()
    this.#deferred = deferred
    deferred.promise.catch(() => {})
    // p-any stops the losers by calling `cancel` on them.
    return Object.assign(deferred.promise, { cancel: () => this.#flight.lost(this.#question) })
  }

  win(won: Won): void {
    this.#deferred?.resolve(won)
  }

  lose(error: unknown): void {
    this.#deferred?.reject(error)
  }
}

/** The reason a losing question is stopped with: it counts as slower than the winner, not as a failure. */
export const lost: Failure = new Failure('cancelled', 'another upstream was faster', { source: 'ours' })

export const hashMismatch = (upstream: string, cid: CID): Failure =>
  new Failure('hash-mismatch', `${upstream} sent bytes that do not hash to ${cid}`, { source: 'upstream' })
