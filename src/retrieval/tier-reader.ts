// Reads blocks of one request from the slow tiers: first alone, then beside the upstreams, and once more when no upstream
// could help.
import type { CID } from 'multiformats/cid'
import { orAborted } from '../core/deadline.ts'
import { isFailure } from '../core/failure.ts'
import type { NotFoundMemory } from './absence/not-found.ts'
import type { RequestClock } from './request-clock.ts'
import type { DagWant } from './session.ts'
import { notCached, notHere } from './session-failures.ts'
import type { Look, TierHit, TierStack } from './tiers/stack.ts'

export type TierReaderOptions = {
  readonly stack: TierStack
  readonly notFound: NotFoundMemory
  readonly inTime: RequestClock['inTime']
  readonly signal: AbortSignal
  readonly onlyIfCached: boolean
  /** The bytes, noted as a hit of this tier. */
  readonly fromTier: (held: TierHit) => Uint8Array
  readonly fromUpstreams: (cid: CID, around: DagWant | undefined) => Promise<Uint8Array>
  /** Called when a slow tier had a block of this request. */
  readonly onHeld: () => void
}

export interface TierReader {
  /** The block, from the upstreams if no tier has it in time. */
  fromSlowTiers(cid: CID, around: DagWant | undefined): Promise<Uint8Array>
  /**
   * From the upstreams, since no tier has it as far as is known. If no upstream has it either, the tiers are asked
   * after all.
   */
  withoutLook(cid: CID, around: DagWant | undefined): Promise<Uint8Array>
  /** From the tiers alone. A request that wants it meanwhile joins the same look. */
  fetchHeld(cid: CID): Promise<Uint8Array>
}

export function createTierReader(options: TierReaderOptions): TierReader {
  const { stack, notFound, inTime, signal, onlyIfCached, fromTier, fromUpstreams, onHeld } = options

  /** The hit of the slow tiers, or `late` as soon as it is worth asking an upstream too. */
  async function whileWorthIt(cid: CID, look: Look): Promise<TierHit | undefined | 'late'> {
    if (onlyIfCached) return inTime(cid, () => look.found)
    return inTime(cid, () => Promise.race([look.found, look.overdue.then(() => 'late' as const)]))
  }

  /** The first of tiers and upstreams that has it; undefined only when none has. */
  async function fromEither(cid: CID, around: DagWant | undefined, look: Look): Promise<Uint8Array> {
    const others = fromUpstreams(cid, around)
    const tiers = look.found.then((held) => held ?? Promise.reject(nothing))
    others.catch(() => {})
    try {
      return await inTime(cid, () => Promise.any([tiers.then(fromTier), others]))
    } catch (error) {
      if (isFailure(error, 'cancelled')) throw error
      return await others
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
        onHeld()
        return fromTier(held)
      }
      if (onlyIfCached) throw notCached(cid)
      return await fromUpstreams(cid, around)
    } catch (error) {
      const late = isFailure(error, 'timeout') ? await fromHere(look) : undefined
      const held = late ?? (stack.outages === outages ? undefined : await lastResort(cid, error))
      if (!held)
        throw isFailure(error, 'unavailable') && error.facts.alone && stack.outages === outages ? notHere(error) : error
      notFound.forget(cid)
      return fromTier(held)
    } finally {
      look.leave()
    }
  }

  async function withoutLook(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    try {
      return await fromUpstreams(cid, around)
    } catch (error) {
      if (signal.aborted || isFailure(error, 'cancelled')) throw error
      const outages = stack.outages
      const look = stack.look(cid)
      const held = await fromHere(look).finally(look.leave)
      if (!held)
        throw isFailure(error, 'unavailable') && error.facts.alone && stack.outages === outages ? notHere(error) : error
      onHeld()
      notFound.forget(cid)
      return fromTier(held)
    }
  }

  /** The time is up, but our own disk has not answered yet: wait for it rather than deny a block that is here. */
  async function fromHere(look: Look): Promise<TierHit | undefined> {
    const here = Promise.race([look.found, look.here.then(() => undefined)])
    return orAborted(signal, here).catch(() => undefined)
  }

  /** No upstream helped: ask the skipped tiers again, with their full deadline. */
  async function lastResort(cid: CID, error: unknown): Promise<TierHit | undefined> {
    if (signal.aborted || !isFailure(error, 'unavailable')) return undefined
    return inTime(cid, (own) => stack.findPatiently(cid, own)).catch(() => undefined)
  }

  /** Reads from the tiers alone. A request that wants the block meanwhile joins the same look. */
  async function fetchHeld(cid: CID): Promise<Uint8Array> {
    const near = await stack.findFast(cid, signal)
    if (near) return fromTier(near)
    const look = stack.look(cid)
    try {
      const held = await inTime(cid, () => look.found)
      if (!held) throw nothing
      return fromTier(held)
    } finally {
      look.leave()
    }
  }

  return { fromSlowTiers, withoutLook, fetchHeld }
}

const nothing = new Error('no tier has it')
