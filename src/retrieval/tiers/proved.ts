// Wraps a tier that other programs may write to: every block read from it is hashed. Bytes that do not match their CID are a
// miss, and are deleted before the miss is reported, so that the right ones can replace them.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, proves } from '../../core/block.ts'
import { orAborted } from '../../core/deadline.ts'
import type { Log } from '../../core/log.ts'

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
  // What a read under way finds corrupt is deleted, and must not take with it what is written meanwhile.
  const reading = new Map<string, Promise<unknown>>()

  async function noted<T>(key: string, read: Promise<T>): Promise<T> {
    const before = reading.get(key)
    const all = before !== undefined ? Promise.allSettled([before, read]) : read.catch(() => {})
    reading.set(key, all)
    try {
      return await read
    } finally {
      if (reading.get(key) === all) reading.delete(key)
    }
  }

  /** Until it is deleted, or that is no longer worth waiting for. Not on the reader's signal: an impatient client leaves no
   * corrupt block behind. */
  function remove(cid: CID): Promise<void> {
    return new Promise((resolve) => {
      tier
        .delete(cid, undefined, { overdue: () => resolve() })
        .catch((error: unknown) => {
          log('warn', 'tier.corrupt-kept', { tier: tier.name, cid: cid.toString(), error: String(error) })
        })
        .finally(resolve)
    })
  }

  async function read(cid: CID, signal?: AbortSignal, call?: Call): Promise<Uint8Array | undefined> {
    const bytes = await tier.get(cid, signal, call)
    if (bytes === undefined || proves(cid, bytes)) return bytes
    corrupt++
    onCorrupt?.(tier.name, cid)
    log('warn', 'tier.corrupt', { tier: tier.name, cid: cid.toString(), bytes: bytes.byteLength })
    await remove(cid)
    return undefined
  }

  return {
    name: tier.name,
    traits: { ...tier.traits, trusted: true },
    ...(tier.deadlineMs !== undefined && { deadlineMs: tier.deadlineMs }),
    ...(tier.announces !== undefined && { announces: tier.announces }),
    get: (cid, signal, call) => noted(blockKey(cid), read(cid, signal, call)),
    async put(cid, bytes, signal, call) {
      await orAborted(signal, Promise.resolve(reading.get(blockKey(cid))))
      return tier.put(cid, bytes, signal, call)
    },
    ...(tier.lacks && { lacks: (cid) => tier.lacks?.(cid) ?? false }),
    has: (cid, signal, call) => tier.has(cid, signal, call),
    delete: (cid, signal, call) => tier.delete(cid, signal, call),
    ...(tier.probe && { probe: (signal) => tier.probe?.(signal) ?? Promise.resolve() }),
    close: () => tier.close(),
    get corrupt() {
      return corrupt
    },
  }
}
