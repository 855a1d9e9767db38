// Decodes a string of dag-json: its escapes, and its UTF-8, where each invalid byte is replaced.
// The scanner has validated its form.

const replacement = 0xfffd
const named: ReadonlyMap<number, number> = new Map(
  Object.entries({ b: 8, t: 9, n: 10, f: 12, r: 13 }).map(([letter, code]) => [letter.charCodeAt(0), code]),
)

/** `isPlain`: ASCII without escapes. */
export function textOf(bytes: Uint8Array, from: number, to: number, isPlain: boolean): string {
  if (isPlain) return Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1')
  // One UTF-16 unit for each byte is always enough.
  const units = new Uint16Array(to - from)
  let count = 0
  for (let at = from; at < to; ) {
    const byte = bytes[at] as number
    if (byte === 0x5c) {
      const letter = bytes[at + 1] as number
      if (letter === 0x75) {
        units[count++] = Number.parseInt(String.fromCharCode(...bytes.subarray(at + 2, at + 6)), 16)
        at += 6
      } else {
        units[count++] = named.get(letter) ?? letter
        at += 2
      }
    } else if (byte < 0x80) {
      units[count++] = byte
      at++
    } else {
      const [point, length] = characterAt(bytes, at)
      if (point > 0xffff) units[count++] = 0xd800 | ((point - 0x10000) >> 10)
      units[count++] = point > 0xffff ? 0xdc00 | (point & 0x3ff) : point
      at += length
    }
  }
  return Buffer.from(units.buffer, 0, count * 2).toString('utf16le')
}

const low = (bytes: Uint8Array, at: number): number => {
  const byte = bytes[at] as number
  return (byte & 0xc0) === 0x80 ? byte & 0x3f : -1
}

/**
 * Decodes as leniently as cborg: it takes the payload bits without validating the continuation
 * bytes.
 */
function characterAt(bytes: Uint8Array, at: number): readonly [point: number, length: number] {
  const first = bytes[at] as number
  const wrong = [replacement, 1] as const
  if (first <= 0xbf) return wrong
  const second = low(bytes, at + 1)
  if (second < 0) return wrong
  if (first <= 0xdf) {
    const point = ((first & 0x1f) << 6) | second
    return point > 0x7f ? [point, 2] : wrong
  }
  const third = low(bytes, at + 2)
  if (third < 0) return wrong
  if (first <= 0xef) {
    const point = ((first & 0xf) << 12) | (second << 6) | third
    return point > 0x7ff && (point < 0xd800 || point > 0xdfff) ? [point, 3] : wrong
  }
  const fourth = low(bytes, at + 3)
  if (fourth < 0) return wrong
  const point = ((first & 0xf) << 18) | (second << 12) | (third << 6) | fourth
  return point > 0xffff && point < 0x110000 ? [point, 4] : wrong
}
