// Asks the upstreams for one request: a block with those that follow it, in one answer (followed-answer.ts), or block by block. What
// they do not have is remembered by request-absences.ts.
import type { CID } from 'multiformats/cid'
import { isFailure } from '../core/failure.ts'
import type { Flight } from '../core/flights.ts'
import type { Account } from '../observe/account.ts'
import type { NotFoundMemory } from './absence/not-found.ts'
import type { Searches, SearchRound } from './absence/searches.ts'
import type { DagFlight } from './fetch/dag.ts'
import { sameBytes } from './fetch/key.ts'
import type { BlockFlight } from './flight/block-flight.ts'
import { createFollowedAnswer, type LastFrom } from './followed-answer.ts'
import { createRequestAbsences, type RequestAbsences } from './request-absences.ts'
import type { RequestClock } from './request-clock.ts'
import type { DagWant } from './session.ts'
import type { TierStack } from './tiers/stack.ts'
import type { Wanting as Asker } from './upstreams/attempts.ts'
import type { Plan } from './upstreams/pool.ts'

/** The parts that all requests share. */
export type Flying = {
  readonly stack: TierStack
  readonly notFound: NotFoundMemory
  readonly searches: Searches
  /** The flight that brings this block: one for all. */
  blockFlight(cid: CID, asker: Asker): BlockFlight
  joinDag(want: DagWant, asker: Asker, key?: string): Flight<DagFlight>
  /** The key of another reader's flight that will still bring this block. */
  onItsWay(cid: CID): string | undefined
  /** Whether an upstream may be asked for more than single blocks now. */
  knowsDags(cid: CID, root: CID): boolean
  /** The upstreams that cannot be asked for it now. */
  whoIsLeft(cid: CID): Omit<Plan, 'steps'>
  /** One round of a background search, which this client began: no client waits. */
  lookFor(cid: CID, around: DagWant | undefined, client: string): (signal: AbortSignal) => SearchRound
}

export interface UpstreamReader extends Pick<RequestAbsences, 'refuseRemembered'> {
  /** The block, alone or with those that follow. `lastFrom`: where the last block of the request came from. */
  get(cid: CID, around: DagWant | undefined, lastFrom: LastFrom): Promise<Uint8Array>
  /** The block from a running answer that should bring it; undefined if it does not. */
  follow(cid: CID, around: DagWant): Promise<Uint8Array | undefined>
  /** Whether an answer that this request follows will bring it. */
  expects(cid: CID): boolean
  end(): void
}

export function createUpstreamReader(
  options: {
    readonly clock: RequestClock
    readonly account: Account
    readonly signal: AbortSignal
    readonly noCache: boolean
    readonly client: string
    /** The first CID that the request asked for. */
    readonly root: () => CID | undefined
  },
  shared: Flying,
): UpstreamReader {
  const { clock, account, signal, noCache, client } = options
  const { stack, notFound, searches, blockFlight, joinDag, onItsWay, knowsDags, whoIsLeft, lookFor } = shared
  const askerOf = (lastFrom: LastFrom): Asker => ({
    client,
    hasBegun: clock.hasBegun() || lastFrom === 'upstream',
    root: options.root(),
  })
  const absences = createRequestAbsences({ clock, account, noCache, client, notFound, searches, whoIsLeft, lookFor })
  const followed = createFollowedAnswer({
    ...{ joinDag, onItsWay, askerOf },
    knowsDags: (cid) => knowsDags(cid, options.root() ?? cid),
  })

  async function fromDag(cid: CID, around: DagWant, flight: Flight<DagFlight>): Promise<Uint8Array | undefined> {
    const wasLate = clock.isLate()
    const asked = sameBytes(cid, around.cid) ? around : undefined
    const { work } = flight
    const { attempts } = work
    try {
      const arrival = await clock.inTime(cid, (own) => work.wait(cid, around, own))
      if (arrival === 'went-by') return (await stack.findFast(cid, signal))?.bytes
      if (arrival === 'not-here') {
        followed.leftOut(flight)
        return undefined
      }
      account.fetched(arrival.upstream)
      return arrival.bytes
    } catch (error) {
      const isLate = isFailure(error, 'timeout') && !work.over && !clock.hasBegun()
      if (isLate) {
        // The search takes this reader's seat.
        followed.handOver(flight)
        const running = { done: work.drain(), attempts, stop: flight.leave }
        throw absences.missed(error, cid, asked, { attempts, wasLate }, running)
      }
      followed.leave(flight)
      // Below a path, "not found" may mean the path: only the root alone can tell whether the root is there.
      if (isFailure(error, 'not-found') && around.segments.length > 0 && asked) {
        absences.note(attempts)
        return undefined
      }
      throw absences.missed(error, cid, asked, { attempts, wasLate })
    }
  }

  async function fromBlock(cid: CID, lastFrom: LastFrom): Promise<Uint8Array> {
    const flight = blockFlight(cid, askerOf(lastFrom))
    const { attempts } = flight
    const wasLate = clock.isLate()
    const { promise: found, resolve, reject } = Promise.withResolvers<Uint8Array>()
    const reader = {
      settle(bytes: Uint8Array, upstream: string) {
        account.fetched(upstream)
        resolve(bytes)
      },
      fail: reject,
    }
    flight.join(reader)
    let isKept = false
    try {
      return await clock.within(cid, found)
    } catch (error) {
      isKept = isFailure(error, 'timeout') && !clock.hasBegun()
      const running = () => ({ done: found.then(() => {}), attempts, stop: () => flight.leave(reader) })
      throw absences.missed(error, cid, undefined, { attempts, wasLate }, isKept ? running() : undefined)
    } finally {
      if (!isKept) flight.leave(reader)
    }
  }

  return {
    refuseRemembered: absences.refuseRemembered,
    expects: (cid) => followed.current()?.work.expects(cid) ?? false,
    async follow(cid, around) {
      const flight = followed.current()
      return flight && fromDag(cid, around, flight)
    },
    get(cid, around, lastFrom) {
      const flight = followed.choose(cid, around, lastFrom)
      if (!flight || !around) return fromBlock(cid, lastFrom)
      return fromDag(cid, around, flight).then((flown) => flown ?? fromBlock(cid, lastFrom))
    },
    end: followed.end,
  }
}
