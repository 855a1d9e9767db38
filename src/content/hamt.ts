// Directories too large for one block: a HAMT over murmur3 of the name. Each name is looked for along its own bits, and a
// shard that could make the walk endless is refused.
import { murmur364 } from '@multiformats/murmur3'
import type { CID } from 'multiformats/cid'
import { isIdentity } from '../block.ts'
import type { DagWant, Session } from '../retrieval/session.ts'
import { dagPbCode, type Node, readNode, wrongContent } from './unixfs.ts'

export type ShardLink = { readonly name: string; readonly cid: CID; readonly size: number | undefined }

const mostDepth = 32

/** Bits of the hash per level, and hexadecimal digits before each name in a shard. */
function shape(cid: CID, { unixfs }: Node): { bits: number; digits: number } {
  const fanout = Number(unixfs?.fanout ?? 0n)
  const bits = Math.log2(fanout)
  if (!Number.isInteger(bits) || fanout < 8 || fanout > 1024)
    throw wrongContent(cid, `its fan-out ${fanout} is not one a directory may have`)
  return { bits, digits: (fanout - 1).toString(16).length }
}

export async function findInShards(
  session: Session,
  root: { readonly cid: CID; readonly block: Uint8Array },
  name: string,
  around: DagWant | undefined,
): Promise<CID | undefined> {
  const hash = await hashBits(name)
  let { cid, block } = root
  let at = 0
  for (let depth = 0; depth < mostDepth; depth++) {
    const node = readNode(cid, block)
    const { bits, digits } = shape(cid, node)
    const position = takeBits(hash, at, bits)
    if (position === undefined) throw wrongContent(cid, 'it goes deeper than its hash reaches')
    at += bits
    const prefix = position.toString(16).toUpperCase().padStart(digits, '0')
    const direct = node.links.find((link) => link.Name === prefix + name)
    if (direct) return direct.Hash
    const deeper = node.links.find((link) => link.Name === prefix)
    if (!deeper) return undefined
    cid = deeper.Hash
    if (cid.code !== dagPbCode) throw wrongContent(cid, 'it stands where a part of a directory should')
    block = await session.get(cid, around)
  }
  throw wrongContent(root.cid, `it is nested more than ${mostDepth} levels deep`)
}

/** Every link of the directory, depth first. A shard is visited once: one that repeats could otherwise list for ever. */
export async function* listShards(
  session: Session,
  root: { readonly cid: CID; readonly block: Uint8Array },
  around: DagWant | undefined,
): AsyncGenerator<ShardLink> {
  const seen = new Set<string>()
  type Level = { readonly node: Node; readonly digits: number; next: number }
  const level = (cid: CID, block: Uint8Array): Level => {
    const node = readNode(cid, block)
    return { node, digits: shape(cid, node).digits, next: 0 }
  }
  const open: Level[] = [level(root.cid, root.block)]
  for (let top = open.at(-1); top; top = open.at(-1)) {
    const link = top.node.links[top.next++]
    if (!link) {
      open.pop()
      continue
    }
    const name = link.Name ?? ''
    if (name.length > top.digits) {
      yield { name: name.slice(top.digits), cid: link.Hash, size: link.Tsize }
      continue
    }
    const key = link.Hash.toString()
    if (seen.has(key) && !isIdentity(link.Hash)) throw wrongContent(link.Hash, 'it stands twice in one directory')
    if (open.length >= mostDepth) throw wrongContent(root.cid, `it is nested more than ${mostDepth} levels deep`)
    seen.add(key)
    open.push(level(link.Hash, await session.get(link.Hash, around)))
  }
}

/** The first 64 bits of murmur3 x64 128, in the byte order that directories use. */
async function hashBits(name: string): Promise<Uint8Array> {
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
