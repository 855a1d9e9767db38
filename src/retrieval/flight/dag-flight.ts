// A DAG for all who want it: upstreams bring it as CARs, block by block, each proved before any reader gets it. Nothing is pulled
// unless a reader waits, so that a reader that stops reading stops the upstreams.
//
// One upstream is asked. When it fails or is late (pace.ts), the next is asked from where the slowest waiting reader stands; from that
// second question on p-any is the judge of the race: who has left the others behind wins it. Of a file whose readers wait long enough
// for it, other upstreams bring parts of their own (shares.ts) meanwhile.
import type { CID } from 'multiformats/cid'
import pAny from 'p-any'
import type { DagWant } from '../../../backends/upstreams/contract.ts'
import { type Block, blockKey, codec } from '../../core/cid.ts'
import { cancelled, type Failure } from '../../core/failure.ts'
import type { GiveWay } from '../../ipld/documents/read.ts'
import type { Place } from '../session.ts'
import { Attempts, type Wanting } from '../upstreams/attempts.ts'
import type { Step } from '../upstreams/order.ts'
import { outcomeOf } from '../upstreams/outcome.ts'
import type { Finding, Member, Plan } from '../upstreams/pool.ts'
import type { LetGo } from '../upstreams/question.ts'
import { lookAgainMs, Tries } from '../upstreams/tries.ts'
import type { BlockReader, FlightDeps } from './block-flight.ts'
import { createDagBlocks } from './dag-blocks.ts'
import { type DagAsker, DagQuestion, type Racer, type Span } from './dag-question.ts'
import { createStopwatch, failedMs, maxStallMs, minStallMs } from './pace.ts'
import { type Share, shareFor, type Waiting } from './shares.ts'

/** Who waits for a block of a DAG: one of these is called, once, unless it has left. */
export interface DagReader extends BlockReader {
  /** It does not come from here. `isKept`: it came before, and the tiers have it. Otherwise it is asked for by itself. */
  passed(isKept: boolean): void
}

export type DagFlightDeps = FlightDeps & {
  /** Between blocks, and between the pieces of a document or of a large node. */
  readonly giveWay?: GiveWay
}

type Waiter = Waiting & { readonly reader: DagReader; passedBlocks: number; passedBytes: number }

// A search after a 404 fetches at most this much: the beginning of a huge file, all of any other.
const maxDrainedBytes = 256 * 1024 * 1024
// So far a reader follows an answer that does not bring its block next.
const maxPassedBlocks = 256
const maxPassedBytes = 32 * 1024 * 1024
const maxQuestions = 3
const leftBehindBlocks = 2
const leftBehindBytes = 256 * 1024
// An upstream that sends what lies before its part heeds no ranges.
const maxStrayBytes = 512 * 1024
const retryMs = 100
const drainLookMs = 1000
const minLookMs = 5
const shareLookMs = 100

const unwanted = cancelled('no caller waits for it any more')

export class DagFlight implements DagAsker {
  readonly attempts: Attempts
  readonly watch
  readonly #want: DagWant
  /** The CID that the client asked for. */
  readonly #root: CID
  readonly #deps: DagFlightDeps
  readonly #onOver: () => void
  readonly #blocks
  readonly #tries: Tries
  readonly #questions = new Set<DagQuestion>()
  readonly #waiting = new Map<string, Set<Waiter>>()
  readonly #races = new WeakMap<DagQuestion, Racer>()
  /** Those that brought a part of it. */
  readonly #sources = new Set<Member>()
  #waiters = 0
  #followers = 0
  #working = 0
  #drained: PromiseWithResolvers<void> | undefined
  #isFirst = true
  /** No upstream brings anything, and no other could: readers ask for their blocks one by one meanwhile. */
  #isStuck = false
  #isOver = false
  #failure: unknown
  #finding: Finding | undefined
  #stopTimer: (() => void) | undefined

  /** `onOver`: it brings nothing any more. */
  constructor(want: DagWant, deps: DagFlightDeps, asker: Wanting | undefined, onOver: () => void = () => {}) {
    const { clock, pool } = deps
    this.#want = want
    this.#root = asker?.root ?? want.cid
    this.#deps = deps
    this.#onOver = onOver
    this.attempts = new Attempts(clock, asker, deps.trace)
    this.watch = createStopwatch(clock)
    this.#blocks = createDagBlocks(deps.giveWay)
    this.#tries = new Tries(clock, clock.monotonic() + pool.patienceMs)
    this.#blocks.expect(want.cid)
  }

  get isOver(): boolean {
    return this.#isOver
  }

  get isWanted(): boolean {
    return !this.#isOver && (this.#drained !== undefined || this.#waiters > 0)
  }

  /** A block that arrived links to this one, which has not arrived yet. */
  expects(cid: CID): boolean {
    return !this.#isOver && this.#blocks.isExpected(cid) && !this.#blocks.wentBy(cid)
  }

  // Its readers.

  /** One more that wants what comes. The returned function leaves; the last one that leaves stops the questions. */
  follow(): () => void {
    this.#followers++
    let isAboard = true
    return () => {
      if (!isAboard) return
      isAboard = false
      if (--this.#followers === 0) this.abort(unwanted)
    }
  }

  /** Waits until this block comes by. Fails with the outcome when no upstream could even begin. */
  join(cid: CID, place: Place, reader: DagReader): void {
    if (this.#blocks.wentBy(cid)) return reader.passed(true)
    if (this.#isOver) {
      if (this.#failure === undefined || this.#blocks.size > 0) reader.passed(false)
      else reader.fail(this.#failure)
      return
    }
    if (this.#isStuck && this.#candidates().steps.length === 0) return reader.passed(false)
    this.#isStuck = false
    const from = place.range?.from ?? 0
    const waiter = { cid, place, from, end: from + (place.bytes ?? 0), reader, passedBlocks: 0, passedBytes: 0 }
    const key = blockKey(cid)
    const set = this.#waiting.get(key)
    if (set) set.add(waiter)
    else this.#waiting.set(key, new Set([waiter]))
    this.#waiters++
    this.#wake()
  }

  leave(cid: CID, reader: DagReader): void {
    const key = blockKey(cid)
    for (const waiter of this.#waiting.get(key) ?? []) if (waiter.reader === reader) this.#remove(key, waiter)
    this.#note()
  }

  /** Pulls everything, without a reader (for a background search). */
  drain(): Promise<void> {
    if (this.#isOver) return this.#failure === undefined ? Promise.resolve() : Promise.reject(this.#failure)
    this.#drained ??= Promise.withResolvers()
    this.#wake()
    return this.#drained.promise
  }

  abort(reason: Failure): void {
    this.#finish(reason, reason)
  }

  #remove(key: string, waiter: Waiter): void {
    const set = this.#waiting.get(key)
    if (!set?.delete(waiter)) return
    if (set.size === 0) this.#waiting.delete(key)
    this.#waiters--
  }

  *#all(): Generator<Waiter> {
    for (const set of this.#waiting.values()) yield* set
  }

  #clear(): Waiter[] {
    const all = [...this.#all()]
    this.#waiting.clear()
    this.#waiters = 0
    return all
  }

  /** Those that stand in a file, the furthest behind first. */
  #line(): Waiter[] {
    if (this.#want.scope !== 'entity') return []
    const line = [...this.#all()].filter(({ place }) => place.range && place.bytes !== undefined)
    return line.sort((one, other) => one.from - other.from)
  }

  get #furthestBehind(): Waiter | undefined {
    let least: Waiter | undefined
    for (const one of this.#all()) if (!least || one.from < least.from) least = one
    return least
  }

  /** The clock of the readers runs while they wait for upstreams, not while this process is busy. */
  #note(): void {
    if (this.isWanted && this.#working === 0) this.watch.run()
    else this.watch.stop()
    if (!this.isWanted) this.#stopLook()
  }

  async #during(work: Promise<unknown>): Promise<void> {
    this.#working++
    this.#note()
    try {
      await work
    } finally {
      this.#working--
      this.#note()
    }
  }

  // What comes.

  isExpected(cid: CID): boolean {
    return this.#blocks.isExpected(cid)
  }

  take(question: DagQuestion, block: Block): void | Promise<void> {
    const isNew = this.#blocks.add(block)
    this.#noteStray(question, block, isNew)
    // Also for a block that came by before: the next one of this sender may be what it links to. And a piece from a socket may have a
    // thousand blocks.
    const { reading } = this.#blocks
    const turn = this.#deps.giveWay?.()
    if (!reading && !turn) return isNew ? this.#keep(question, block) : this.#follows(question, block)
    const pause = this.#during(Promise.all([reading, turn]))
    return pause.then(() => (isNew ? this.#keep(question, block) : this.#follows(question, block)))
  }

  #follows(question: DagQuestion, { cid }: Block): void {
    question.isFollowing = true
    if (question.askedTo > question.to && cid.code === codec.raw) this.#cut(question)
  }

  #keep(question: DagQuestion, block: Block): void | Promise<void> {
    if (this.#isOver) return
    question.pace.came(block.bytes.byteLength)
    this.#isStuck = false
    const kept = this.#deps.keep(block.cid, block.bytes)
    if (kept === undefined) return this.#arrived(question, block)
    return this.#during(kept).then(() => this.#arrived(question, block))
  }

  #arrived(question: DagQuestion, { cid, bytes }: Block): void {
    const key = blockKey(cid)
    const { name } = question.member.upstream
    this.#blocks.kept(cid)
    this.#sources.add(question.member)
    const readers = this.#waiting.get(key)
    if (readers) {
      this.#waiting.delete(key)
      this.#waiters -= readers.size
      for (const { reader, from, end } of readers) {
        question.at = Math.max(question.at, from, Math.min(end, question.to))
        reader.settle(bytes, name)
      }
    }
    this.#passBy(bytes.byteLength)
    this.#note()
    this.#leaveOthersBehind(question, bytes.byteLength)
    if (this.#waiters === 0 && this.#blocks.bytes > maxDrainedBytes && this.#drained) return this.#finish()
    if (question.at >= question.to && question.askedTo > question.to) this.#cut(question)
    else if (question.isNearlyDone) this.#share()
  }

  #passBy(bytes: number): void {
    for (const [key, set] of this.#waiting)
      for (const waiter of set) {
        waiter.passedBlocks++
        waiter.passedBytes += bytes
        if (waiter.passedBlocks <= maxPassedBlocks && waiter.passedBytes <= maxPassedBytes) continue
        this.#remove(key, waiter)
        waiter.reader.passed(false)
      }
  }

  /** It came to where the part of another one begins. */
  #cut(question: DagQuestion): void {
    if (!this.#questions.delete(question)) return
    question.stop()
    if (!this.#share() && this.#questions.size === 0 && this.isWanted) this.#goOn()
  }

  /** Blocks that others brought, or that lie before its part, are none that it was asked for; the way to its part is small. */
  #noteStray(question: DagQuestion, { cid, bytes }: Block, isNew: boolean): void {
    if (question.from === 0 || question.askedTo === Number.POSITIVE_INFINITY) return
    const waiters = isNew ? this.#waiting.get(blockKey(cid)) : undefined
    const isStray = isNew ? waiters !== undefined && ![...waiters].some(({ from }) => question.covers(from)) : true
    if (!isStray) return
    question.strayBytes += bytes.byteLength
    if (question.strayBytes <= maxStrayBytes) return
    question.member.health.heedsNoRanges()
    this.#letGo(question, 'enough')
    this.#reclaim(question)
    this.#share()
  }

  // Who is asked.

  #findMore(): void {
    const { pool } = this.#deps
    if (this.#finding || !pool.find) return
    const begun = pool.find(this.#root)
    this.#finding = begun
    const note = () => this.attempts.looked(begun.attempts, begun.failure)
    if (begun.isOver) return note()
    const forget = begun.onNews(() => {
      if (begun.isOver) {
        forget()
        note()
      }
      this.#wake()
    })
  }

  /** The upstreams that could be asked for the missing blocks, the best first. `busy`: those at work, that cannot. */
  #candidates(busy: Iterable<DagQuestion> = this.#questions): Plan {
    const plan = this.#plan(busy)
    if (this.#blocks.size === 0) return plan
    // An upstream without CAR can bring the first block, and nothing after that.
    return { ...plan, steps: plan.steps.filter(({ who }) => who.upstream.traits.dag) }
  }

  #plan(busy: Iterable<DagQuestion>): Plan {
    const tried = new Set([...this.#tries.spent, ...membersOf(busy)])
    return this.#deps.pool.plan('dag', this.#want.cid, tried, this.#root)
  }

  #wake(): void {
    if (this.#isOver) return
    this.#note()
    if (this.#questions.size === 0) this.#goOn()
    else for (const question of this.#questions) question.wake()
    if (this.#isOver) return
    // Others have parts of their own already: whoever is free takes the next one at once.
    if (this.#sources.size > 1) this.#share()
    if (!this.#stopTimer) this.#lookIn(this.#firstLookMs)
  }

  /** Asks the next upstream at once, first and after a failure. The flight ends when none can be asked in time. */
  #goOn(): void {
    if (this.#isFirst) this.#deps.pool.began()
    else this.#findMore()
    if (this.#blocks.size > 0 && this.#share()) return
    const { steps, ...left } = this.#candidates()
    if (this.#isFirst) this.attempts.skip(left.skipped)
    this.#isFirst = false
    const [step] = steps
    if (step) return this.#start(step)
    if (this.#questions.size > 0) return
    if (this.#blocks.size > 0) return this.#finish()
    this.#findMore()
    if (this.#finding?.isOver === false) return this.#lookIn(lookAgainMs)
    const [named] = this.#finding ? this.#candidates().steps : []
    if (named) return this.#start(named)
    if (this.#tries.hopes()) return this.#lookIn(lookAgainMs)
    this.#finish(outcomeOf(this.#want.cid, this.attempts.failures, left))
  }

  /** From where the slowest waiting reader stands. */
  #start(step: Step<Member>, behind = this.#furthestBehind, to = Number.POSITIVE_INFINITY): void {
    const isFirst = this.#blocks.size === 0 || !behind
    const span = { from: isFirst ? 0 : behind.from, to: to > 0 ? to : Number.POSITIVE_INFINITY }
    this.#ask(step, isFirst ? this.#want : behind.place, span)
  }

  #ask(step: Step<Member>, place: Place, span: Span, leaves?: readonly CID[] | undefined): void {
    const { cid, segments, scope } = place
    const to = Number.isFinite(span.to) ? span.to - 1 : place.range?.to
    const range = place.range && { from: place.range.from, ...(to !== undefined && { to }) }
    this.#blocks.expect(cid)
    const question = new DagQuestion(this, step, { cid, segments, scope, range }, span, leaves)
    const others = [...this.#questions].filter((one) => overlap(one, span))
    this.#questions.add(question)
    if (others.length > 0) this.#enterRace(others, question)
    question.begin()
  }

  #enterRace(others: readonly DagQuestion[], question: DagQuestion): void {
    const { judge = pAny } = this.#deps
    const before = new Set(others.map((one) => (one.isRacing && this.#races.get(one)) || one.racer()))
    const race = judge<DagQuestion>([...before, question.racer()]) as Racer
    for (const one of [...others, question]) this.#races.set(one, race)
    // Each failure was noted by its question.
    race.catch(() => {})
  }

  #leaveOthersBehind(leader: DagQuestion, bytes: number): void {
    leader.isLast = true
    if (this.#questions.size === 1) return
    leader.hasLed ||= leader.isRacing
    const others = [...this.#questions].filter((one) => one !== leader && one.isRacing && overlap(one, leader))
    for (const one of others) {
      one.isLast = false
      one.missedBlocks++
      one.missedBytes += bytes
    }
    const isLeft = (one: DagQuestion) => one.missedBlocks >= leftBehindBlocks && one.missedBytes >= leftBehindBytes
    if (others.length === 0 || !others.every(isLeft)) return
    if (leader.isRacing) leader.win()
    else for (const one of others) this.lost(one)
  }

  /** p-any has another winner. */
  lost(question: DagQuestion): void {
    if (this.#questions.has(question))
      this.#letGo(question, question.hasBegun && !question.isFollowing && !question.hasLed ? 'behind' : 'enough')
  }

  #letGo(question: DagQuestion, why: LetGo): void {
    this.#questions.delete(question)
    const isNoHelp = Number.isFinite(question.askedTo) && !question.hasBegun
    if (why === 'behind' || isNoHelp) this.#tries.over(question.member)
    question.letGo(why)
  }

  ended(question: DagQuestion): void {
    this.#questions.delete(question)
    const isPart = Number.isFinite(question.askedTo)
    // A part may be followed by the next one; an answer without anything of use is the last.
    if (!isPart || question.pace.blocks === 0) this.#tries.over(question.member)
    if (this.#isOver) return
    if (!isPart) {
      // It lacked the blocks that readers still wait for; another one may bring them.
      if (this.#questions.size === 0 || this.#waiters === 0) this.#finish()
      else this.#share()
      return
    }
    for (const waiter of this.#all())
      if (question.covers(waiter.from) && waiter.end <= question.to) {
        this.#remove(blockKey(waiter.cid), waiter)
        waiter.reader.passed(false)
      }
    this.#note()
    if (!this.#share() && this.#questions.size === 0 && this.isWanted) this.#goOn()
  }

  failed(question: DagQuestion, error: unknown): void {
    this.#questions.delete(question)
    if (question.hasBegun) this.#tries.over(question.member)
    else this.#tries.failed(question.member, error)
    if (this.#isOver) return
    this.#reclaim(question)
    // While another one moves, the pace decides whether that one is enough.
    if (this.#questions.size === 0 || this.#blocks.size === 0) this.#goOn()
    else this.#share()
  }

  // Parts of a file for several upstreams.

  /** Gives parts to upstreams that are free, while that saves the readers time; false: to none. */
  #share(): boolean {
    let isShared = false
    while (this.isWanted && this.#shareNext()) isShared = true
    return isShared
  }

  #shareNext(): boolean {
    const busy = [...this.#questions].filter((one) => !one.isNearlyDone)
    const line = this.#line()
    const given = line.length === 0 || busy.length >= maxQuestions ? undefined : this.#nextShare(line, busy)
    if (!given) return false
    const { step, share } = given
    if (share.victim) share.victim.to = share.from
    const place = line.find(({ from }) => from === share.from)?.place ?? this.#want
    this.#ask(step, place, share, share.leaves)
    return true
  }

  #nextShare(
    line: readonly Waiter[],
    busy: readonly DagQuestion[],
  ): { readonly step: Step<Member>; readonly share: Share } | undefined {
    const { steps } = this.#plan(busy)
    // Those that have brought parts of it first.
    const ranked = [...steps].sort((one, other) => this.#known(other) - this.#known(one))
    for (const step of ranked) {
      const { health } = step.who
      if (health.state(blockKey(this.#want.cid)).state !== 'ready' || health.waitMs > 0) continue
      const others =
        busy.some(({ member }) => member !== step.who) || ranked.some((one) => one !== step && this.#known(one) > 0)
      const share = shareFor(step.who, line, [...this.#questions], others)
      if (share) return { step, share }
    }
    return undefined
  }

  #known({ who }: Step<Member>): number {
    return this.#sources.has(who) ? 1 : 0
  }

  /** What it leaves goes to the one before it, where that was asked for as much. */
  #reclaim({ from, to }: DagQuestion): void {
    for (const one of this.#questions) {
      if (one.to !== from || one.askedTo < to) continue
      const next = [...this.#questions].map((other) => other.from).filter((start) => start > one.from)
      one.to = Math.min(one.askedTo, ...next)
    }
  }

  // The timer that hedges in the middle of an answer: it rings when the upstreams that were asked should have brought something, and asks
  // another one beside them when they did not. It runs only while readers wait.

  #stopLook(): void {
    this.#stopTimer?.()
    this.#stopTimer = undefined
  }

  #lookIn(ms: number): void {
    this.#stopLook()
    if (!this.isWanted) return
    // No reader waits for a search: it may be slower.
    const minMs = this.#waiters > 0 ? minLookMs : drainLookMs
    this.#stopTimer = this.#deps.clock.after(Math.max(minMs, ms), () => {
      this.#stopTimer = undefined
      this.#look()
    })
  }

  get #firstLookMs(): number {
    const newest = [...this.#questions].at(-1)
    return !newest || newest.hasBegun ? minStallMs : newest.startedAt + newest.patienceMs - this.watch.ms
  }

  #look(): void {
    if (!this.isWanted) return
    if (this.#questions.size === 0) return this.#wake()
    if (this.#blocks.size > 0) this.#share()
    const [free] = this.#candidates().steps
    if ([...this.#questions].some(({ isQueued }) => isQueued)) return this.#lookAtQueue(free)
    const { behind, covering, leftMs } = this.#latest(free)
    if (leftMs > 0) return this.#lookIn(this.#line().length > 0 ? Math.min(leftMs, shareLookMs) : leftMs)
    this.#findMore()
    if (this.#isOver) return
    // Without a free one, one that brings a later part.
    const hasStalled = !free && this.#silentMs(covering) >= maxStallMs
    const [other] = hasStalled ? this.#candidates(covering).steps : [free]
    if (!other) {
      this.#beStuck()
      return this.#lookIn(retryMs)
    }
    // An answer that stalled for so long has failed: asking another one is no hedge.
    const hasFailed = this.#silentMs(covering) >= failedMs
    const isFull = this.#blocks.size > 0 && this.#questions.size >= maxQuestions
    if ((isFull && !hasFailed) || !(hasFailed || this.#deps.pool.mayHedge(other.who))) return this.#lookIn(retryMs)
    if (isFull) this.#dropTheWorst(covering)
    this.#start(other, behind, Math.max(...covering.map(({ to }) => to)))
    this.#lookIn(this.#firstLookMs)
  }

  /** How long until another upstream is asked for what the first of the readers waits for, if nothing comes until then. */
  #latest(other: Step<Member> | undefined) {
    const behind = this.#furthestBehind
    const covering = behind ? [...this.#questions].filter((one) => one.covers(behind.from)) : [...this.#questions]
    return { behind, covering, leftMs: this.#leftMs(covering, other) }
  }

  #leftMs(covering: readonly DagQuestion[], other: Step<Member> | undefined): number {
    const newest = covering.at(-1)
    if (!newest) return 0
    if (!newest.hasBegun) return newest.startedAt + newest.patienceMs - this.watch.ms
    const { pace } = covering.reduce((one, next) => (next.pace.cameAt > one.pace.cameAt ? next : one))
    const could = other && ((bytes: number) => other.who.health.expectedMs('dag', bytes))
    return pace.isSlow(could) ? 0 : pace.stallAfterMs(could) - this.#silentMs(covering)
  }

  /** How long nothing of use came from any of these since the newest of them was asked. */
  #silentMs(covering: readonly DagQuestion[]): number {
    const since = covering.at(-1)?.startedAt
    return Math.min(...covering.map(({ pace }) => pace.silentMs(since)))
  }

  /** Tells waiting readers to ask for their blocks one by one: an upstream without CAR may have them. */
  #beStuck(): void {
    if (this.#blocks.size === 0 || this.#drained) return
    if ([...this.#questions].some(({ pace, startedAt }) => pace.silentMs(startedAt) < retryMs)) return
    if (this.#deps.pool.plan('block', this.#want.cid, membersOf(this.#questions), this.#root).steps.length === 0) return
    this.#isStuck = true
    for (const { reader } of this.#clear()) reader.passed(false)
    this.#note()
  }

  #dropTheWorst(covering: readonly DagQuestion[]): void {
    const [worst] = [...covering].sort((one, other) => other.missedBytes - one.missedBytes)
    if (worst) this.#letGo(worst, 'behind')
  }

  /** Time in the queue is no slowness of an upstream. If another one could be asked at once, leave the queue. */
  #lookAtQueue(other: Step<Member> | undefined): void {
    if (other && other.who.health.waitMs === 0) {
      for (const question of this.#questions) if (question.isQueued) this.#letGo(question, 'enough')
      this.#start(other)
    }
    this.#lookIn(retryMs)
  }

  // Its end.

  /** `failure`: no upstream could even begin. */
  #finish(failure?: unknown, reason?: Failure): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#failure = failure
    this.#stopLook()
    for (const question of this.#questions) {
      this.#questions.delete(question)
      question.release(reason)
    }
    this.#onOver()
    const isOutcome = failure !== undefined && this.#blocks.size === 0
    for (const { reader } of this.#clear())
      if (isOutcome) reader.fail(failure)
      else reader.passed(false)
    this.watch.stop()
    this.#drained?.promise.catch(() => {})
    if (failure === undefined) this.#drained?.resolve()
    else this.#drained?.reject(failure)
  }
}

const membersOf = (questions: Iterable<DagQuestion>): Set<Member> => new Set([...questions].map(({ member }) => member))

const overlap = (one: Span, other: Span): boolean => one.from < other.to && other.from < one.to
