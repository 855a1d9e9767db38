// Read your write: the blocks of an upload into the tiers of this instance and the shared ones, before its 200.
import type { Upload } from '../../backends/pinning/contract.ts'
import type { Clock } from '../clock.ts'
import { withDeadline } from '../deadline.ts'
import { Failure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import type { Retrieval } from '../retrieval/session.ts'

export type Everywhere = Pick<Retrieval, 'store' | 'forget'> & {
  /** Rises when tiers come that do not have what was stored before. */
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

/** Does not reject: the upload is held, and whoever does not find it in a tier finds it at a provider. */
export async function fillTiers(
  upload: Upload,
  { retrieval, clock, log }: FillOptions,
  signal: AbortSignal,
): Promise<void> {
  const ms = leastMs + Math.ceil((upload.bytes / slowestBytes) * 1000)
  const late = () => new Failure('timeout', `the tiers did not take it within ${ms} ms`, { source: 'tier' })
  try {
    await withDeadline({ ms, clock, signal, late }, (own) => fillAll(upload, retrieval, own))
  } catch (error) {
    if (!signal.aborted) log('warn', 'upload.tiers', { cid: upload.cid.toString(), why: String(error) })
  }
  retrieval.forget(upload.cid)
}

/** A gateway that takes over in the middle has tiers that lack what went before. */
async function fillAll(upload: Upload, retrieval: Everywhere, signal: AbortSignal): Promise<void> {
  for (let known: number | undefined = -1; known !== retrieval.joined; ) {
    known = retrieval.joined
    await fill(upload, retrieval, signal)
  }
}

async function fill(upload: Upload, retrieval: Everywhere, signal: AbortSignal): Promise<void> {
  const storing = new Set<Promise<void>>()
  try {
    for await (const { cid, bytes } of upload.blocks(signal)) {
      const store = retrieval.store(cid, bytes, signal).finally(() => storing.delete(store))
      store.catch(() => {})
      storing.add(store)
      if (storing.size >= storesAtOnce) await Promise.race(storing)
    }
    await Promise.all(storing)
  } finally {
    await Promise.allSettled(storing)
  }
}
