// How a block is found in the tiers of a stack: in memory, or on its way to a slow tier, or else by a look into the slow
// ones for as long as that is worth waiting for.
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity } from '../../core/block.ts'
import { codec } from '../../core/cid.ts'
import { orAborted } from '../../core/deadline.ts'
import { type AtHand, type AtHandOptions, partOf } from '../../core/disk/at-hand.ts'
import type { InTurn } from './in-turn.ts'
import type { Layer, Layers, TierHit } from './layers.ts'
import type { Looks } from './looks.ts'

/** At once, where all tiers in memory can be peeked into: a reader then has seen what was there in that very moment. */
export type Found = TierHit | undefined | Promise<TierHit | undefined>

/** A block, or a part of it, that was had at once. */
export type HitAtHand = AtHand & { readonly tier: string; readonly isMemory: boolean }

/** Each rejects only with the reason of `signal`. */
export interface Finding {
  /** Looks for it where it costs no wait. Undefined: it may be in a tier all the same. */
  atHand(cid: CID, options?: AtHandOptions): HitAtHand | undefined
  /** Looks into memory only. */
  findFast(cid: CID, signal?: AbortSignal): Found
  /** Whether each slow tier surely lacks it, known without a look. Then this counts as a miss of each. */
  slowLack(cid: CID): boolean
  /** Whether a tier of this machine surely has it, known at once. Counts nothing. */
  surelyHas(cid: CID): boolean
  find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined>
  has(cid: CID, signal?: AbortSignal): Promise<boolean>
}

export function createFinding({ fast, slow, filled, ask, hit, outage }: Layers, looks: Looks): Finding {
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

  function surelyHas(cid: CID): boolean {
    if (isIdentity(cid) || fast.some(({ tier }) => tier.peek?.(cid))) return true
    const key = blockKey(cid)
    return filled.some(({ writeBehind }) => writeBehind.waiting(key)) || slow.some(({ tier }) => tier.holds?.(cid))
  }

  function atHand(cid: CID, options?: AtHandOptions): HitAtHand | undefined {
    for (const layer of fast) {
      const bytes = layer.tier.peek?.(cid)
      if (bytes) return noted(layer, partOf(bytes, options?.part))
    }
    const key = filled.length > 0 ? blockKey(cid) : ''
    for (const layer of filled) {
      const bytes = layer.writeBehind.waiting(key)
      if (bytes) return noted(layer, partOf(bytes, options?.part))
    }
    for (const layer of slow) {
      const held = layer.tier.atHand?.(cid, options)
      if (!held) continue
      for (const before of fast) before.misses++
      if (cid.code !== codec.raw && !options?.part) bringToMemory(cid, held.bytes)
      return noted(layer, held)
    }
    return undefined
  }

  const noted = (layer: Layer, held: AtHand): HitAtHand => {
    layer.hits++
    return { ...held, tier: layer.tier.name, isMemory: !layer.writeBehind }
  }

  /** What links to other blocks is read by each reader of them. A leaf is at hand for a hash of it, and has no need of memory. */
  function bringToMemory(cid: CID, bytes: Uint8Array): void {
    for (const layer of fast) layer.tier.put(cid, bytes).catch((error: unknown) => outage(layer, error))
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

  return { atHand, findFast, slowLack, surelyHas, find, has }
}
