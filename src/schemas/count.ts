// Counts the values of a JSON text before it is parsed: a megabyte of `{},{},…` becomes hundreds of thousands of
// objects, and parsing would have paid for them already.

const quote = '"'.charCodeAt(0)
const backslash = '\\'.charCodeAt(0)
const comma = ','.charCodeAt(0)
const openings: ReadonlySet<number> = new Set(['[', '{'].map((char) => char.charCodeAt(0)))
const closings: ReadonlySet<number> = new Set([']', '}'].map((char) => char.charCodeAt(0)))

/**
 * A value is the first one, follows a comma, or is the first in a list or an object. Text that is not JSON is counted
 * as fast.
 */
export function hasMoreValues(text: string, most: number): boolean {
  let count = 1
  let isText = false
  let isOpened = false
  for (let at = 0; at < text.length && count <= most; at++) {
    const code = text.charCodeAt(at)
    if (isText) {
      if (code === backslash) at++
      else if (code === quote) isText = false
      continue
    }
    if (code <= 0x20) continue
    if (code === comma || (isOpened && !closings.has(code))) count++
    isOpened = openings.has(code)
    isText = code === quote
  }
  return count > most
}
