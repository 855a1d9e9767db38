// The blocks of a DAG in a flight: which are known to belong to it, because one that came links to
// them, and which came.
import type { CID } from 'multiformats/cid'
import { type Block, codec, isIdentity } from '../../core/cid.ts'
import { eachLinkInSlices } from '../../ipld/block-links.ts'
import { createCidSet } from '../../ipld/cid-set.ts'
import { eachHashEnd, eachHashEndInSlices } from '../../ipld/dag-pb.ts'
import { inOwnIterations, type YieldIfDue } from '../../ipld/documents.ts'
import { largeNodeBytes } from '../../ipld/node-memory.ts'

export class DagBlocks {
  /** Until the links of a document or a large node are known, which is read in pieces. */
  reading: Promise<void> | undefined
  /** A block came. */
  hasBegun = false
  readonly #yieldIfDue: YieldIfDue
  readonly #expected = createCidSet()
  readonly #stored = createCidSet()

  constructor(root: CID, yieldIfDue: YieldIfDue = inOwnIterations) {
    this.#yieldIfDue = yieldIfDue
    this.expect(root)
  }

  /** This block belongs to the DAG, although nothing that came links to it. */
  expect(cid: CID): void {
    this.#expected.add(cid)
  }

  isExpected(cid: CID): boolean {
    return this.#expected.has(cid)
  }

  /** Notes what a proved block links to; false when it came before. */
  add(block: Block): boolean {
    const { cid, bytes } = block
    if (this.#stored.has(cid)) return false
    this.hasBegun = true
    if (cid.code === codec.dagPb && bytes.byteLength < largeNodeBytes) this.#expectLinks(bytes)
    else if (cid.code !== codec.raw) {
      const all = Promise.all([this.reading, this.#expectLinksInPieces(block)]).then(() => {
        if (this.reading === all) this.reading = undefined
      })
      this.reading = all
    }
    return true
  }

  /** The tiers have it now. */
  stored(cid: CID): void {
    this.#stored.add(cid)
  }

  /** It came, and the tiers have it: a reader that asks for it now finds it there. */
  isStored(cid: CID): boolean {
    return this.#stored.has(cid)
  }

  /** Without a CID for each link: a block may have a quarter of a million. */
  #expectLinks(bytes: Uint8Array): void {
    try {
      eachHashEnd(bytes, (end) => this.#expected.addEnding(bytes, end))
    } catch {
      // The reader of the block reports that it does not decode.
    }
  }

  async #expectLinksInPieces(block: Block): Promise<void> {
    if (block.cid.code === codec.dagPb) {
      const expectEnding = (end: number): void => this.#expected.addEnding(block.bytes, end)
      // The reader of the block reports that it does not decode.
      return eachHashEndInSlices(block.bytes, expectEnding, this.#yieldIfDue).catch(() => {})
    }
    const expect = (link: CID): void => {
      if (!isIdentity(link)) this.#expected.add(link)
    }
    await eachLinkInSlices(block, expect, this.#yieldIfDue)
  }
}
