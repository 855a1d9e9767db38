// Writes CAR version 1: a header that names the root, then a section for each block.
import { encode } from '@ipld/dag-cbor'
import { varint } from 'multiformats'
import type { CID } from 'multiformats/cid'
import { type Block, isIdentity } from '../core/cid.ts'

/**
 * A smaller block is copied after its length, which is cheaper than two more writes to a socket.
 */
const copiedBytes = 4096

export function carHeader(...roots: CID[]): Uint8Array {
  return withLength([encode({ roots, version: 1 })])
}

/** Precedes the bytes of a block. */
export const carSectionHead = (cid: CID, blockBytes: number): Uint8Array => withLength([cid.bytes], blockBytes)

/** An identity CID carries its content, so it is never sent as a block (IPIP-412). */
export function* carSection({ cid, bytes }: Block): Generator<Uint8Array> {
  if (isIdentity(cid)) return
  if (bytes.byteLength < copiedBytes) {
    yield withLength([cid.bytes, bytes])
    return
  }
  yield carSectionHead(cid, bytes.byteLength)
  yield bytes
}

export function carSectionBytes(cid: CID, blockBytes: number): number {
  const length = cid.bytes.byteLength + blockBytes
  return varint.encodingLength(length) + length
}

export async function* writeCar(root: CID, blocks: AsyncIterable<Block>): AsyncGenerator<Uint8Array> {
  yield carHeader(root)
  for await (const block of blocks) yield* carSection(block)
}

/** Prefixes the pieces with the length of a section; `following` more bytes are sent separately. */
function withLength(pieces: readonly Uint8Array[], following = 0): Uint8Array {
  const length = pieces.reduce((sum, piece) => sum + piece.byteLength, following)
  const bytes = Buffer.concat([Buffer.alloc(varint.encodingLength(length)), ...pieces])
  varint.encodeTo(length, bytes)
  return bytes
}
