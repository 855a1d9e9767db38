// One upstream at work for a flight: it is asked for a part of a DAG as a CAR, or for single blocks
// one by one. The flight gets proved blocks that belong to what it wants. Blocks that do not belong
// there are skipped within bounds, by number as well as by bytes: a response may be endless and cost
// its sender nothing.
import type { CID } from 'multiformats/cid'
import type { DagWant, UpstreamAnswer } from '../../../backends/upstreams/contract.ts'
import { type Block, isIdentity, proves } from '../../core/cid.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { type CidSet, createCidSet } from '../../ipld/cid-set.ts'
import type { Asker, Ended, LetGo, Question } from '../upstreams/attempts.ts'
import { stalledMs } from '../upstreams/estimates.ts'
import type { Member, Step } from '../upstreams/pool.ts'
import type { Flight } from './flight.ts'
import { Pace } from './pace.ts'

/** Bytes of the file from the first up to, not including, the last. */
export type Span = { readonly from: number; readonly to: number }

/** A stream as p-any sees it. */
type Racer = Promise<UpstreamStream> & { cancel(): void }

const maxUselessBytes = 1024 * 1024
// A block counts as so many bytes at least: an empty one costs its sender nothing.
const minBlockBytes = 256
const maxLeafRequests = 6

export class UpstreamStream implements Asker, UpstreamAnswer {
  readonly member: Member
  readonly pace: Pace
  readonly hedgeDelayMs: number
  readonly from: number
  /** The end of the range that the upstream was asked for. */
  readonly askedTo: number
  /** The end of its part: before `askedTo` where another upstream brings the rest. */
  to: number
  /** The end of what it has brought. */
  at: number
  hasBegun = false
  /** Brought by others in its part since it entered its race. */
  missedBytes = 0
  /** The block with which it won, in a race for a single one. */
  won: Block | undefined
  readonly #flight: Flight
  readonly #part: DagWant
  /** Its part, where that consists of single blocks. */
  readonly #blocks: readonly CID[] | undefined
  /** The blocks still to be asked for, one by one; undefined: it is asked for a CAR. */
  #leaves: CID[] | undefined
  readonly #open = new Set<Question>()
  #seen: CidSet | undefined
  /** Blocks that the flight is taking. */
  #busy = 0
  #hasAll = false
  #isOver = false
  #uselessLeft = maxUselessBytes
  #toldAt: number
  #racer: PromiseWithResolvers<UpstreamStream> | undefined

  constructor(flight: Flight, { who, hedgeDelayMs }: Step<Member>, part: DagWant, span: Span, blocks?: readonly CID[]) {
    this.#flight = flight
    this.member = who
    this.hedgeDelayMs = hedgeDelayMs
    this.#part = part
    this.#blocks = blocks
    if (flight.kind === 'block' || !who.upstream.traits.dag) this.#leaves = [...(blocks ?? [part.cid])]
    this.from = this.at = span.from
    this.to = this.askedTo = span.to
    this.pace = new Pace(flight.watch)
    this.#toldAt = this.pace.beganAt
  }

  begin(): void {
    if (this.#leaves) this.flow()
    else this.#enter('dag', this.#part.cid)
  }

  /** It may begin, or be refused, before `ask` returns. */
  #enter(kind: 'block' | 'dag', cid: CID): void {
    const question = this.#flight.attempts.ask(this.member, kind, cid, this)
    if (!this.#isOver && !question.isOver) this.#open.add(question)
  }

  covers(from: number): boolean {
    return this.from <= from && from < this.to
  }

  /** It waits for its slot at the upstream, which has not been asked yet. */
  get isQueued(): boolean {
    return this.#open.size > 0 && [...this.#open].every(({ isQueued }) => isQueued)
  }

  /** Reads on while a reader waits, and the flight has taken what came. */
  flow(): void {
    if (this.#isOver) return
    const { isWanted } = this.#flight
    const leaves = this.#leaves
    while (isWanted && leaves && leaves.length > 0 && this.#open.size < maxLeafRequests && !this.#isOver)
      this.#enter('block', leaves.shift() as CID)
    this.#hasAll ||= leaves?.length === 0 && this.#open.size === 0
    if (this.#hasAll && this.#busy === 0) return this.#finish()
    if (leaves) return
    for (const { request } of this.#open)
      if (isWanted && this.#busy === 0) request?.resume()
      else request?.pause()
  }

  // Its questions.

  begun(question: Question): void {
    if (this.#isOver) return
    this.#open.add(question)
    if (this.#open.size === 1) this.pace.beganAt = this.#toldAt = this.#flight.watch.ms
    if (this.#leaves) this.#askBlock(question, question.cid)
    // It refused CARs while this question was in the queue.
    else if (!this.member.upstream.traits.dag) this.#askAlone(question)
    else {
      this.#send(question, this.#part, this)
      this.flow()
    }
  }

  refused(question: Question, error: Failure): void {
    question.request?.stop()
    this.#open.delete(question)
    this.#fail(error)
  }

  #send(question: Question, want: DagWant, answer: UpstreamAnswer): void {
    try {
      const request = question.within(() => this.member.upstream.ask(want, answer))
      if (this.#open.has(question)) question.request = request
      else request.stop()
    } catch (error) {
      this.#fail(error, question)
    }
  }

  // A CAR.

  came(block: Block): void {
    if (this.#isOver) return
    const { cid, bytes } = block
    const { name } = this.member.upstream
    if (isIdentity(cid) || !this.#flight.isExpected(cid)) {
      if (!this.wastes(bytes.byteLength)) return
      return this.failed(broken(`${name} keeps sending blocks that were not asked for`, { refuses: 'format' }))
    }
    this.#seen ??= createCidSet()
    if (this.#seen.has(cid)) {
      if (this.wastes(0)) this.#fail(broken(`${name} keeps sending the same blocks`))
      return
    }
    if (!proves(cid, bytes)) return this.#fail(hashMismatch(name, cid))
    this.#seen.add(cid)
    // A file may repeat each block.
    this.#uselessLeft += minBlockBytes
    this.#brought(bytes.byteLength)
    this.#take(block)
    this.flow()
  }

  ended(): void {
    if (this.#isOver) return
    if (this.hasBegun) {
      this.#hasAll = true
      return this.flow()
    }
    // The upstream may lack the root, or have it and not know how to read it; below a path it may
    // also lack the path.
    const [question] = this.#open
    if (question && this.#part.segments.length === 0) return this.#askAlone(question)
    this.#fail(without(this.member.upstream.name, this.#part.cid))
  }

  failed(error: unknown): void {
    if (this.#isOver) return
    const [question] = this.#open
    if (question && !this.hasBegun && isRefusalOfCar(error)) this.#askAlone(question)
    else this.#fail(error)
  }

  #take(block: Block): void {
    this.hasBegun = true
    const busy = this.#flight.take(this, block)
    if (busy === undefined) return
    this.#busy++
    busy.then(
      () => {
        this.#busy--
        this.flow()
      },
      (error: unknown) => this.#fail(error),
    )
  }

  /** Counts a block that is of no use. True: a response may not have so many of them. */
  wastes(bytes: number): boolean {
    this.#uselessLeft -= Math.max(bytes, minBlockBytes)
    return this.#uselessLeft < 0
  }

  // Single blocks.

  /**
   * The blocks one by one: the upstream serves no CAR, or one without the root in it, or with too
   * much before it.
   */
  #askAlone(question: Question): void {
    question.request?.stop()
    const [first = this.#part.cid, ...leaves] = this.#blocks ?? []
    this.#leaves = leaves
    this.#askBlock(question, first)
    this.flow()
  }

  #askBlock(question: Question, cid: CID): void {
    const { name } = this.member.upstream
    this.#send(question, alone(cid), {
      came: ({ bytes }) => this.#blockCame(question, { cid, bytes }),
      ended: () => this.#open.has(question) && this.#fail(without(name, cid), question),
      failed: (error) => this.#fail(error, question),
    })
  }

  #blockCame(question: Question, block: Block): void {
    if (this.#isOver) return
    const { cid, bytes } = block
    if (!proves(cid, bytes)) return this.#fail(hashMismatch(this.member.upstream.name, cid), question)
    this.#brought(bytes.byteLength, question)
    this.#open.delete(question)
    question.end('enough', this.#now)
    this.#take(block)
    this.flow()
  }

  // Its request record and its end.

  get #now(): number {
    return this.#flight.attempts.clock.monotonic()
  }

  /** Wanted bytes came from here, or readers waited for them and none came. */
  #brought(bytes: number, question = this.#open.values().next().value): void {
    const { ms } = this.#flight.watch
    const waitedMs = ms - this.#toldAt
    this.#toldAt = ms
    question?.brought(bytes, waitedMs, this.#now)
  }

  letGo(why: LetGo): void {
    // An upstream in the middle of a block when others have enough is no slower for it.
    if (why === 'behind') this.#brought(0)
    this.#end(why)
  }

  /** The flight is over. */
  release(reason: Failure | undefined): void {
    if (this.#isOver) return
    const silentMs = this.pace.silentMs()
    let error = this.hasBegun ? undefined : reason
    if (this.#flight.kind === 'dag') {
      this.#brought(0)
      const what = `${this.member.upstream.name} stalled: no useful block for ${Math.round(silentMs)} ms`
      if (silentMs >= stalledMs) error = new Failure('timeout', what, { source: 'upstream' })
    }
    this.#end(error ? 'failed' : 'enough', error)
  }

  #finish(): void {
    this.#end('enough')
    this.#flight.ended(this)
  }

  /** `culprit`: of several leaves. */
  #fail(error: unknown, culprit?: Question): void {
    if (this.#isOver) return
    this.#end('failed', error, culprit)
    this.#flight.failed(this, error)
  }

  #end(how: Ended, error?: unknown, culprit?: Question): void {
    if (this.#isOver) return
    this.#isOver = true
    const now = this.#now
    for (const question of this.#open) {
      if (culprit === undefined || question === culprit) question.end(how, now, error)
      else question.end('enough', now)
      question.request?.stop()
    }
    this.#open.clear()
    this.#racer?.reject(error ?? lost)
  }

  // The race with others that bring the same.

  /** It may be in several races: each that joins begins one more. */
  racer(): Racer {
    if (!this.#racer) {
      this.#racer = Promise.withResolvers()
      this.missedBytes = 0
      this.#racer.promise.catch(() => {})
    }
    // p-any stops the losers by calling `cancel` on them.
    return Object.assign(this.#racer.promise, { cancel: () => this.#flight.lost(this) })
  }

  get isRacing(): boolean {
    return this.#racer !== undefined
  }

  win(): void {
    this.#racer?.resolve(this)
    this.#racer = undefined
  }
}

const alone = (cid: CID): DagWant => ({ cid, segments: [], scope: 'block' })

/** For p-any: the stream ended without a failure of its own. */
const lost: Failure = new Failure('cancelled', 'another upstream was faster', { source: 'ours' })

const broken = (what: string, facts: { refuses?: 'format' } = {}): Failure =>
  new Failure('upstream-error', what, { source: 'upstream', facts })

const without = (upstream: string, cid: CID): Failure =>
  new Failure('not-found', `${upstream} sent an answer without ${cid}`, { source: 'upstream' })

const hashMismatch = (upstream: string, cid: CID): Failure =>
  new Failure('hash-mismatch', `${upstream} sent bytes that do not hash to ${cid}`, { source: 'upstream' })

/**
 * A gateway that speaks no CAR says so in one of these ways, or sends one that is of no use; it may
 * still have the block.
 */
const isRefusalOfCar = (error: unknown): boolean => isFailure(error) && error.facts.refuses === 'format'
