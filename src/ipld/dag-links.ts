// The links of a block in their order, for a walk with `order=dfs`. This list has to be complete: a block that cannot
// be read is a failure and not a leaf.
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import type { CID } from 'multiformats/cid'
import type { Block } from '../core/block.ts'
import { codec } from '../core/cid.ts'
import { linksInDocument } from './block-links.ts'
import { readNode, wrongContent } from './unixfs.ts'

export const linksInOrder = (block: Block): CID[] => lazyLinksInOrder(block).map(({ Hash }) => Hash)

/** The same, with CIDs that are made when they are asked for: a block may have a quarter of a million links. */
export function lazyLinksInOrder({ cid, bytes }: Block): readonly LazyLink[] {
  if (cid.code === codec.dagPb) return readNode(cid, bytes).links
  return readable(cid, () => linksInDocument({ cid, bytes })).map((Hash) => ({ Hash }))
}

export type LazyLink = { readonly Hash: CID }

/** Undefined for a codec whose documents have no links: nothing leads further. */
export function readDocument(cid: CID, bytes: Uint8Array): unknown {
  return readable(cid, () => {
    if (cid.code === dagCbor.code) return dagCbor.decode(bytes)
    if (cid.code === dagJson.code) return dagJson.decode(bytes)
    return undefined
  })
}

function readable<T>(cid: CID, read: () => T): T {
  try {
    return read()
  } catch (cause) {
    throw wrongContent(cid, 'it does not decode', cause)
  }
}
