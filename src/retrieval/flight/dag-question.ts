// One upstream at work on a part of a DAG: it asks for that part as a CAR, or for its leaves one by one where the upstream gives
// single blocks alone. The flight gets proved blocks that belong to the DAG. What does not belong there is passed over, within bounds
// that go by number as well as by bytes: an answer may be endless and cost its sender nothing.
import type { CID } from 'multiformats/cid'
import type { DagAnswer, DagAsk, DagWant, Upstream } from '../../../backends/upstreams/contract.ts'
import { type Block, isIdentity, proves } from '../../core/cid.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { createCidSet } from '../../ipld/cid-set.ts'
import type { Attempts } from '../upstreams/attempts.ts'
import type { Step } from '../upstreams/order.ts'
import type { Member } from '../upstreams/pool.ts'
import type { Asker, LetGo, Question } from '../upstreams/question.ts'
import { hashMismatch, lost } from './block-flight.ts'
import { failedMs, Pace, type Stopwatch } from './pace.ts'

/** What a question reports to. */
export interface DagAsker {
  readonly attempts: Attempts
  readonly watch: Stopwatch
  /** A reader waits for what a question brings. */
  readonly isWanted: boolean
  /** A proved block points at this one, or it is the one that was asked for. */
  isExpected(cid: CID): boolean
  /** Takes a proved block that this question did not bring before. A promise: no other one until it resolves. */
  take(question: DagQuestion, block: Block): void | Promise<void>
  /** The question is over: its answer ended cleanly, or failed. */
  ended(question: DagQuestion): void
  failed(question: DagQuestion, error: unknown): void
  /** Another question won the race. */
  lost(question: DagQuestion): void
}

/** Bytes of the file from the first up to, not including, the last. */
export type Span = { readonly from: number; readonly to: number }

/** A question as p-any sees it. */
export type Racer = Promise<DagQuestion> & { cancel(): void }

const maxUselessBlocks = 4096
const maxUselessBytes = 4 * 1024 * 1024
const leavesAtOnce = 6

export class DagQuestion implements Asker, DagAnswer {
  readonly member: Member
  readonly pace: Pace
  readonly patienceMs: number
  readonly from: number
  /** Up to where the upstream was asked to go. */
  readonly askedTo: number
  /** Up to where it is to go: less where another upstream brings the rest. */
  to: number
  /** Up to where it has come. */
  at: number
  /** On the clock of the readers: when it was asked. */
  startedAt: number
  hasBegun = false
  /** What others brought of its part since the race began, whether it brought any of that first, and whether only later. */
  missedBlocks = 0
  missedBytes = 0
  hasLed = false
  isFollowing = false
  /** What came last of its part came from here. */
  isLast = false
  /** Bytes that lie before its part. */
  strayBytes = 0
  readonly #flight: DagAsker
  readonly #part: DagWant
  /** Its part, where that is made of single blocks. */
  readonly #blocks: CID[] | undefined
  /** What is still to be asked for, block by block. */
  #leaves: CID[] | undefined
  readonly #open = new Set<Question>()
  readonly #stops = new Map<Question, () => void>()
  readonly #seen = createCidSet()
  #ask: DagAsk | undefined
  #isAlone = false
  /** Blocks that the flight is taking. */
  #busy = 0
  #hasAll = false
  #isPaused = false
  #isOver = false
  #useless = 0
  #uselessBytes = 0
  #toldAt: number
  #racer: PromiseWithResolvers<DagQuestion> | undefined

  constructor(
    flight: DagAsker,
    { who, patienceMs }: Step<Member>,
    part: DagWant,
    span: Span,
    leaves?: readonly CID[] | undefined,
  ) {
    this.#flight = flight
    this.member = who
    this.patienceMs = patienceMs
    this.#part = part
    this.#blocks = leaves && [...leaves]
    if (!who.upstream.traits.dag) this.#leaves = this.#blocks
    this.from = this.at = span.from
    this.to = this.askedTo = span.to
    this.pace = new Pace(flight.watch)
    this.startedAt = this.#toldAt = flight.watch.ms
  }

  begin(): void {
    if (this.#leaves) return this.#askLeaves()
    this.#enter(this.#flight.attempts.ask(this.member, 'dag', this.#part.cid, this))
  }

  /** It may have begun or have been refused already. */
  #enter(question: Question): void {
    if (!this.#isOver && !question.isOver) this.#open.add(question)
  }

  covers(from: number): boolean {
    return this.from <= from && from < this.to
  }

  /** What is left of its part takes less time than the next one takes to begin. */
  get isNearlyDone(): boolean {
    const { rate } = this.pace
    if (rate === undefined || this.#leaves || !Number.isFinite(this.askedTo)) return false
    return (this.to - this.at) / rate <= this.member.health.expectedMs('dag', 0)
  }

  /** It waits for its slot at the upstream, which has not been asked yet. */
  get isQueued(): boolean {
    return this.#open.size > 0 && [...this.#open].every(({ isQueued }) => isQueued)
  }

  /** Goes on, where it was paused and is wanted. */
  wake(): void {
    if (this.#isOver || this.#busy > 0 || !this.#flight.isWanted) return
    if (this.#leaves) return this.#askLeaves()
    if (!this.#isPaused) return
    this.#isPaused = false
    this.#ask?.resume()
  }

  // Asker.

  begun(question: Question): void {
    if (this.#isOver) return
    this.#open.add(question)
    if (this.#open.size === 1) this.startedAt = this.#toldAt = this.#flight.watch.ms
    if (this.#leaves) return this.#askBlock(question, question.cid)
    const { upstream } = this.member
    if (!upstream.traits.dag) return this.#alone(question)
    this.#ask = question.within(() => upstream.askDag?.(this.#part, this) ?? pulled(upstream, this.#part, this))
    if (this.#isOver) this.#ask.stop()
    else if (this.#isPaused) this.#ask.pause()
  }

  refused(question: Question, error: Failure): void {
    this.#open.delete(question)
    this.#fail(error)
  }

  evicted(question: Question, reason: Failure): void {
    this.#fail(reason, question)
  }

  // The answer.

  came(block: Block, question?: Question): void {
    if (this.#isOver) return
    const { cid, bytes } = block
    if (isIdentity(cid) || !this.#flight.isExpected(cid)) return this.#passOver(bytes)
    if (this.#seen.has(cid)) return this.#passOverRepeated()
    if (!proves(cid, bytes)) return this.#fail(hashMismatch(this.member.upstream.name, cid), question)
    this.#seen.add(cid)
    this.#brought(bytes.byteLength, question)
    this.hasBegun = true
    const busy = this.#flight.take(this, block)
    if (busy === undefined) return this.#pauseUnwanted()
    this.#busy++
    this.#ask?.pause()
    busy.then(
      () => this.#free(),
      (error: unknown) => this.#fail(error),
    )
  }

  ended(): void {
    if (this.#isOver) return
    if (this.#isAlone || this.#seen.size > 0) return this.#finish()
    // The upstream may lack the root, or have it and not know how to read it; below a path it may also lack the path.
    const [question] = this.#open
    if (question && this.#part.segments.length === 0) return this.#alone(question)
    const what = `${this.member.upstream.name} sent an answer without ${this.#part.cid}`
    this.#fail(new Failure('not-found', what, { source: 'upstream' }))
  }

  failed(error: unknown): void {
    if (this.#isOver) return
    const [question] = this.#open
    if (!question || this.#seen.size > 0 || this.#isAlone || !isRefusalOfCar(error)) return this.#fail(error)
    if (!this.#blocks) return this.#alone(question)
    this.#open.clear()
    this.#ask?.stop()
    this.#ask = undefined
    question.failed(error, this.#flight.attempts.clock.monotonic())
    this.#leaves = this.#blocks
    this.#askLeaves()
  }

  #free(): void {
    if (--this.#busy > 0 || this.#isOver) return
    if (this.#hasAll) return this.#finish()
    if (this.#flight.isWanted) {
      this.#isPaused = false
      this.#ask?.resume()
    } else this.#isPaused = true
    if (this.#leaves) this.#askLeaves()
  }

  #pauseUnwanted(): void {
    if (this.#isOver || this.#flight.isWanted) return
    this.#isPaused = true
    this.#ask?.pause()
  }

  #passOver(bytes: Uint8Array): void {
    this.#useless++
    this.#uselessBytes += bytes.byteLength
    if (this.#useless <= maxUselessBlocks && this.#uselessBytes <= maxUselessBytes) return
    const what = `${this.member.upstream.name} keeps sending blocks that were not asked for`
    this.failed(new Failure('upstream-error', what, { source: 'upstream', facts: { refuses: 'format' } }))
  }

  /** A source that repeats one block endlessly brings nothing, but a file may repeat a block a few times. */
  #passOverRepeated(): void {
    if (++this.#useless <= maxUselessBlocks + this.#seen.size) return
    const what = `${this.member.upstream.name} keeps sending the same blocks`
    this.#fail(new Failure('upstream-error', what, { source: 'upstream' }))
  }

  /** An upstream that gives no CAR, or one without the root in it or with too much before it, is asked for the root alone. */
  #alone(question: Question): void {
    this.#isAlone = true
    this.#ask?.stop()
    this.#ask = undefined
    this.#askBlock(question, this.#part.cid)
  }

  #askBlock(question: Question, cid: CID): void {
    const answer = {
      came: (bytes: Uint8Array) => {
        this.came({ cid, bytes }, question)
        if (this.#leaves) this.#leafCame(question)
        else this.#haveAll()
      },
      failed: (error: unknown) => this.#fail(error, question),
    }
    const { upstream } = this.member
    question.within(() => this.#stops.set(question, askBlock(upstream, cid, answer)))
  }

  // Leaves, one by one.

  #askLeaves(): void {
    while (!this.#isOver && this.#flight.isWanted && this.#open.size < leavesAtOnce) {
      const cid = this.#leaves?.shift()
      if (!cid) break
      this.#enter(this.#flight.attempts.ask(this.member, 'block', cid, this))
    }
    if (this.#open.size === 0 && this.#leaves?.length === 0) this.#haveAll()
  }

  #leafCame(question: Question): void {
    if (this.#isOver) return
    this.#open.delete(question)
    this.#stops.delete(question)
    question.done(this.#flight.attempts.clock.monotonic())
    this.#askLeaves()
  }

  // Its account and its end.

  /** Wanted bytes came from here, or readers waited for them and none came. */
  #brought(bytes: number, question = this.#open.values().next().value): void {
    const { watch, attempts } = this.#flight
    const waitedMs = watch.ms - this.#toldAt
    this.#toldAt = watch.ms
    question?.brought(bytes, waitedMs, attempts.clock.monotonic())
  }

  /** It has brought its part, and whatever else the upstream sends is not wanted. */
  stop(): void {
    this.#end(lost, (question, now) => question.done(now))
  }

  letGo(why: LetGo): void {
    // Who is in the middle of a block when others have enough is no slower for it.
    if (why === 'behind') this.#brought(0)
    this.#end(lost, (question, now) => question.letGo(why, now))
  }

  /** The flight is over. */
  release(reason: Failure | undefined): void {
    const silentMs = this.pace.silentMs(this.startedAt)
    this.#brought(0)
    const { upstream } = this.member
    if (silentMs >= failedMs) {
      const what = `${upstream.name} stalled: no useful block for ${Math.round(silentMs)} ms`
      const stalled = new Failure('timeout', what, { source: 'upstream' })
      return this.#end(stalled, (question, now) => question.failed(stalled, now))
    }
    if (this.isLast && !this.isFollowing) return this.stop()
    if (reason) return this.#end(reason, (question, now) => question.failed(reason, now))
    this.#end(lost, (question, now) => question.letGo('enough', now))
  }

  /** Nothing more comes: it is over when the flight has taken what came. */
  #haveAll(): void {
    this.#hasAll = true
    if (!this.#isOver && this.#busy === 0) this.#finish()
  }

  #finish(): void {
    this.#end(undefined, (question, now) => question.done(now))
    this.#flight.ended(this)
  }

  /** `culprit`: of several leaves. */
  #fail(error: unknown, culprit?: Question): void {
    if (this.#isOver) return
    this.#end(error, (question, now) => {
      if (culprit === undefined || question === culprit) question.failed(error, now)
      else question.letGo('enough', now)
    })
    this.#flight.failed(this, error)
  }

  #end(why: unknown, each: (question: Question, now: number) => void): void {
    if (this.#isOver) return
    this.#isOver = true
    const now = this.#flight.attempts.clock.monotonic()
    for (const question of this.#open) each(question, now)
    this.#open.clear()
    this.#ask?.stop()
    for (const stop of this.#stops.values()) stop()
    this.#racer?.reject(why ?? lost)
  }

  // The race with others that bring the same.

  racer(): Racer {
    const deferred = Promise.withResolvers<DagQuestion>()
    this.#racer = deferred
    this.missedBlocks = this.missedBytes = 0
    this.hasLed = this.isFollowing = false
    deferred.promise.catch(() => {})
    // p-any stops the losers by calling `cancel` on them.
    return Object.assign(deferred.promise, { cancel: () => this.#flight.lost(this) })
  }

  get isRacing(): boolean {
    return this.#racer !== undefined
  }

  win(): void {
    this.#racer?.resolve(this)
    this.#racer = undefined
  }
}

function askBlock(upstream: Upstream, cid: CID, answer: Parameters<NonNullable<Upstream['ask']>>[1]): () => void {
  if (upstream.ask) return upstream.ask(cid, answer)
  const own = new AbortController()
  upstream.block(cid, own.signal).then(
    (bytes) => answer.came(bytes),
    (error: unknown) => answer.failed(error),
  )
  return () => own.abort(lost)
}

/** Pulls the blocks of an upstream that gives them as an iterable. */
function pulled(upstream: Upstream, want: DagWant, answer: DagAnswer): DagAsk {
  const own = new AbortController()
  const blocks = upstream.dag(want, own.signal)[Symbol.asyncIterator]()
  let isPaused = false
  let isPulling = false
  async function pull(): Promise<void> {
    if (isPulling) return
    isPulling = true
    try {
      while (!isPaused && !own.signal.aborted) {
        const { value, done } = await blocks.next()
        if (own.signal.aborted) return
        if (done) return answer.ended()
        answer.came(value)
      }
    } catch (error) {
      if (!own.signal.aborted) answer.failed(error)
    } finally {
      isPulling = false
    }
  }
  void pull()
  return {
    pause() {
      isPaused = true
    },
    resume() {
      isPaused = false
      void pull()
    },
    stop: () => own.abort(lost),
  }
}

/** A gateway that speaks no CAR says so in one of these ways, or sends one that is of no use; it may still have the block. */
const isRefusalOfCar = (error: unknown): boolean => isFailure(error) && error.facts.refuses === 'format'
