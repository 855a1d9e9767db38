// Writes CAR version 1: a header that names the root, then a section for each block.
import { varint } from 'multiformats'
import type { CID } from 'multiformats/cid'
import { type Block, isIdentity } from '../core/cid.ts'

/**
 * A smaller block is copied after its length, which is cheaper than two more writes to a socket.
 */
const copiedBytes = 4096

/** `{ roots, version: 1 }` in DAG-CBOR. By hand, since an encoder takes 30 times as long. */
export function carHeader(...roots: CID[]): Uint8Array {
  const links = roots.flatMap(({ bytes }) => [cborLink, cborHead(0x40, bytes.byteLength + 1), cborNone, bytes])
  return withLength([cborRoots, cborHead(0x80, roots.length), ...links, cborVersion])
}

const cborRoots = Buffer.from('\xa2\x65roots', 'latin1')
const cborVersion = Buffer.from('\x67version\x01', 'latin1')
const cborLink = Uint8Array.of(0xd8, 0x2a)
const cborNone = Uint8Array.of(0)

function cborHead(type: number, value: number): Uint8Array {
  if (value < 24) return Uint8Array.of(type | value)
  return value < 256 ? Uint8Array.of(type | 24, value) : Uint8Array.of(type | 25, value >> 8, value & 255)
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
