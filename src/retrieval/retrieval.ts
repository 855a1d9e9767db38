// Retrieval: the parts that all requests share. Each request has a reader (reader.ts), which gets
// blocks from the tiers, or from a shared flight over the upstreams. A proved block goes into memory
// or a write-behind queue before any reader gets it.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import { cancelled } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import { createNodeMemory } from '../ipld/node-memory.ts'
import { Flight, type FlightDeps } from './flight/flight.ts'
import { createSearches } from './negative-cache.ts'
import { ReadAheadBudget } from './read-ahead.ts'
import { openReader, type ReaderParts } from './reader.ts'
import type { DagWant, Session, SessionOptions } from './session.ts'
import type { TierStack } from './tiers/tier-stack.ts'
import type { AskKind, Wanting } from './upstreams/attempts.ts'

export type RetrievalOptions = Pick<
  ReaderParts,
  'stack' | 'pool' | 'clock' | 'notFound' | 'turns' | 'deadlineMs' | 'blockDeadlineMs'
> & {
  readonly log: Log
  /** A search goes on so long after a 404. */
  readonly keepLookingMs: number
  /** The maximum of bytes that all requests together read ahead. */
  readonly readAheadBytes: number
  readonly trace?: Trace | undefined
}

export type Retrieval = ReturnType<typeof createRetrieval>

export function createRetrieval(options: RetrievalOptions) {
  const { stack, pool, notFound, clock, turns, log, trace } = options
  const searches = createSearches({ durationMs: options.keepLookingMs, negativeCache: notFound, clock, log, flight })
  const flights: Readonly<Record<AskKind, Map<string, Flight>>> = { block: new Map(), dag: new Map() }
  const deps: FlightDeps = {
    ...{ pool, clock, trace, yieldIfDue: turns.yieldIfDue },
    keep(cid, bytes) {
      notFound.forget(cid)
      return stack.keep(cid, bytes)
    },
  }

  function flight(kind: AskKind, want: DagWant, asker: Wanting): Flight {
    const running = flights[kind]
    const key = kind === 'block' ? blockKey(want.cid) : dagKey(want)
    let one = running.get(key)
    if (one) return one
    one = new Flight(kind, want, deps, asker, () => {
      if (running.get(key) === one) running.delete(key)
    })
    running.set(key, one)
    return one
  }

  function flightWith(cid: CID): Flight | undefined {
    for (const one of flights.dag.values()) if (one.expects(cid)) return one
    return undefined
  }

  const shared: ReaderParts = {
    ...{ ...options, searches, flight, flightWith },
    readAhead: new ReadAheadBudget(options.readAheadBytes),
    nodes: createNodeMemory(),
  }

  return {
    session: (request: SessionOptions): Session => openReader(request, shared),
    /**
     * For a request, before it reads anything: undefined if it may begin now, otherwise resolves
     * when it may. Each event-loop iteration admits a few.
     */
    begin: turns.begin,
    stats: () => ({
      toBegin: turns.toBegin,
      notFoundRoots: notFound.size,
      searches: searches.size,
      blockFlights: flights.block.size,
      dagFlights: flights.dag.size,
    }),
    /**
     * Puts a proved block of our own (an upload) into every tier. Resolves when the shared ones have
     * it too, with those that failed or take longer than is worth waiting for: they get it later.
     */
    async store(cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<readonly string[]> {
      notFound.forget(cid)
      const { failed } = await stack.store(cid, bytes, signal)
      for (const { tier, failure } of failed)
        log('debug', 'tier.store-failed', { tier, cid: cid.toString(), why: failure.message })
      return failed.map(({ tier }) => tier)
    },
    /** Tiers that other instances see too. */
    sharedTiers: stack.shared,
    /** Puts a block into one shared tier that lacks it; rejects as the tier does. */
    bring: (...block: Parameters<TierStack['bring']>) => stack.bring(...block),
    /** Forgets a remembered absence: after an upload, a find, or an operator's request. */
    forget: (cid: CID) => notFound.forget(cid),
    async close() {
      searches.close()
      const closing = cancelled('the gateway is closing')
      for (const one of [...flights.block.values(), ...flights.dag.values()]) one.end(closing)
    },
  }
}

const dagKey = ({ cid, segments, scope, range }: DagWant): string =>
  [blockKey(cid), scope, range?.from ?? 0, range?.to ?? '', ...segments.map(encodeURIComponent)].join('/')
