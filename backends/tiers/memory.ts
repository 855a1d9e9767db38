// A memory tier: blocks in this process, with admission. Every put is copied: a block kept as a
// view would pin the buffer it was cut from, and change when its owner writes there. Readers must
// not write to what they get.
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { AdmittingCache } from '../../src/core/cache.ts'
import { blockKey } from '../../src/core/cid.ts'
import { partOf } from '../../src/core/disk/peeked.ts'
import { size } from '../../src/core/units.ts'
import type { Tier, TierKind } from './contract.ts'

const options = z.strictObject({
  maxBytes: size()
    .prefault('64MiB')
    .refine((bytes) => bytes > 0, { error: 'expected more than 0; to have no memory tier, leave it out of the list' })
    .describe('Memory for blocks, their keys included.'),
})

// Memory of an entry besides its bytes: key, list node, ArrayBuffer. Without it a flood of tiny
// blocks is unbounded.
const overheadBytes = 512
// New blocks are read by all requests that wait for them.
const probation = 0.1

export const memory: TierKind<typeof options> = {
  use: 'memory',
  options,
  create: ({ maxBytes }, { name }) => createMemoryTier(name, maxBytes),
}

function createMemoryTier(name: string, maxBytes: number): Tier {
  const blocks = new AdmittingCache<Uint8Array>({ maxBytes, probation })

  function putNow(cid: CID, bytes: Uint8Array): void {
    const key = blockKey(cid)
    if (blocks.peek(key)) return
    const copy = () => (bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes))
    blocks.set(key, bytes.byteLength + overheadBytes, copy)
  }

  return {
    name,
    traits: { persistent: false, shared: false, trusted: true },
    async get(cid, signal) {
      signal?.throwIfAborted()
      return blocks.get(blockKey(cid))
    },
    peek(cid, options) {
      const bytes = blocks.get(blockKey(cid))
      return bytes && partOf(bytes, options?.part)
    },
    async put(cid, bytes, signal) {
      signal?.throwIfAborted()
      putNow(cid, bytes)
    },
    putNow,
    async has(cid, signal) {
      signal?.throwIfAborted()
      return blocks.peek(blockKey(cid)) !== undefined
    },
    async delete(cid, signal) {
      signal?.throwIfAborted()
      blocks.delete(blockKey(cid))
    },
    clear: () => blocks.clear(),
    usage: () => ({ bytes: blocks.bytes, blocks: blocks.size, limitBytes: maxBytes }),
    async close() {
      blocks.clear()
    },
  }
}
