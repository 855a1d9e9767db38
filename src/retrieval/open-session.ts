// One request among the flights: its clock, what it asks for next (a tier, a DAG, a block alone), and what it is told when
// there is nothing.
import type { CID } from 'multiformats/cid'
import { isIdentity, isProvable } from '../block.ts'
import type { Clock } from '../clock.ts'
import { cancelled, Failure, isFailure } from '../failure.ts'
import type { Attempts } from './attempts.ts'
import type { BlockFlight } from './block-flight.ts'
import type { DagFlight } from './dag-flight.ts'
import { pathOf, sameBytes } from './dag-key.ts'
import type { Flight } from './flights.ts'
import type { NotFoundMemory } from './not-found.ts'
import { isAbsence, type Round, type Searches } from './searches.ts'
import type { DagWant, Session, SessionOptions } from './session.ts'
import type { Found as Held, TierStack } from './tier-stack.ts'

/** What all requests share. */
export type Shared = {
  readonly stack: TierStack
  readonly clock: Clock
  readonly notFound: NotFoundMemory
  readonly searches: Searches
  readonly deadlineMs: number
  readonly blockDeadlineMs: number
  joinBlock(cid: CID): Flight<BlockFlight>
  joinDag(want: DagWant, key?: string): Flight<DagFlight>
  /** Another reader's flight that has this block still before it. */
  onItsWay(cid: CID): string | undefined
  /** One look around for a search, with nobody waiting. */
  lookFor(cid: CID, around: DagWant | undefined): (signal: AbortSignal) => Round
}

const rawCodec = 0x55

/** What one request asks, until its `end`. */
export function openSession(
  { signal, account, onlyIfCached = false, noCache = false }: SessionOptions,
  shared: Shared,
): Session {
  const { stack, clock, notFound, searches, joinBlock, joinDag, onItsWay, lookFor } = shared
  const deadlineAt = clock.monotonic() + shared.deadlineMs
  let begun = false
  let ended = false
  let lastFrom: 'nowhere' | 'tier' | 'upstream' = 'nowhere'
  let dag: Flight<DagFlight> | undefined

  /** `work`, until this request is out of time or its client is gone. */
  async function inTime<T>(cid: CID, work: (own: AbortSignal) => Promise<T>): Promise<T> {
    const own = new AbortController()
    const leave = () => own.abort(isFailure(signal.reason) ? signal.reason : cancelled())
    const ms = begun ? shared.blockDeadlineMs : Math.max(0, deadlineAt - clock.monotonic())
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
    // One leaf missing between others that are here costs one block, not an answer with everything after it. Where one
    // block is all that is wanted, a CAR is not the question either: upstreams leave out of it what does not decode.
    const isItself = around.segments.length === 0 && sameBytes(cid, around.cid)
    const isAlone = cid.code === rawCodec ? lastFrom === 'tier' || isItself : around.scope === 'block' && isItself
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
    const came = await stack.find(cid, signal)
    if (came) return fromTier(came)
    const bytes = await fromBlock(cid)
    lastFrom = 'upstream'
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
