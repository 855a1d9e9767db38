// The JSON rule: UTF-8 that parses, with an object or an array at the top. The bytes stay as they are.

const space = new Set([0x20, 0x09, 0x0a, 0x0d])
const [openBrace, openBracket] = [0x7b, 0x5b]
const strictUtf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** Whether these first bytes could begin such a document: nothing else is worth being read whole. */
export function mayBeJson(first: Uint8Array): boolean {
  for (const byte of first) {
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
