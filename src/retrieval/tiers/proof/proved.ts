// Wraps a tier that other programs may write to: every block read from it is hashed. Bytes that do not match their CID are a
// miss, and are deleted before the miss is reported, so that the right ones can replace them.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../../backends/tiers/contract.ts'
import { blockKey, proves } from '../../../core/block.ts'
import { orAborted } from '../../../core/deadline.ts'
import type { AtHand, AtHandOptions, ByteSpan } from '../../../core/disk/at-hand.ts'
import type { Log } from '../../../core/log.ts'
import { createChunkProofs } from './chunk-proofs.ts'

export type ProvedTier = Tier & {
  /** Blocks that were not what their key says. */
  readonly corrupt: number
}

export type ProvedOptions = {
  readonly log: Log
  readonly onCorrupt?: ((tier: string, cid: CID) => void) | undefined
}

export function proved(tier: Tier, { log, onCorrupt }: ProvedOptions): ProvedTier {
  const proofs = createChunkProofs()
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

  /** What does not match is left to `get`, which reads it again, and deletes and counts what is corrupt. */
  function wholeAtHand(cid: CID, options: AtHandOptions | undefined): AtHand | undefined {
    const held = tier.atHand?.(cid, options)
    if (!held || proves(cid, held.bytes)) return held
    held.release?.()
    return undefined
  }

  function partAtHand(cid: CID, part: ByteSpan, lends: boolean | undefined): AtHand | undefined {
    const key = blockKey(cid)
    const chunks = proofs.around(key, part)
    const held = chunks ? tier.atHand?.(cid, { part: chunks, lends }) : wholeAtHand(cid, { lends })
    if (!held) return undefined
    if (chunks && !proofs.prove(key, held.bytes, chunks.from, held.size)) {
      proofs.forget(key)
      held.release?.()
      return undefined
    }
    // For most of a block once, its chunks would cost as much as the block.
    if (!chunks && part.to - part.from <= held.size / 2) proofs.learn(key, held.bytes)
    const start = part.from - (chunks?.from ?? 0)
    return { ...held, bytes: held.bytes.subarray(start, start + part.to - part.from) }
  }

  return {
    name: tier.name,
    traits: { ...tier.traits, trusted: true },
    ...(tier.deadlineMs !== undefined && { deadlineMs: tier.deadlineMs }),
    ...(tier.announces !== undefined && { announces: tier.announces }),
    get: (cid, signal, call) => noted(blockKey(cid), read(cid, signal, call)),
    ...(tier.atHand && {
      atHand: (cid, options) =>
        options?.part ? partAtHand(cid, options.part, options.lends) : wholeAtHand(cid, options),
    }),
    async put(cid, bytes, signal, call) {
      await orAborted(signal, Promise.resolve(reading.get(blockKey(cid))))
      return tier.put(cid, bytes, signal, call)
    },
    ...(tier.lacks && { lacks: (cid) => tier.lacks?.(cid) ?? false }),
    ...(tier.holds && { holds: (cid) => tier.holds?.(cid) ?? false }),
    has: (cid, signal, call) => tier.has(cid, signal, call),
    delete: (cid, signal, call) => tier.delete(cid, signal, call),
    ...(tier.probe && { probe: (signal) => tier.probe?.(signal) ?? Promise.resolve() }),
    close: () => tier.close(),
    get corrupt() {
      return corrupt
    },
  }
}
