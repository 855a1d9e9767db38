// Asks the upstreams for one request: a block with those that follow it, in one answer, or block by block. An absence is
// remembered, and a background search goes on after the request.
import type { CID } from 'multiformats/cid'
import { codec } from '../core/cid.ts'
import { type Failure, isFailure } from '../core/failure.ts'
import type { Flight } from '../core/flights.ts'
import type { Account } from '../observe/account.ts'
import type { NotFoundMemory } from './absence/not-found.ts'
import { isAbsence, type Searches, type SearchRound } from './absence/searches.ts'
import type { BlockFlight } from './fetch/block.ts'
import type { DagFlight } from './fetch/dag.ts'
import { pathOf, sameBytes } from './fetch/key.ts'
import type { RequestClock } from './request-clock.ts'
import type { DagWant } from './session.ts'
import { internal, withRetry } from './session-failures.ts'
import type { TierStack } from './tiers/stack.ts'
import type { Asker, Attempts } from './upstreams/attempts.ts'
import { overloaded } from './upstreams/outcome.ts'

/** The parts that all requests share. */
export type Flying = {
  readonly stack: TierStack
  readonly notFound: NotFoundMemory
  readonly searches: Searches
  joinBlock(cid: CID, asker: Asker): Flight<BlockFlight>
  joinDag(want: DagWant, asker: Asker, key?: string): Flight<DagFlight>
  /** The key of another reader's flight that will still bring this block. */
  onItsWay(cid: CID): string | undefined
  /** Whether an upstream may be asked for more than single blocks now. */
  knowsDags(cid: CID): boolean
  /** One round of a background search: no client waits. */
  lookFor(cid: CID, around: DagWant | undefined): (signal: AbortSignal) => SearchRound
}

/** The attempts, and whether too little time was left when they began. */
type Questions = { readonly attempts: Attempts; readonly wasLate: boolean }

export interface UpstreamReader {
  /** The block, alone or with those that follow. `lastFrom`: where the last block of the request came from. */
  get(cid: CID, around: DagWant | undefined, lastFrom: LastFrom): Promise<Uint8Array>
  /** The block from a running answer that should bring it; undefined if it does not. */
  follow(cid: CID, around: DagWant): Promise<Uint8Array | undefined>
  /** Whether an answer that this request follows will bring it. */
  expects(cid: CID): boolean
  /** Throws a remembered absence. */
  refuseRemembered(cid: CID, around: DagWant | undefined): void
  end(): void
}

export type LastFrom = 'nowhere' | 'tier' | 'upstream'

// After an answer left out a block that a reader waited for, this many blocks are asked for one by one.
const firstAlone = 8
const mostAlone = 1024

export function createUpstreamReader(
  options: {
    readonly clock: RequestClock
    readonly account: Account
    readonly signal: AbortSignal
    readonly noCache: boolean
    readonly client: string
  },
  shared: Flying,
): UpstreamReader {
  const { clock, account, signal, noCache, client } = options
  const { stack, notFound, searches, joinBlock, joinDag, onItsWay, lookFor } = shared
  const { inTime } = clock
  const noted = new WeakSet<Attempts>()
  let dag: Flight<DagFlight> | undefined
  let aloneLeft = 0
  let aloneNext = firstAlone

  /** Several blocks may fail with one answer; its attempts are noted once. */
  function note(attempts: Attempts): void {
    if (noted.has(attempts)) return
    noted.add(attempts)
    for (const attempt of attempts.list()) account.attempt(attempt)
  }

  /** Remembers the absence that a flight reports, and begins a background search. */
  function missed(
    error: unknown,
    cid: CID,
    around: DagWant | undefined,
    flight: Questions,
    running?: SearchRound,
  ): Failure {
    const isCrowded = isFailure(error, 'timeout') && (flight.wasLate || flight.attempts.hasBeenCrowded)
    const failure = isCrowded ? overloaded(cid) : isFailure(error) ? error : internal(error)
    if (failure.kind !== 'cancelled') note(flight.attempts)
    if (isCrowded && running) {
      searches.finish(running)
      return failure
    }
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

  /** The flight that this reader follows, while it goes on. */
  function following(): Flight<DagFlight> | undefined {
    if (dag?.work.over) leaveDag(dag)
    return dag
  }

  /** An answer ended without a block that a reader waited for: the next answers may do so too. */
  function beAlone(): void {
    following()
    aloneLeft = aloneNext
    aloneNext = Math.min(mostAlone, aloneNext * 2)
  }

  async function fromDag(cid: CID, around: DagWant, flight: Flight<DagFlight>): Promise<Uint8Array | undefined> {
    const { isLate: wasLate } = clock
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
        throw missed(
          error,
          cid,
          asked,
          { attempts: work.attempts, wasLate },
          { done: work.drain(), attempts: work.attempts, stop: flight.leave },
        )
      }
      leaveDag(flight)
      // Below a path, "not found" may mean the path: only the root alone can tell whether the root is there.
      if (isFailure(error, 'not-found') && around.segments.length > 0 && asked) {
        note(work.attempts)
        return undefined
      }
      throw missed(error, cid, asked, { attempts: work.attempts, wasLate })
    }
  }

  /** The flight to ask for it with the blocks that follow; undefined: ask for it alone. */
  function answerFor(cid: CID, around: DagWant | undefined, lastFrom: LastFrom): Flight<DagFlight> | undefined {
    if (!around) return undefined
    const flight = following()
    if (flight) return flight
    // A reader that caught up with another one's flight flies on with it.
    const key = lastFrom === 'nowhere' ? undefined : onItsWay(cid)
    if (key !== undefined) return (dag = joinDag(around, askerOf(lastFrom), key))
    if (aloneLeft > 0) {
      aloneLeft--
      return undefined
    }
    // One leaf missing between others that are here costs one block, not an answer with everything after it. If a single
    // block is wanted, a CAR is the wrong question too: upstreams leave out blocks that do not decode.
    const isItself = around.segments.length === 0 && sameBytes(cid, around.cid)
    const isAlone = cid.code === codec.raw ? lastFrom === 'tier' || isItself : around.scope === 'block' && isItself
    if (isAlone || (lastFrom !== 'nowhere' && !shared.knowsDags(cid))) return undefined
    return (dag = joinDag(around, askerOf(lastFrom)))
  }

  const askerOf = (lastFrom: LastFrom): Asker => ({ client, hasBegun: clock.hasBegun || lastFrom === 'upstream' })

  async function fromBlock(cid: CID, lastFrom: LastFrom): Promise<Uint8Array> {
    const flight = joinBlock(cid, askerOf(lastFrom))
    const { work } = flight
    const { isLate: wasLate } = clock
    let isKept = false
    try {
      const { bytes, upstream } = await inTime(cid, () => work.found)
      account.fetched(upstream)
      return bytes
    } catch (error) {
      isKept = isFailure(error, 'timeout') && !clock.hasBegun
      const running = () => ({ done: work.found.then(() => {}), attempts: work.attempts, stop: flight.leave })
      throw missed(error, cid, undefined, { attempts: work.attempts, wasLate }, isKept ? running() : undefined)
    } finally {
      if (!isKept) flight.leave()
    }
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

  return {
    refuseRemembered,
    expects: (cid) => following()?.work.expects(cid) ?? false,
    async follow(cid, around) {
      const flight = following()
      return flight && fromDag(cid, around, flight)
    },
    async get(cid, around, lastFrom) {
      const flight = answerFor(cid, around, lastFrom)
      const flown = flight && around && (await fromDag(cid, around, flight))
      return flown ?? (await fromBlock(cid, lastFrom))
    },
    end() {
      dag?.leave()
      dag = undefined
    },
  }
}
