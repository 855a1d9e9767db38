// The reader of one request. A block comes from memory, from an answer that the request follows, from the slow tiers while waiting for
// them is worth it, or from the upstreams, which are then asked beside the tiers. It answers at once what it can, and is itself what
// waits for a block: reader of the flight and its own deadline.
import type { CID } from 'multiformats/cid'
import { codec, isIdentity, isProvable } from '../core/cid.ts'
import { type Clock, orAborted, type Soon, withDeadline } from '../core/clock.ts'
import type { AtHand, AtHandOptions } from '../core/disk/at-hand.ts'
import { cancelled, type Failure, isFailure } from '../core/failure.ts'
import { largeNodeBytes, type NodeMemory } from '../ipld/node-memory.ts'
import type { Account } from '../observe/request-record.ts'
import type { BlockFlight, BlockReader } from './flight/block-flight.ts'
import type { DagFlight, DagReader } from './flight/dag-flight.ts'
import { pathOf, sameBytes } from './flight/want.ts'
import { isAbsence, type NegativeCache, type Searches, type SearchRound } from './negative-cache.ts'
import { createGuard } from './policy.ts'
import { createReadAhead, type ReadAhead, type Room } from './read-ahead.ts'
import type { DagWant, Expected, Place, Session, SessionOptions } from './session.ts'
import {
  internal,
  noTimeLeft,
  notCached,
  notHere,
  outOfTime,
  pinUnreadable,
  storeFailed,
  unprovable,
  withRetry,
} from './session-failures.ts'
import type { TierHit, TierLook, TierStack } from './tiers/tier-stack.ts'
import type { LoopTurns } from './turns/loop-turns.ts'
import type { Attempts, Wanting } from './upstreams/attempts.ts'
import { outcomeOf, overloaded } from './upstreams/outcome.ts'
import type { Plan } from './upstreams/pool.ts'

/** The parts that all requests share. */
export type ReaderParts = {
  readonly stack: TierStack
  readonly clock: Clock
  readonly notFound: NegativeCache
  readonly searches: Searches
  readonly room: Room
  readonly nodes: NodeMemory
  readonly turns: LoopTurns
  readonly deadlineMs: number
  readonly blockDeadlineMs: number
  /** There is no upstream. */
  readonly isArchive: boolean
  /** The flight that brings this block: one for all. */
  blockFlight(cid: CID, asker: Wanting): BlockFlight
  /** The flight that brings this DAG: one for all. */
  dagFlight(want: DagWant, asker: Wanting): DagFlight
  /** Another reader's flight that will still bring this block. */
  onItsWay(cid: CID): DagFlight | undefined
  /** Whether an upstream may be asked for more than single blocks now. */
  knowsDags(cid: CID, root: CID): boolean
  /** The upstreams that cannot be asked for it now. */
  whoIsLeft(cid: CID): Omit<Plan, 'steps'>
  /** One round of a background search, which this client began: no client waits. */
  lookFor(cid: CID, around: DagWant | undefined, client: string): () => SearchRound
}

// With less than this share of the time left, an upstream is not really asked, so the answer is no proof of absence.
const minShare = 1 / 8
// After an answer left out a block that a reader waited for, this many blocks are asked for one by one.
const firstAlone = 8
const maxAlone = 1024
/** An upstream takes as long: a tier that could not be asked is asked beside it, since it may be well by now. */
const secondLookMs = 1000
/** An upstream said that it lacks it: so long is a tier that could not be asked waited for, before the block is denied. */
const lastLookMs = 200

/** An answer that this reader follows, until it leaves. */
type Followed = { readonly flight: DagFlight; readonly leave: () => void }

/** Opens the session of one request, until its `end`. */
export const openReader = (options: SessionOptions, shared: ReaderParts): Session => new Reader(options, shared)

class Reader implements Session {
  readonly visit: Session['visit']
  readonly visitNames: Session['visitNames']
  readonly pass: Session['pass']
  readonly readNode: Session['readNode']
  readonly readOnce: Session['readOnce']
  readonly giveWay: Session['giveWay']
  readonly shared: ReaderParts
  readonly account: Account
  readonly signal: AbortSignal
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
  /** Whether a slow tier had a block of this request. */
  #wasHeld = false
  #hasMissed = false
  #lastFrom: 'nowhere' | 'tier' | 'upstream' = 'nowhere'
  /** The answer that it follows: one at a time brings the block that it wants and those behind it. */
  #followed: Followed | undefined
  #aloneLeft = 0
  #aloneNext = firstAlone
  #noted: WeakSet<Attempts> | undefined

  constructor(
    {
      signal,
      account,
      onlyIfCached = false,
      noCache = false,
      client = '',
      waitedMs = 0,
      beforeMiss,
      ...policy
    }: SessionOptions,
    shared: ReaderParts,
  ) {
    const { check, visit, visitNames, pass } = createGuard(policy)
    this.shared = shared
    this.signal = signal
    this.account = account
    this.visit = visit
    this.visitNames = visitNames
    this.pass = pass
    this.#check = check
    this.readNode = shared.nodes.readNode
    this.readOnce = shared.nodes.readOnce
    this.giveWay = shared.turns.giveWay
    this.#client = client
    this.#onlyIfCached = onlyIfCached
    this.#noCache = noCache
    this.#beforeMiss = beforeMiss
    this.#deadlineAt = shared.clock.monotonic() + shared.deadlineMs - waitedMs
  }

  get(cid: CID, around?: Place): Soon<Uint8Array> {
    const turn = this.shared.turns.giveWay()
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
    this.#ahead ??= createReadAhead({
      fetch: async (cid, around) => this.#near(cid) ?? this.#fetch(cid, around),
      fetchHeld: (cid) => this.#fetchHeld(cid),
      isHeld: () => this.#wasHeld,
      check: this.#check,
      room: this.shared.room,
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
    this.#isOver = true
    this.#ahead?.end()
    if (this.#followed) this.#leaveAnswer(this.#followed)
  }

  // Where a block comes from.

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
    const { nodes, turns } = this.shared
    return nodes.prepare(cid, bytes, turns.giveWay).then(() => bytes)
  }

  /** Thousands of requests that wait for one thing fail in one turn of the loop: their answers take many turns. */
  async #afterOthers(error: unknown): Promise<never> {
    if (!this.#hadItsTurn) await this.shared.turns.inLine()
    throw error
  }

  #atHand(cid: CID, options?: AtHandOptions): AtHand | undefined {
    this.signal.throwIfAborted()
    const held = this.shared.stack.atHand(cid, options)
    if (!held) return undefined
    this.#wasHeld ||= !held.isMemory
    this.#fromTier(held)
    return held
  }

  #fromTier({ bytes, tier }: TierHit): Uint8Array {
    this.account.tierHit(tier)
    this.#lastFrom = 'tier'
    return bytes
  }

  #near(cid: CID): Uint8Array | undefined {
    const held = this.shared.stack.near(cid)
    return held && this.#fromTier(held)
  }

  /** What is not near. */
  #fetch(cid: CID, around: Place | undefined): Promise<Uint8Array> {
    this.signal.throwIfAborted()
    if (around && this.#currentAnswer()?.flight.expects(cid)) return this.#follow(cid, around)
    return this.#fromElsewhere(cid, around)
  }

  async #follow(cid: CID, around: Place): Promise<Uint8Array> {
    const answer = this.#currentAnswer()
    const flown = answer && (await this.#fromAnswer(cid, around, answer))
    if (!flown) return this.#fromElsewhere(cid, undefined)
    this.#lastFrom = 'upstream'
    return flown
  }

  /** Where no tier has it, as far as is known, the upstreams alone are asked; otherwise the tiers begin. */
  #fromElsewhere(cid: CID, around: Place | undefined): Promise<Uint8Array> {
    const { stack } = this.shared
    if (this.#onlyIfCached || !stack.lacks(cid)) return this.#fromTiers(cid, around)
    return this.#fromUpstreams(cid, around, (error) => {
      const look = stack.look(cid)
      return this.#afterAll(cid, error, look, true).finally(() => look.leave())
    })
  }

  // The slow tiers: at first alone, then beside the upstreams, and once more when no upstream could help.

  async #fromTiers(cid: CID, around: Place | undefined): Promise<Uint8Array> {
    const look = this.shared.stack.look(cid)
    try {
      const late = this.#onlyIfCached ? [] : [look.overdue.then(() => 'late' as const)]
      const held = await this.inTime(cid, () => Promise.race([look.found, ...late]))
      if (held === 'late') return await this.#besideTiers(cid, around, () => look.found)
      if (held) return this.#fromSlowTier(held)
      if (this.#onlyIfCached) throw notCached(cid)
      if (look.haveAnswered) return await this.#fromUpstreams(cid, around)
      return await this.#besideTiers(cid, around, (own) => this.#lookAgain(cid, secondLookMs, own))
    } catch (error) {
      return await this.#afterAll(cid, error, look, isFailure(error, 'timeout') || isFailure(error, 'overloaded'))
    } finally {
      look.leave()
    }
  }

  /** The first of tiers and upstreams that has it. */
  async #besideTiers(
    cid: CID,
    around: Place | undefined,
    tiers: (own: AbortSignal) => Promise<TierHit | undefined>,
  ): Promise<Uint8Array> {
    const over = new AbortController()
    const others = this.#fromUpstreams(cid, around).finally(() => over.abort())
    const held = tiers(over.signal).then((hit) => {
      if (!hit) throw nothing
      this.shared.notFound.forget(cid)
      return hit
    })
    try {
      const first = await this.inTime(cid, () => Promise.any([others, held]))
      return first instanceof Uint8Array ? first : this.#fromSlowTier(first)
    } catch (error) {
      if (isFailure(error, 'cancelled')) throw error
      return await others
    } finally {
      over.abort()
    }
  }

  async #lookAgain(cid: CID, afterMs: number, signal: AbortSignal): Promise<TierHit | undefined> {
    await this.shared.clock.sleep(afterMs, signal)
    return this.shared.stack.lookAgain(cid, signal)
  }

  /**
   * No upstream helped. `waits`: our own disk has not said whether it has it, and is waited for rather than deny a block that is
   * here. Then tiers that could not say are asked again, and a provider of this machine that has it in its keeping: it came just
   * now, or its copy is damaged, which is no absence.
   */
  async #afterAll(cid: CID, error: unknown, look: TierLook, waits: boolean): Promise<Uint8Array> {
    const { stack, notFound } = this.shared
    if (this.signal.aborted || isFailure(error, 'cancelled')) throw error
    const absence = isFailure(error) && absences.has(error.kind) ? error : undefined
    let held: TierHit | undefined
    if (waits)
      held = await orAborted(this.signal, Promise.race([look.found, look.here.then(() => undefined)])).catch(
        () => undefined,
      )
    if (!held && !look.haveAnswered && absence && absence.kind !== 'timeout')
      held = await this.#briefly(cid, absence.kind === 'not-found' ? lastLookMs : undefined, (own) =>
        stack.lookAgain(cid, own),
      )
    if (!held && absence && !absence.facts.onlyIfCached) {
      if (await this.#briefly(cid, lastLookMs, (own) => stack.isPinned(cid, own))) {
        held = await this.#briefly(cid, lastLookMs, (own) => stack.lookAgain(cid, own))
        if (!held) throw pinUnreadable(cid, absence)
      }
    }
    if (!held) throw this.#inArchive(cid, error, look.haveAnswered)
    notFound.forget(cid)
    return this.#fromSlowTier(held)
  }

  /** `ms` undefined: until the request is out of time. Undefined: it failed, or took longer. */
  async #briefly<T>(cid: CID, ms: number | undefined, work: (own: AbortSignal) => Promise<T>): Promise<T | undefined> {
    const { signal } = this
    const { clock } = this.shared
    const late = () => notCached(cid)
    if (signal.aborted) return undefined
    const done = ms === undefined ? this.inTime(cid, work) : withDeadline({ ms, clock, signal, late }, work)
    return done.catch(() => undefined)
  }

  /** Without upstreams the tiers are all there is to ask: what they said is an absence, what they did not say is none. */
  #inArchive(cid: CID, error: unknown, isSure: boolean): unknown {
    if (isFailure(error, 'unavailable') && error.facts.alone) return isSure ? notHere(error) : storeFailed(cid, error)
    return this.shared.isArchive && isFailure(error, 'timeout') ? storeFailed(cid, error) : error
  }

  #fromSlowTier(held: TierHit): Uint8Array {
    this.#wasHeld = true
    return this.#fromTier(held)
  }

  /** From the tiers alone. A request that wants it meanwhile joins the same look. */
  async #fetchHeld(cid: CID): Promise<Uint8Array> {
    const near = this.#near(cid)
    if (near) return near
    const look = this.shared.stack.look(cid)
    try {
      const held = await this.inTime(cid, () => look.found)
      if (!held) throw nothing
      return this.#fromTier(held)
    } finally {
      look.leave()
    }
  }

  // The upstreams.

  /** `otherwise`: what may help where they do not. */
  #fromUpstreams(
    cid: CID,
    around: Place | undefined,
    otherwise?: (error: unknown) => Promise<Uint8Array>,
  ): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      const fail = otherwise ? (error: unknown) => resolve(otherwise(error)) : reject
      try {
        this.#refuseRemembered(cid, around)
        // Two requests for one block: the first finds it in no tier and is held up; the second flies for it, gets it, and its flight ends
        // with the block in memory. Without this look the first would find no flight to join and start another one.
        const near = this.#near(cid)
        if (near) return resolve(near)
        this.#refuseLate(cid)
        this.#miss()
        const answer = this.#chooseAnswer(cid, around)
        if (!answer || !around) return this.#waitForBlock(cid, resolve, fail)
        this.#fromAnswer(cid, around, answer).then((flown) => {
          if (!flown) return this.#waitForBlock(cid, resolve, fail)
          this.#lastFrom = 'upstream'
          resolve(flown)
        }, fail)
      } catch (error) {
        fail(error)
      }
    })
  }

  /** An answer that has begun is not cut for it. */
  #miss(): void {
    if (this.#hasMissed) return
    this.#hasMissed = true
    if (!this.#hasBegun) this.#beforeMiss?.()
  }

  // One block, alone.

  #waitForBlock(cid: CID, resolve: (bytes: Uint8Array) => void, reject: (error: unknown) => void): void {
    const flight = this.shared.blockFlight(cid, this.#asker)
    const wait = new BlockWait(this, cid, flight, resolve, reject)
    wait.begin()
  }

  /** The block came. */
  fetched(upstream: string, bytes: number): void {
    this.account.fetched(upstream, bytes)
    this.#lastFrom = 'upstream'
  }

  get #asker(): Wanting {
    const hasBegun = this.#hasBegun || this.#lastFrom === 'upstream'
    return { client: this.#client, hasBegun, root: this.#root }
  }

  // An answer with those that follow.

  #currentAnswer(): Followed | undefined {
    if (this.#followed?.flight.isOver) this.#leaveAnswer(this.#followed)
    return this.#followed
  }

  #leaveAnswer(answer: Followed): void {
    // Who brought how much of it.
    if (this.account.brought.length > 1) this.#note(answer.flight.attempts)
    if (this.#followed === answer) this.#followed = undefined
    answer.leave()
  }

  #followOf(flight: DagFlight): Followed {
    return (this.#followed = { flight, leave: flight.follow() })
  }

  /** The answer to ask for the block with those that follow it; undefined: ask for it alone. */
  #chooseAnswer(cid: CID, around: DagWant | undefined): Followed | undefined {
    if (!around) return undefined
    const current = this.#currentAnswer()
    if (current) return current
    const { dagFlight, onItsWay, knowsDags } = this.shared
    const lastFrom = this.#lastFrom
    // A reader that caught up with another one's flight flies on with it.
    const flight = lastFrom === 'nowhere' ? undefined : onItsWay(cid)
    if (flight) return this.#followOf(flight)
    if (this.#aloneLeft > 0) {
      this.#aloneLeft--
      return undefined
    }
    // One leaf missing between others that are here costs one block, not an answer with everything after it. If a single
    // block is wanted, a CAR is the wrong question too: upstreams leave out blocks that do not decode.
    const isItself = around.segments.length === 0 && sameBytes(cid, around.cid)
    const isAlone = cid.code === codec.raw ? lastFrom === 'tier' || isItself : around.scope === 'block' && isItself
    if (isAlone || (lastFrom !== 'nowhere' && !knowsDags(cid, this.#root ?? cid))) return undefined
    return this.#followOf(dagFlight(around, this.#asker))
  }

  /** Undefined: the block does not come from there. */
  #fromAnswer(cid: CID, around: Place, answer: Followed): Promise<Uint8Array | undefined> {
    return new Promise((resolve, reject) => new DagWait(this, cid, around, answer, resolve, reject).begin())
  }

  /** It came by before, and memory has it. */
  wentBy(cid: CID): Uint8Array | undefined {
    return this.shared.stack.near(cid)?.bytes
  }

  /** This answer did not bring a block that the reader waited for: if it is over, the next answers may do so too. */
  leftOut(answer: Followed): void {
    if (!answer.flight.isOver || this.#followed !== answer) return
    this.#leaveAnswer(answer)
    this.#aloneLeft = this.#aloneNext
    this.#aloneNext = Math.min(maxAlone, this.#aloneNext * 2)
  }

  /** The failure to throw for a block that an answer did not bring; undefined: it is asked for alone. */
  answerFailed(error: unknown, cid: CID, around: DagWant, answer: Followed, wasLate: boolean): Failure | undefined {
    const asked = sameBytes(cid, around.cid) ? around : undefined
    const { flight, leave } = answer
    const { attempts } = flight
    if (isFailure(error, 'timeout') && !flight.isOver && !this.#hasBegun) {
      // The search takes this reader's seat.
      if (this.#followed === answer) this.#followed = undefined
      return this.missed(error, cid, asked, attempts, wasLate, { done: flight.drain(), attempts, stop: leave })
    }
    this.#leaveAnswer(answer)
    // Below a path, "not found" may mean the path: only the root alone can tell whether the root is there.
    if (isFailure(error, 'not-found') && around.segments.length > 0 && asked) {
      this.#note(attempts)
      return undefined
    }
    return this.missed(error, cid, asked, attempts, wasLate)
  }

  // Its time: one deadline for everything until its first byte goes out, then one for each block.

  /** Less than half of the time is left: a 404 from here on is no proof of absence. */
  get isLate(): boolean {
    return this.#deadlineAt - this.shared.clock.monotonic() < this.shared.deadlineMs / 2
  }

  get hasBegun(): boolean {
    return this.#hasBegun
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

  /** Calls `tell` when its time for this block is over; the answer takes that back. */
  whenLate(cid: CID, tell: (late: Failure) => void): () => void {
    const { clock, turns, deadlineMs, blockDeadlineMs } = this.shared
    const ms = this.#hasBegun ? blockDeadlineMs : Math.max(0, this.#deadlineAt - clock.monotonic())
    const isTooLate = !this.#hasBegun && ms < deadlineMs * minShare
    let isStopped = false
    const stop = clock.after(ms, () => {
      // Thousands of requests that wait in vain come to their deadline in one turn of the loop: what follows takes many turns.
      void turns.inLine().then(() => {
        if (isStopped) return
        this.#hadItsTurn = true
        tell(isTooLate ? noTimeLeft(cid) : outOfTime(cid, ms))
      })
    })
    return () => {
      isStopped = true
      stop()
    }
  }

  /** Runs `work` until the request is out of time or its client has left; then the work's own signal aborts. */
  async inTime<T>(cid: CID, work: (own: AbortSignal) => Promise<T>): Promise<T> {
    const { signal } = this
    const own = new AbortController()
    const leave = () => own.abort(this.reason)
    const stop = this.whenLate(cid, (late) => own.abort(late))
    if (signal.aborted) leave()
    signal.addEventListener('abort', leave, { once: true })
    const ended = Promise.withResolvers<never>()
    own.signal.addEventListener('abort', () => ended.reject(own.signal.reason), { once: true })
    try {
      own.signal.throwIfAborted()
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
    const memory = notFound.look(cid, path) ?? (path === '' ? undefined : notFound.look(cid, ''))
    // Who could not be asked then may have it now.
    if (!memory || memory.absence.facts.unasked) return
    for (const attempt of memory.attempts) this.account.attempt(attempt)
    throw withRetry(memory.absence, memory.forMs)
  }

  /** Notes the attempts of a flight in the account, once, however many blocks fail with it. */
  #note(attempts: Attempts): void {
    this.#noted ??= new WeakSet()
    if (this.#noted.has(attempts)) return
    this.#noted.add(attempts)
    for (const attempt of attempts.list()) this.account.attempt(attempt)
  }

  /**
   * The failure to throw for a block that a flight did not bring. Remembers an absence, and begins a background search.
   * `wasLate`: too little time was left when the request joined it. `running`: the flight itself, which the search takes over.
   */
  missed(
    error: unknown,
    cid: CID,
    around: DagWant | undefined,
    attempts: Attempts,
    wasLate: boolean,
    running?: SearchRound,
  ): Failure {
    const { notFound, searches, whoIsLeft, lookFor } = this.shared
    const isCrowded = isFailure(error, 'timeout') && (wasLate || attempts.hasBeenCrowded())
    // It waited for an upstream to be well again until its time was over.
    const none = () => (attempts.wasRefused() ? outcomeOf(cid, attempts.failures, whoIsLeft(cid)) : overloaded(cid))
    const failure = isCrowded ? none() : isFailure(error) ? error : internal(error)
    if (failure.kind !== 'cancelled') this.#note(attempts)
    if (isCrowded && running) {
      searches.finish(running)
      return failure
    }
    if (failure.kind === 'cancelled' || this.#hasBegun || !isAbsence(failure)) {
      running?.stop()
      return failure
    }
    const path = pathOf(around)
    const { forMs } = notFound.look(cid, path) ?? notFound.remember(cid, path, failure, attempts.list())
    const client = this.#client
    searches.begin(cid, path, lookFor(cid, around, client), { client, running })
    return failure.facts.unasked ? failure : withRetry(failure, forMs)
  }
}

/** What a client takes for "not here". */
const absences: ReadonlySet<string> = new Set(['not-found', 'timeout', 'unavailable'])

const nothing = new Error('no tier has it')

/** A reader that waits for one block of a flight, until its deadline, or its client leaves. */
class BlockWait implements BlockReader {
  readonly #reader: Reader
  readonly #cid: CID
  readonly #flight: BlockFlight
  readonly #resolve: (bytes: Uint8Array) => void
  readonly #reject: (error: unknown) => void
  readonly #wasLate: boolean
  #stop: (() => void) | undefined
  #isOver = false
  /** A search that waits on in its place. */
  #search: PromiseWithResolvers<void> | undefined

  constructor(
    reader: Reader,
    cid: CID,
    flight: BlockFlight,
    resolve: (bytes: Uint8Array) => void,
    reject: (error: unknown) => void,
  ) {
    this.#reader = reader
    this.#cid = cid
    this.#flight = flight
    this.#resolve = resolve
    this.#reject = reject
    this.#wasLate = reader.isLate
  }

  begin(): void {
    const { signal } = this.#reader
    if (signal.aborted) return this.#reject(this.#reader.reason)
    signal.addEventListener('abort', this.#left, { once: true })
    this.#stop = this.#reader.whenLate(this.#cid, (late) => this.#late(late))
    this.#flight.join(this)
  }

  settle(bytes: Uint8Array, upstream: string): void {
    if (this.#search) return this.#search.resolve()
    if (!this.#end()) return
    this.#reader.fetched(upstream, bytes.byteLength)
    this.#resolve(bytes)
  }

  fail(error: unknown): void {
    if (this.#search) return this.#search.reject(error)
    if (!this.#end()) return
    this.#reject(this.#reader.missed(error, this.#cid, undefined, this.#flight.attempts, this.#wasLate))
  }

  readonly #left = (): void => {
    if (!this.#end()) return
    this.#flight.leave(this)
    const { reason } = this.#reader
    this.#reject(this.#reader.missed(reason, this.#cid, undefined, this.#flight.attempts, this.#wasLate))
  }

  #late(error: Failure): void {
    if (!this.#end()) return
    const { attempts } = this.#flight
    if (!isFailure(error, 'timeout') || this.#reader.hasBegun) {
      this.#flight.leave(this)
      return this.#reject(this.#reader.missed(error, this.#cid, undefined, attempts, this.#wasLate))
    }
    const search = Promise.withResolvers<void>()
    search.promise.catch(() => {})
    this.#search = search
    const running = { done: search.promise, attempts, stop: () => this.#flight.leave(this) }
    this.#reject(this.#reader.missed(error, this.#cid, undefined, attempts, this.#wasLate, running))
  }

  #end(): boolean {
    if (this.#isOver) return false
    this.#isOver = true
    this.#stop?.()
    this.#reader.signal.removeEventListener('abort', this.#left)
    return true
  }
}

/** A reader that waits for one block of an answer that it follows, until its deadline, or its client leaves. */
class DagWait implements DagReader {
  readonly #reader: Reader
  readonly #cid: CID
  readonly #around: Place
  readonly #answer: Followed
  readonly #resolve: (bytes: Uint8Array | undefined) => void
  readonly #reject: (error: unknown) => void
  readonly #wasLate: boolean
  #stop: (() => void) | undefined
  #isOver = false

  constructor(
    reader: Reader,
    cid: CID,
    around: Place,
    answer: Followed,
    resolve: (bytes: Uint8Array | undefined) => void,
    reject: (error: unknown) => void,
  ) {
    this.#reader = reader
    this.#cid = cid
    this.#around = around
    this.#answer = answer
    this.#resolve = resolve
    this.#reject = reject
    this.#wasLate = reader.isLate
  }

  begin(): void {
    const { signal } = this.#reader
    if (signal.aborted) return this.fail(this.#reader.reason)
    signal.addEventListener('abort', this.#left, { once: true })
    this.#stop = this.#reader.whenLate(this.#cid, (late) => this.#leave(late))
    this.#answer.flight.join(this.#cid, this.#around, this)
  }

  settle(bytes: Uint8Array, upstream: string): void {
    if (!this.#end()) return
    this.#reader.fetched(upstream, bytes.byteLength)
    this.#resolve(bytes)
  }

  passed(isKept: boolean): void {
    if (!this.#end()) return
    if (isKept) return this.#resolve(this.#reader.wentBy(this.#cid))
    this.#reader.leftOut(this.#answer)
    this.#resolve(undefined)
  }

  fail(error: unknown): void {
    if (!this.#end()) return
    const failure = this.#reader.answerFailed(error, this.#cid, this.#around, this.#answer, this.#wasLate)
    if (failure) this.#reject(failure)
    else this.#resolve(undefined)
  }

  readonly #left = (): void => this.#leave(this.#reader.reason)

  #leave(why: unknown): void {
    if (this.#isOver) return
    this.#answer.flight.leave(this.#cid, this)
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
