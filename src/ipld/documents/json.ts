// Scans dag-json as `@ipld/dag-json` accepts it, which is more than JSON: a comma may follow the
// last key, invalid UTF-8 is replaced, and a map that begins with the key `/` may be a link or
// bytes.
import { CID } from 'multiformats/cid'
import { maxCidChars, parseUsual } from '../../core/cid.ts'
import { textOf } from './json-text.ts'
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
  const usual = parseUsual(text)
  if (usual) return usual
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
