// Which blocks of a DAG are known to belong to it, because one that came links to them, and which of them came by.
import type { CID } from 'multiformats/cid'
import { type Block, isIdentity } from '../../../core/block.ts'
import { codec } from '../../../core/cid.ts'
import { linksOf } from '../../../ipld/block-links.ts'
import { type CidSet, createCidSet } from '../../../ipld/cid-set.ts'
import { eachHashEnd } from '../../../ipld/dag-pb.ts'

export interface DagBlocks {
  /** This block belongs to what is wanted, although nothing that came links to it. */
  expect(cid: CID): void
  isExpected(cid: CID): boolean
  /** Notes a proved block and what it links to; false when it came by before. */
  add(block: Block): boolean
  has(cid: CID): boolean
  /** How many came by, and how many bytes they are. */
  readonly size: number
  readonly bytes: number
}

export function createDagBlocks(): DagBlocks {
  const expected = createCidSet()
  const delivered = createCidSet()
  let bytes = 0
  return {
    expect: (cid) => void expected.add(cid),
    isExpected: (cid) => expected.has(cid),
    add(block) {
      if (delivered.has(block.cid)) return false
      delivered.add(block.cid)
      expectLinksOf(block, expected)
      bytes += block.bytes.byteLength
      return true
    },
    has: (cid) => delivered.has(cid),
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
  if (block.cid.code !== codec.dagPb) {
    for (const link of linksOf(block)) if (!isIdentity(link)) expected.add(link)
    return
  }
  try {
    eachHashEnd(block.bytes, (end) => expected.addEnding(block.bytes, end))
  } catch {
    // The reader of the block reports that it does not decode.
  }
}
