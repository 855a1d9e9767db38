// The nodes of a UnixFS directory, as Kubo writes them: one block with all the links, or a HAMT where that block would be
// large. The names alone decide the nodes, in whatever order they came.
import { setImmediate } from 'node:timers/promises'
import { encode, prepare } from '@ipld/dag-pb'
import type { CID } from 'multiformats/cid'
import type { Shape } from '../../../backends/pinning/contract.ts'
import { placeOf } from '../../content/dag/hamt.ts'
import { hash } from '../../core/cid.ts'
import { malformed } from '../failures.ts'
import { cidOfNode, field } from '../intake/layout.ts'

/** `dagBytes`: bytes of all blocks below it; a block that occurs twice counts twice. */
export type Entry = { readonly name: string; readonly cid: CID; readonly dagBytes: number }
export type DirectoryNode = Omit<Entry, 'name'>

export type Rules = Pick<Shape, 'cidVersion' | 'directorySize'> & {
  readonly put: (cid: CID, bytes: Uint8Array) => Promise<unknown>
}

/** A directory that is larger is sharded. */
const mostBytes = 256 * 1024
const fanout = 256
/** Other requests get their turn after as many. */
const hashesAtOnce = 512
const type = { directory: 1, shard: 5 } as const
/** Field 2 of the message, with a length: which places of a shard are taken. */
const bitsTag = 0x12

export async function putDirectory(entries: readonly Entry[], rules: Rules): Promise<DirectoryNode> {
  const links = entries.map(({ name, cid, dagBytes }) => ({ Name: name, Hash: cid, Tsize: dagBytes }))
  const bytes = entries.reduce((sum, { name, cid }) => sum + Buffer.byteLength(name) + cid.bytes.byteLength, 0)
  if (bytes <= mostBytes) {
    const block = encode(prepare({ Data: Uint8Array.from(field(1, type.directory)), Links: links }))
    if (rules.directorySize === 'links' || block.byteLength <= mostBytes) return putNode(block, entries, rules)
  }
  const placed: Placed[] = []
  for (const entry of entries) {
    placed.push({ ...entry, place: await placeOf(entry.name) })
    if (placed.length % hashesAtOnce === 0) await setImmediate()
  }
  return putShard(placed, 0, rules)
}

type Placed = Entry & { readonly place: Uint8Array }

/** One level of the HAMT takes one byte of the hash: a place of its own for a single name, a shard below for several. */
async function putShard(entries: readonly Placed[], depth: number, rules: Rules): Promise<DirectoryNode> {
  const at = Map.groupBy(entries, ({ place }) => place[depth])
  const taken = Buffer.alloc(fanout / 8)
  const links: Entry[] = []
  for (let slot = 0; slot < fanout; slot++) {
    const [only, ...more] = at.get(slot) ?? []
    if (!only) continue
    if (depth >= only.place.byteLength) throw malformed('too many names of the directory have the same hash')
    const digits = slot.toString(16).toUpperCase().padStart(2, '0')
    if (more.length === 0) links.push({ ...only, name: `${digits}${only.name}` })
    else links.push({ ...(await putShard([only, ...more], depth + 1, rules)), name: digits })
    const byte = taken.byteLength - 1 - (slot >> 3)
    taken[byte] = (taken[byte] as number) | (1 << (slot & 7))
  }
  const bits = taken.subarray(taken.findIndex((byte) => byte !== 0))
  const data = [
    ...field(1, type.shard),
    ...[bitsTag, bits.byteLength, ...bits],
    ...field(5, hash.murmur3x64),
    ...field(6, fanout),
  ]
  const Links = links.map(({ name, cid, dagBytes }) => ({ Name: name, Hash: cid, Tsize: dagBytes }))
  return putNode(encode(prepare({ Data: Uint8Array.from(data), Links })), links, rules)
}

async function putNode(
  block: Uint8Array,
  links: readonly DirectoryNode[],
  { cidVersion, put }: Rules,
): Promise<DirectoryNode> {
  const cid = cidOfNode(block, cidVersion)
  await put(cid, block)
  return { cid, dagBytes: links.reduce((sum, { dagBytes }) => sum + dagBytes, block.byteLength) }
}
