// A tier whose blocks are hashed again when they come out: what was changed on a disk or in a bucket is a miss, is deleted
// and counted, and gets fetched anew.
import type { Tier } from '../../backends/tiers/contract.ts'
import { proves } from '../block.ts'
import type { Log } from '../observe/log.ts'

export interface ProvedTier extends Tier {
  readonly corrupt: number
}

export function proved(tier: Tier, log: Log): ProvedTier {
  let corrupt = 0
  return {
    name: tier.name,
    traits: { ...tier.traits, trusted: true },
    get corrupt() {
      return corrupt
    },
    async get(cid, signal) {
      const bytes = await tier.get(cid, signal)
      if (bytes === undefined || proves(cid, bytes)) return bytes
      corrupt++
      log('error', 'tier.corrupt', { tier: tier.name, cid: cid.toString(), bytes: bytes.byteLength })
      await tier.delete(cid, signal).catch((error: unknown) => {
        signal?.throwIfAborted()
        log('warn', 'tier.delete', { tier: tier.name, cid: cid.toString(), error: String(error) })
      })
      return undefined
    },
    put: (cid, bytes, signal) => tier.put(cid, bytes, signal),
    has: (cid, signal) => tier.has(cid, signal),
    delete: (cid, signal) => tier.delete(cid, signal),
    ...(tier.probe && { probe: (signal) => tier.probe?.(signal) ?? Promise.resolve() }),
    close: () => tier.close(),
  }
}
