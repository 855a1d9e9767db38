// The links of a block in their order, for a walk with `order=dfs`. This list has to be complete: a block that cannot
// be read is a failure and not a leaf.
import type { CID } from 'multiformats/cid'
import type { Block } from '../core/block.ts'
import { codec } from '../core/cid.ts'
import { type DocumentStep, documentLinks, type GiveWay, inOwnTurns, stepIntoDocument } from './documents/read.ts'
import { readNodeInTurns, wrongContent } from './unixfs.ts'

export type LazyLink = { readonly Hash: CID }

/** As an array has them, or made when they are asked for. */
export type LazyLinks = Iterable<LazyLink> & { readonly length: number; at(index: number): LazyLink | undefined }

/**
 * The CIDs are made when they are asked for: a block may have a quarter of a million links. `names` lead to a value in a document:
 * its links alone are listed.
 */
export async function lazyLinksInOrder(
  block: Block,
  giveWay: GiveWay = inOwnTurns,
  names: readonly string[] = [],
): Promise<LazyLinks> {
  const { cid, bytes } = block
  if (cid.code === codec.dagPb) return (await readNodeInTurns(cid, bytes, giveWay)).links
  return readable(cid, documentLinks(block, giveWay, names))
}

/** What the names lead to in a document. */
export const stepInto = (block: Block, names: readonly string[], giveWay: GiveWay): Promise<DocumentStep> =>
  readable(block.cid, stepIntoDocument(block, names, giveWay))

export async function readable<T>(cid: CID, reading: Promise<T>): Promise<T> {
  try {
    return await reading
  } catch (cause) {
    throw wrongContent(cid, 'it does not decode', cause)
  }
}
