// One upstream at work for a flight: it is asked for one block, for a part of a DAG as a CAR, or
// for the leaves of that part one by one where it serves single blocks alone. The flight gets
// proved blocks that belong to what it wants. Blocks that do not belong there are skipped within
// bounds, by number as well as by bytes: a response may be endless and cost its sender nothing.
import type { CID } from 'multiformats/cid'
import type { BlockAnswer, DagAnswer, DagAsk, DagWant, Upstream } from '../../../backends/upstreams/contract.ts'
import { type Block, isIdentity, proves } from '../../core/cid.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { type CidSet, createCidSet } from '../../ipld/cid-set.ts'
import type { Asker, LetGo, Question } from '../upstreams/attempts.ts'
import type { Member, Step } from '../upstreams/pool.ts'
import type { Flight } from './flight.ts'
import { failedMs, Pace } from './pace.ts'

/** Bytes of the file from the first up to, not including, the last. */
export type Span = { readonly from: number; readonly to: number }

/** A stream as p-any sees it. */
export type Racer = Promise<UpstreamStream> & { cancel(): void }

const maxUselessBlocks = 4096
const maxUselessBytes = 4 * 1024 * 1024
const maxLeafRequests = 6

export class UpstreamStream implements Asker, DagAnswer {
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
  /** On the clock of the readers: when it was asked. */
  startedAt: number
  hasBegun = false
  /** Brought by others in its part since the race began. */
  missedBlocks = 0
  missedBytes = 0
  /** It brought a part of that first. */
  hasLed = false
  /** It brought a part of that later. */
  isFollowing = false
  /** The newest block of its part came from here. */
  isLast = false
  /** Bytes that lie before its part. */
  strayBytes = 0
  /** The block with which it won, in a race for a single one. */
  won: Uint8Array | undefined
  readonly #flight: Flight
  readonly #part: DagWant
  /** Its part, where that consists of single blocks. */
  readonly #blocks: readonly CID[] | undefined
  /** The blocks still to be asked for, one by one. */
  #leaves: CID[] | undefined
  /** Its open questions, and how each is stopped. */
  readonly #open = new Map<Question, (() => void) | undefined>()
  #seen: CidSet | undefined
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
  #racer: PromiseWithResolvers<UpstreamStream> | undefined

  constructor(flight: Flight, { who, hedgeDelayMs }: Step<Member>, part: DagWant, span: Span, blocks?: readonly CID[]) {
    this.#flight = flight
    this.member = who
    this.hedgeDelayMs = hedgeDelayMs
    this.#part = part
    this.#blocks = blocks
    if (flight.kind === 'block' || !who.upstream.traits.dag) this.#leaves = blocks && [...blocks]
    this.from = this.at = span.from
    this.to = this.askedTo = span.to
    this.pace = new Pace(flight.watch)
    this.startedAt = this.#toldAt = this.pace.beganAt
  }

  begin(): void {
    if (this.#leaves) this.#askLeaves()
    else this.#enter('dag', this.#part.cid)
  }

  /** It may begin, or be refused, before `ask` returns. */
  #enter(kind: 'block' | 'dag', cid: CID): void {
    const question = this.#flight.attempts.ask(this.member, kind, cid, this)
    if (!this.#isOver && !question.isOver && !this.#open.has(question)) this.#open.set(question, undefined)
  }

  covers(from: number): boolean {
    return this.from <= from && from < this.to
  }

  /** The rest of its part takes less time than the next request takes to begin. */
  get isNearlyDone(): boolean {
    const { rate } = this.pace
    if (rate === undefined || this.#leaves || !Number.isFinite(this.askedTo)) return false
    return (this.to - this.at) / rate <= this.member.health.expectedMs('dag', 0)
  }

  /** It waits for its slot at the upstream, which has not been asked yet. */
  get isQueued(): boolean {
    return this.#open.size > 0 && [...this.#open.keys()].every(({ isQueued }) => isQueued)
  }

  /** Resumes, where it was paused and is wanted. */
  wake(): void {
    if (this.#isOver || this.#busy > 0 || !this.#flight.isWanted) return
    if (this.#leaves) return this.#askLeaves()
    if (!this.#isPaused) return
    this.#isPaused = false
    this.#ask?.resume()
  }

  // Its questions.

  begun(question: Question): void {
    if (this.#isOver) return
    this.#open.set(question, undefined)
    if (this.#open.size === 1) this.startedAt = this.#toldAt = this.#flight.watch.ms
    if (this.#leaves) return this.#askBlock(question, question.cid)
    const { upstream } = this.member
    if (!upstream.traits.dag) return this.#askAlone(question)
    this.#ask = question.within(() => upstream.askDag?.(this.#part, this) ?? pulled(upstream, this.#part, this))
    if (this.#isOver) this.#ask.stop()
    else if (this.#isPaused) this.#ask.pause()
  }

  refused(question: Question, error: Failure): void {
    this.#open.get(question)?.()
    this.#open.delete(question)
    this.#fail(error)
  }

  // A CAR.

  came(block: Block): void {
    if (this.#isOver) return
    const { cid, bytes } = block
    if (isIdentity(cid) || !this.#flight.isExpected(cid)) return this.#skip(bytes)
    this.#seen ??= createCidSet()
    if (this.#seen.has(cid)) return this.#skipRepeated(this.#seen.size)
    if (!proves(cid, bytes)) return this.#fail(hashMismatch(this.member.upstream.name, cid))
    this.#seen.add(cid)
    this.#brought(bytes.byteLength)
    this.#take(block)
    if (!this.#isOver && this.#busy === 0 && !this.#flight.isWanted) this.#pause()
  }

  ended(): void {
    if (this.#isOver) return
    if (this.#isAlone || this.hasBegun) return this.#haveAll()
    // The upstream may lack the root, or have it and not know how to read it; below a path it may
    // also lack the path.
    const [question] = this.#open.keys()
    if (question && this.#part.segments.length === 0) return this.#askAlone(question)
    const what = `${this.member.upstream.name} sent an answer without ${this.#part.cid}`
    this.#fail(new Failure('not-found', what, { source: 'upstream' }))
  }

  failed(error: unknown): void {
    if (this.#isOver) return
    const [question] = this.#open.keys()
    if (!question || this.hasBegun || this.#isAlone || !isRefusalOfCar(error)) return this.#fail(error)
    if (!this.#blocks) return this.#askAlone(question)
    this.#open.clear()
    this.#ask?.stop()
    this.#ask = undefined
    question.failed(error, this.#now)
    this.#leaves = [...this.#blocks]
    this.#askLeaves()
  }

  #take(block: Block): void {
    this.hasBegun = true
    const busy = this.#flight.take(this, block)
    if (busy === undefined) return
    this.#busy++
    this.#ask?.pause()
    busy.then(
      () => this.#free(),
      (error: unknown) => this.#fail(error),
    )
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

  #pause(): void {
    this.#isPaused = true
    this.#ask?.pause()
  }

  #skip(bytes: Uint8Array): void {
    this.#useless++
    this.#uselessBytes += bytes.byteLength
    if (this.#useless <= maxUselessBlocks && this.#uselessBytes <= maxUselessBytes) return
    const what = `${this.member.upstream.name} keeps sending blocks that were not asked for`
    this.failed(new Failure('upstream-error', what, { source: 'upstream', facts: { refuses: 'format' } }))
  }

  /** A file may repeat a block; a response that repeats one endlessly brings nothing. */
  #skipRepeated(seen: number): void {
    if (++this.#useless <= maxUselessBlocks + seen) return
    const what = `${this.member.upstream.name} keeps sending the same blocks`
    this.#fail(new Failure('upstream-error', what, { source: 'upstream' }))
  }

  // Single blocks.

  /**
   * The root by itself: the upstream serves no CAR, or one without the root in it, or with too much
   * before it.
   */
  #askAlone(question: Question): void {
    this.#isAlone = true
    this.#ask?.stop()
    this.#ask = undefined
    this.#askBlock(question, this.#part.cid)
  }

  #askLeaves(): void {
    while (!this.#isOver && this.#flight.isWanted && this.#open.size < maxLeafRequests) {
      const cid = this.#leaves?.shift()
      if (!cid) break
      this.#enter('block', cid)
    }
    if (this.#open.size === 0 && this.#leaves?.length === 0) this.#haveAll()
  }

  #askBlock(question: Question, cid: CID): void {
    const answer = {
      came: (bytes: Uint8Array) => this.#blockCame(question, { cid, bytes }),
      failed: (error: unknown) => this.#fail(error, question),
    }
    const stop = question.within(() => askBlock(this.member.upstream, cid, answer))
    if (this.#open.has(question)) this.#open.set(question, stop)
  }

  #blockCame(question: Question, block: Block): void {
    if (this.#isOver) return
    const { cid, bytes } = block
    if (!proves(cid, bytes)) return this.#fail(hashMismatch(this.member.upstream.name, cid), question)
    this.#brought(bytes.byteLength, question)
    this.#open.delete(question)
    question.done(this.#now)
    this.#take(block)
    if (this.#leaves) this.#askLeaves()
    else this.#haveAll()
  }

  // Its account and its end.

  get #now(): number {
    return this.#flight.attempts.clock.monotonic()
  }

  /** Wanted bytes came from here, or readers waited for them and none came. */
  #brought(bytes: number, question = this.#open.keys().next().value): void {
    const { ms } = this.#flight.watch
    const waitedMs = ms - this.#toldAt
    this.#toldAt = ms
    question?.brought(bytes, waitedMs, this.#now)
  }

  /** It has brought its part: the rest of its response is not wanted. */
  stop(): void {
    this.#end(lost, (question, now) => question.done(now))
  }

  letGo(why: LetGo): void {
    // An upstream in the middle of a block when others have enough is no slower for it.
    if (why === 'behind') this.#brought(0)
    this.#end(lost, (question, now) => question.letGo(why, now))
  }

  /** The flight is over. */
  release(reason: Failure | undefined): void {
    if (this.#isOver) return
    if (this.#flight.kind === 'dag') {
      const silentMs = this.pace.silentMs(this.startedAt)
      this.#brought(0)
      if (silentMs >= failedMs) {
        const what = `${this.member.upstream.name} stalled: no useful block for ${Math.round(silentMs)} ms`
        const stalled = new Failure('timeout', what, { source: 'upstream' })
        return this.#end(stalled, (question, now) => question.failed(stalled, now))
      }
      if (this.isLast && !this.isFollowing) return this.stop()
    }
    if (reason) this.#end(reason, (question, now) => question.failed(reason, now))
    else this.letGo('enough')
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
    const now = this.#now
    for (const [question, stop] of this.#open) {
      each(question, now)
      stop?.()
    }
    this.#open.clear()
    this.#ask?.stop()
    this.#racer?.reject(why ?? lost)
  }

  // The race with others that bring the same.

  racer(): Racer {
    this.#racer = Promise.withResolvers()
    this.missedBlocks = this.missedBytes = 0
    this.hasLed = this.isFollowing = false
    this.#racer.promise.catch(() => {})
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

function askBlock(upstream: Upstream, cid: CID, answer: BlockAnswer): () => void {
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

/**
 * The reason a losing question is stopped with: it counts as slower than the winner, not as a
 * failure.
 */
const lost: Failure = new Failure('cancelled', 'another upstream was faster', { source: 'ours' })

const hashMismatch = (upstream: string, cid: CID): Failure =>
  new Failure('hash-mismatch', `${upstream} sent bytes that do not hash to ${cid}`, { source: 'upstream' })

/**
 * A gateway that speaks no CAR says so in one of these ways, or sends one that is of no use; it may
 * still have the block.
 */
const isRefusalOfCar = (error: unknown): boolean => isFailure(error) && error.facts.refuses === 'format'
