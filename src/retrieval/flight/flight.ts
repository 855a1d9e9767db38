// A flight: one shared fetch of a block or of a DAG, for all readers that want it. Each block is
// proved before any reader gets it. One upstream is asked first (upstream-stream.ts). When it
// fails, the next is asked at once; when it is late, the next is asked beside it, out of the hedge
// budget. From the second question on p-any is the judge of the race.
//
// Of a DAG nothing is pulled unless a reader waits, so that a reader that stops reading stops the
// upstreams. A late upstream (pace.ts) is joined by the next one from where the slowest waiting
// reader stands. Of a file whose readers wait long enough for it, other upstreams bring parts of
// their own (file-parts.ts) meanwhile.
import type { CID } from 'multiformats/cid'
import pAny from 'p-any'
import type { DagWant } from '../../../backends/upstreams/contract.ts'
import { type Block, blockKey, codec } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure, isFailure } from '../../core/failure.ts'
import type { Trace } from '../../core/wire/trace.ts'
import type { YieldIfDue } from '../../ipld/documents.ts'
import type { Place } from '../session.ts'
import { type AskKind, Attempts, type LetGo, outcomeOf, type Wanting } from '../upstreams/attempts.ts'
import { stalledMs } from '../upstreams/estimates.ts'
import type { Finding, Member, Plan, Pool, Step } from '../upstreams/pool.ts'
import { DagBlocks } from './dag-blocks.ts'
import { nextPart, type Waiting } from './file-parts.ts'
import { maxStallMs, minStallMs, Stopwatch } from './pace.ts'
import { type Span, UpstreamStream } from './upstream-stream.ts'

/** A reader that waits for a block: one of these is called, once, unless the reader has left. */
export interface FlightReader {
  settle(bytes: Uint8Array, upstream: string): void
  fail(error: unknown): void
  /** The block does not come from here: it came before, or is asked for by itself. */
  passed(): void
}

export type FlightDeps = {
  readonly pool: Pool
  readonly clock: Clock
  readonly trace?: Trace | undefined
  /**
   * Called with each proved block before any reader gets it. A promise: the readers wait for it.
   */
  readonly keep: (cid: CID, bytes: Uint8Array) => void | Promise<void>
  /** Between blocks, and between the pieces of a document or of a large node. */
  readonly yieldIfDue?: YieldIfDue
  /** The judge of a race. Default: p-any. */
  readonly judge?: typeof pAny
}

type Waiter = Waiting & { readonly key: string; passedBlocks: number }

// A reader follows a response that does not bring its block next for so many others.
const maxPassedBlocks = 256
const maxStreams = 3
// An upstream that missed so much of what others brought has lost the race to them.
const leftBehindBytes = 512 * 1024

const unwanted = cancelled('no caller waits for it any more')
const stalled = new Failure('timeout', 'it stalled, and others brought its part', { source: 'upstream' })

export class Flight {
  readonly kind: AskKind
  readonly attempts: Attempts
  readonly watch: Stopwatch
  readonly #want: DagWant
  /** The CID that the client asked for. */
  readonly #root: CID
  readonly #deps: FlightDeps
  readonly #onOver: () => void
  /** Undefined for a single block. */
  readonly #blocks: DagBlocks | undefined
  readonly #streams = new Set<UpstreamStream>()
  readonly #waiting = new Map<FlightReader, Waiter>()
  #followers = 0
  /** Blocks that the tiers are taking. */
  #keeping = 0
  #isOver = false
  #failure: Failure | undefined
  #finding: Finding | undefined
  #stopFinding: (() => void) | undefined
  #stopTimer: (() => void) | undefined

  /** `onOver`: it brings nothing any more. */
  constructor(kind: AskKind, want: DagWant, deps: FlightDeps, asker?: Wanting, onOver: () => void = () => {}) {
    const { clock, pool, trace, yieldIfDue } = deps
    this.kind = kind
    this.#want = want
    this.#root = asker?.root ?? want.cid
    this.#deps = deps
    this.#onOver = onOver
    this.attempts = new Attempts(clock, pool.timeoutMs, asker, trace)
    this.watch = new Stopwatch(clock, kind === 'dag')
    if (kind === 'dag') this.#blocks = new DagBlocks(want.cid, yieldIfDue)
    pool.began()
  }

  get isOver(): boolean {
    return this.#isOver
  }

  get isWanted(): boolean {
    return !this.#isOver && this.#waiting.size > 0
  }

  /** A block that arrived links to this one, which has not arrived yet. */
  expects(cid: CID): boolean {
    return !this.#isOver && this.isExpected(cid) && this.#blocks?.isStored(cid) === false
  }

  isExpected(cid: CID): boolean {
    return this.#blocks?.isExpected(cid) === true
  }

  /** A single block, and one upstream. */
  get #isAlone(): boolean {
    const { members, find } = this.#deps.pool
    return this.kind === 'block' && members.length === 1 && !find
  }

  get #hasBegun(): boolean {
    return this.#blocks?.hasBegun === true
  }

  // Its readers.

  /** For a reader between its blocks. Who leaves last, following or waiting, stops the questions. */
  follow(): void {
    this.#followers++
  }

  unfollow(): void {
    this.#followers--
    this.#readersChanged()
  }

  /**
   * Waits until this block comes. Fails with the outcome when no upstream could even begin.
   * `around`: undefined for a reader that stands nowhere in it.
   */
  join(cid: CID, around: Place | undefined, reader: FlightReader): void {
    if (this.#failure && !this.#hasBegun) return reader.fail(this.#failure)
    if (this.#isOver || this.#isStuck || this.#blocks?.isStored(cid)) return reader.passed()
    const place = around ?? this.#want
    const from = around ? (around.range?.from ?? 0) : Number.POSITIVE_INFINITY
    const end = from + (around?.bytes ?? 0)
    this.#waiting.set(reader, { key: blockKey(cid), cid, place, from, end, passedBlocks: 0 })
    this.#wake()
  }

  leave(reader: FlightReader): void {
    this.#waiting.delete(reader)
    this.#readersChanged()
  }

  /** These blocks do not come from here. */
  #passBy(isPassed: (waiter: Waiter) => boolean): void {
    for (const [reader, waiter] of this.#waiting) if (isPassed(waiter) && this.#waiting.delete(reader)) reader.passed()
  }

  /** Those that stand in a file, the furthest behind first. */
  #line(): Waiter[] {
    if (this.#want.scope !== 'entity') return []
    const line = [...this.#waiting.values()].filter(({ place }) => place.range && place.bytes !== undefined)
    return line.sort((one, other) => one.from - other.from)
  }

  get #furthestBehind(): Waiter | undefined {
    let furthest: Waiter | undefined
    for (const one of this.#waiting.values())
      if (one.from < (furthest?.from ?? Number.POSITIVE_INFINITY)) furthest = one
    return furthest
  }

  /** The clock of the readers runs while they wait for upstreams, not for tiers. */
  #readersChanged(): void {
    if (this.isWanted && this.#keeping === 0) this.watch.run()
    else this.watch.stop()
    if (!this.isWanted) this.#stopCheck()
    if (this.#followers === 0 && this.#waiting.size === 0) this.end(unwanted)
  }

  // Incoming blocks.

  /**
   * Takes a proved block that this stream did not bring before. A promise: no other one until it
   * resolves.
   */
  take(stream: UpstreamStream, block: Block): void | Promise<void> {
    const blocks = this.#blocks
    if (!blocks) {
      stream.won = block
      return stream.isRacing ? stream.win() : this.#keep(stream, block)
    }
    const isNew = blocks.add(block)
    this.#noteStray(stream, block, isNew)
    // Also for a block that came before: the next one of this sender may be what it links to. And a
    // piece from a socket may have a thousand blocks.
    const yielded = this.#deps.yieldIfDue?.()
    const then = () => {
      if (isNew) return this.#keep(stream, block)
      if (stream.askedTo > stream.to && block.cid.code === codec.raw) this.#cut(stream)
    }
    return blocks.reading || yielded ? Promise.all([blocks.reading, yielded]).then(then) : then()
  }

  #keep(stream: UpstreamStream, block: Block): void | Promise<void> {
    if (this.#isOver) return
    stream.pace.came(block.bytes.byteLength)
    const kept = this.#deps.keep(block.cid, block.bytes)
    if (kept === undefined) return this.#arrived(stream, block)
    this.#keeping++
    this.#readersChanged()
    return kept
      .finally(() => {
        this.#keeping--
        this.#readersChanged()
      })
      .then(() => this.#arrived(stream, block))
  }

  #arrived(stream: UpstreamStream, { cid, bytes }: Block): void {
    const key = blockKey(cid)
    this.#blocks?.stored(cid)
    const readers: FlightReader[] = []
    for (const [reader, waiter] of this.#waiting) {
      if (waiter.key !== key) continue
      this.#waiting.delete(reader)
      stream.at = Math.max(stream.at, waiter.from, Math.min(waiter.end, stream.to))
      readers.push(reader)
    }
    if (!this.#blocks) this.end()
    for (const reader of readers) reader.settle(bytes, stream.member.upstream.name)
    if (this.#isOver) return
    this.#passBy((waiter) => ++waiter.passedBlocks > maxPassedBlocks)
    this.#readersChanged()
    this.#leaveOthersBehind(stream, bytes.byteLength)
    if (stream.at >= stream.to && stream.askedTo > stream.to) this.#cut(stream)
  }

  /** It came to where the part of another one begins. */
  #cut(stream: UpstreamStream): void {
    if (!this.#streams.delete(stream)) return
    stream.letGo('enough')
    this.#proceed()
  }

  /**
   * Blocks that others brought, or that lie before its part, were not asked of it; the way to its
   * part is small.
   */
  #noteStray(stream: UpstreamStream, { cid, bytes }: Block, isNew: boolean): void {
    if (stream.from === 0 || stream.askedTo === Number.POSITIVE_INFINITY || stream.isRacing) return
    const key = blockKey(cid)
    const waiters = [...this.#waiting.values()].filter((one) => one.key === key)
    const isWanted = isNew && (waiters.length === 0 || waiters.some(({ from }) => stream.covers(from)))
    if (isWanted || !stream.wastes(bytes.byteLength)) return
    stream.member.health.ignoresRanges()
    this.#letGo(stream, 'enough')
    this.#proceed()
  }

  // The upstreams that are asked.

  /**
   * The upstreams that could be asked for the missing blocks, the best first. `busy`: those at
   * work, that cannot.
   */
  #candidates(busy: Iterable<UpstreamStream> = this.#streams): Plan {
    const plan = this.#plan(busy)
    // An upstream without CAR can bring the first block, and nothing after that.
    return this.#hasBegun ? { ...plan, steps: plan.steps.filter(({ who }) => who.upstream.traits.dag) } : plan
  }

  #plan(busy: Iterable<UpstreamStream>): Plan {
    const members = new Set([...busy].map(({ member }) => member))
    const spentMs = (member: Member) => (members.has(member) ? Number.POSITIVE_INFINITY : this.attempts.spentMs(member))
    return this.#deps.pool.plan(this.kind, this.#want.cid, spentMs, this.#root)
  }

  #wake(): void {
    if (this.#isOver) return
    this.#readersChanged()
    for (const stream of this.#streams) stream.flow()
    if (this.#streams.size === 0) this.#proceed()
    if (this.#isOver) return
    if (!this.#stopTimer && !this.#isAlone) this.#checkIn(this.#leftMs([...this.#streams]))
  }

  #askOthers(): void {
    if (this.isWanted) this.#findMore()
    this.#proceed()
  }

  /** Asks for what readers wait for and nobody brings. */
  #proceed(): void {
    if (!this.isWanted || (this.#hasBegun && this.#share())) return
    if (this.#streams.size === 0 || !this.#hasBegun) this.#askNext()
  }

  /**
   * Asks the next upstream at once, first and after a failure. The flight ends when none can be
   * asked in time.
   */
  #askNext(): void {
    const { pool } = this.#deps
    const { steps, ...left } = this.#candidates()
    this.attempts.skip(left.skipped)
    const [step] = steps
    if (step) return this.#start(step)
    if (this.#streams.size > 0) return
    if (this.#hasBegun) return this.end()
    if (pool.find && !this.#finding) {
      this.#findMore()
      return this.#askNext()
    }
    if (this.#finding?.isOver === false) return this.#checkIn(minStallMs)
    if (this.attempts.mayWait(left.backInMs)) return this.#checkIn(Math.min(minStallMs, left.backInMs))
    this.end(outcomeOf(this.#want.cid, this.attempts.failures, left))
  }

  /** From where the slowest waiting reader stands. */
  #start(step: Step<Member>, to = Number.POSITIVE_INFINITY): void {
    if (this.kind === 'block') return this.#ask(step, this.#want, entireSpan, [this.#want.cid])
    const behind = this.#hasBegun ? this.#furthestBehind : undefined
    const span = { from: behind?.from ?? 0, to: to > 0 ? to : Number.POSITIVE_INFINITY }
    this.#ask(step, behind?.place ?? this.#want, span)
  }

  #ask(step: Step<Member>, place: Place, span: Span, leaves?: readonly CID[] | undefined): void {
    const { cid, segments, scope } = place
    const to = Number.isFinite(span.to) ? span.to - 1 : place.range?.to
    const range = place.range && { from: place.range.from, ...(to !== undefined && { to }) }
    this.#blocks?.expect(cid)
    const stream = new UpstreamStream(this, step, { cid, segments, scope, range }, span, leaves)
    const others = this.#streams.size > 0 ? [...this.#streams].filter((one) => overlap(one, span)) : []
    this.#streams.add(stream)
    if (others.length > 0) this.#enterRace(others, stream)
    stream.begin()
  }

  #enterRace(others: readonly UpstreamStream[], stream: UpstreamStream): void {
    const { judge = pAny } = this.#deps
    // Each failure was noted by its stream.
    judge<UpstreamStream>([...others, stream].map((one) => one.racer())).then(
      (winner) => winner.won && this.#keep(winner, winner.won),
      () => {},
    )
  }

  #leaveOthersBehind(leader: UpstreamStream, bytes: number): void {
    if (this.#streams.size === 1) return
    const others = [...this.#streams].filter((one) => one !== leader && one.isRacing && overlap(one, leader))
    for (const one of others) one.missedBytes += bytes
    if (others.length > 0 && others.every((one) => one.missedBytes > leftBehindBytes)) leader.win()
  }

  /** p-any has another winner. */
  lost(stream: UpstreamStream): void {
    if (this.#streams.has(stream)) this.#letGo(stream, stream.hasBegun ? 'behind' : 'enough')
  }

  #letGo(stream: UpstreamStream, why: LetGo): void {
    this.#streams.delete(stream)
    const isNoHelp = Number.isFinite(stream.askedTo) && !stream.hasBegun
    if (why === 'behind' || isNoHelp) this.attempts.spend(stream.member, stalled)
    stream.letGo(why)
  }

  ended(stream: UpstreamStream): void {
    // A single block has landed, or waits for the verdict.
    if (this.kind === 'block') return
    this.#streams.delete(stream)
    const isPart = Number.isFinite(stream.askedTo)
    // A part may be followed by the next one; an answer without anything of use is the last.
    if (!isPart || stream.pace.blocks === 0) this.attempts.spend(stream.member)
    if (this.#isOver) return
    if (!isPart) {
      // It lacked the blocks that readers still wait for; another one may bring them.
      return this.#streams.size === 0 || !this.isWanted ? this.end() : this.#askOthers()
    }
    this.#passBy(({ from, end }) => stream.covers(from) && end <= stream.to)
    this.#readersChanged()
    this.#proceed()
  }

  failed(stream: UpstreamStream, error: unknown): void {
    this.#streams.delete(stream)
    const isFinal = stream.hasBegun && !isFailure(error, 'timeout')
    this.attempts.spend(stream.member, isFinal ? undefined : error)
    // While another one moves, the pace decides whether that one is enough.
    this.#askOthers()
  }

  // Gateways that routers name.

  #findMore(): void {
    const { pool } = this.#deps
    if (this.#finding || !pool.find) return
    const finding = (this.#finding = pool.find(this.#root))
    const note = () => {
      if (!finding.isOver) return
      this.#stopFinding?.()
      this.attempts.looked(finding.attempts, finding.failure)
    }
    note()
    if (finding.isOver) return
    this.#stopFinding = finding.onNews(() => {
      note()
      if (!this.isWanted) return
      if (this.#streams.size === 0) return this.#wake()
      // The first that is named is asked at once, where all others were asked and none has begun.
      const [next] = this.#candidates().steps
      const isFirstFound = next?.who.isFound && ![...this.#streams].some(({ member }) => member.isFound)
      if (isFirstFound && !this.#hasBegun) this.#start(next)
    })
  }

  // Parts of a file for several upstreams.

  /** Gives parts to upstreams that are free, while that saves the readers time; false: to none. */
  #share(): boolean {
    let isShared = false
    while (this.isWanted && this.#shareNext()) isShared = true
    return isShared
  }

  #shareNext(): boolean {
    const streams = [...this.#streams]
    const line = this.#line()
    if (line.length === 0 || streams.length >= maxStreams) return false
    const key = blockKey(this.#want.cid)
    const { steps } = this.#plan(streams)
    for (const step of steps) {
      const { health } = step.who
      if (health.state(key).state !== 'ready' || health.waitMs > 0) continue
      const hasOthers = [...streams, ...steps.map(({ who }) => ({ member: who }))].some(
        ({ member }) => member !== step.who && !member.health.sendsAll,
      )
      const isBack = this.attempts.spentMs(step.who) !== undefined
      const part = nextPart(step.who, line, streams, { hasOthers, isBack })
      if (!part) continue
      if (part.victim) part.victim.to = part.from
      const place = line.find(({ from }) => from === part.from)?.place ?? this.#want
      this.#ask(step, place, part, part.leaves)
      return true
    }
    return false
  }

  #stopCheck(): void {
    this.#stopTimer?.()
    this.#stopTimer = undefined
  }

  #checkIn(ms: number): void {
    this.#stopCheck()
    if (!this.isWanted) return
    this.#stopTimer = this.#deps.clock.after(Math.max(1, ms), () => {
      this.#stopTimer = undefined
      this.#check()
    })
  }

  // The hedge timer runs while readers wait. It rings when the upstreams that were asked should have
  // brought something; if they did not, this asks another one concurrently:
  //
  // - before the first block: `hedgeDelayMs` after the newest was asked (`order` of pool.ts: the time
  //   by which its answer is late, 0 where the next one is untried)
  // - later: after `stallAfterMs` without a block, or where another would be twice as fast (pace.ts)
  // - for a token of the hedge budget, unless hedging is free (`mayHedge` of pool.ts: since
  //   `retrieval.hedgeDelay` is 0, an upstream is silent to everybody, or a router named the next)
  // - while fewer than `maxStreams` are under way, once blocks came; before, that holds for upstreams
  //   that routers name
  // - without a token or a limit after `stalledMs` of silence in a DAG, or half of the time for a
  //   block. The silent one goes on, and is blamed when the flight ends
  //
  // A request that waits in a queue is moved to a free upstream, which is no hedge.
  #check(): void {
    if (!this.isWanted) return
    if (this.#streams.size === 0) return this.#wake()
    if (this.#hasBegun) this.#share()
    const [free] = this.#candidates().steps
    const queued = [...this.#streams].filter(({ isQueued }) => isQueued)
    if (queued.length > 0) {
      // Time in the queue is no slowness of an upstream: another one that is free is asked instead.
      if (free?.who.health.waitMs === 0) {
        for (const stream of queued) this.#letGo(stream, 'enough')
        this.#start(free)
      }
      return this.#checkIn(minStallMs)
    }
    const behind = this.#furthestBehind
    const covering = [...this.#streams].filter((one) => !behind || one.covers(behind.from))
    const leftMs = this.#leftMs(covering, free)
    if (leftMs > 0) return this.#checkIn(this.#line().length > 0 ? Math.min(leftMs, minStallMs) : leftMs)
    this.#findMore()
    const silentMs = this.#silentMs(covering)
    // Without a free one, one that brings a later part.
    const [later] = silentMs < maxStallMs ? [] : this.#candidates(covering).steps
    const [other = later] = this.#candidates().steps
    if (!other) {
      if (this.#isStuck) this.#passBy(() => true)
      this.#readersChanged()
      return this.#checkIn(this.#hasBegun ? minStallMs : stalledMs)
    }
    // After so long a silence asking another upstream is no hedge. For a single block a gateway may search: that gets half of the
    // client's time.
    const { pool } = this.#deps
    const needsNoToken = silentMs >= (this.kind === 'dag' ? stalledMs : pool.timeoutMs / 2)
    const isFull = (this.#hasBegun || other.who.isFound) && this.#streams.size >= maxStreams
    // Hedges are for clients: a search by itself waits for the failure.
    const isSearch = this.attempts.client.isSearch && this.#waiting.size === 1
    const mayAsk = needsNoToken || (!isSearch && pool.mayHedge(other.who))
    if ((isFull && !needsNoToken) || !mayAsk) return this.#checkIn(minStallMs)
    this.#start(other, Math.max(...covering.map(({ to }) => to)))
    this.#checkIn(this.#leftMs([...this.#streams]))
  }

  /**
   * Milliseconds until another upstream is asked for the first of the waiting readers, if nothing
   * comes until then.
   */
  #leftMs(covering: readonly UpstreamStream[], other?: Step<Member>): number {
    const newest = covering.at(-1)
    if (!newest) return 0
    if (!newest.hasBegun) return newest.pace.beganAt + newest.hedgeDelayMs - this.watch.ms
    const { pace } = covering.reduce((one, next) => (next.pace.cameAt > one.pace.cameAt ? next : one))
    const could = other && ((bytes: number) => other.who.health.expectedMs('dag', bytes))
    return pace.isSlow(could) ? 0 : pace.stallAfterMs(could) - this.#silentMs(covering)
  }

  /**
   * Milliseconds in which nothing of use came from any of these since the newest of them was asked.
   */
  #silentMs(covering: readonly UpstreamStream[]): number {
    const since = covering.at(-1)?.pace.beganAt
    return Math.min(...covering.map(({ pace }) => pace.silentMs(since)))
  }

  /**
   * No upstream brings anything, and no other one could: readers ask for their blocks one by one,
   * which an upstream without CAR may have.
   */
  get #isStuck(): boolean {
    if (!this.#hasBegun) return false
    const streams = [...this.#streams]
    if (streams.some(({ pace }) => pace.silentMs() < minStallMs)) return false
    if (this.#candidates().steps.length > 0) return false
    // Also one that is spent here: it may have brought the only block that it was asked for.
    const spentMs = (member: Member) =>
      streams.some((one) => one.member === member) ? Number.POSITIVE_INFINITY : undefined
    return this.#deps.pool.plan('block', this.#want.cid, spentMs, this.#root).steps.length > 0
  }

  // Its end.

  /** `failure`: no upstream could even begin, or nobody wants it any more. */
  end(failure?: Failure): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#failure = failure
    this.#stopCheck()
    this.#stopFinding?.()
    for (const stream of this.#streams) {
      this.#streams.delete(stream)
      stream.release(failure)
    }
    this.#onOver()
    const isOutcome = failure !== undefined && !this.#hasBegun
    for (const reader of this.#waiting.keys())
      if (isOutcome) reader.fail(failure)
      else reader.passed()
    this.#waiting.clear()
    this.watch.stop()
  }
}

const entireSpan: Span = { from: 0, to: Number.POSITIVE_INFINITY }

const overlap = (one: Span, other: Span): boolean => one.from < other.to && other.from < one.to
