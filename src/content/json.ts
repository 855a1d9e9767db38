// The JSON rule: UTF-8 that parses, with an object or an array at the top. A byte order mark may stand before it, as some
// editors write one and `response.json()` passes over it (RFC 8259 §8.1). The bytes stay as they are.

const space: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d])
const [openBrace, openBracket] = [0x7b, 0x5b]
const mark: readonly number[] = [0xef, 0xbb, 0xbf]
// Takes the mark away.
const strictUtf8 = new TextDecoder('utf-8', { fatal: true })

/** Whether these first bytes could begin such a document: otherwise the file is not read whole. */
export function mayBeJson(first: Uint8Array): boolean {
  let at = 0
  while (at < mark.length && first[at] === mark[at]) at++
  // Half a mark at the end of these bytes may become a whole one.
  const begins = at === mark.length || at === first.byteLength ? at : 0
  for (const byte of first.subarray(begins)) {
    if (space.has(byte)) continue
    return byte === openBrace || byte === openBracket
  }
  return true // nothing but white space so far
}

export function isJson(bytes: Uint8Array): boolean {
  if (bytes.byteLength === 0 || !mayBeJson(bytes)) return false
  try {
    const value: unknown = JSON.parse(strictUtf8.decode(bytes))
    return typeof value === 'object' && value !== null
  } catch {
    return false
  }
}
