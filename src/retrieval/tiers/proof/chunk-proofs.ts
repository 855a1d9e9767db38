// Proves a part of a block without hashing all of it. When a block is proved, the digests of its chunks are made of the same
// bytes and kept in this process; a part is read as whole chunks, and each has to match its digest.
import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { ByteSpan } from '../../../core/disk/at-hand.ts'

export interface ChunkProofs {
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

export function createChunkProofs(): ChunkProofs {
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
