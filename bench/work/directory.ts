// A HAMT directory of very many names: its own blocks without those of its files, which are never
// requested. Built by hand, since an importer takes as long as a round of the bench.
import { hash as digestOf } from 'node:crypto'
import { murmur364 } from '@multiformats/murmur3'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { blockKey, codec, hash } from '../../src/core/cid.ts'
import type { BlockMap } from '../../src/testing/content.ts'

type Entry = { readonly name: string; readonly place: Uint8Array; readonly cid: Uint8Array }

const fanout = 256
const fileBytes = 1000
const places = new Map<string, Uint8Array>()

export const nameOf = (index: number): string => `document-${String(index).padStart(6, '0')}.json`

/** The names are the same for each seed; the files differ. */
export async function addLargeDirectory(blocks: BlockMap, count: number, seed: number): Promise<CID> {
  const entries: Entry[] = []
  for (let index = 0; index < count; index++) {
    const name = nameOf(index)
    const place = places.get(name) ?? (await murmur364.encode(new TextEncoder().encode(name)))
    places.set(name, place)
    entries.push({ name, place, cid: cidOf(codec.raw, Buffer.from(`${seed} ${name}`)) })
  }
  return CID.decode(shard(blocks, entries, 0))
}

const cidOf = (code: number, bytes: Uint8Array): Uint8Array =>
  Buffer.concat([Uint8Array.of(1, code, hash.sha256, 32), digestOf('sha256', bytes, 'buffer')])

/** One byte of the hash for each level. */
function shard(blocks: BlockMap, entries: readonly Entry[], depth: number): Uint8Array {
  const buckets = Array.from({ length: fanout }, (): Entry[] => [])
  for (const entry of entries) buckets[entry.place[depth] as number]?.push(entry)
  const taken = new Uint8Array(fanout / 8)
  const links: Uint8Array[] = []
  for (const [position, some] of buckets.entries()) {
    const [first] = some
    if (!first) continue
    const at = taken.length - 1 - (position >> 3)
    taken[at] = (taken[at] as number) | (1 << (position & 7))
    const prefix = position.toString(16).toUpperCase().padStart(2, '0')
    if (some.length === 1) links.push(link(prefix + first.name, first.cid, fileBytes))
    else links.push(link(prefix, shard(blocks, some, depth + 1), fileBytes * some.length))
  }
  const data = taken.subarray(taken.findIndex((byte) => byte !== 0))
  const type = 'hamt-sharded-directory'
  const unixfs = new UnixFS({ type, data, hashType: BigInt(hash.murmur3x64), fanout: BigInt(fanout) })
  const block = Buffer.concat([...links, field(1, unixfs.marshal())])
  const cid = cidOf(codec.dagPb, block)
  blocks.set(blockKey(CID.decode(cid)), block)
  return cid
}

/** A dag-pb link (field 2): CID, name and size. */
const link = (name: string, cid: Uint8Array, size: number): Uint8Array =>
  field(2, Buffer.concat([field(1, cid), field(2, Buffer.from(name)), Uint8Array.of(0x18), varint(size)]))

const field = (number: number, bytes: Uint8Array): Uint8Array =>
  Buffer.concat([Uint8Array.of((number << 3) | 2), varint(bytes.byteLength), bytes])

function varint(value: number): Uint8Array {
  const bytes: number[] = []
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return Uint8Array.from([...bytes, rest])
    bytes.push((rest % 128) | 128)
  }
}
