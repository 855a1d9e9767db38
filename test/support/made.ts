// Files of any size whose bytes are always the same, made while they are read.
import { noise } from './fixtures.ts'

const mebibyte = 1024 * 1024
const pattern = noise(mebibyte, 77)

/** Always the same bytes for the same length; no two mebibytes of them are alike. */
export function* made(bytes: number): Generator<Uint8Array> {
  for (let at = 0; at < bytes; at += mebibyte) {
    const piece = Buffer.from(pattern.subarray(0, Math.min(mebibyte, bytes - at)))
    if (piece.byteLength >= 8) piece.writeDoubleLE(at, 0)
    yield piece
  }
}
