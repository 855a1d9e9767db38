// Builds the nodes above the leaves of a file: balanced, a fixed number of links to a node. It writes their UnixFS itself because
// the protobuf writer below `ipfs-unixfs` (protons-runtime 7 and 8.0) writes a number from 2^31 up to 2^32 as one byte: the root
// of a file of 2 to 4 GiB would be unreadable, and its CID would differ from that of every other implementation.
import { createHash } from 'node:crypto'
import { encode, prepare } from '@ipld/dag-pb'
import type { FileLayout } from 'ipfs-unixfs-importer/layout'
import { varint } from 'multiformats'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { codec, hash } from '../../core/cid.ts'

export type Part = { readonly cid: CID; readonly fileBytes: number; readonly dagBytes: number }

type Layout = {
  readonly width: number
  readonly cidVersion: 0 | 1
  readonly put: (cid: CID, bytes: Uint8Array) => Promise<unknown>
}

export function balancedLayout(layout: Layout): FileLayout {
  return async (leaves, reduce) => {
    const parents: Part[] = []
    const parts: Part[] = []
    for await (const leaf of leaves) {
      // The root of a file with one leaf is that leaf.
      if ('single' in leaf && leaf.single) return reduce([leaf])
      if (parts.length === layout.width) parents.push(await putParent(parts.splice(0), layout))
      const { cid, size, unixfs } = leaf
      parts.push({ cid, fileBytes: Number(unixfs?.fileSize() ?? size), dagBytes: Number(size) })
    }
    parents.push(await putParent(parts, layout))
    let level = parents
    while (level.length > 1) {
      const above: Part[] = []
      for (let at = 0; at < level.length; at += layout.width) {
        above.push(await putParent(level.slice(at, at + layout.width), layout))
      }
      level = above
    }
    const [root = parents[0]] = level
    if (!root) throw new Error('a file without a leaf')
    return { cid: root.cid, size: BigInt(root.dagBytes) }
  }
}

async function putParent(parts: readonly Part[], { cidVersion, put }: Layout): Promise<Part> {
  const { block, ...sizes } = parentOf(parts)
  const cid = cidOfNode(block, cidVersion)
  await put(cid, block)
  return { cid, ...sizes }
}

export function cidOfNode(block: Uint8Array, cidVersion: 0 | 1): CID {
  const digest = createDigest(hash.sha256, createHash('sha256').update(block).digest())
  return cidVersion === 0 ? CID.createV0(digest) : CID.createV1(codec.dagPb, digest)
}

export function parentOf(parts: readonly Part[]): { block: Uint8Array; fileBytes: number; dagBytes: number } {
  const fileBytes = parts.reduce((sum, part) => sum + part.fileBytes, 0)
  const fields = [...field(1, 2), ...field(3, fileBytes), ...parts.flatMap((part) => field(4, part.fileBytes))]
  const links = parts.map(({ cid, dagBytes }) => ({ Name: '', Hash: cid, Tsize: dagBytes }))
  const block = encode(prepare({ Data: Uint8Array.from(fields), Links: links }))
  return { block, fileBytes, dagBytes: parts.reduce((sum, part) => sum + part.dagBytes, block.byteLength) }
}

/** UnixFS `Data`: field 1 is the type (2: a file), 3 the size of the file, 4 the bytes below each link. */
export function field(number: number, value: number): number[] {
  const bytes = new Uint8Array(varint.encodingLength(value))
  varint.encodeTo(value, bytes)
  return [number << 3, ...bytes]
}
