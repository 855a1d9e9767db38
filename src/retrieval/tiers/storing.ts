// How a block gets into the tiers of a stack. One that must be kept is in memory at once, in each shared tier before it is
// acknowledged, in those of this machine behind that, unless one of them keeps it for good already.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/block.ts'
import { codec } from '../../core/cid.ts'
import { orAborted } from '../../core/deadline.ts'
import { Failure } from '../../core/failure.ts'
import { type Layers, late, type SlowLayer } from './layers.ts'

export type TierFailure = { readonly tier: string; readonly failure: Failure }

export interface Storing {
  /**
   * Puts a block that came for a reader where the next one finds it at once, and answers the buffer that may be kept. `isWanted`:
   * nothing was deleted meanwhile. Rejects only with the reason of `signal`.
   */
  putNear(cid: CID, bytes: Uint8Array, isWanted: () => boolean, signal: AbortSignal | undefined): Promise<Uint8Array>
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }>
  bring(name: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void>
}

/**
 * Leaves of this size are pieces of files that stream by: in memory they would push everything else out, and from a disk of this
 * machine they are read again for little more than their hash.
 */
export const largeLeafBytes = 256 * 1024

/** A block that is all of its buffer never changes (`Tier`); a part of one is the caller's to write over. */
export const keepable = (bytes: Uint8Array): Uint8Array =>
  bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes)

export function createStoring({ fast, slow, filled, ask, outage }: Layers): Storing {
  /** Puts into memory and answers the buffer that may be kept. */
  async function putFast(cid: CID, bytes: Uint8Array, signal: AbortSignal | undefined): Promise<Uint8Array> {
    for (const layer of fast) {
      const kept = await ask(layer, signal, async () => {
        await layer.tier.put(cid, bytes, signal)
        const { tier } = layer
        return (tier.peek ? tier.peek(cid) : await tier.get(cid, signal)) ?? false
      })
      if (kept && kept !== bytes) return kept
    }
    return keepable(bytes)
  }

  async function putNear(
    cid: CID,
    bytes: Uint8Array,
    isWanted: () => boolean,
    signal: AbortSignal | undefined,
  ): Promise<Uint8Array> {
    if (cid.code === codec.raw && bytes.byteLength >= largeLeafBytes) {
      const own = keepable(bytes)
      for (const { tier, writeBehind } of filled) {
        if (tier.traits.shared) continue
        await orAborted(signal, writeBehind.put(cid, own))
        // There it can be read while it waits. A write that fails brings it to memory (`createLayer`).
        if (!isWanted() || writeBehind.waiting(blockKey(cid))) return own
      }
    }
    return fast.length > 0 ? putFast(cid, bytes, signal) : keepable(bytes)
  }

  /** A tier of this machine that has it for good. */
  async function keeperOf(cid: CID, signal: AbortSignal | undefined): Promise<SlowLayer | undefined> {
    for (const layer of slow)
      if (layer.tier.traits.keeps && (await ask(layer, signal, () => layer.tier.has(cid, signal)))) return layer
    return undefined
  }

  /** Until a shared tier has it, or that is no longer worth waiting for. */
  function offer(layer: SlowLayer, cid: CID, bytes: Uint8Array): Promise<Failure | undefined> {
    return new Promise((resolve) => {
      let isOver = false
      const fail = (error: unknown) => {
        if (!isOver) resolve(outage(layer, error))
        isOver = true
      }
      const work = layer.writeBehind.write(cid, bytes, { overdue: () => fail(late(layer.tier.name)) })
      work.then(() => resolve(undefined), fail)
    })
  }

  async function store(cid: CID, bytes: Uint8Array, signal?: AbortSignal) {
    signal?.throwIfAborted()
    const own = await putFast(cid, bytes, signal)
    const failed: TierFailure[] = []
    const keeper = await keeperOf(cid, signal)
    const writes = filled.map(async (layer) => {
      const { writeBehind, tier } = layer
      const isSpared = keeper !== undefined && slow.indexOf(keeper) < slow.indexOf(layer)
      if (!tier.traits.shared) return isSpared ? undefined : writeBehind.put(cid, own)
      const failure = await offer(layer, cid, own)
      if (failure) failed.push({ tier: tier.name, failure })
    })
    await orAborted(signal, Promise.all(writes))
    return { failed }
  }

  async function bring(name: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const layer = slow.find(({ tier }) => tier.traits.shared && tier.name === name)
    if (!layer) throw new Failure('unavailable', `there is no shared tier ${name}`, { source: 'tier' })
    try {
      await orAborted(signal, layer.writeBehind.write(cid, new Uint8Array(bytes)))
    } catch (error) {
      signal.throwIfAborted()
      throw outage(layer, error)
    }
  }

  return { putNear, store, bring }
}
