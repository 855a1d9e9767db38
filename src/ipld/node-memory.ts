// Decoded nodes with many links, remembered: each range of a large file and each path through a large folder decodes the same
// ones again, which takes longer than to read and prove them. They are named by what they hash to, so that they stay right.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/block.ts'
import { type Node, readNode } from './unixfs.ts'

/** Decodes a proved block, or finds what it was decoded to. Throws as `readNode` does. */
export type ReadNode = (cid: CID, block: Uint8Array) => Node

const mostBytes = 8 * 1024 * 1024
const leastBlockBytes = 1024

export function createNodeMemory(): ReadNode {
  const nodes = new LRUCache<string, { readonly node: Node; readonly bytes: number }>({
    maxSize: mostBytes,
    sizeCalculation: ({ node, bytes }) => bytes + besides(node),
  })
  return (cid, block) => {
    if (block.byteLength < leastBlockBytes) return readNode(cid, block)
    const key = blockKey(cid)
    const known = nodes.get(key)
    if (known) return known.node
    const node = readNode(cid, block)
    const bytes = block.byteLength
    // A file in one block is mostly bytes, which are decoded at no cost.
    if (node.links.length === 0 || bytes + besides(node) > mostBytes) return node
    // Links are views of the block, and a block may be a view of a larger buffer.
    const kept = bytes === block.buffer.byteLength ? node : readNode(cid, new Uint8Array(block))
    nodes.set(key, { node: kept, bytes })
    return kept
  }
}

/** What it takes besides its block. */
const besides = ({ links, sizes }: Node): number => links.heldBytes + (sizes?.byteLength ?? 0)
