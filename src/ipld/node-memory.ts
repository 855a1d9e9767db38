// Caches decoded nodes with many links: each range of a large file and each path through a large
// directory needs the same ones, and decoding takes longer than reading and verifying. Keyed by
// hash, so entries never become stale.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import type { YieldIfDue } from './documents.ts'
import { type Node, readNode, readNodeInSlices } from './unixfs.ts'

/** Decodes a verified block, or finds it in the cache. Throws as `readNode` does. */
export type ReadNode = (cid: CID, block: Uint8Array) => Node

export interface NodeMemory {
  readonly readNode: ReadNode
  /**
   * Decodes without caching, for a node needed once: entries that are used often stay, and garbage
   * collection has no links to move.
   */
  readonly readOnce: ReadNode
  /**
   * Decodes a block in slices, so that `readNode` finds it in the cache. Malformed blocks are left
   * to `readNode`.
   */
  prepare(cid: CID, block: Uint8Array, yieldIfDue: YieldIfDue): Promise<void>
}

/** Decoding a block of this size that is full of links takes milliseconds. */
export const largeNodeBytes = 256 * 1024

const maxCacheBytes = 8 * 1024 * 1024
const minBlockBytes = 1024
// The memory of a size as the library stores it.
const numberBytes = 40

export function createNodeMemory(): NodeMemory {
  const nodes = new LRUCache<string, { readonly node: Node; readonly bytes: number }>({
    maxSize: maxCacheBytes,
    sizeCalculation: ({ node, bytes }) => bytes + nodeOverhead(node),
  })
  // A file in one block is mostly bytes, which decode at no cost.
  const isWorthIt = (node: Node, { byteLength }: Uint8Array): boolean =>
    node.links.length > 0 && byteLength + nodeOverhead(node) <= maxCacheBytes
  /** Coalesces callers: thousands may wait for one block. */
  const preparing = new Map<string, Promise<void>>()

  async function decode(key: string, cid: CID, block: Uint8Array, yieldIfDue: YieldIfDue): Promise<void> {
    try {
      const node = await readNodeInSlices(cid, block, yieldIfDue)
      // Copy only after this check: a leaf of a file would be copied for nothing.
      if (!isWorthIt(node, block)) return
      const kept = ownsBuffer(block) ? node : await readNodeInSlices(cid, new Uint8Array(block), yieldIfDue)
      nodes.set(key, { node: kept, bytes: block.byteLength })
    } catch {}
  }

  return {
    readNode(cid, block) {
      if (block.byteLength < minBlockBytes) return readNode(cid, block)
      const key = blockKey(cid)
      const known = nodes.get(key)
      if (known) return known.node
      const node = readNode(cid, block)
      if (!isWorthIt(node, block)) return node
      const kept = ownsBuffer(block) ? node : readNode(cid, new Uint8Array(block))
      nodes.set(key, { node: kept, bytes: block.byteLength })
      return kept
    },
    readOnce(cid, block) {
      const known = block.byteLength < minBlockBytes ? undefined : nodes.get(blockKey(cid))
      return known ? known.node : readNode(cid, block)
    },
    prepare(cid, block, yieldIfDue) {
      const key = blockKey(cid)
      if (nodes.has(key)) return Promise.resolve()
      let decoding = preparing.get(key)
      if (!decoding) {
        decoding = decode(key, cid, block, yieldIfDue).finally(() => preparing.delete(key))
        preparing.set(key, decoding)
      }
      return decoding
    },
  }
}

/** Links are views of the block, and a block may be a view of a larger buffer. */
const ownsBuffer = (block: Uint8Array): boolean => block.byteLength === block.buffer.byteLength

/** The memory of the node without its block. */
const nodeOverhead = ({ links, sizes, unixfs }: Node): number => {
  const sizesBytes = sizes
    ? sizes.byteLength + (unixfs?.data?.byteLength ?? 0)
    : (unixfs?.blockSizes.length ?? 0) * numberBytes
  return links.bufferedBytes + sizesBytes
}
