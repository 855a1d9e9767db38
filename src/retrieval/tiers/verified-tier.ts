// Wraps a tier that other programs may write to: every block read from it is hashed. Bytes that do
// not match their CID are a miss, and are deleted before the miss is reported, so that the right
// ones can replace them.
import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import type { LocalStore } from '../../../backends/pinning/contract.ts'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, proves } from '../../core/cid.ts'
import type { ByteSpan, Peeked, PeekOptions } from '../../core/disk/peeked.ts'
import type { Log } from '../../core/log.ts'
import { passedOn } from './guarded-tier.ts'

type VerifiedOptions = { readonly log: Log; readonly onCorrupt?: ((tier: string, cid: CID) => void) | undefined }

/** The reads of one block that are under way. */
type Reading = {
  count: number
  /** Writes that began meanwhile, which a delete must not undo. */
  puts: number
  /** The delete of corrupt bytes, which a write waits for. */
  deleting?: Promise<void> | undefined
}

export function verified(tier: Tier, { log, onCorrupt }: VerifiedOptions): Tier {
  const chunks = new ChunkDigests()
  const readings = new Map<string, Reading>()

  async function get(cid: CID, signal?: AbortSignal, call?: Call): Promise<Uint8Array | undefined> {
    const key = blockKey(cid)
    const reading = readings.get(key) ?? { count: 0, puts: 0 }
    readings.set(key, reading)
    reading.count++
    const { puts } = reading
    try {
      const bytes = await tier.get(cid, signal, call)
      if (bytes === undefined || proves(cid, bytes)) return bytes
      onCorrupt?.(tier.name, cid)
      log('warn', 'tier.corrupt', { tier: tier.name, cid: cid.toString(), bytes: bytes.byteLength })
      if (reading.puts === puts) await (reading.deleting ??= remove(cid))
      return undefined
    } finally {
      if (--reading.count === 0) readings.delete(key)
    }
  }

  /**
   * Resolves when it is deleted, or that is no longer worth waiting for. Not on the reader's signal:
   * an impatient client leaves no corrupt block behind.
   */
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

  /** The delete that a write of this block has to wait for, if any. */
  function deleteBefore(cid: CID): Promise<void> | undefined {
    const reading = readings.size > 0 ? readings.get(blockKey(cid)) : undefined
    if (reading) reading.puts++
    return reading?.deleting
  }

  /** Leaves bytes that do not match to `get`, which reads them again, and deletes and counts them. */
  function peekBlock(cid: CID, options: PeekOptions | undefined): Peeked | undefined {
    const held = tier.peek?.(cid, options)
    if (!held || proves(cid, held.bytes)) return held
    held.release?.()
    return undefined
  }

  function peekPart(cid: CID, part: ByteSpan, lends: boolean | undefined): Peeked | undefined {
    const key = blockKey(cid)
    const span = chunks.around(key, part)
    const held = span ? tier.peek?.(cid, { part: span, lends }) : peekBlock(cid, { lends })
    if (!held) return undefined
    if (span && !chunks.match(key, held.bytes, span.from, held.size)) {
      held.release?.()
      return undefined
    }
    // For a single read of most of a block, the chunks would cost as much as the block.
    if (!span && part.to - part.from <= held.size / 2) chunks.learn(key, held.bytes)
    const start = part.from - (span?.from ?? 0)
    return { ...held, bytes: held.bytes.subarray(start, start + part.to - part.from) }
  }

  return {
    ...passedOn(tier),
    traits: { ...tier.traits, trusted: true },
    get,
    ...(tier.peek && {
      peek: (cid, options) => (options?.part ? peekPart(cid, options.part, options.lends) : peekBlock(cid, options)),
    }),
    put(cid, bytes, signal, call) {
      const deleting = deleteBefore(cid)
      const put = () => tier.put(cid, bytes, signal, call)
      return deleting === undefined ? put() : deleting.then(put)
    },
    ...(tier.putAll && {
      async putAll(blocks, signal, call) {
        const deletes = blocks.flatMap(({ cid }) => deleteBefore(cid) ?? [])
        if (deletes.length > 0) await Promise.all(deletes)
        await tier.putAll?.(blocks, signal, call)
      },
    }),
    has: (cid, signal, call) => tier.has(cid, signal, call),
    delete: (cid, signal, call) => tier.delete(cid, signal, call),
    ...(tier.probe && { probe: (signal) => tier.probe?.(signal) ?? Promise.resolve() }),
  }
}

type Digests = { readonly size: number; readonly chunks: readonly string[] }

const chunkBytes = 16 * 1024
const maxChunks = 100_000
const digestOf = (chunk: Uint8Array): string => hash('sha256', chunk, 'base64')

/**
 * Digests of the chunks of blocks that were verified as a whole. Later a part of such a block is read
 * and verified as whole chunks, without hashing all of it.
 */
class ChunkDigests {
  readonly #known = new LRUCache<string, Digests>({
    maxSize: maxChunks,
    sizeCalculation: ({ chunks }) => chunks.length + 1,
  })

  learn(key: string, block: Uint8Array): void {
    this.#known.set(key, { size: block.byteLength, chunks: [...digestsOf(block)] })
  }

  /** The chunks around a part. Undefined: the block has to be verified first. */
  around(key: string, { from, to }: ByteSpan): ByteSpan | undefined {
    const { size } = this.#known.get(key) ?? {}
    if (size === undefined) return undefined
    return {
      from: from - (from % chunkBytes),
      to: Math.min(size, Math.ceil(Math.min(to, size) / chunkBytes) * chunkBytes),
    }
  }

  /** True for the chunks from `around`, of a block of this size. False forgets the block. */
  match(key: string, bytes: Uint8Array, from: number, size: number): boolean {
    const known = this.#known.peek(key)
    const first = from / chunkBytes
    const digests = [...digestsOf(bytes)]
    if (known?.size === size && digests.every((digest, index) => digest === known.chunks[first + index])) return true
    this.#known.delete(key)
    return false
  }
}

function* digestsOf(bytes: Uint8Array): Generator<string> {
  for (let at = 0; at < bytes.byteLength; at += chunkBytes) yield digestOf(bytes.subarray(at, at + chunkBytes))
}

/**
 * The blocks of a local provider as a read-only tier: a pinned block is served from this machine even
 * if the caches have evicted it. `keeps`: no cache of this machine needs its blocks too.
 */
export function createPinsTier(
  name: string,
  store: LocalStore,
  { keeps, log }: { readonly keeps: boolean; readonly log: Log },
): Tier {
  return {
    name,
    traits: { persistent: true, shared: false, trusted: true, keeps, readOnly: true },
    async get(cid) {
      const bytes = await store.get(cid)
      if (bytes === undefined || proves(cid, bytes)) return bytes
      // A disk rots. The file stays: it is replaced when the same upload comes again.
      log('error', 'pins.corrupt', { provider: name, cid: cid.toString() })
      return undefined
    },
    has: (cid) => store.has(cid),
    hasNow: (cid) => (store.lacks?.(cid) ? false : undefined),
    put: async () => {},
    delete: async () => {},
    close: async () => {},
  }
}
