// A tier that anybody may have written into, made one that can be believed: what comes out is hashed. Bytes that are not
// their CID's are a miss, and are deleted before the miss is told, so that the right ones can take their place.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../backends/tiers/contract.ts'
import { proves } from '../block.ts'
import type { Log } from '../observe/log.ts'

export type ProvedTier = Tier & {
  /** Blocks that were not what their key says. */
  readonly corrupt: number
}

export type ProvedOptions = {
  readonly log: Log
  readonly onCorrupt?: ((tier: string, cid: CID) => void) | undefined
}

export function proved(tier: Tier, { log, onCorrupt }: ProvedOptions): ProvedTier {
  let corrupt = 0
  return {
    name: tier.name,
    traits: { ...tier.traits, trusted: true },
    ...(tier.deadlineMs !== undefined && { deadlineMs: tier.deadlineMs }),
    async get(cid, signal, patience) {
      const bytes = await tier.get(cid, signal, patience)
      if (bytes === undefined || proves(cid, bytes)) return bytes
      corrupt++
      onCorrupt?.(tier.name, cid)
      log('warn', 'tier.corrupt', { tier: tier.name, cid: cid.toString(), bytes: bytes.byteLength })
      // Not on the reader's signal: a corrupt block must not outlive an impatient client.
      await tier.delete(cid).catch((error: unknown) => {
        log('warn', 'tier.corrupt-kept', { tier: tier.name, cid: cid.toString(), error: String(error) })
      })
      return undefined
    },
    put: (cid, bytes, signal) => tier.put(cid, bytes, signal),
    has: (cid, signal) => tier.has(cid, signal),
    delete: (cid, signal) => tier.delete(cid, signal),
    ...(tier.probe && { probe: (signal) => tier.probe?.(signal) ?? Promise.resolve() }),
    close: () => tier.close(),
    get corrupt() {
      return corrupt
    },
  }
}
