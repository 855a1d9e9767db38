// Which blocks of a DAG are known to belong to it, because one that came links to them, and which of them came by.
import type { CID } from 'multiformats/cid'
import { type Block, blockKey, codec, isIdentity } from '../../core/cid.ts'
import { eachLinkInTurns } from '../../ipld/block-links.ts'
import { type CidSet, createCidSet } from '../../ipld/cid-set.ts'
import { eachHashEnd, eachHashEndInTurns } from '../../ipld/dag-pb.ts'
import { type GiveWay, inOwnTurns } from '../../ipld/documents/read.ts'
import { largeNodeBytes } from '../../ipld/node-memory.ts'

export interface DagBlocks {
  /** This block belongs to what is wanted, although nothing that came links to it. */
  expect(cid: CID): void
  isExpected(cid: CID): boolean
  /** Notes a proved block and what it links to; false when it came by before. */
  add(block: Block): boolean
  /** Until the links of a document or a large node are known, which is read in pieces. */
  readonly reading: Promise<void> | undefined
  /** The tiers have it now. */
  kept(cid: CID): void
  /** It came, and the tiers have it: who asks for it now finds it there. */
  wentBy(cid: CID): boolean
  /** How many came by, and how many bytes they are. */
  readonly size: number
  readonly bytes: number
}

export function createDagBlocks(giveWay: GiveWay | undefined): DagBlocks {
  const expected = createCidSet()
  const delivered = createCidSet()
  /** They came, and no tier has them yet. */
  const onTheirWay = new Set<string>()
  let bytes = 0
  let reading: Promise<void> | undefined
  function read(block: Block): void {
    const all = Promise.all([reading, expectLinksIn(block, expected, giveWay)]).then(() => {
      if (reading === all) reading = undefined
    })
    reading = all
  }

  return {
    expect: (cid) => void expected.add(cid),
    isExpected: (cid) => expected.has(cid),
    add(block) {
      if (delivered.has(block.cid)) return false
      delivered.add(block.cid)
      onTheirWay.add(blockKey(block.cid))
      bytes += block.bytes.byteLength
      const { cid, bytes: content } = block
      if (cid.code === codec.dagPb && content.byteLength < largeNodeBytes) expectLinksOf(block, expected)
      else if (cid.code !== codec.raw) read(block)
      return true
    },
    kept: (cid) => void onTheirWay.delete(blockKey(cid)),
    wentBy: (cid) => delivered.has(cid) && !onTheirWay.has(blockKey(cid)),
    get reading() {
      return reading
    },
    get size() {
      return delivered.size
    },
    get bytes() {
      return bytes
    },
  }
}

/** Without a CID for each link: a block may have a quarter of a million. */
function expectLinksOf(block: Block, expected: CidSet): void {
  try {
    eachHashEnd(block.bytes, (end) => expected.addEnding(block.bytes, end))
  } catch {
    // The reader of the block reports that it does not decode.
  }
}

async function expectLinksIn(block: Block, expected: CidSet, giveWay: GiveWay = inOwnTurns): Promise<void> {
  if (block.cid.code === codec.dagPb) {
    const expectEnding = (end: number): void => expected.addEnding(block.bytes, end)
    // The reader of the block reports that it does not decode.
    return eachHashEndInTurns(block.bytes, expectEnding, giveWay).catch(() => {})
  }
  const expect = (link: CID): void => {
    if (!isIdentity(link)) expected.add(link)
  }
  await eachLinkInTurns(block, expect, giveWay)
}
