// The tiers as one: looked through from the fastest to the slowest, faster ones filled from slower ones. A tier that is
// out is passed over; a stack of tiers is a tier itself.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../backends/tiers/contract.ts'
import { Failure } from '../failure.ts'
import { createFiller } from './filler.ts'

export type Hit = { readonly bytes: Uint8Array; readonly tier: string }

export interface TierStack extends Tier {
  /** The block and the tier it was in. An outage of every tier but one is still an answer of that one. */
  find(cid: CID, signal?: AbortSignal): Promise<Hit | undefined>
  /** For uploads: resolves when this instance and every shared tier have it, rejects when one of them could not. */
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<void>
  readonly stats: readonly { readonly tier: string; readonly hits: number; readonly misses: number; readonly dropped: number; readonly queuedBytes: number }[]
}

export type StackOptions = {
  /** How long what is queued for slow tiers may take when the gateway closes. */
  readonly closeMs?: number
}

export function createTierStack(tiers: readonly Tier[], { closeMs = 5_000 }: StackOptions = {}): TierStack {
  // In memory it is written at once; anything else is written behind the request.
  const layers = tiers.map((tier) => ({
    tier,
    filler: tier.traits.persistent || tier.traits.shared ? createFiller(tier) : undefined,
    hits: 0,
    misses: 0,
  }))

  async function fill(faster: typeof layers, cid: CID, bytes: Uint8Array): Promise<void> {
    for (const { tier, filler } of faster) {
      if (filler) filler.add(cid, bytes)
      else await tier.put(cid, bytes)
    }
  }

  async function find(cid: CID, signal?: AbortSignal): Promise<Hit | undefined> {
    for (const [index, layer] of layers.entries()) {
      let bytes: Uint8Array | undefined
      try {
        bytes = await layer.tier.get(cid, signal)
      } catch {
        signal?.throwIfAborted()
        continue // it is out; the next one may have it, and its guard has taken note
      }
      if (bytes === undefined) {
        layer.misses++
        continue
      }
      layer.hits++
      if (index > 0) await fill(layers.slice(0, index), cid, bytes)
      return { bytes, tier: layer.tier.name }
    }
    return undefined
  }

  return {
    name: 'tiers',
    traits: {
      persistent: tiers.some(({ traits }) => traits.persistent),
      shared: tiers.some(({ traits }) => traits.shared),
      trusted: tiers.every(({ traits }) => traits.trusted),
    },
    find,
    get: async (cid, signal) => {
      signal?.throwIfAborted()
      return (await find(cid, signal))?.bytes
    },
    async put(cid, bytes, signal) {
      signal?.throwIfAborted()
      await fill(layers, cid, bytes)
    },
    async store(cid, bytes, signal) {
      const results = await Promise.allSettled(
        layers.map(({ tier, filler }) => {
          if (tier.traits.shared || !filler) return tier.put(cid, bytes, signal)
          filler.add(cid, bytes)
          return undefined
        }),
      )
      signal?.throwIfAborted()
      const out = layers.filter((_, index) => results[index]?.status === 'rejected').map(({ tier }) => tier.name)
      if (out.length > 0) {
        throw new Failure('unavailable', `could not be written to the shared tiers ${out.join(', ')}`, {
          source: 'tier',
          facts: { tiers: out },
        })
      }
    },
    async has(cid, signal) {
      for (const { tier } of layers) {
        const found = await tier.has(cid, signal).catch(() => false)
        signal?.throwIfAborted()
        if (found) return true
      }
      return false
    },
    async delete(cid, signal) {
      for (const { filler } of layers) await filler?.remove(cid)
      const results = await Promise.allSettled(layers.map(({ tier }) => tier.delete(cid, signal)))
      const failed = results.find((result) => result.status === 'rejected')
      if (failed) throw failed.reason
    },
    get stats() {
      return layers.map(({ tier, filler, hits, misses }) => ({
        tier: tier.name,
        hits,
        misses,
        dropped: filler?.dropped ?? 0,
        queuedBytes: filler?.queuedBytes ?? 0,
      }))
    },
    async close() {
      await Promise.all(layers.map(({ filler }) => filler?.close(closeMs)))
      await Promise.all(tiers.map((tier) => tier.close()))
    },
  }
}
