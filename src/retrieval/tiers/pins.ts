// The blocks of a local provider as a read-only tier: a pinned block is served from this machine even if the caches have
// evicted it. Only the provider writes or deletes them.
import type { LocalStore } from '../../../backends/pinning/contract.ts'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { proves } from '../../core/block.ts'
import type { Log } from '../../core/log.ts'

export function createPinsTier(
  name: string,
  store: LocalStore,
  /** `keeps`: what is in it stays, so that no cache on this machine need have it too. */
  { keeps, log }: { readonly keeps: boolean; readonly log: Log },
): Tier {
  return {
    name,
    traits: { persistent: true, shared: false, trusted: true, keeps, readOnly: true },
    async get(cid) {
      const bytes = await store.get(cid)
      if (bytes === undefined || proves(cid, bytes)) return bytes
      // A disk rots. The file stays: it is put right when the same upload comes again.
      log('error', 'pins.corrupt', { provider: name, cid: cid.toString() })
      return undefined
    },
    has: (cid) => store.has(cid),
    lacks: (cid) => store.lacks?.(cid) ?? false,
    holds: (cid) => store.holds?.(cid) ?? false,
    put: async () => {},
    delete: async () => {},
    close: async () => {},
  }
}
