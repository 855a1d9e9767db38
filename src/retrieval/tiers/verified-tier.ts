// Wraps a tier that other programs may write to: every block read from it is hashed. Bytes that do
// not match their CID are a miss, and are deleted before the miss is reported, so that the right
// ones can replace them; not while a write of the block is under way.
import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, proves } from '../../core/cid.ts'
import type { ByteSpan, Peeked, PeekOptions } from '../../core/disk/peeked.ts'
import type { Log } from '../../core/log.ts'
import { passedOn } from './guarded-tier.ts'

type VerifiedOptions = { readonly log: Log; readonly onCorrupt?: ((tier: string, cid: CID) => void) | undefined }

type Removal = {
  /** Resolves when it is done, or no longer worth waiting for. */
  readonly waited: Promise<unknown>
  readonly stop: () => void
}

export function verified(tier: Tier, { log, onCorrupt }: VerifiedOptions): Tier {
  const chunks = new ChunkDigests()
  /** Removals of corrupt bytes, which writes of the same block wait for, and then stop. */
  const removals = new Map<string, Removal>()
  /** Running writes by block: a delete might undo them. */
  const writes = new Map<string, number>()

  async function get(cid: CID, signal?: AbortSignal, call?: Call): Promise<Uint8Array | undefined> {
    const bytes = await tier.get(cid, signal, call)
    if (bytes === undefined || proves(cid, bytes)) return bytes
    onCorrupt?.(tier.name, cid)
    log('warn', 'tier.corrupt', { tier: tier.name, cid: cid.toString(), bytes: bytes.byteLength })
    const key = blockKey(cid)
    if (!writes.has(key)) await (removals.get(key) ?? remove(key, cid)).waited
    return undefined
  }

  /**
   * Deletes the block if it is still corrupt. Not on the reader's signal: an impatient client leaves
   * no corrupt block behind.
   */
  function remove(key: string, cid: CID): Removal {
    const late = Promise.withResolvers<void>()
    const own = new AbortController()
    const { signal } = own
    const call = { overdue: late.resolve }
    const work = async () => {
      const bytes = await tier.get(cid, signal, call)
      if (bytes && !proves(cid, bytes) && !signal.aborted) await tier.delete(cid, signal, call)
    }
    const done = work()
      .catch((error: unknown) => {
        if (signal.aborted) return
        log('warn', 'tier.corrupt-kept', { tier: tier.name, cid: cid.toString(), error: String(error) })
      })
      .finally(() => removals.delete(key))
    const removal = { waited: Promise.race([done, late.promise]), stop: () => own.abort() }
    removals.set(key, removal)
    return removal
  }

  /** Removals that are late are stopped: they might undo it. */
  async function write(keys: readonly string[], work: () => Promise<void>): Promise<void> {
    const waits = removals.size > 0 ? keys.map((key) => removals.get(key)?.waited) : []
    if (waits.some(Boolean)) await Promise.all(waits)
    for (const key of keys) {
      removals.get(key)?.stop()
      writes.set(key, (writes.get(key) ?? 0) + 1)
    }
    try {
      await work()
    } finally {
      for (const key of keys) {
        const left = (writes.get(key) ?? 0) - 1
        if (left > 0) writes.set(key, left)
        else writes.delete(key)
      }
    }
  }

  /**
   * Leaves bytes that do not match to `get`, which reads them again, and deletes and counts them.
   */
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
    put: (cid, bytes, signal, call) => write([blockKey(cid)], () => tier.put(cid, bytes, signal, call)),
    ...(tier.putAll && {
      putAll(blocks, signal, call) {
        const keys = blocks.map(({ cid }) => blockKey(cid))
        return write(keys, async () => tier.putAll?.(blocks, signal, call))
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
 * Digests of the chunks of blocks that were verified as a whole. Later a part of such a block is
 * read and verified as whole chunks, without hashing all of it.
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
