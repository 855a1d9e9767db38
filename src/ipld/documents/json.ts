// Scans dag-json as `@ipld/dag-json` accepts it, which is more than JSON: a comma may follow the
// last key, invalid UTF-8 is replaced, and a map that begins with the key `/` may be a link or
// bytes.
import { CID } from 'multiformats/cid'
import { maxCidChars, parseCommon } from '../../core/cid.ts'
import { DocumentScan, wrongDocument } from './scan.ts'

const quote = 0x22
const comma = 0x2c
const minus = 0x2d
const dot = 0x2e
const zero = 0x30
const colon = 0x3a
const openBracket = 0x5b
const backslash = 0x5c
const closeBracket = 0x5d
const openBrace = 0x7b
const closeBrace = 0x7d

const words: ReadonlyMap<number, Uint8Array> = new Map(
  ['null', 'true', 'false'].map((word) => [word.charCodeAt(0), Buffer.from(word)]),
)
const escapes: ReadonlySet<number> = new Set(Buffer.from('"\'\\/bfnrt'))

const isDigit = (byte: number | undefined): boolean => byte !== undefined && byte >= 0x30 && byte <= 0x39
const isHex = (byte: number): boolean => isDigit(byte) || ((byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x66)

// Decoding a base that is not a power of two takes time quadratic in the length.
const cidWork = 400
const bytesPerWork = 64

export class JsonScan extends DocumentScan {
  /** True if the last string was ASCII without escapes. */
  private isPlain = true

  protected item(): void {
    this.space()
    if (this.depth === 0) return this.value()
    const close = this.isInMap ? closeBrace : closeBracket
    if (this.count++ > 0 && this.here() !== close) {
      this.take(comma)
      this.space()
      // A list has no trailing comma; a map may have one.
      if (!this.isInMap) return this.value()
    }
    if (this.here() === close) return this.close()
    if (!this.isInMap) return this.value()
    const from = this.string()
    this.noteName(this.lastText(from))
    this.colon()
    this.value()
  }

  private here(): number | undefined {
    return this.bytes[this.at]
  }

  private take(byte: number): void {
    if (this.bytes[this.at++] !== byte) throw this.wrongHere(this.at - 1)
  }

  private wrongHere = (at: number): Error => wrongDocument(`is no JSON from byte ${at} on`)

  private space(): void {
    const { bytes } = this
    const from = this.at
    for (; ; this.at++) {
      const byte = bytes[this.at]
      if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) break
    }
    this.spend((this.at - from) / bytesPerWork)
  }

  private colon(): void {
    this.space()
    this.take(colon)
    this.space()
  }

  private close(): void {
    this.at++
    this.space()
    this.end()
    if (this.depth === 0) this.finish()
  }

  private scalarOver(kind: 'text' | 'bytes' | 'other', from: number, to: number): void {
    this.visitor.structure?.scalar(kind, from, to)
    if (this.depth === 0) this.finish()
  }

  private value(): void {
    const from = this.at
    const byte = this.here()
    if (byte === quote) {
      this.string()
      return this.scalarOver('text', from + 1, this.at - 1)
    }
    if (byte === openBrace) return this.map()
    if (byte === openBracket) {
      this.at++
      return this.begin(false, 0)
    }
    if (byte === minus || isDigit(byte)) this.number()
    else this.word()
    this.scalarOver('other', from, this.at)
  }

  private word(): void {
    const word = words.get(this.here() ?? -1)
    if (!word) throw this.wrongHere(this.at)
    for (const letter of word) this.take(letter)
  }

  private digits(): void {
    while (isDigit(this.here())) this.at++
  }

  private number(): void {
    const from = this.at
    if (this.here() === minus) this.at++
    const first = this.at
    const isZero = this.here() === zero
    if (isZero) {
      this.at++
      if (this.here() !== dot) return
    } else this.digits()
    if (this.at === first) throw this.wrongHere(first)
    if (this.here() === dot) {
      this.at++
      this.digits()
      if (isZero && this.here() === dot) throw this.wrongHere(this.at)
    }
    if (((this.here() ?? 0) | 0x20) === 0x65) {
      this.at++
      if (this.here() === 0x2b || this.here() === minus) this.at++
      this.digits()
    }
    this.spend((this.at - from) / bytesPerWork)
  }

  /** Returns the offset after the opening quote; `at` is then after the closing one. */
  private string(): number {
    this.take(quote)
    const { bytes } = this
    const from = this.at
    let isPlain = true
    for (;;) {
      const byte = bytes[this.at++]
      if (byte === undefined || byte < 0x20) throw this.wrongHere(this.at - 1)
      if (byte === quote) break
      if (byte === backslash) {
        isPlain = false
        this.escape()
      } else if (byte >= 0x80) {
        isPlain = false
        const more = byte > 0xef ? 3 : byte > 0xdf ? 2 : byte > 0xbf ? 1 : 0
        if (this.at + more > bytes.byteLength) throw this.wrongHere(this.at - 1)
      }
    }
    this.isPlain = isPlain
    this.spend((this.at - from) / bytesPerWork)
    return from
  }

  private escape(): void {
    const { bytes } = this
    const byte = bytes[this.at++]
    if (byte !== 0x75) {
      if (byte === undefined || !escapes.has(byte)) throw this.wrongHere(this.at - 1)
      return
    }
    if (this.at + 4 >= bytes.byteLength) throw this.wrongHere(this.at)
    for (const end = this.at + 4; this.at < end; this.at++)
      if (!isHex(bytes[this.at] as number)) throw this.wrongHere(this.at)
  }

  private lastText(from: number): string {
    return textOf(this.bytes, from, this.at - 1, this.isPlain)
  }

  private map(): void {
    const from = this.at++
    this.space()
    if (this.here() === quote && this.nextText() === '/') {
      this.colon()
      if (this.here() === quote) return this.link()
      if (this.here() === openBrace && this.isBytes()) return
      this.at = from + 1
    } else this.at = from + 1
    this.begin(true, 0)
  }

  private nextText(): string {
    return this.lastText(this.string())
  }

  /** Reads the end of the map that wraps a link or bytes, which is not a map of the document. */
  private wrapOver(): void {
    this.space()
    if (this.here() === comma) {
      this.at++
      this.space()
    }
    this.take(closeBrace)
    this.space()
  }

  private link(): void {
    const bytes = cidBytes(this.nextText())
    if (bytes.byteLength !== 36) this.spend(cidWork)
    this.wrapOver()
    this.visitor.link(bytes, 0, bytes.byteLength)
    if (this.depth === 0) this.finish()
  }

  /** Reads `{"bytes": "…"}` to the end of the surrounding map; false if it is something else. */
  private isBytes(): boolean {
    this.at++
    this.space()
    if (this.here() !== quote || this.nextText() !== 'bytes') return false
    this.colon()
    if (this.here() !== quote) return false
    const from = this.string()
    const to = this.at - 1
    if (!isBase64(this.lastText(from))) throw wrongDocument('has bytes that are no base64')
    this.wrapOver()
    this.wrapOver()
    this.scalarOver('bytes', from, to)
    return true
  }
}

function cidBytes(text: string): Uint8Array {
  const common = parseCommon(text)
  if (common) return common
  // In some bases decoding takes time quadratic in the length: a text of 2 MiB would take hours.
  if (text.length > maxCidChars) throw wrongDocument('has a CID that is too long')
  return CID.parse(text).bytes
}

/** True if multiformats' `base64` decodes it: padded or not, and all unused bits zero. */
function isBase64(text: string): boolean {
  let end = text.length
  while (text.charCodeAt(end - 1) === 0x3d) end--
  let last = 0
  for (let at = 0; at < end; at++) {
    last = sextet(text.charCodeAt(at))
    if (last < 0) return false
  }
  const over = end % 4
  if (over === 1) return false
  return over === 0 || (last & (over === 2 ? 0x0f : 0x03)) === 0
}

function sextet(code: number): number {
  if (code >= 65 && code <= 90) return code - 65
  if (code >= 97 && code <= 122) return code - 71
  if (code >= 48 && code <= 57) return code + 4
  return code === 43 ? 62 : code === 47 ? 63 : -1
}

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
