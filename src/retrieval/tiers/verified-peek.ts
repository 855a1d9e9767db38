// Verifies what is read at once from a tier that other programs may write to: a complete block by
// its CID, a part of a verified block by digests of the chunks around it.
import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, proves } from '../../core/cid.ts'
import type { ByteSpan, Peeked, PeekOptions } from '../../core/disk/peeked.ts'

type Peek = NonNullable<Tier['peek']>

/**
 * Undefined also where the bytes do not match: the `get` that follows reads them again, and deletes
 * and counts them.
 */
export function verifiedPeek(peek: Peek): Peek {
  const chunks = new ChunkDigests()

  function peekBlock(cid: CID, options: PeekOptions | undefined): Peeked | undefined {
    const held = peek(cid, options)
    if (!held || proves(cid, held.bytes)) return held
    held.release?.()
    return undefined
  }

  function peekPart(cid: CID, part: ByteSpan, lends: boolean | undefined): Peeked | undefined {
    const key = blockKey(cid)
    const span = chunks.around(key, part)
    const held = span ? peek(cid, { part: span, lends }) : peekBlock(cid, { lends })
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

  return (cid, options) => (options?.part ? peekPart(cid, options.part, options.lends) : peekBlock(cid, options))
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
