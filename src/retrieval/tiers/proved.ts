// Wraps a tier that other programs may write to: every block read from it is hashed. Bytes that do
// not match their CID are a miss, and are deleted before the miss is reported, so that the right
// ones can replace them.
import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, proves } from '../../core/block.ts'
import { orAborted } from '../../core/deadline.ts'
import type { AtHand, AtHandOptions, ByteSpan } from '../../core/disk/at-hand.ts'
import type { Log } from '../../core/log.ts'

type ProvedTier = Tier & {
  /** Blocks that were not what their key says. */
  readonly corrupt: number
}

type ProvedOptions = {
  readonly log: Log
  readonly onCorrupt?: ((tier: string, cid: CID) => void) | undefined
}

export function proved(tier: Tier, { log, onCorrupt }: ProvedOptions): ProvedTier {
  const proofs = createChunkProofs()
  let corrupt = 0
  // What a read under way finds corrupt is deleted, and must not take with it what is written
  // meanwhile.
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

  /**
   * What does not match is left to `get`, which reads it again, and deletes and counts what is
   * corrupt.
   */
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
    put(cid, bytes, signal, call) {
      const read = reading.get(blockKey(cid))
      const put = () => tier.put(cid, bytes, signal, call)
      return read === undefined ? put() : orAborted(signal, read).then(put)
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

// A part of a block is proved without hashing all of it: when a block is proved, the digests of its
// chunks are made of the same bytes and kept in this process; a part is read as whole chunks, and
// each has to match its digest.

interface ChunkProofs {
  /** Of a block that has just been proved. */
  learn(key: string, block: Uint8Array): void
  /** The chunks that a part lies in. Undefined: the block has to be proved first. */
  around(key: string, part: ByteSpan): ByteSpan | undefined
  /** Whether these are the chunks that `around` told, of a block of this size. */
  prove(key: string, chunks: Uint8Array, from: number, size: number): boolean
  forget(key: string): void
}

type Digests = { readonly size: number; readonly chunks: readonly string[] }

const chunkBytes = 16 * 1024
const mostBytes = 8 * 1024 * 1024
// A digest is a string of 44 bytes with a header of its own.
const digestBytes = 72
const entryBytes = 256

const digestOf = (chunk: Uint8Array): string => hash('sha256', chunk, 'base64')

function createChunkProofs(): ChunkProofs {
  const known = new LRUCache<string, Digests>({
    maxSize: mostBytes,
    sizeCalculation: ({ chunks }) => chunks.length * digestBytes + entryBytes,
  })
  return {
    learn(key, block) {
      const chunks: string[] = []
      for (let at = 0; at < block.byteLength; at += chunkBytes)
        chunks.push(digestOf(block.subarray(at, at + chunkBytes)))
      known.set(key, { size: block.byteLength, chunks })
    },
    around(key, { from, to }) {
      const digests = known.get(key)
      if (!digests) return undefined
      const end = Math.min(to, digests.size)
      return {
        from: from - (from % chunkBytes),
        to: Math.min(digests.size, Math.ceil(end / chunkBytes) * chunkBytes),
      }
    },
    prove(key, bytes, from, size) {
      const digests = known.peek(key)
      if (digests?.size !== size) return false
      for (let at = 0; at < bytes.byteLength; at += chunkBytes)
        if (digestOf(bytes.subarray(at, at + chunkBytes)) !== digests.chunks[(from + at) / chunkBytes]) return false
      return true
    },
    forget: (key) => void known.delete(key),
  }
}
