// Links of a verified block: as a set for collecting, and in order for a depth-first traversal
// (`order=dfs`), where a block that cannot be decoded is a failure and not a leaf.
import type { CID } from 'multiformats/cid'
import { type Block, blockName, codec, isIdentity, isProvable } from '../core/cid.ts'
import { decodePb, decodePbInSlices } from './dag-pb.ts'
import {
  type DocumentStep,
  documentLinks,
  documentLinksNow,
  inOwnIterations,
  stepIntoDocument,
  type YieldIfDue,
} from './documents.ts'
import { readNodeInSlices, wrongContent } from './unixfs.ts'

/**
 * Synchronous, for small blocks. Empty for a leaf, and for a block that does not decode: its reader
 * reports that.
 */
export function linksOf(block: Block): CID[] {
  try {
    const links: Iterable<LazyLink> =
      block.cid.code === codec.dagPb ? decodePb(block.bytes).Links : documentLinksNow(block)
    return Array.from(links, ({ Hash }) => Hash)
  } catch {
    return []
  }
}

const linksPerSlice = 1000

/**
 * Calls `each` for every link, yielding to the event loop. A block may have a quarter of a million
 * links, so each CID is created just before its call, and freed unless `each` keeps it.
 */
export async function eachLinkInSlices(
  block: Block,
  each: (cid: CID) => void,
  yieldIfDue: YieldIfDue = inOwnIterations,
): Promise<void> {
  try {
    if (block.cid.code === codec.dagPb)
      return await inTurns((await decodePbInSlices(block.bytes, yieldIfDue)).Links, each, yieldIfDue)
    const links: (LazyLink | undefined)[] = await documentLinks(block, yieldIfDue)
    await inTurns(taken(links), each, yieldIfDue)
  } catch {
    // The reader of the block reports that it does not decode.
  }
}

async function inTurns(links: Iterable<LazyLink>, each: (cid: CID) => void, yieldIfDue: YieldIfDue): Promise<void> {
  let count = 0
  for (const { Hash } of links) {
    each(Hash)
    if (++count % linksPerSlice === 0) await yieldIfDue()
  }
}

/** Yields each link and drops its reference. */
function* taken(links: (LazyLink | undefined)[]): Generator<LazyLink> {
  for (let at = 0; at < links.length; at++) {
    const link = links[at]
    links[at] = undefined
    if (link) yield link
  }
}

/**
 * Lists the next blocks of a traversal for which `isNew` is true. An identity CID is replaced by
 * the links in its content, because a block may contain more of them than a traversal can keep.
 */
export async function blocksBelow(block: Block, isNew: (cid: CID) => boolean, yieldIfDue?: YieldIfDue): Promise<CID[]> {
  const below: CID[] = []
  const take = (cid: CID): void => {
    if (!isIdentity(cid)) {
      if (isNew(cid)) below.push(cid)
    } else if (cid.code !== codec.raw && isProvable(cid))
      for (const link of linksOf({ cid, bytes: cid.multihash.digest })) take(link)
  }
  await eachLinkInSlices(block, take, yieldIfDue)
  return below
}

type Below = (block: Block, isNew: (cid: CID) => boolean) => Promise<CID[]>

/**
 * Yields every block of a DAG but identity blocks, each once, parents first. Nothing is yielded
 * below a block that `read` does not find (`bytes` is undefined). `below` lists the next blocks: a
 * link waits only if it is new, since a few blocks may have millions of links to the same ones.
 */
export async function* dagBlocks<Bytes extends Uint8Array | undefined>(
  root: CID,
  read: (cid: CID) => Bytes | Promise<Bytes>,
  below: Below = blocksBelow,
): AsyncGenerator<{ readonly cid: CID; readonly bytes: Bytes }> {
  const seen = new Set<string>()
  const isNew = (cid: CID): boolean => {
    const name = blockName(cid)
    return !seen.has(name) && seen.add(name) !== undefined
  }
  isNew(root)
  const ahead = isIdentity(root) ? await below({ cid: root, bytes: root.multihash.digest }, isNew) : [root]
  for (let cid = ahead.pop(); cid; cid = ahead.pop()) {
    const bytes = await read(cid)
    const links = bytes ? await below({ cid, bytes }, isNew) : []
    yield { cid, bytes }
    for (let link = links.pop(); link; link = links.pop()) ahead.push(link)
  }
}

export type LazyLink = { readonly Hash: CID }

/** An array, or links created on access. */
export type LazyLinks = Iterable<LazyLink> & { readonly length: number; at(index: number): LazyLink | undefined }

/**
 * CIDs are created on access, since a block may have a quarter of a million links. `names` selects
 * a value in a document; only its links are listed.
 */
export async function lazyLinksInOrder(
  block: Block,
  yieldIfDue: YieldIfDue = inOwnIterations,
  names: readonly string[] = [],
): Promise<LazyLinks> {
  const { cid, bytes } = block
  if (cid.code === codec.dagPb) return (await readNodeInSlices(cid, bytes, yieldIfDue)).links
  return readable(cid, documentLinks(block, yieldIfDue, names))
}

/** Follows the names inside a document. */
export const stepInto = (block: Block, names: readonly string[], yieldIfDue: YieldIfDue): Promise<DocumentStep> =>
  readable(block.cid, stepIntoDocument(block, names, yieldIfDue))

export async function readable<T>(cid: CID, reading: Promise<T>): Promise<T> {
  try {
    return await reading
  } catch (cause) {
    throw wrongContent(cid, 'it does not decode', cause)
  }
}
