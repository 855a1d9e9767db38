// Read your write: puts the blocks of an upload into the local and the shared tiers before its 200. The gateway does not wait
// for a shared tier that does not take them; it notes the blocks as owed to that tier.
import type { CID } from 'multiformats/cid'
import type { Upload } from '../../backends/pinning/contract.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Retrieval } from '../retrieval/session.ts'

export type Everywhere = Pick<Retrieval, 'store' | 'forget' | 'sharedTiers' | 'bring'> & {
  /** Rises when new tiers come, which lack the blocks stored before. */
  readonly joined?: number
}

export type FillOptions = {
  readonly retrieval: Everywhere
  readonly clock: Clock
  readonly log: Log
}

const storesAtOnce = 4
const leastMs = 3000
const slowestBytes = 4 * 1024 * 1024

/** Resolves with the shared tiers that lack some of it. Does not reject. */
export async function fillTiers(
  upload: Upload,
  { retrieval, clock, log }: FillOptions,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const ms = leastMs + Math.ceil((upload.bytes / slowestBytes) * 1000)
  const late = () => new Failure('timeout', `the tiers did not take it within ${ms} ms`, { source: 'tier' })
  const lacking = new Set<string>()
  const store = async (cid: CID, bytes: Uint8Array, own: AbortSignal): Promise<void> => {
    for (const tier of await retrieval.store(cid, bytes, own)) lacking.add(tier)
  }
  try {
    await withDeadline({ ms, clock, signal, late }, async (own) => {
      // A gateway that takes over during the upload brings tiers that lack the blocks stored so far.
      for (let known: number | undefined = -1; known !== retrieval.joined; ) {
        known = retrieval.joined
        await putBlocks((one) => upload.blocks(one), store, own)
      }
    })
  } catch (error) {
    if (!signal.aborted) log('warn', 'upload.tier-write-failed', { cid: upload.cid.toString(), why: String(error) })
    for (const tier of retrieval.sharedTiers) lacking.add(tier)
  }
  if (lacking.size > 0 && !signal.aborted)
    log('warn', 'upload.replication-pending', { cid: upload.cid.toString(), tiers: [...lacking] })
  return [...lacking]
}

/** Puts a few blocks at once, in order. Rejects with the first failure, once all begun puts have settled. */
export async function putBlocks(
  blocks: Upload['blocks'],
  put: (cid: CID, bytes: Uint8Array, signal: AbortSignal) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const putting = new Set<Promise<void>>()
  const failed = new AbortController()
  try {
    for await (const { cid, bytes } of blocks(signal)) {
      const one = put(cid, bytes, signal)
        .catch((error: unknown) => failed.abort(error))
        .finally(() => putting.delete(one))
      putting.add(one)
      if (putting.size >= storesAtOnce) await Promise.race(putting)
      failed.signal.throwIfAborted()
    }
  } finally {
    await Promise.all(putting)
  }
  failed.signal.throwIfAborted()
}
