// The reader of one request. The way of a block, each step only where the one before had nothing:
//
//   get ─► memory, or the page cache          at once (`stack.atHand`), or asked for ahead (read-ahead.ts)
//       ─► the flight that this reader follows, where the block is on its way in it
//       ─► the slow tiers, while waiting for them is worth it (`stack.look`)
//       ─► a flight (flight/flight.ts), of the DAG from here on or of the block alone; tiers that have not answered stay
//          in the race beside it
//       ─► the tiers once more, before a block that may be here is denied
//
// It answers at once what it can. A `BlockWait` is the reader's place in a flight and its own deadline.
import type { CID } from 'multiformats/cid'
import { blockKey, codec, isIdentity, isProvable } from '../core/cid.ts'
import { type Clock, orAborted, type Soon, withDeadline } from '../core/clock.ts'
import type { AtHand, AtHandOptions } from '../core/disk/at-hand.ts'
import { cancelled, Failure, isFailure } from '../core/failure.ts'
import { largeNodeBytes, type NodeMemory } from '../ipld/node-memory.ts'
import type { RequestRecord } from '../observe/request-record.ts'
import type { Flight, FlightReader } from './flight/flight.ts'
import type { LoopScheduler } from './loop-scheduler.ts'
import { type Absence, isAbsence, type NegativeCache, type Searches, type SearchRound } from './negative-cache.ts'
import { ReadAhead, type ReadAheadBudget } from './read-ahead.ts'
import { createGuard, type DagWant, type Expected, type Place, type Session, type SessionOptions } from './session.ts'
import type { TierHit, TierLook, TierStack } from './tiers/tier-stack.ts'
import { type AskKind, type Attempts, outcomeOf, overloaded, type Wanting } from './upstreams/attempts.ts'
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
  readonly deadlineMs: number
  readonly blockDeadlineMs: number
  /** The flight that brings this: one for all. */
  flight(kind: AskKind, want: DagWant, asker: Wanting): Flight
  /** Another reader's flight that will still bring this block. */
  flightWith(cid: CID): Flight | undefined
  /** One round of a background search, which this client began: no client waits. */
  lookFor(cid: CID, around: DagWant | undefined, client: string): () => SearchRound
}

// With less than this share of the time left, an upstream is not really asked: the outcome proves no absence.
const minShare = 1 / 8
/** After a response left out a block that a reader waited for, this many blocks are asked for one by one. */
const aloneBlocks = 64
/** A tier that could not be asked has this long before a block is denied. */
const lastLookMs = 200

/** A flight that this reader follows, until it leaves. */
type Followed = { readonly flight: Flight; readonly leave: () => void }

const alone = (cid: CID): DagWant => ({ cid, segments: [], scope: 'block' })

const sameBytes = (one: CID, other: CID): boolean => blockKey(one) === blockKey(other)

const pathOf = (want: DagWant | undefined): string => want?.segments.map(encodeURIComponent).join('/') ?? ''

/** Opens the session of one request, until its `end`. */
export const openReader = (options: SessionOptions, shared: ReaderParts): Session => new Reader(options, shared)

class Reader implements Session {
  readonly visit: Session['visit']
  readonly visitNames: Session['visitNames']
  readonly pass: Session['pass']
  readonly readNode: Session['readNode']
  readonly readOnce: Session['readOnce']
  readonly yieldIfDue: Session['yieldIfDue']
  readonly shared: ReaderParts
  readonly signal: AbortSignal
  readonly #account: RequestRecord
  readonly #check: (cid: CID) => void
  readonly #client: string
  readonly #onlyIfCached: boolean
  readonly #noCache: boolean
  readonly #beforeMiss: (() => void) | undefined
  readonly #deadlineAt: number
  /** Made when the reader first says what comes next: a file of one block has nothing ahead. */
  #ahead: ReadAhead | undefined
  #isOver = false
  #hasBegun = false
  /** It was out of time, and is told so in a turn of the loop that had time for it. */
  #hadItsTurn = false
  /** The first CID that was asked for. */
  #root: CID | undefined
  #hasMissed = false
  #lastFrom: 'nowhere' | 'tier' | 'upstream' = 'nowhere'
  /** One flight at a time brings the block that it wants and those behind it. */
  #followed: Followed | undefined
  #aloneLeft = 0
  #noted: WeakSet<Attempts> | undefined

  constructor(options: SessionOptions, shared: ReaderParts) {
    const { check, visit, visitNames, pass } = createGuard(options)
    this.shared = shared
    this.signal = options.signal
    this.visit = visit
    this.visitNames = visitNames
    this.pass = pass
    this.readNode = shared.nodes.readNode
    this.readOnce = shared.nodes.readOnce
    this.yieldIfDue = shared.turns.yieldIfDue
    this.#account = options.account
    this.#check = check
    this.#client = options.client ?? ''
    this.#onlyIfCached = options.onlyIfCached === true
    this.#noCache = options.noCache === true
    this.#beforeMiss = options.beforeMiss
    this.#deadlineAt = shared.clock.monotonic() + shared.deadlineMs - (options.waitedMs ?? 0)
  }

  get(cid: CID, around?: Place): Soon<Uint8Array> {
    const turn = this.yieldIfDue()
    return turn === undefined ? this.#get(cid, around) : turn.then(() => this.#get(cid, around))
  }

  atHand(cid: CID, options?: AtHandOptions): AtHand | undefined {
    this.#check(cid)
    this.#root ??= cid
    const isElsewhere = this.#isOver || isIdentity(cid) || !isProvable(cid) || this.#ahead?.has(cid)
    return isElsewhere ? undefined : this.#atHand(cid, options)
  }

  expect(next: Iterable<Expected>): void {
    if (this.#isOver) return
    this.#ahead ??= new ReadAhead({
      fetch: async (cid, around) => this.#near(cid) ?? this.#fetch(cid, around),
      check: this.#check,
      budget: this.shared.readAhead,
      clock: this.shared.clock,
    })
    this.#ahead.expect(next)
  }

  async has(cid: CID): Promise<boolean> {
    return isIdentity(cid) || this.shared.stack.has(cid, this.signal)
  }

  begun(): void {
    this.#hasBegun = true
  }

  end(): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#ahead?.end()
    if (this.#followed) this.#leaveFlight(this.#followed)
  }

  // At once, or elsewhere.

  #get(cid: CID, around: Place | undefined): Soon<Uint8Array> {
    if (this.#isOver) throw cancelled('the request is over')
    this.#check(cid)
    this.#root ??= cid
    if (!isProvable(cid)) throw unprovable(cid)
    if (isIdentity(cid)) return cid.multihash.digest
    const here = this.#ahead?.take(cid) ?? this.#atHand(cid)?.bytes
    if (here)
      return here instanceof Promise ? here.then((bytes) => this.#prepared(cid, bytes)) : this.#prepared(cid, here)
    return this.#fetch(cid, around).then(
      (bytes) => this.#inTurn(cid, bytes),
      (error: unknown) => this.#afterOthers(error),
    )
  }

  /** All that waited for a large node go on in the moment it comes: each decodes it in a turn that has time for that. */
  #inTurn(cid: CID, bytes: Uint8Array): Soon<Uint8Array> {
    if (cid.code === codec.raw || bytes.byteLength < largeNodeBytes) return bytes
    return this.shared.turns.inLine().then(() => this.#prepared(cid, bytes))
  }

  /** Decoded in pieces, where that takes long. */
  #prepared(cid: CID, bytes: Uint8Array): Soon<Uint8Array> {
    if (cid.code !== codec.dagPb || bytes.byteLength < largeNodeBytes) return bytes
    return this.shared.nodes.prepare(cid, bytes, this.yieldIfDue).then(() => bytes)
  }

  /** Thousands of requests that wait for one thing fail in one turn of the loop: their answers take many turns. */
  async #afterOthers(error: unknown): Promise<never> {
    if (!this.#hadItsTurn) await this.shared.turns.inLine()
    throw error
  }

  #atHand(cid: CID, options?: AtHandOptions): AtHand | undefined {
    this.signal.throwIfAborted()
    const held = this.shared.stack.atHand(cid, options)
    if (held) this.#fromTier(held)
    return held
  }

  #near(cid: CID): Uint8Array | undefined {
    const held = this.shared.stack.near(cid)
    return held && this.#fromTier(held)
  }

  #fromTier({ bytes, tier }: TierHit): Uint8Array {
    this.#account.tierHit(tier)
    this.#lastFrom = 'tier'
    return bytes
  }

  async #fetch(cid: CID, around: Place | undefined): Promise<Uint8Array> {
    this.signal.throwIfAborted()
    const followed = this.#currentFlight()
    if (!around || !followed?.flight.expects(cid)) return this.#fetchElsewhere(cid, around)
    return (await this.#waitIn(followed, cid, around)) ?? this.#fetchElsewhere(cid, undefined)
  }

  // The slow tiers: first alone, then beside the upstreams, and once more when no upstream could help.

  #fetchElsewhere(cid: CID, around: Place | undefined): Promise<Uint8Array> {
    // Where no tier has it, as far as is known, the upstreams alone are asked.
    if (this.#onlyIfCached || !this.shared.stack.lacks(cid)) return this.#fromTiers(cid, around)
    return this.#fromUpstreams(cid, around).catch((error: unknown) => this.#lastChance(cid, error))
  }

  async #fromTiers(cid: CID, around: Place | undefined): Promise<Uint8Array> {
    const look = this.shared.stack.look(cid)
    try {
      const late = this.#onlyIfCached ? [] : [look.overdue.then(() => 'late' as const)]
      const held = await this.#inTime(cid, () => Promise.race([look.found, ...late]))
      if (held && held !== 'late') return this.#fromTier(held)
      if (this.#onlyIfCached) throw notCached(cid)
      return await (held ? this.#besideTiers(cid, around, look.found) : this.#fromUpstreams(cid, around))
    } catch (error) {
      return await this.#lastChance(cid, error, look)
    } finally {
      look.leave()
    }
  }

  /** The first of tiers and upstreams that has it. */
  async #besideTiers(cid: CID, around: Place | undefined, found: Promise<TierHit | undefined>): Promise<Uint8Array> {
    const others = this.#fromUpstreams(cid, around)
    const held = found.then((hit) => {
      if (!hit) throw nothing
      this.shared.notFound.forget(cid)
      return hit
    })
    try {
      const first = await this.#inTime(cid, () => Promise.any([others, held]))
      return first instanceof Uint8Array ? first : this.#fromTier(first)
    } catch (error) {
      if (isFailure(error, 'cancelled')) throw error
      return await others
    }
  }

  /**
   * No upstream helped. Our own disk may be slow since this process is busy: it is waited for rather than deny a block that
   * is here. Tiers that could not say are asked again, and so is a provider of this machine that has it in its keeping: it
   * came just now, or its copy is damaged, which is no absence.
   */
  async #lastChance(cid: CID, error: unknown, running?: TierLook): Promise<Uint8Array> {
    const { stack, notFound } = this.shared
    if (this.signal.aborted || isFailure(error, 'cancelled')) throw error
    const look = running ?? stack.look(cid)
    const absence = isFailure(error) && absences.has(error.kind) ? error : undefined
    let held: TierHit | undefined
    if (!running || isFailure(error, 'timeout') || isFailure(error, 'overloaded')) {
      const here = Promise.race([look.found, look.here.then(() => undefined)])
      held = await orAborted(this.signal, here).catch(() => undefined)
    }
    if (!held && absence) {
      const isPinned =
        !absence.facts.onlyIfCached && (await this.#briefly(cid, lastLookMs, (own) => stack.isPinned(cid, own)))
      const ms = isPinned || absence.kind === 'not-found' ? lastLookMs : undefined
      if (isPinned || (!look.haveAnswered && absence.kind !== 'timeout'))
        held = await this.#briefly(cid, ms, (own) => stack.lookAgain(cid, own))
      if (!held && isPinned) throw pinUnreadable(cid, absence)
    }
    if (!running) look.leave()
    if (!held) throw this.#inArchive(cid, error, look.haveAnswered)
    notFound.forget(cid)
    return this.#fromTier(held)
  }

  /** `ms` undefined: until the request is out of time. Undefined: it failed, or took longer. */
  async #briefly<T>(cid: CID, ms: number | undefined, work: (own: AbortSignal) => Promise<T>): Promise<T | undefined> {
    const { signal } = this
    const { clock } = this.shared
    if (signal.aborted) return undefined
    const late = () => notCached(cid)
    const done = ms === undefined ? this.#inTime(cid, work) : withDeadline({ ms, clock, signal, late }, work)
    return done.catch(() => undefined)
  }

  /** Without upstreams the tiers are all there is to ask: what they said is an absence, what they did not say is none. */
  #inArchive(cid: CID, error: unknown, isSure: boolean): unknown {
    if (isFailure(error, 'unavailable') && error.facts.alone) return isSure ? notHere(error) : storeFailed(cid, error)
    const { members, find } = this.shared.pool
    const isArchive = members.length === 0 && !find
    return isArchive && isFailure(error, 'timeout') ? storeFailed(cid, error) : error
  }

  // The upstreams: a flight of the DAG from here on, or of the block alone.

  async #fromUpstreams(cid: CID, around: Place | undefined): Promise<Uint8Array> {
    this.#refuseRemembered(cid, around)
    // Two requests for one block: the first finds it in no tier and is held up; the second flies for it, gets it, and its flight
    // ends with the block in memory. Without this look the first would start another flight.
    const near = this.#near(cid)
    if (near) return near
    this.#refuseLate(cid)
    if (!this.#hasMissed) {
      this.#hasMissed = true
      // A response that has begun is not cut for it.
      if (!this.#hasBegun) this.#beforeMiss?.()
    }
    const followed = around && this.#chooseFlight(cid, around)
    const bytes = followed && (await this.#waitIn(followed, cid, around))
    if (bytes) return bytes
    const flight = this.shared.flight('block', alone(cid), this.#asker)
    const own = await this.#waitIn({ flight, leave: flight.follow() }, cid, undefined)
    if (!own) throw internal(new Error('a flight of one block ended without it'))
    return own
  }

  /** Undefined: the block does not come from there. */
  #waitIn(followed: Followed, cid: CID, around: Place | undefined): Promise<Uint8Array | undefined> {
    return new Promise((resolve, reject) => new BlockWait(this, cid, around, followed, resolve, reject).begin())
  }

  get #asker(): Wanting {
    const hasBegun = this.#hasBegun || this.#lastFrom === 'upstream'
    return { client: this.#client, hasBegun, root: this.#root }
  }

  #currentFlight(): Followed | undefined {
    if (this.#followed?.flight.isOver) this.#leaveFlight(this.#followed)
    return this.#followed
  }

  #leaveFlight(followed: Followed): void {
    // The parts of a file, and who brought how much of it.
    if (followed.flight.kind === 'dag' && this.#account.brought.length > 1) this.#note(followed.flight.attempts)
    if (this.#followed === followed) this.#followed = undefined
    followed.leave()
  }

  #follow(flight: Flight): Followed {
    return (this.#followed = { flight, leave: flight.follow() })
  }

  /** The flight that brings the block with those that follow it; undefined: the block is asked for alone. */
  #chooseFlight(cid: CID, around: DagWant): Followed | undefined {
    const current = this.#currentFlight()
    if (current) return current
    const lastFrom = this.#lastFrom
    // A reader that caught up with another one's flight flies on with it.
    const flight = lastFrom === 'nowhere' ? undefined : this.shared.flightWith(cid)
    if (flight) return this.#follow(flight)
    if (this.#aloneLeft > 0) {
      this.#aloneLeft--
      return undefined
    }
    // One leaf missing between others that are here costs one block, not a response with everything after it. If a single
    // block is wanted, a CAR is the wrong question too: upstreams leave out blocks that do not decode.
    const isItself = around.segments.length === 0 && sameBytes(cid, around.cid)
    const isAlone = cid.code === codec.raw ? lastFrom === 'tier' || isItself : around.scope === 'block' && isItself
    if (isAlone || (lastFrom !== 'nowhere' && !this.#knowsDags(cid))) return undefined
    return this.#follow(this.shared.flight('dag', around, this.#asker))
  }

  /** An upstream may be asked for more than single blocks now. */
  #knowsDags(cid: CID): boolean {
    const key = blockKey(cid)
    const members = this.shared.pool.of(this.#root ?? cid)
    return members.some(({ upstream, health }) => upstream.traits.dag && health.state(key).state === 'ready')
  }

  // What became of a `BlockWait`.

  came(upstream: string, bytes: number): void {
    this.#account.fetched(upstream, bytes)
    this.#lastFrom = 'upstream'
  }

  /** It came before, and memory may have it. */
  cameBefore(cid: CID): Uint8Array | undefined {
    const bytes = this.shared.stack.near(cid)?.bytes
    if (bytes) this.#lastFrom = 'upstream'
    return bytes
  }

  /** This flight did not bring a block that the reader waited for: if it is over, the next ones may do so too. */
  leftOut(followed: Followed): void {
    if (!followed.flight.isOver || this.#followed !== followed) return
    this.#leaveFlight(followed)
    this.#aloneLeft = aloneBlocks
  }

  /** The failure to throw for a block that a flight did not bring; undefined: it is asked for alone. */
  failureOf({ cid, around, followed, wasLate }: BlockWait, error: unknown): Failure | undefined {
    const asked = around && sameBytes(cid, around.cid) ? around : undefined
    const { flight, leave } = followed
    const { attempts } = flight
    if (isFailure(error, 'timeout') && !flight.isOver && !this.#hasBegun) {
      // The search takes this reader's seat.
      if (this.#followed === followed) this.#followed = undefined
      return this.#missed(error, cid, asked, attempts, wasLate, { done: flight.drain(), attempts, stop: leave })
    }
    this.#leaveFlight(followed)
    // Below a path, "not found" may mean the path: only the root alone can tell whether the root is there.
    if (isFailure(error, 'not-found') && asked && asked.segments.length > 0) {
      this.#note(attempts)
      return undefined
    }
    return this.#missed(error, cid, asked, attempts, wasLate)
  }

  // Its time: one deadline for everything until its first byte goes out, then one for each block.

  /** Less than half of the time is left: a 404 from here on is no proof of absence. */
  get isLate(): boolean {
    return this.#deadlineAt - this.shared.clock.monotonic() < this.shared.deadlineMs / 2
  }

  get reason(): Failure {
    return isFailure(this.signal.reason) ? this.signal.reason : cancelled()
  }

  #refuseLate(cid: CID): void {
    if (this.#hasBegun || this.shared.clock.monotonic() < this.#deadlineAt) return
    // It has stood in a line already.
    this.#hadItsTurn = true
    throw noTimeLeft(cid)
  }

  /**
   * Calls `tell` when its time for this block is over; the answer takes that back. A wait for what comes next, which began before
   * the response did, has the time of a block from then on.
   */
  whenLate(cid: CID, tell: (late: Failure) => void): () => void {
    const { clock, turns, deadlineMs, blockDeadlineMs } = this.shared
    let hadBegun = this.#hasBegun
    let ms = hadBegun ? blockDeadlineMs : Math.max(0, this.#deadlineAt - clock.monotonic())
    let isTooLate = !hadBegun && ms < deadlineMs * minShare
    let isStopped = false
    const ring = () => {
      if (!hadBegun && this.#hasBegun) {
        hadBegun = true
        isTooLate = false
        ms = blockDeadlineMs
        stop = clock.after(ms, ring)
        return
      }
      // Thousands of requests that wait in vain come to their deadline in one turn of the loop: what follows takes many turns.
      void turns.inLine().then(() => {
        if (isStopped) return
        this.#hadItsTurn = true
        tell(isTooLate ? noTimeLeft(cid) : outOfTime(cid, ms))
      })
    }
    let stop = clock.after(ms, ring)
    return () => {
      isStopped = true
      stop()
    }
  }

  /** Runs `work` until the request is out of time or its client has left; then the work's own signal aborts. */
  async #inTime<T>(cid: CID, work: (own: AbortSignal) => Promise<T>): Promise<T> {
    const { signal } = this
    if (signal.aborted) throw this.reason
    const own = new AbortController()
    const ended = Promise.withResolvers<never>()
    const end = (reason: Failure) => {
      own.abort(reason)
      ended.reject(reason)
    }
    const leave = () => end(this.reason)
    const stop = this.whenLate(cid, end)
    signal.addEventListener('abort', leave, { once: true })
    try {
      return await Promise.race([work(own.signal), ended.promise])
    } finally {
      stop()
      signal.removeEventListener('abort', leave)
    }
  }

  // Absences: a remembered one refuses it at once; one that it meets is remembered for others, and a search goes on behind it.

  #refuseRemembered(cid: CID, around: DagWant | undefined): void {
    const { notFound } = this.shared
    if (this.#hasBegun) return
    const path = around && sameBytes(cid, around.cid) ? pathOf(around) : ''
    if (this.#noCache) return notFound.forget(cid)
    const memory = notFound.find(cid, path) ?? (path === '' ? undefined : notFound.find(cid, ''))
    // An upstream that could not be asked then may have it now.
    if (!memory || memory.absence.facts.unasked) return
    for (const attempt of memory.attempts) this.#account.attempt(attempt)
    throw withRetry(memory.absence, memory.forMs)
  }

  /** Notes the attempts of a flight in the account, once, however many blocks fail with it. */
  #note(attempts: Attempts): void {
    this.#noted ??= new WeakSet()
    if (this.#noted.has(attempts)) return
    this.#noted.add(attempts)
    for (const attempt of attempts.list()) this.#account.attempt(attempt)
  }

  /**
   * The failure to throw for a block that a flight did not bring. Remembers an absence, and begins a background search.
   * `wasLate`: too little time was left when the request joined it. `running`: the flight itself, which the search takes over.
   */
  #missed(
    error: unknown,
    cid: CID,
    around: DagWant | undefined,
    attempts: Attempts,
    wasLate: boolean,
    running?: SearchRound,
  ): Failure {
    const { notFound, searches, pool, lookFor } = this.shared
    const isCrowded = isFailure(error, 'timeout') && (wasLate || attempts.hasBeenCrowded())
    // It waited for an upstream to recover until its time was over.
    const none = () =>
      attempts.wasRefused() ? outcomeOf(cid, attempts.failures, pool.plan('block', cid)) : overloaded(cid)
    const failure = isCrowded ? none() : isFailure(error) ? error : internal(error)
    if (failure.kind !== 'cancelled') this.#note(attempts)
    // The round goes on for a client that asks again.
    const goesOn = isCrowded && running !== undefined
    const isAbsent = !goesOn && !this.#hasBegun && isAbsence(failure)
    if (!goesOn && !isAbsent) {
      running?.stop()
      return failure
    }
    const path = pathOf(around)
    const memory = isAbsent && (notFound.find(cid, path) ?? notFound.remember(cid, path, failure, attempts.list()))
    const client = this.#client
    searches.begin(cid, path, lookFor(cid, around, client), { client, running })
    return memory && !failure.facts.unasked ? withRetry(failure, memory.forMs) : failure
  }
}

/** A reader that waits for one block of a flight, until its deadline, or its client leaves. */
class BlockWait implements FlightReader {
  readonly cid: CID
  readonly around: Place | undefined
  readonly followed: Followed
  readonly wasLate: boolean
  readonly #reader: Reader
  readonly #resolve: (bytes: Uint8Array | undefined) => void
  readonly #reject: (error: unknown) => void
  #stop: (() => void) | undefined
  #isOver = false

  constructor(
    reader: Reader,
    cid: CID,
    around: Place | undefined,
    followed: Followed,
    resolve: (bytes: Uint8Array | undefined) => void,
    reject: (error: unknown) => void,
  ) {
    this.#reader = reader
    this.cid = cid
    this.around = around
    this.followed = followed
    this.wasLate = reader.isLate
    this.#resolve = resolve
    this.#reject = reject
  }

  begin(): void {
    const { signal, reason } = this.#reader
    if (signal.aborted) return this.fail(reason)
    signal.addEventListener('abort', this.#left, { once: true })
    this.#stop = this.#reader.whenLate(this.cid, (late) => this.#leave(late))
    this.followed.flight.join(this.cid, this.around, this)
  }

  settle(bytes: Uint8Array, upstream: string): void {
    if (!this.#end()) return
    this.#reader.came(upstream, bytes.byteLength)
    this.#resolve(bytes)
  }

  passed(isKept: boolean): void {
    if (!this.#end()) return
    if (!isKept) this.#reader.leftOut(this.followed)
    this.#resolve(isKept ? this.#reader.cameBefore(this.cid) : undefined)
  }

  fail(error: unknown): void {
    if (!this.#end()) return
    const failure = this.#reader.failureOf(this, error)
    if (failure) this.#reject(failure)
    else this.#resolve(undefined)
  }

  readonly #left = (): void => this.#leave(this.#reader.reason)

  #leave(why: unknown): void {
    if (this.#isOver) return
    this.followed.flight.leave(this.cid, this)
    this.fail(why)
  }

  #end(): boolean {
    if (this.#isOver) return false
    this.#isOver = true
    this.#stop?.()
    this.#reader.signal.removeEventListener('abort', this.#left)
    return true
  }
}

// The Failures of a request that gets no block.

/** A client takes these for "not here". */
const absences: ReadonlySet<string> = new Set(['not-found', 'timeout', 'unavailable'])

const nothing = new Error('no tier has it')

const withRetry = ({ kind, message, source, facts }: Absence, retryAfterMs: number): Failure =>
  new Failure(kind, message, { source, facts, retryAfterMs })

const outOfTime = (cid: CID, ms: number): Failure =>
  new Failure('timeout', `no upstream sent ${cid} within ${Math.round(ms)} ms; the search goes on`, {
    source: 'upstream',
    facts: { sure: false },
  })

/** Earlier blocks, or the queue of requests, used up the time. */
const noTimeLeft = (cid: CID): Failure =>
  new Failure(
    'overloaded',
    `no time left to look for ${cid}: the line and the blocks before it took all of it; retry`,
    { source: 'ours' },
  )

/** An archive (no upstreams) whose tiers were all asked: there is nothing else to ask, so 404. */
const notHere = ({ message, facts }: Failure): Failure => new Failure('not-found', message, { source: 'tier', facts })

/** An archive whose tiers could not all be asked: it may well be there, so it is not called absent. */
const storeFailed = (cid: CID, { cause, retryAfterMs }: Failure): Failure =>
  new Failure(
    'unavailable',
    `${cid} may be in a tier that failed or did not answer in time, and there is no upstream to ask; retry, and look at the tiers if it goes on`,
    { source: 'tier', cause, retryAfterMs },
  )

/** A provider of this machine keeps it, so no answer of an upstream makes it absent. */
const pinUnreadable = (cid: CID, { cause, retryAfterMs }: Failure): Failure =>
  new Failure(
    'unavailable',
    `${cid} is kept on this machine, but its copy is damaged or cannot be read, and no upstream sent it; upload the same file again, and look at the disk (cidgate pins verify)`,
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
