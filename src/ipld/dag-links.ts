// Lists the links of a block in order, for a depth-first traversal (`order=dfs`). The list must be
// complete: a block that cannot be decoded is a failure, not a leaf.
import type { CID } from 'multiformats/cid'
import { type Block, codec } from '../core/cid.ts'
import { type DocumentStep, documentLinks, type GiveWay, inOwnTurns, stepIntoDocument } from './documents/read.ts'
import { readNodeInTurns, wrongContent } from './unixfs.ts'

export type LazyLink = { readonly Hash: CID }

/** An array, or links created on access. */
export type LazyLinks = Iterable<LazyLink> & { readonly length: number; at(index: number): LazyLink | undefined }

/**
 * CIDs are created on access, since a block may have a quarter of a million links. `names` selects
 * a value in a document; only its links are listed.
 */
export async function lazyLinksInOrder(
  block: Block,
  yieldIfDue: GiveWay = inOwnTurns,
  names: readonly string[] = [],
): Promise<LazyLinks> {
  const { cid, bytes } = block
  if (cid.code === codec.dagPb) return (await readNodeInTurns(cid, bytes, yieldIfDue)).links
  return readable(cid, documentLinks(block, yieldIfDue, names))
}

/** Follows the names inside a document. */
export const stepInto = (block: Block, names: readonly string[], yieldIfDue: GiveWay): Promise<DocumentStep> =>
  readable(block.cid, stepIntoDocument(block, names, yieldIfDue))

export async function readable<T>(cid: CID, reading: Promise<T>): Promise<T> {
  try {
    return await reading
  } catch (cause) {
    throw wrongContent(cid, 'it does not decode', cause)
  }
}
