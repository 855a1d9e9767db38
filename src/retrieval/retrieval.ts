// Retrieval: gets blocks from the tiers, then from one shared flight that races the upstreams. This file keeps what all
// requests share; open-session has one request. A proved block goes into the tiers before any reader gets it.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { cancelled } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import { createNodeMemory } from '../ipld/node-memory.ts'
import { BlockFlight, type BlockReader } from './flight/block-flight.ts'
import { DagFlight } from './flight/dag-flight.ts'
import { dagKey } from './flight/want.ts'
import { createSearches, type NegativeCache, type SearchRound } from './negative-cache.ts'
import { createRoom } from './read-ahead.ts'
import { openReader, type ReaderParts } from './reader.ts'
import type { DagWant, Retrieval } from './session.ts'
import type { TierStack } from './tiers/tier-stack.ts'
import type { LoopTurns } from './turns/loop-turns.ts'
import type { Wanting as Asker } from './upstreams/attempts.ts'
import type { Pool } from './upstreams/pool.ts'

export type RetrievalOptions = {
  readonly stack: TierStack
  readonly pool: Pool
  readonly clock: Clock
  /** Shared with all that takes turns on this loop. */
  readonly turns: LoopTurns
  readonly log: Log
  /** Until the first byte. */
  readonly deadlineMs: number
  /** For each block after the first byte: long enough to notice a stall and ask another upstream. */
  readonly blockDeadlineMs: number
  readonly keepLookingMs: number
  /** Most bytes that all requests together may read ahead. */
  readonly readAheadBytes: number
  readonly notFound: NegativeCache
  readonly trace?: Trace | undefined
}

export function createRetrieval(options: RetrievalOptions): Retrieval {
  const { stack, pool, notFound, clock, turns, log, trace } = options
  const searches = createSearches({ durationMs: options.keepLookingMs, negativeCache: notFound, clock, log })
  const blockFlights = new Map<string, BlockFlight>()
  const dagFlights = new Map<string, DagFlight>()
  const { giveWay } = turns

  const keep = (cid: CID, bytes: Uint8Array): void | Promise<void> => {
    notFound.forget(cid)
    return stack.keep(cid, bytes)
  }

  function blockFlight(cid: CID, asker: Asker): BlockFlight {
    const key = blockKey(cid)
    const running = blockFlights.get(key)
    if (running) return running
    const flight = new BlockFlight(cid, { pool, clock, keep, trace }, asker, () => {
      if (blockFlights.get(key) === flight) blockFlights.delete(key)
    })
    blockFlights.set(key, flight)
    return flight
  }

  function dagFlight(want: DagWant, asker: Asker): DagFlight {
    const key = dagKey(want)
    const running = dagFlights.get(key)
    if (running) return running
    const flight = new DagFlight(want, { pool, clock, keep, trace, giveWay }, asker, () => {
      if (dagFlights.get(key) === flight) dagFlights.delete(key)
    })
    dagFlights.set(key, flight)
    return flight
  }

  /** Another reader's flight that will still bring this block. */
  function onItsWay(cid: CID): DagFlight | undefined {
    for (const flight of dagFlights.values()) if (flight.expects(cid)) return flight
    return undefined
  }

  /** One round of a background search: asks like a request, but its client does not wait. */
  function lookFor(cid: CID, around: DagWant | undefined, client: string): () => SearchRound {
    const asker = { client, hasBegun: false, root: around?.cid ?? cid }
    const over = cancelled('the search is over')
    return () => {
      if (!around) return searchBlock(cid, asker)
      const flight = new DagFlight(around, { pool, clock, keep, trace, giveWay }, asker)
      return { done: flight.drain(), attempts: flight.attempts, stop: () => flight.abort(over) }
    }
  }

  function searchBlock(cid: CID, asker: Asker): SearchRound {
    const flight = new BlockFlight(cid, { pool, clock, keep, trace }, asker, () => {})
    const { promise: done, resolve, reject } = Promise.withResolvers<void>()
    const reader: BlockReader = { settle: () => resolve(), fail: reject }
    done.catch(() => {})
    flight.join(reader)
    return { done, attempts: flight.attempts, stop: () => flight.leave(reader) }
  }

  const shared: ReaderParts = {
    stack,
    clock,
    notFound,
    searches,
    turns,
    room: createRoom(options.readAheadBytes),
    nodes: createNodeMemory(),
    deadlineMs: options.deadlineMs,
    blockDeadlineMs: options.blockDeadlineMs,
    isArchive: pool.members.length === 0 && !pool.find,
    blockFlight,
    dagFlight,
    onItsWay,
    knowsDags: (cid, root) =>
      pool
        .of(root)
        .some(({ upstream, health }) => upstream.traits.dag && health.state(blockKey(cid)).state === 'ready'),
    whoIsLeft: (cid) => pool.plan('block', cid),
    lookFor,
  }

  return {
    session: (request) => openReader(request, shared),
    begin: turns.begin,
    stats: () => ({
      toBegin: turns.toBegin,
      notFoundRoots: notFound.size,
      searches: searches.size,
      blockFlights: blockFlights.size,
      dagFlights: dagFlights.size,
    }),
    async store(cid, bytes, signal) {
      notFound.forget(cid)
      // A shared tier that is down does not fail an upload that providers hold: it gets the block later.
      const { failed } = await stack.store(cid, bytes, signal)
      for (const { tier, failure } of failed)
        log('debug', 'tier.store-failed', { tier, cid: cid.toString(), why: failure.message })
      return failed.map(({ tier }) => tier)
    },
    sharedTiers: stack.shared,
    bring: stack.bring,
    forget: (cid) => notFound.forget(cid),
    async close() {
      searches.close()
      const closing = cancelled('the gateway is closing')
      for (const flight of [...blockFlights.values(), ...dagFlights.values()]) flight.abort(closing)
    },
  }
}
