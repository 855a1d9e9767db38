// Validates a CID in binary without creating an object: a block may link to a quarter of a million.

const sha256Digest = 0x1220
const v0 = 0x12
const longestNumber = 9

/**
 * True if `CID.decode` would accept the bytes: version, codec, hash, and a digest of the declared
 * length.
 */
export function isCidAt(bytes: Uint8Array, from: number, to: number): boolean {
  if (to - from === 34 && bytes[from] === v0 && bytes[from + 1] === 32) return true
  if (to - from === 36 && bytes[from] === 1 && (bytes[from + 1] as number) < 0x80)
    if (((bytes[from + 2] as number) << 8) + (bytes[from + 3] as number) === sha256Digest) return true
  // Fast path: common CIDs have numbers of one byte each.
  if (to - from >= 4 && bytes[from] === 1 && ((bytes[from + 1] as number) | (bytes[from + 2] as number)) < 0x80)
    if ((bytes[from + 3] as number) < 0x80) return from + 4 + (bytes[from + 3] as number) === to
  let at = from
  /** -1 for an invalid number: longer than necessary, or than the library reads. */
  const number = (): number => {
    let value = 0
    const end = Math.min(to, at + longestNumber)
    for (let factor = 1; at < end; factor *= 128) {
      const byte = bytes[at++] as number
      value += (byte & 0x7f) * factor
      if (byte >= 0x80) continue
      const isPadded = byte === 0 && factor > 1
      return !isPadded && value <= Number.MAX_SAFE_INTEGER ? value : -1
    }
    return -1
  }
  const version = number()
  if (version !== v0) {
    if (version !== 0 && version !== 1) return false
    if (number() < 0 || number() < 0) return false
  }
  const length = number()
  return length >= 0 && at + length === to
}
