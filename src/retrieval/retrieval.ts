// Where blocks come from: the tiers, then one shared flight that races the upstreams. This file keeps a request's clock
// and decides what to ask for; the flights do the asking, and what is proved goes into the tiers before anybody gets it.
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity, isProvable } from '../block.ts'
import type { Clock } from '../clock.ts'
import { cancelled, Failure, isFailure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import type { Attempts } from './attempts.ts'
import { type BlockFlight, flyForBlock } from './block-flight.ts'
import { type DagFlight, flyForDag } from './dag-flight.ts'
import { createFlights, type Flight } from './flights.ts'
import { createNotFoundMemory } from './not-found.ts'
import type { Pool } from './pool.ts'
import { createSearches, isAbsence, type Round } from './searches.ts'
import type { DagWant, Retrieval, Session, SessionOptions } from './session.ts'
import type { Found as Held, TierStack } from './tier-stack.ts'

export type RetrievalOptions = {
  readonly stack: TierStack
  readonly pool: Pool
  readonly clock: Clock
  readonly log: Log
  /** Until the first byte. */
  readonly deadlineMs: number
  /** For each block after the first byte: long enough for a stall to be noticed and another upstream to be asked. */
  readonly blockDeadlineMs: number
  readonly keepLookingMs: number
  readonly notFound: { readonly firstMs: number; readonly mostMs: number }
}

const rawCodec = 0x55

export function createRetrieval(options: RetrievalOptions): Retrieval {
  const { stack, pool, clock, log } = options
  const notFound = createNotFoundMemory({ ...options.notFound, clock })
  const searches = createSearches({ keepLookingMs: options.keepLookingMs, notFound, clock, log })
  const blockFlights = createFlights<BlockFlight>()
  const dagFlights = createFlights<DagFlight>()
  const airborne = new Map<string, DagFlight>()

  const keep = async (cid: CID, bytes: Uint8Array): Promise<void> => {
    notFound.forget(cid)
    await stack.put(cid, bytes).catch((error: unknown) => log('warn', 'tiers.put', { error: String(error) }))
  }

  function joinBlock(cid: CID): Flight<BlockFlight> {
    const key = blockKey(cid)
    return blockFlights.join(key, (signal) => {
      const work = flyForBlock(cid, signal, { pool, clock, keep })
      work.found.catch(() => {}).finally(() => blockFlights.land(key, work))
      return work
    })
  }

  function joinDag(want: DagWant, key = dagKey(want)): Flight<DagFlight> {
    return dagFlights.join(key, (signal) => {
      const onOver = () => {
        dagFlights.land(key, work)
        if (airborne.get(key) === work) airborne.delete(key)
      }
      const work: DagFlight = flyForDag(want, signal, { pool, clock, keep, onOver })
      airborne.set(key, work)
      return work
    })
  }

  /** Another reader's flight that has this block still before it. */
  function onItsWay(cid: CID): string | undefined {
    for (const [key, flight] of airborne) if (flight.expects(cid)) return key
    return undefined
  }

  /** One look around for a search: what a request would have asked for, with nobody waiting. */
  function lookFor(cid: CID, around: DagWant | undefined): (signal: AbortSignal) => Round {
    return (signal) => {
      if (!around) {
        const { found, attempts } = flyForBlock(cid, signal, { pool, clock, keep })
        return { done: found.then(() => {}), attempts }
      }
      const flight = flyForDag(around, signal, { pool, clock, keep, onOver: () => {} })
      return { done: flight.drain(), attempts: flight.attempts }
    }
  }

  function session({ signal, account, onlyIfCached = false, noCache = false }: SessionOptions): Session {
    const deadlineAt = clock.monotonic() + options.deadlineMs
    let begun = false
    let ended = false
    let lastFrom: 'nowhere' | 'tier' | 'upstream' = 'nowhere'
    let dag: Flight<DagFlight> | undefined

    /** `work`, until this request is out of time or its client is gone. */
    async function inTime<T>(cid: CID, work: (own: AbortSignal) => Promise<T>): Promise<T> {
      const own = new AbortController()
      const leave = () => own.abort(isFailure(signal.reason) ? signal.reason : cancelled())
      const ms = begun ? options.blockDeadlineMs : Math.max(0, deadlineAt - clock.monotonic())
      const stop = clock.after(ms, () => own.abort(outOfTime(cid, ms)))
      if (signal.aborted) leave()
      signal.addEventListener('abort', leave, { once: true })
      const left = Promise.withResolvers<never>()
      own.signal.addEventListener('abort', () => left.reject(own.signal.reason), { once: true })
      try {
        own.signal.throwIfAborted()
        return await Promise.race([work(own.signal), left.promise])
      } finally {
        stop()
        signal.removeEventListener('abort', leave)
      }
    }

    function note(attempts: Attempts): void {
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
      if (failure.kind === 'cancelled') return failure
      note(flight.attempts)
      if (begun || !isAbsence(failure)) return failure
      const path = pathOf(around)
      const { forMs } = notFound.look(cid, path) ?? notFound.remember(cid, path, failure, flight.attempts.list())
      searches.begin(cid, path, lookFor(cid, around), running)
      return withRetry(failure, forMs)
    }

    /** Lets go of a flight that has nothing more to bring. */
    function landed(): boolean {
      if (dag?.work.over) {
        dag.leave()
        dag = undefined
      }
      return dag === undefined
    }

    async function fromDag(cid: CID, around: DagWant, key?: string): Promise<Uint8Array | undefined> {
      const flight = (dag ??= joinDag(around, key))
      const asked = sameBytes(cid, around.cid) ? around : undefined
      try {
        const delivered = await inTime(cid, (own) => flight.work.wait(cid, around, own))
        if (!delivered) return undefined
        account.fetched(delivered.upstream)
        return delivered.bytes
      } catch (error) {
        const late = isFailure(error, 'timeout') && !flight.work.over
        flight.leave({ keep: late && !begun })
        dag = undefined
        if (late && !begun) {
          throw missed(error, cid, asked, flight.work, { done: flight.work.drain(), attempts: flight.work.attempts })
        }
        // Below a path, "not found" may mean the path: only the root alone can tell whether the root is there.
        if (isFailure(error, 'not-found') && around.segments.length > 0 && asked) {
          note(flight.work.attempts)
          return undefined
        }
        throw missed(error, cid, asked, flight.work)
      }
    }

    /** Whether it is asked for with what follows it or alone; undefined: alone. */
    async function fromFlight(cid: CID, around: DagWant | undefined): Promise<Uint8Array | undefined> {
      if (!around) return undefined
      const wasFlying = dag !== undefined
      if (!landed()) return fromDag(cid, around)
      // It ended between the look into the tiers and this one, and may have left the block there on its way out.
      const left = wasFlying ? await stack.get(cid, signal) : undefined
      if (left) return left
      // A reader that caught up with another one's flight flies on with it.
      const key = lastFrom === 'nowhere' ? undefined : onItsWay(cid)
      if (key !== undefined) return fromDag(cid, around, key)
      // One leaf missing between others that are here costs one block, not an answer with everything after it.
      const isAlone =
        cid.code === rawCodec && (lastFrom === 'tier' || (around.segments.length === 0 && sameBytes(cid, around.cid)))
      return isAlone ? undefined : fromDag(cid, around)
    }

    async function fromBlock(cid: CID): Promise<Uint8Array> {
      const flight = joinBlock(cid)
      let kept = false
      try {
        const { bytes, upstream } = await inTime(cid, () => flight.work.found)
        account.fetched(upstream)
        return bytes
      } catch (error) {
        kept = isFailure(error, 'timeout') && !begun
        const running = kept ? { done: flight.work.found.then(() => {}), attempts: flight.work.attempts } : undefined
        throw missed(error, cid, undefined, flight.work, running)
      } finally {
        flight.leave({ keep: kept })
      }
    }

    function fromTier({ bytes, tier }: Held): Uint8Array {
      account.tierHit(tier)
      lastFrom = 'tier'
      return bytes
    }

    async function fromOthers(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
      if (onlyIfCached) throw notCached(cid)
      refuseRemembered(cid, around)
      const flown = await fromFlight(cid, around)
      if (flown) {
        lastFrom = 'upstream'
        return flown
      }
      // While it was asked for it may have come by for somebody else.
      const came = await stack.get(cid, signal)
      const bytes = came ?? (await fromBlock(cid))
      lastFrom = came ? 'tier' : 'upstream'
      return bytes
    }

    async function lastResort(cid: CID, error: unknown): Promise<Held | undefined> {
      if (signal.aborted || !isFailure(error) || error.kind === 'cancelled') return undefined
      const patience = error.kind === 'unavailable' ? 'beyond' : 'whole'
      const held = await inTime(cid, (own) => stack.findPatiently(cid, patience, own)).catch(() => undefined)
      if (held) notFound.forget(cid)
      return held
    }

    function refuseRemembered(cid: CID, around: DagWant | undefined): void {
      if (begun) return
      const path = around && sameBytes(cid, around.cid) ? pathOf(around) : ''
      if (noCache) return notFound.forget(cid)
      const memory = notFound.look(cid, path) ?? notFound.look(cid, '')
      if (!memory) return
      for (const attempt of memory.attempts) account.attempt(attempt)
      throw withRetry(memory.failure, memory.forMs)
    }

    return {
      async get(cid, around) {
        if (ended) throw cancelled('the request is over')
        if (!isProvable(cid)) throw unprovable(cid)
        if (isIdentity(cid)) return cid.multihash.digest
        const outages = stack.outages
        const held = await stack.find(cid, signal)
        if (held) return fromTier(held)
        signal.throwIfAborted()
        try {
          return await fromOthers(cid, around)
        } catch (error) {
          // A tier was passed over because others are quicker. Now there are no others.
          const late = stack.outages === outages ? undefined : await lastResort(cid, error)
          if (late) return fromTier(late)
          throw error
        }
      },
      has: async (cid) => isIdentity(cid) || stack.has(cid, signal),
      begun() {
        begun = true
      },
      end() {
        ended = true
        dag?.leave()
        dag = undefined
      },
    }
  }

  return {
    session,
    stats: () => ({
      notFoundRoots: notFound.size,
      searches: searches.size,
      blockFlights: blockFlights.size,
      dagFlights: dagFlights.size,
    }),
    async store(cid, bytes, signal) {
      notFound.forget(cid)
      // A shared tier that is out does not undo an upload that is held: other instances find it at the providers.
      const { failed } = await stack.store(cid, bytes, signal)
      for (const { tier, failure } of failed)
        log('warn', 'tiers.store', { tier, cid: cid.toString(), why: failure.message })
    },
    forget: (cid) => notFound.forget(cid),
    async close() {
      searches.close()
      blockFlights.close()
      dagFlights.close()
      await stack.close()
    },
  }
}

const sameBytes = (one: CID, other: CID): boolean => blockKey(one) === blockKey(other)
const pathOf = (want: DagWant | undefined): string => want?.segments.map(encodeURIComponent).join('/') ?? ''
const dagKey = ({ cid, segments, scope, range }: DagWant): string =>
  [blockKey(cid), scope, range?.from ?? 0, range?.to ?? '', ...segments.map(encodeURIComponent)].join('/')

const withRetry = (failure: Failure, retryAfterMs: number): Failure =>
  new Failure(failure.kind, failure.message, {
    source: failure.source,
    facts: failure.facts,
    cause: failure.cause,
    retryAfterMs,
  })

const outOfTime = (cid: CID, ms: number): Failure =>
  new Failure('timeout', `no upstream sent ${cid} within ${Math.round(ms)} ms; the search goes on`, {
    source: 'upstream',
    facts: { missing: cid.toString(), sure: false },
  })

const notCached = (cid: CID): Failure =>
  new Failure('not-found', `${cid} is in no tier of this gateway, and only-if-cached was asked for`, {
    source: 'tier',
    facts: { onlyIfCached: true, missing: cid.toString() },
  })

const unprovable = (cid: CID): Failure =>
  new Failure(
    'malformed',
    `${cid} cannot be proved: its hash function or digest length is not one this gateway trusts`,
    {
      source: 'content',
    },
  )

const internal = (error: unknown): Failure =>
  new Failure('internal', 'retrieval failed in a way it should not', { source: 'ours', cause: error })
