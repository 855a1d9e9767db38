// How a block that must be kept gets into the tiers of a stack: memory has it at once, each shared tier before it is
// acknowledged, those of this machine behind that, unless one of them keeps it for good already.
import type { CID } from 'multiformats/cid'
import { orAborted } from '../../core/deadline.ts'
import { Failure } from '../../core/failure.ts'
import { type Layers, late, type SlowLayer } from './layers.ts'

export type TierFailure = { readonly tier: string; readonly failure: Failure }

export interface Storing {
  putFast(cid: CID, bytes: Uint8Array, signal: AbortSignal | undefined): Promise<Uint8Array>
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }>
  bring(name: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void>
}

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

  return { putFast, store, bring }
}
