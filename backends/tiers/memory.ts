// Blocks in this process, the least recently used going first. Every put is copied: a block kept as a view would pin the
// buffer it was cut from, and change when its owner writes there. What comes out is the copy itself: read it only.
import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { blockKey } from '../../src/core/block.ts'
import { size } from '../../src/core/units.ts'
import type { Tier, TierKind } from './contract.ts'

const options = z.strictObject({
  maxBytes: size()
    .prefault('64MiB')
    .refine((bytes) => bytes > 0, { error: 'expected more than 0; to have no memory tier, leave it out of the list' })
    .describe('Memory for blocks, their keys included.'),
})

// What an entry costs besides its bytes: key, list node, ArrayBuffer. Without it a flood of tiny blocks is unbounded.
const overheadBytes = 512

export const memory: TierKind<typeof options> = {
  use: 'memory',
  options,
  create: ({ maxBytes }, { name }) => createMemoryTier(name, maxBytes),
}

function createMemoryTier(name: string, maxBytes: number): Tier {
  const blocks = new LRUCache<string, Uint8Array>({
    maxSize: maxBytes,
    maxEntrySize: maxBytes,
    sizeCalculation: (bytes) => bytes.byteLength + overheadBytes,
  })
  return {
    name,
    traits: { persistent: false, shared: false, trusted: true },
    async get(cid, signal) {
      signal?.throwIfAborted()
      return blocks.get(blockKey(cid))
    },
    peek: (cid) => blocks.get(blockKey(cid)),
    async put(cid, bytes, signal) {
      signal?.throwIfAborted()
      const key = blockKey(cid)
      if (!blocks.get(key))
        blocks.set(key, bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes))
    },
    async has(cid, signal) {
      signal?.throwIfAborted()
      return blocks.has(blockKey(cid))
    },
    async delete(cid, signal) {
      signal?.throwIfAborted()
      blocks.delete(blockKey(cid))
    },
    clear: () => blocks.clear(),
    usage: () => ({ bytes: blocks.calculatedSize, blocks: blocks.size, limitBytes: maxBytes }),
    async close() {
      blocks.clear()
    },
  }
}
