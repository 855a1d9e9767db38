// One request among the flights. A block comes from memory; or from an answer under way that will bring it; or from the
// slow tiers, which are waited for as long as they are worth it; or from the upstreams, which are asked beside them then.
import type { CID } from 'multiformats/cid'
import { isIdentity, isProvable } from '../block.ts'
import type { Clock } from '../clock.ts'
import { cancelled, type Failure, isFailure } from '../failure.ts'
import type { Attempts } from './attempts.ts'
import type { BlockFlight } from './fetch/block.ts'
import type { DagFlight } from './fetch/dag.ts'
import { pathOf, sameBytes } from './fetch/key.ts'
import type { Flight } from './flights.ts'
import type { NotFoundMemory } from './not-found.ts'
import { createReadAhead, type Room } from './read-ahead.ts'
import { createRequestClock } from './request-clock.ts'
import { isAbsence, type Round, type Searches } from './searches.ts'
import type { DagWant, Session, SessionOptions } from './session.ts'
import { internal, notCached, notHere, unprovable, withRetry } from './session-failures.ts'
import type { Found as Held, Look, TierStack } from './tier-stack.ts'

/** What all requests share. */
export type Shared = {
  readonly stack: TierStack
  readonly clock: Clock
  readonly notFound: NotFoundMemory
  readonly searches: Searches
  readonly room: Room
  readonly deadlineMs: number
  readonly blockDeadlineMs: number
  joinBlock(cid: CID): Flight<BlockFlight>
  joinDag(want: DagWant, key?: string): Flight<DagFlight>
  /** Another reader's flight that has this block still before it. */
  onItsWay(cid: CID): string | undefined
  /** Whether anybody may be asked for more than single blocks now. */
  knowsDags(cid: CID): boolean
  /** One look around for a search, with nobody waiting. */
  lookFor(cid: CID, around: DagWant | undefined): (signal: AbortSignal) => Round
}

const rawCodec = 0x55
// After an answer left out what was waited for, so many blocks are asked for alone before the next answer is begun.
const firstAlone = 8
const mostAlone = 1024

/** What one request asks, until its `end`. */
export function openSession(
  { signal, account, onlyIfCached = false, noCache = false }: SessionOptions,
  shared: Shared,
): Session {
  const { stack, notFound, searches, joinBlock, joinDag, onItsWay, lookFor } = shared
  const clock = createRequestClock({ ...shared, signal })
  const { inTime } = clock
  const isHeld = () => wasHeld
  const ahead = createReadAhead({ fetch, fetchHeld, isHeld, room: shared.room, clock: shared.clock })
  const noted = new WeakSet<Attempts>()
  let ended = false
  /** A slow tier had something of it. */
  let wasHeld = false
  let lastFrom: 'nowhere' | 'tier' | 'upstream' = 'nowhere'
  let dag: Flight<DagFlight> | undefined
  let aloneLeft = 0
  let aloneNext = firstAlone

  /** Several blocks may fail with one answer; who was asked for it is told once. */
  function note(attempts: Attempts): void {
    if (noted.has(attempts)) return
    noted.add(attempts)
    for (const attempt of attempts.list()) account.attempt(attempt)
  }

  /** The answer of a flight, or its failure, remembered and searched behind. */
  function missed(
    error: unknown,
    cid: CID,
    around: DagWant | undefined,
    flight: { attempts: Attempts },
    running?: Round,
  ): Failure {
    const failure = isFailure(error) ? error : internal(error)
    if (failure.kind !== 'cancelled') note(flight.attempts)
    if (failure.kind === 'cancelled' || clock.hasBegun || !isAbsence(failure)) {
      running?.stop()
      return failure
    }
    const path = pathOf(around)
    const { forMs } = notFound.look(cid, path) ?? notFound.remember(cid, path, failure, flight.attempts.list())
    searches.begin(cid, path, lookFor(cid, around), running)
    return withRetry(failure, forMs)
  }

  function leaveDag(flight: Flight<DagFlight>): void {
    flight.leave()
    if (dag === flight) dag = undefined
  }

  /** The answer that this reader follows, as long as it goes on. */
  function following(): Flight<DagFlight> | undefined {
    if (dag?.work.over) leaveDag(dag)
    return dag
  }

  /** An answer that ended left out what was waited for: the next ones may do so too. */
  function beAlone(): void {
    following()
    aloneLeft = aloneNext
    aloneNext = Math.min(mostAlone, aloneNext * 2)
  }

  async function fromDag(cid: CID, around: DagWant, flight: Flight<DagFlight>): Promise<Uint8Array | undefined> {
    const asked = sameBytes(cid, around.cid) ? around : undefined
    const { work } = flight
    try {
      const arrival = await inTime(cid, (own) => work.wait(cid, around, own))
      if (arrival === 'went-by') return (await stack.findFast(cid, signal))?.bytes
      if (arrival === 'not-here') {
        if (work.over && dag === flight) beAlone()
        return undefined
      }
      account.fetched(arrival.upstream)
      return arrival.bytes
    } catch (error) {
      const isLate = isFailure(error, 'timeout') && !work.over && !clock.hasBegun
      if (isLate) {
        // The search takes this reader's seat.
        if (dag === flight) dag = undefined
        throw missed(error, cid, asked, work, { done: work.drain(), attempts: work.attempts, stop: flight.leave })
      }
      leaveDag(flight)
      // Below a path, "not found" may mean the path: only the root alone can tell whether the root is there.
      if (isFailure(error, 'not-found') && around.segments.length > 0 && asked) {
        note(work.attempts)
        return undefined
      }
      throw missed(error, cid, asked, work)
    }
  }

  /** Whether it is asked for with what follows it; undefined: alone. */
  function answerFor(cid: CID, around: DagWant | undefined): Flight<DagFlight> | undefined {
    if (!around) return undefined
    const flight = following()
    if (flight) return flight
    // A reader that caught up with another one's flight flies on with it.
    const key = lastFrom === 'nowhere' ? undefined : onItsWay(cid)
    if (key !== undefined) return (dag = joinDag(around, key))
    if (aloneLeft > 0) {
      aloneLeft--
      return undefined
    }
    // One leaf missing between others that are here costs one block, not an answer with everything after it. Where one
    // block is all that is wanted, a CAR is not the question either: upstreams leave out of it what does not decode.
    const isItself = around.segments.length === 0 && sameBytes(cid, around.cid)
    const isAlone = cid.code === rawCodec ? lastFrom === 'tier' || isItself : around.scope === 'block' && isItself
    if (isAlone || (lastFrom !== 'nowhere' && !shared.knowsDags(cid))) return undefined
    return (dag = joinDag(around))
  }

  async function fromBlock(cid: CID): Promise<Uint8Array> {
    const flight = joinBlock(cid)
    const { work } = flight
    let isKept = false
    try {
      const { bytes, upstream } = await inTime(cid, () => work.found)
      account.fetched(upstream)
      return bytes
    } catch (error) {
      isKept = isFailure(error, 'timeout') && !clock.hasBegun
      const running = () => ({ done: work.found.then(() => {}), attempts: work.attempts, stop: flight.leave })
      throw missed(error, cid, undefined, work, isKept ? running() : undefined)
    } finally {
      if (!isKept) flight.leave()
    }
  }

  function fromTier({ bytes, tier }: Held): Uint8Array {
    account.tierHit(tier)
    lastFrom = 'tier'
    return bytes
  }

  async function fromUpstreams(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    refuseRemembered(cid, around)
    // An answer that ended after the first look may have left it in memory on its way out.
    const left = await stack.findFast(cid, signal)
    if (left) return fromTier(left)
    const flight = answerFor(cid, around)
    const flown = flight && around && (await fromDag(cid, around, flight))
    const bytes = flown ?? (await fromBlock(cid))
    lastFrom = 'upstream'
    return bytes
  }

  function refuseRemembered(cid: CID, around: DagWant | undefined): void {
    if (clock.hasBegun) return
    const path = around && sameBytes(cid, around.cid) ? pathOf(around) : ''
    if (noCache) return notFound.forget(cid)
    const memory = notFound.look(cid, path) ?? notFound.look(cid, '')
    if (!memory) return
    for (const attempt of memory.attempts) account.attempt(attempt)
    throw withRetry(memory.failure, memory.forMs)
  }

  /** What the slow tiers have, `late` as soon as it is worth asking somebody else too. */
  async function whileWorthIt(cid: CID, look: Look): Promise<Held | undefined | 'late'> {
    if (onlyIfCached) return inTime(cid, () => look.found)
    return inTime(cid, () => Promise.race([look.found, look.overdue.then(() => 'late' as const)]))
  }

  /** Whoever brings it first, and nothing only when nobody has it. */
  async function fromEither(cid: CID, around: DagWant | undefined, look: Look): Promise<Uint8Array> {
    const upstreams = fromUpstreams(cid, around)
    const tiers = look.found.then((held) => held ?? Promise.reject(nothing))
    upstreams.catch(() => {})
    try {
      return await inTime(cid, () => Promise.any([tiers.then(fromTier), upstreams]))
    } catch (error) {
      if (isFailure(error, 'cancelled')) throw error
      return await upstreams
    } finally {
      if (notFound.look(cid, '')) tiers.then(() => notFound.forget(cid)).catch(() => {})
    }
  }

  async function fromSlowTiers(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    const outages = stack.outages
    const look = stack.look(cid)
    try {
      const held = await whileWorthIt(cid, look)
      if (held === 'late') return await fromEither(cid, around, look)
      if (held) {
        wasHeld = true
        return fromTier(held)
      }
      if (onlyIfCached) throw notCached(cid)
      return await fromUpstreams(cid, around)
    } catch (error) {
      if (stack.outages === outages)
        throw isFailure(error, 'unavailable') && error.facts['alone'] ? notHere(error) : error
      const late = await lastResort(cid, error)
      if (late) return fromTier(late)
      throw error
    } finally {
      look.leave()
    }
  }

  /** A tier was passed over because others are quicker. Now there are no others. */
  async function lastResort(cid: CID, error: unknown): Promise<Held | undefined> {
    if (signal.aborted || !isFailure(error, 'unavailable')) return undefined
    const held = await inTime(cid, (own) => stack.findPatiently(cid, 'beyond', own)).catch(() => undefined)
    if (held) notFound.forget(cid)
    return held
  }

  /** From the tiers alone, as long as that is worth waiting for. */
  async function fetchHeld(cid: CID): Promise<Uint8Array> {
    const near = await stack.findFast(cid, signal)
    if (near) return fromTier(near)
    const look = stack.look(cid)
    try {
      const held = await whileWorthIt(cid, look)
      if (held === undefined || held === 'late') throw nothing
      return fromTier(held)
    } finally {
      look.leave()
    }
  }

  async function fetch(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    const near = await stack.findFast(cid, signal)
    if (near) return fromTier(near)
    signal.throwIfAborted()
    const flight = following()
    if (!around || !flight?.work.expects(cid)) return fromSlowTiers(cid, around)
    const flown = await fromDag(cid, around, flight)
    if (!flown) return fromSlowTiers(cid, undefined)
    lastFrom = 'upstream'
    return flown
  }

  return {
    async get(cid, around) {
      if (ended) throw cancelled('the request is over')
      if (!isProvable(cid)) throw unprovable(cid)
      if (isIdentity(cid)) return cid.multihash.digest
      return ahead.take(cid) ?? fetch(cid, around)
    },
    expect(next) {
      if (!ended) ahead.expect(next)
    },
    has: async (cid) => isIdentity(cid) || stack.has(cid, signal),
    begun: clock.begun,
    end() {
      ended = true
      ahead.end()
      dag?.leave()
      dag = undefined
    },
  }
}

const nothing = new Error('no tier has it')
