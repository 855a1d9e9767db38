// A block that a client brings by itself, and all that it links to.
import type { CID } from 'multiformats/cid'
import { type Block, maxBlockBytes } from '../../core/block.ts'
import { malformed } from '../failures.ts'
import type { FileOptions, Received } from './taking.ts'

/** What the block is called, and all that is below it, with itself. Throws a Failure for bytes that are no such block. */
export type BlockRules = {
  readonly cidOf: (bytes: Uint8Array) => Promise<CID>
  readonly dagOf: (root: Block) => AsyncIterable<Block>
}

export async function takeBlock(
  source: AsyncIterable<Uint8Array>,
  { cidOf, dagOf }: BlockRules,
  { slot }: FileOptions,
  take: (root: CID, blocks: AsyncIterable<Block>) => Promise<Received>,
): Promise<Received> {
  const pieces: Uint8Array[] = []
  let length = 0
  for await (const piece of source) {
    length += piece.byteLength
    if (length > maxBlockBytes) throw malformed(`the block is larger than the ${maxBlockBytes} bytes that one may have`)
    // The receiver frees a piece when it is asked for the next one.
    pieces.push(new Uint8Array(piece))
  }
  const bytes = Buffer.concat(pieces)
  const cid = await cidOf(bytes)
  return take(cid, withinQuota(cid, dagOf({ cid, bytes }), slot))
}

/** The root counted as it came; what is found below it is kept for the same client. */
async function* withinQuota(root: CID, blocks: AsyncIterable<Block>, slot: FileOptions['slot']): AsyncGenerator<Block> {
  for await (const block of blocks) {
    if (!block.cid.equals(root)) slot?.quota?.add(block.bytes.byteLength)
    yield block
  }
}
