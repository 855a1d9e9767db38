// HAMT-sharded directories (murmur3 of the name). A lookup follows the bits of the name's hash; a
// shard that could make a traversal endless is refused.
import { murmur364 } from '@multiformats/murmur3'
import type { CID } from 'multiformats/cid'
import { type Block, blockKey, codec, hash, isIdentity } from '../../core/cid.ts'
import type { PbLink } from '../../ipld/dag-pb.ts'
import { hashTypeOf, type Node, wrongContent } from '../../ipld/unixfs.ts'
import type { DagWant, Expected, Session } from '../../retrieval/session.ts'
import { createMemoryBound } from './pending.ts'

export type ShardLink = { readonly name: string; readonly cid: CID; readonly size: number | undefined }

const maxDepth = 32
const guessedShardBytes = 16 * 1024
// Entries searched for child shards to prefetch: the fan-out of the widest shard.
const maxInspected = 1024

/** Reads the bits of hash per level, and the number of hexadecimal digits that prefix each name. */
function shape(cid: CID, { unixfs, data }: Node): { bits: number; digits: number } {
  if (unixfs?.type !== 'hamt-sharded-directory') throw wrongContent(cid, 'it is not a shard of a directory')
  if (data === undefined || hashTypeOf(data) !== hash.murmur3x64)
    throw wrongContent(cid, 'it places names by a hash other than murmur3-x64-64')
  const fanout = Number(unixfs.fanout ?? 0n)
  const bits = Math.log2(fanout)
  if (!Number.isInteger(bits) || fanout < 8 || fanout > 1024)
    throw wrongContent(cid, `its fan-out ${fanout} is not one a directory may have`)
  return { bits, digits: (fanout - 1).toString(16).length }
}

/**
 * Maps a link of this shard to its name in the directory, '' for a child shard. Undefined for a
 * malformed shard.
 */
export function namesInShard(cid: CID, node: Node): ((name: string) => string) | undefined {
  try {
    const { digits } = shape(cid, node)
    return (name) => name.slice(digits)
  } catch {
    return undefined
  }
}

/** The CID of a name, and the blocks below the root that prove it. */
export type ShardMatch = { readonly cid: CID; readonly shards: readonly Block[] }

/** True for links of this shard that lead to a child shard. */
export function isShardLink(cid: CID, node: Node): (link: PbLink) => boolean {
  const { digits } = shape(cid, node)
  return ({ Name }) => Name?.length === digits
}

export async function findInShards(
  session: Session,
  root: Block,
  name: string,
  around: DagWant | undefined,
): Promise<ShardMatch | undefined> {
  const hash = await placeOf(name)
  const shards: Block[] = []
  let { cid, bytes } = root
  let at = 0
  for (let depth = 0; depth < maxDepth; depth++) {
    const node = session.readNode(cid, bytes)
    const { bits, digits } = shape(cid, node)
    const position = takeBits(hash, at, bits)
    if (position === undefined) throw wrongContent(cid, 'it goes deeper than its hash reaches')
    at += bits
    const prefix = position.toString(16).toUpperCase().padStart(digits, '0')
    const direct = node.links.named(prefix + name)
    if (direct) return { cid: direct.Hash, shards }
    const deeper = node.links.named(prefix)
    if (!deeper) return undefined
    cid = deeper.Hash
    if (cid.code !== codec.dagPb) throw wrongContent(cid, 'it is not a shard of a directory')
    bytes = await session.get(cid, around)
    shards.push({ cid, bytes })
  }
  throw wrongContent(root.cid, `it is nested more than ${maxDepth} levels deep`)
}

/**
 * Yields every link of the directory, depth first. Each shard is visited once: a shard that repeats
 * could otherwise make the listing endless.
 */
export async function* listShards(
  session: Session,
  root: Block,
  around: DagWant | undefined,
  memory = createMemoryBound(),
): AsyncGenerator<ShardLink> {
  const seen = new Set<string>()
  type Level = { readonly node: Node; readonly digits: number; readonly bytes: number; next: number }
  const level = ({ cid, bytes }: Block): Level => {
    const node = session.readOnce(cid, bytes)
    memory.take(bytes.byteLength)
    return { node, digits: shape(cid, node).digits, bytes: bytes.byteLength, next: 0 }
  }
  const open: Level[] = [level(root)]
  /** The next shards to prefetch, as far as they are known. */
  function* upcoming(around: DagWant): Generator<Expected> {
    let left = maxInspected
    for (const { node, digits, next } of open.toReversed())
      for (let at = next; at < node.links.length; at++) {
        if (left-- === 0) return
        const link = node.links.at(at)
        if (link?.Name?.length === digits) yield { cid: link.Hash, around, bytes: guessedShardBytes }
      }
  }
  for (let top = open.at(-1); top; top = open.at(-1)) {
    const link = top.node.links.at(top.next++)
    if (!link) {
      memory.give(top.bytes)
      open.pop()
      continue
    }
    const name = link.Name ?? ''
    if (name.length > top.digits) {
      yield { name: name.slice(top.digits), cid: link.Hash, size: link.Tsize }
      continue
    }
    if (name.length < top.digits) throw wrongContent(root.cid, 'one of its shards has a link without a place')
    const key = blockKey(link.Hash)
    if (seen.has(key)) throw wrongContent(link.Hash, 'it occurs twice in one directory')
    if (open.length >= maxDepth) throw wrongContent(root.cid, `it is nested more than ${maxDepth} levels deep`)
    seen.add(key)
    open.push(level({ cid: link.Hash, bytes: await session.get(link.Hash, around) }))
    if (around && !isIdentity(link.Hash)) session.expect(upcoming(around))
  }
}

/**
 * The position of a name: the first 64 bits of murmur3 x64 128, in the byte order of UnixFS
 * directories.
 */
export async function placeOf(name: string): Promise<Uint8Array> {
  return murmur364.encode(new TextEncoder().encode(name))
}

function takeBits(hash: Uint8Array, from: number, count: number): number | undefined {
  if (from + count > hash.byteLength * 8) return undefined
  let value = 0
  for (let bit = from; bit < from + count; bit++) {
    value = (value << 1) | (((hash[bit >> 3] as number) >> (7 - (bit & 7))) & 1)
  }
  return value
}
