// The CIDs a proved block points at: what a DAG's blocks may be, before they are seen.
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import * as dagPb from '@ipld/dag-pb'
import { CID } from 'multiformats/cid'
import type { Block } from '../block.ts'

/** Empty for a leaf, and for a block that does not decode: whoever reads it finds out and says so. */
export function linksOf({ cid, bytes }: Block): CID[] {
  try {
    switch (cid.code) {
      case dagPb.code:
        return dagPb.decode(bytes).Links.map((link) => link.Hash)
      case dagCbor.code:
        return linksIn(dagCbor.decode(bytes))
      case dagJson.code:
        return linksIn(dagJson.decode(bytes))
      default:
        return []
    }
  } catch {
    return []
  }
}

/** The links of a decoded document, in its own order. */
export function linksIn(document: unknown): CID[] {
  const found: CID[] = []
  const open: unknown[] = [document]
  while (open.length > 0) {
    const value = open.pop()
    if (value === null || typeof value !== 'object') continue
    const cid = CID.asCID(value)
    if (cid) {
      found.push(cid)
      continue
    }
    if (ArrayBuffer.isView(value)) continue
    // One by one: as arguments of a single call, a list of some hundred thousand would be too many.
    const values = Object.values(value)
    for (let at = values.length - 1; at >= 0; at--) open.push(values[at])
  }
  return found
}
