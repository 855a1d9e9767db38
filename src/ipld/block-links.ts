// The CIDs that a verified block links to: the CIDs that a DAG's next blocks may have.
import type { CID } from 'multiformats/cid'
import type { Block } from '../core/block.ts'
import { codec } from '../core/cid.ts'
import { decodePb } from './dag-pb.ts'
import { documentLinks, documentLinksNow, type GiveWay, inOwnTurns } from './documents/read.ts'

/**
 * At once, for blocks that hold up no client. Empty for a leaf, and for a block that does not decode: its reader reports that.
 */
export function linksOf(block: Block): CID[] {
  try {
    const links = block.cid.code === codec.dagPb ? decodePb(block.bytes).Links : documentLinksNow(block)
    return links.map(({ Hash }) => Hash)
  } catch {
    return []
  }
}

/** The same in pieces, between which others are served. */
export async function linksInTurns(block: Block, giveWay: GiveWay = inOwnTurns): Promise<CID[]> {
  if (block.cid.code === codec.dagPb) return linksOf(block)
  try {
    return (await documentLinks(block, giveWay)).map(({ Hash }) => Hash)
  } catch {
    return []
  }
}
