// How a block is found in the tiers of a stack: in memory, or on its way to a slow tier, or else by a look into the slow
// ones for as long as that is worth waiting for.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/block.ts'
import { orAborted } from '../../core/deadline.ts'
import type { InTurn } from './in-turn.ts'
import type { Layers, TierHit } from './layers.ts'
import type { Looks } from './looks.ts'

/** At once, where all tiers in memory can be peeked into: a reader then has seen what was there in that very moment. */
export type Found = TierHit | undefined | Promise<TierHit | undefined>

/** Each rejects only with the reason of `signal`. */
export interface Finding {
  /** Looks into memory only. */
  findFast(cid: CID, signal?: AbortSignal): Found
  /** Whether each slow tier surely lacks it, known without a look. Then this counts as a miss of each. */
  slowLack(cid: CID): boolean
  find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined>
  has(cid: CID, signal?: AbortSignal): Promise<boolean>
}

export function createFinding({ fast, slow, filled, ask, hit }: Layers, looks: Looks): Finding {
  const canPeek = fast.every(({ tier }) => tier.peek)

  function findFast(cid: CID, signal?: AbortSignal): Found {
    signal?.throwIfAborted()
    if (!canPeek) return askFast(cid, signal)
    for (const layer of fast) {
      const bytes = layer.tier.peek?.(cid)
      if (bytes) return hit(layer, bytes)
      layer.misses++
    }
    return onItsWay(cid)
  }

  async function askFast(cid: CID, signal: AbortSignal | undefined): Promise<TierHit | undefined> {
    for (const layer of fast) {
      const bytes = await ask(layer, signal, () => layer.tier.get(cid, signal))
      if (bytes) return hit(layer, bytes)
    }
    return onItsWay(cid)
  }

  /** To a slow tier. */
  function onItsWay(cid: CID): TierHit | undefined {
    if (filled.length === 0) return undefined
    const key = blockKey(cid)
    for (const layer of filled) {
      const bytes = layer.writeBehind.waiting(key)
      if (bytes) return hit(layer, bytes)
    }
    return undefined
  }

  function slowLack(cid: CID): boolean {
    if (!slow.every(({ tier }) => tier.lacks?.(cid))) return false
    for (const layer of slow) layer.misses++
    return true
  }

  async function find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined> {
    const near: TierHit | undefined = await findFast(cid, signal)
    if (near || slow.length === 0) return near
    const look = looks.join(cid)
    try {
      return await worthWaiting(look, signal)
    } finally {
      look.leave()
    }
  }

  /** The answer, or undefined as soon as it is no longer worth waiting for. */
  async function worthWaiting<T>(
    { found, overdue }: InTurn<T>,
    signal: AbortSignal | undefined,
  ): Promise<T | undefined> {
    return orAborted(signal, Promise.race([found, overdue.then(() => undefined)]))
  }

  async function has(cid: CID, signal?: AbortSignal): Promise<boolean> {
    signal?.throwIfAborted()
    const key = blockKey(cid)
    if (slow.some(({ writeBehind }) => writeBehind.waiting(key))) return true
    for (const layer of fast) if (await ask(layer, signal, () => layer.tier.has(cid, signal))) return true
    const stop = new AbortController()
    try {
      return (await worthWaiting(looks.has(cid, stop.signal), signal)) ?? false
    } finally {
      stop.abort()
    }
  }

  return { findFast, slowLack, find, has }
}
