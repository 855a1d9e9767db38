// The reader of one request. A block is returned at once where the reader has it: asked for ahead
// (read-ahead.ts), in memory, or on a page of the disk that is in memory. Otherwise a `BlockRead`
// goes on to the next source where the one before had nothing:
//
//   flight that this reader follows ─► slow tiers ─► negative cache ─► flight of the block or DAG
//                                         └── late ──► beside them, until one has it
//   and before "not found" of a block that may be here: the tiers once more
import type { CID } from 'multiformats/cid'
import { blockKey, codec, isIdentity, isProvable } from '../core/cid.ts'
import { after, type Clock, orAborted, type Soon, withDeadline } from '../core/clock.ts'
import type { Peeked, PeekOptions } from '../core/disk/peeked.ts'
import { cancelled, Failure, isFailure } from '../core/failure.ts'
import { largeNodeBytes, type NodeMemory } from '../ipld/node-memory.ts'
import type { Flight, FlightReader } from './flight/flight.ts'
import type { LoopScheduler } from './loop-scheduler.ts'
import { type Absence, isAbsence, type NegativeCache, pathOf, type Searches } from './negative-cache.ts'
import { ReadAhead, type ReadAheadBudget } from './read-ahead.ts'
import { type DagWant, type Expected, Guard, type Place, type Session, type SessionOptions } from './session.ts'
import type { TierHit, TierLookup, TierStack } from './tiers/tier-stack.ts'
import { type AskKind, outcomeOf, overloaded, type Wanting } from './upstreams/attempts.ts'
import type { Pool } from './upstreams/pool.ts'

/** The parts that all requests share. */
export type ReaderParts = {
  readonly stack: TierStack
  readonly pool: Pool
  readonly clock: Clock
  readonly notFound: NegativeCache
  readonly searches: Searches
  readonly readAhead: ReadAheadBudget
  readonly nodes: NodeMemory
  readonly turns: LoopScheduler
  /** Until the first byte. */
  readonly deadlineMs: number
  /** For each block after it: long enough to notice a stall and ask another upstream. */
  readonly blockDeadlineMs: number
  /** The flight for the same path, scope and range, or a new one. */
  flight(kind: AskKind, want: DagWant, asker: Wanting): Flight
  /** Another reader's flight that will still bring this block. */
  flightWith(cid: CID): Flight | undefined
}

/** Tiers have this long to answer once more before a block is denied. */
const lastLookupMs = 200

const isSameBlock = (one: CID, other: CID): boolean => blockKey(one) === blockKey(other)

/** Opens the session of one request, until its `end`. */
export const openReader = (options: SessionOptions, shared: ReaderParts): Session => new Reader(options, shared)

class Reader extends Guard implements Session {
  readonly readNode: Session['readNode']
  readonly readOnce: Session['readOnce']
  readonly yieldIfDue: Session['yieldIfDue']
  readonly options: SessionOptions
  readonly shared: ReaderParts
  readonly signal: AbortSignal
  /** The first byte went out. */
  hasBegun = false
  #isCharged = false
  readonly #deadlineAt: number
  /** Made when the reader first says what comes next: a file of one block has nothing ahead. */
  #ahead: ReadAhead | undefined
  #isOver = false
  /** The first CID that was requested. */
  #root: CID | undefined
  /** The block that was not at hand a moment ago: until another task runs, it still is not. */
  #lacked: CID | undefined
  #lastFrom: 'nowhere' | 'tier' | 'upstream' = 'nowhere'
  /** One flight at a time brings the next block and those behind it. */
  #followed: Flight | undefined
  /** Its attempts are in the request record. */
  #noted: Flight | undefined
  /** The blocks that it waits for. */
  readonly reads = new Set<BlockRead>()

  constructor(options: SessionOptions, shared: ReaderParts) {
    super(options)
    this.shared = shared
    this.signal = options.signal
    this.readNode = shared.nodes.readNode
    this.readOnce = shared.nodes.readOnce
    this.yieldIfDue = shared.turns.yieldIfDue
    this.options = options
    this.#deadlineAt = shared.clock.monotonic() + shared.deadlineMs - (options.waitedMs ?? 0)
  }

  get(cid: CID, around?: Place): Soon<Uint8Array> {
    const turn = this.yieldIfDue()
    return turn === undefined ? this.#get(cid, around) : turn.then(() => this.#get(cid, around))
  }

  peek(cid: CID, options?: PeekOptions): Peeked | undefined {
    this.check(cid)
    this.#root ??= cid
    const isElsewhere = this.#isOver || isIdentity(cid) || !isProvable(cid) || this.#ahead?.has(cid)
    return isElsewhere ? undefined : this.#peek(cid, options)
  }

  expect(next: Iterable<Expected>): void {
    if (this.#isOver) return
    this.#ahead ??= new ReadAhead({
      fetch: async (cid, around) => this.near(cid) ?? this.#read(cid, around),
      check: (cid) => this.check(cid),
      budget: this.shared.readAhead,
      clock: this.shared.clock,
    })
    this.#ahead.expect(next)
  }

  async has(cid: CID): Promise<boolean> {
    return isIdentity(cid) || (await this.shared.stack.find(cid, this.signal)) !== undefined
  }

  begun(): void {
    this.hasBegun = true
  }

  end(): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#ahead?.end()
    this.#giveUp()
    this.signal.removeEventListener('abort', this.#giveUp)
    this.leaveFlight(this.#followed)
  }

  #get(cid: CID, around: Place | undefined): Soon<Uint8Array> {
    if (this.#isOver) throw cancelled('the request is over')
    this.check(cid)
    this.#root ??= cid
    if (!isProvable(cid)) throw unprovable(cid)
    if (isIdentity(cid)) return cid.multihash.digest
    const bytes = this.#ahead?.take(cid) ?? this.#peek(cid)?.bytes ?? this.#read(cid, around)
    return cid.code === codec.dagPb ? after(bytes, (all) => this.#prepared(cid, all)) : bytes
  }

  /** Decodes in slices what takes long to decode. */
  #prepared(cid: CID, bytes: Uint8Array): Soon<Uint8Array> {
    if (bytes.byteLength < largeNodeBytes) return bytes
    return this.shared.nodes.prepare(cid, bytes, this.yieldIfDue).then(() => bytes)
  }

  #peek(cid: CID, options?: PeekOptions): Peeked | undefined {
    this.signal.throwIfAborted()
    if (cid === this.#lacked) return undefined
    const held = this.shared.stack.peek(cid, options)
    if (held) this.fromTier(held)
    else {
      this.#lacked = cid
      void Promise.resolve().then(this.#forgetLacked)
    }
    return held
  }

  readonly #forgetLacked = (): void => {
    this.#lacked = undefined
  }

  /** Also a block that came while this reader waited for something else. */
  near(cid: CID): Uint8Array | undefined {
    const held = this.shared.stack.near(cid)
    return held && this.fromTier(held)
  }

  fromTier({ bytes, tier }: TierHit): Uint8Array {
    this.options.requestRecord.tierHit(tier)
    this.#lastFrom = 'tier'
    return bytes
  }

  #read(cid: CID, around: Place | undefined): Promise<Uint8Array> {
    if (this.signal.aborted) return Promise.reject(this.reason)
    // Once, however many there are.
    if (this.reads.size === 0) this.signal.addEventListener('abort', this.#giveUp)
    return new BlockRead(this, cid).begin(around)
  }

  readonly #giveUp = (): void => {
    for (const read of this.reads) read.giveUp(this.reason)
  }

  // Flights.

  get asker(): Wanting {
    const hasBegun = this.hasBegun || this.#lastFrom === 'upstream'
    return { client: this.options.client ?? '', hasBegun, root: this.#root }
  }

  get followed(): Flight | undefined {
    if (this.#followed?.isOver) this.leaveFlight(this.#followed)
    return this.#followed
  }

  leaveFlight(flight: Flight | undefined): void {
    if (!flight || flight !== this.#followed) return
    // The parts of a file, and the upstreams that brought them.
    if (this.options.requestRecord.brought.length > 1) this.note(flight)
    this.#followed = undefined
    flight.unfollow()
  }

  #follow(flight: Flight): Flight {
    flight.follow()
    return (this.#followed = flight)
  }

  /**
   * The flight that brings the block with those that follow it. Undefined: the block is requested
   * alone.
   */
  chooseFlight(cid: CID, around: DagWant): Flight | undefined {
    if (this.followed) return this.followed
    const lastFrom = this.#lastFrom
    // A reader that caught up with another one's flight goes on in it.
    const flight = lastFrom === 'nowhere' ? undefined : this.shared.flightWith(cid)
    if (flight) return this.#follow(flight)
    // One leaf missing between others that are here costs one block, not a response with everything
    // after it. If a single block is wanted, a CAR is the wrong question too: upstreams leave out
    // blocks that do not decode.
    const isItself = around.segments.length === 0 && isSameBlock(cid, around.cid)
    const isAlone = cid.code === codec.raw ? lastFrom === 'tier' || isItself : around.scope === 'block' && isItself
    if (isAlone || (lastFrom !== 'nowhere' && !this.#knowsDags(cid))) return undefined
    return this.#follow(this.shared.flight('dag', around, this.asker))
  }

  /** An upstream may be asked for more than single blocks now. */
  #knowsDags(cid: CID): boolean {
    const key = blockKey(cid)
    const members = this.shared.pool.of(this.#root ?? cid)
    return members.some(({ upstream, health }) => upstream.traits.dag && health.state(key).state === 'ready')
  }

  fromUpstream(bytes: Uint8Array, upstream: string): Uint8Array {
    this.options.requestRecord.fetched(upstream, bytes.byteLength)
    this.#lastFrom = 'upstream'
    return bytes
  }

  // The deadline: one for everything until the first byte goes out, then one for each block.

  get remainingMs(): number {
    const { clock, blockDeadlineMs } = this.shared
    return this.hasBegun ? blockDeadlineMs : Math.max(0, this.#deadlineAt - clock.monotonic())
  }

  /** Less than half of the time is left: a 404 from here on is no proof of absence. */
  get isPastHalf(): boolean {
    return this.#deadlineAt - this.shared.clock.monotonic() < this.shared.deadlineMs / 2
  }

  get reason(): Failure {
    return isFailure(this.signal.reason) ? this.signal.reason : cancelled()
  }

  /** Once, and not after the first byte: the client asks for something that has to be fetched. */
  charge(): void {
    const isFirst = !this.#isCharged
    this.#isCharged = true
    if (isFirst) this.options.beforeMiss?.()
  }

  /** Its attempts go into the request record once, however many blocks fail with it. */
  note(flight: Flight): void {
    if (this.#noted === flight) return
    this.#noted = flight
    for (const attempt of flight.attempts.list()) this.options.requestRecord.attempt(attempt)
  }
}

/** For a block in a flight. `around`: undefined in a flight of its own. */
type Wait = {
  readonly flight: Flight
  readonly around: Place | undefined
  readonly resolve: (bytes: Uint8Array | undefined) => void
  readonly reject: (failure: Failure) => void
}

/** The wait for one block: one deadline, whichever source has it, and a last look at the tiers. */
class BlockRead implements FlightReader {
  readonly #reader: Reader
  readonly #cid: CID
  readonly #result = Promise.withResolvers<Uint8Array>()
  #lookup: TierLookup | undefined
  #wait: Wait | undefined
  /** Too little time was left when it began to wait. */
  #beganLate = false
  /** No upstream has it; late tiers may. */
  #failure: Failure | undefined
  #stopTimer: (() => void) | undefined
  #isOver = false

  constructor(reader: Reader, cid: CID) {
    this.#reader = reader
    this.#cid = cid
  }

  begin(around: Place | undefined): Promise<Uint8Array> {
    this.#reader.reads.add(this)
    this.#beganLate = this.#reader.isPastHalf
    this.#startDeadline()
    this.#bring(around).then(this.#succeed, this.#failed)
    return this.#result.promise
  }

  /** One source after the other; late tiers go on beside upstreams. */
  async #bring(around: Place | undefined): Promise<Uint8Array> {
    const reader = this.#reader
    const { followed, options, shared } = reader
    const { onlyIfCached } = options
    const cid = this.#cid
    const isExpected = around !== undefined && followed?.expects(cid) === true
    const came = isExpected ? await this.#waitIn(followed, around) : undefined
    if (came) return came
    this.#throwIfOver()
    const lookup = (this.#lookup = shared.stack.look(cid))
    const hit = lookup && (await (onlyIfCached ? lookup.found : Promise.race([lookup.found, lookup.overdue])))
    if (hit) return reader.fromTier(hit)
    if (onlyIfCached) throw notCached(cid)
    this.#throwIfOver()
    const near = reader.near(cid)
    if (near) return near
    const brought = this.#fromUpstreams(isExpected ? undefined : around)
    if (!lookup) return await brought
    // Late tiers may not answer before the deadline.
    brought.catch((error: unknown) => isFailure(error) && (this.#failure = error))
    const late = lookup.found.then((found) => {
      if (!found) throw notCached(cid)
      shared.notFound.forget(cid)
      return reader.fromTier(found)
    })
    return Promise.any([brought, late]).catch(() => brought)
  }

  async #fromUpstreams(around: Place | undefined): Promise<Uint8Array> {
    const { shared, asker } = this.#reader
    const cid = this.#cid
    this.#refuse(around)
    const flight = around && this.#reader.chooseFlight(cid, around)
    const bytes = flight && (await this.#waitIn(flight, around))
    if (bytes) return bytes
    this.#throwIfOver()
    const alone = await this.#waitIn(shared.flight('block', { cid, segments: [], scope: 'block' }, asker))
    if (!alone) throw internal(new Error('a flight of one block ended without it'))
    return alone
  }

  /** Undefined: the block does not come from there. */
  #waitIn(flight: Flight, around?: Place): Promise<Uint8Array | undefined> {
    return new Promise((resolve, reject) => {
      this.#wait = { flight, around, resolve, reject }
      this.#beganLate = this.#reader.isPastHalf
      flight.join(this.#cid, around, this)
    })
  }

  settle(bytes: Uint8Array, upstream: string): void {
    this.#endWait()?.resolve(this.#reader.fromUpstream(bytes, upstream))
  }

  passed(): void {
    this.#endWait()?.resolve(this.#reader.near(this.#cid))
  }

  fail(error: unknown): void {
    const wait = this.#endWait()
    if (!wait) return
    this.#failure = this.#failureOf(error, wait)
    if (this.#failure) wait.reject(this.#failure)
    else wait.resolve(undefined)
  }

  #endWait(): Wait | undefined {
    const wait = this.#wait
    this.#wait = undefined
    return wait
  }

  #startDeadline(): void {
    const { hasBegun, remainingMs, shared } = this.#reader
    this.#stopTimer = shared.clock.after(remainingMs, () => {
      // The response began meanwhile: from then on each block has a time of its own.
      if (hasBegun !== this.#reader.hasBegun) return this.#startDeadline()
      const isOurs = this.#beganLate && !hasBegun
      const why = isOurs ? noTimeLeft(this.#cid) : outOfTime(this.#cid, remainingMs)
      // Thousands of requests may come to their deadline in one iteration of the loop.
      void shared.turns.waitTurn().then(() => this.giveUp(why))
    })
  }

  giveUp(why: Failure): void {
    if (this.#isOver) return
    const flight = this.#wait?.flight
    this.fail(why)
    // A search may have joined it.
    flight?.leave(this)
    // After the end of a request nobody may wait for it.
    this.#result.promise.catch(() => {})
    void this.#failed(this.#failure ?? why)
  }

  readonly #succeed = (bytes: Uint8Array): void => {
    if (this.#isOver) return
    this.#end()
    this.#lookup?.leave()
    // All readers of a large node receive it in one iteration of the loop: each decodes it in an
    // iteration that has time for that.
    const isLarge = this.#cid.code !== codec.raw && bytes.byteLength >= largeNodeBytes
    this.#result.resolve(isLarge ? this.#reader.shared.turns.waitTurn().then(() => bytes) : bytes)
  }

  readonly #failed = async (error: unknown): Promise<void> => {
    if (this.#isOver) return
    this.#end()
    try {
      if (this.#reader.signal.aborted || isFailure(error, 'cancelled')) throw error
      this.#result.resolve(await this.#lastChance(error))
    } catch (failure) {
      // Thousands of requests may fail in one iteration of the loop: their answers take many.
      await this.#reader.shared.turns.waitTurn()
      this.#result.reject(failure)
    } finally {
      this.#lookup?.leave()
    }
  }

  #throwIfOver(): void {
    if (this.#isOver) throw this.#reader.reason
  }

  /** A tier has it, or the wait was given up: the flight goes on for others. */
  #end(): void {
    this.#isOver = true
    this.#stopTimer?.()
    this.#reader.reads.delete(this)
    this.#endWait()?.flight.leave(this)
  }

  // Absences: a remembered one fails a request at once; a new one is remembered for others, and a
  // background search follows.

  /** The entity that begins with this block. */
  #entityOf(around: DagWant | undefined): DagWant | undefined {
    return around && isSameBlock(this.#cid, around.cid) ? around : undefined
  }

  /** Throws where no upstream is to be asked. */
  #refuse(around: DagWant | undefined): void {
    const { hasBegun, options, remainingMs, shared } = this.#reader
    if (hasBegun) return
    const cid = this.#cid
    const { notFound } = shared
    if (options.noCache) notFound.forget(cid)
    const memory = notFound.find(cid, pathOf(this.#entityOf(around))) ?? notFound.find(cid, '')
    // An upstream that could not be asked then may have it now.
    if (memory && !memory.absence.facts.unasked) {
      for (const attempt of memory.attempts) options.requestRecord.attempt(attempt)
      throw withRetry(memory.absence, memory.forMs)
    }
    if (remainingMs === 0) throw noTimeLeft(cid)
    this.#reader.charge()
  }

  /** A block that nobody has brought. Undefined: it is requested alone. */
  #failureOf(error: unknown, { flight, around }: Wait): Failure | undefined {
    const { hasBegun, options, shared } = this.#reader
    const { notFound, pool, searches } = shared
    const { attempts } = flight
    const cid = this.#cid
    const asked = this.#entityOf(around)
    const isLate = isFailure(error, 'timeout')
    const isCrowded = isLate && (this.#beganLate || attempts.hasBeenCrowded())
    let failure = isFailure(error) ? error : internal(error)
    // It waited for an upstream to recover until its time was over.
    if (isCrowded && attempts.wasRefused()) failure = outcomeOf(cid, attempts.failures, pool.plan('block', cid))
    else if (isCrowded) failure = overloaded(cid)
    if (failure.kind !== 'cancelled') this.#reader.note(flight)
    this.#reader.leaveFlight(flight)
    // Below a path, "not found" may mean the path: only the root alone can tell whether the root is
    // there.
    if (failure.kind === 'not-found' && asked && asked.segments.length > 0) return undefined
    const path = pathOf(asked)
    const isAbsent = !isCrowded && !hasBegun && isAbsence(failure)
    const memory = isAbsent && (notFound.find(cid, path) ?? notFound.remember(cid, path, failure, attempts.list()))
    // The flight goes on as a search, for a client that asks again.
    const running = isLate && !flight.isOver && !hasBegun ? flight : undefined
    if (isAbsent || running) searches.begin(cid, asked, options.client ?? '', running)
    return memory && !failure.facts.unasked ? withRetry(failure, memory.forMs) : failure
  }

  /**
   * Asks the tiers before a block is denied. Our own disk may be slow since this process is busy:
   * it is waited for. Tiers that could not be asked are asked again. A provider of this machine
   * that keeps the block has the last word: a damaged copy is no absence.
   */
  async #lastChance(error: unknown): Promise<Uint8Array> {
    const { shared, signal, options, remainingMs } = this.#reader
    const { stack, pool, notFound } = shared
    const cid = this.#cid
    const lookup = this.#lookup
    const isAbsent = !lookup && stack.hasNow(cid) === false
    // A client takes these for "not here".
    const absence = isFailure(error) && (isAbsence(error) || error.kind === 'unavailable') ? error : undefined
    const here = lookup && Promise.race([lookup.found, lookup.here.then(() => undefined)])
    let hit = here && (await orAborted(signal, here).catch(() => undefined))
    if (!hit && !isAbsent) {
      const mayHave = !lookup || (absence && absence.kind !== 'timeout' && !lookup.haveAnswered())
      const ms = absence?.kind === 'unavailable' ? remainingMs : lastLookupMs
      if (mayHave) hit = (await this.#briefly(ms, (own) => stack.lookAgain(cid, own)))?.hit
      const mayBePinned = !hit && absence && !options.onlyIfCached
      if (mayBePinned && (await this.#briefly(lastLookupMs, (own) => stack.isPinned(cid, own))))
        throw pinUnreadable(cid, absence)
    }
    if (hit) {
      notFound.forget(cid)
      return this.#reader.fromTier(hit)
    }
    // Without upstreams an absence is what the tiers said, and only that.
    const isArchive = pool.members.length === 0 && !pool.find
    if (isFailure(error, 'unavailable') && error.facts.alone)
      throw isAbsent || lookup?.haveAnswered() ? notHere(error) : storeFailed(cid, error)
    throw isArchive && isFailure(error, 'timeout') ? storeFailed(cid, error) : error
  }

  /** Undefined: it failed, or took longer. */
  async #briefly<T>(ms: number, work: (own: AbortSignal) => Promise<T>): Promise<T | undefined> {
    const { shared, signal } = this.#reader
    const late = () => notCached(this.#cid)
    return withDeadline({ ms, clock: shared.clock, signal, late }, work).catch(() => undefined)
  }
}

// The Failures of a request that gets no block.

const withRetry = ({ kind, message, source, facts }: Absence, retryAfterMs: number): Failure =>
  new Failure(kind, message, { source, facts, retryAfterMs })

const outOfTime = (cid: CID, ms: number): Failure =>
  new Failure('timeout', `no upstream sent ${cid} within ${Math.round(ms)} ms; the search goes on`, {
    source: 'upstream',
    facts: { sure: false },
  })

const noTimeLeft = (cid: CID): Failure =>
  new Failure(
    'overloaded',
    `no time left to request ${cid}: the queue and the blocks before it used up retrieval.timeout; retry`,
    { source: 'ours' },
  )

/** An archive (no upstreams) whose tiers were all asked: there is nothing else to ask, so 404. */
const notHere = ({ message, facts }: Failure): Failure => new Failure('not-found', message, { source: 'tier', facts })

/**
 * An archive whose tiers could not all be asked: it may well be there, so it is not called absent.
 */
const storeFailed = (cid: CID, { cause, retryAfterMs }: Failure): Failure =>
  new Failure(
    'unavailable',
    `${cid} may be in a tier that failed or did not answer in time, and there is no upstream to ask; retry, and check the tiers if it persists`,
    { source: 'tier', cause, retryAfterMs },
  )

/** A provider of this machine has it pinned, so no response of an upstream makes it absent. */
const pinUnreadable = (cid: CID, { cause, retryAfterMs }: Failure): Failure =>
  new Failure(
    'unavailable',
    `${cid} is kept on this machine, but its copy is damaged or cannot be read, and no upstream sent it; upload the same file again, and check the disk (cidgate pins verify)`,
    { source: 'tier', cause, retryAfterMs },
  )

const notCached = (cid: CID): Failure =>
  new Failure('not-found', `${cid} is not in the cache, and Cache-Control: only-if-cached asks for nothing else`, {
    source: 'tier',
    facts: { onlyIfCached: true },
  })

const unprovable = (cid: CID): Failure =>
  new Failure(
    'malformed',
    `${cid} cannot be proved: its hash function or digest length is not one this gateway trusts`,
    { source: 'content' },
  )

const internal = (error: unknown): Failure =>
  new Failure(
    'internal',
    'internal error in retrieval; the log of this gateway has the details, under the request id',
    { source: 'ours', cause: error },
  )
