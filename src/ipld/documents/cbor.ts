// Scans dag-cbor as `@ipld/dag-cbor` accepts it: numbers and lengths in the fewest bytes, definite
// lengths, unique string keys, no tag except that of a link.
import { DocumentScan, isCidAt, wrongDocument } from './scan.ts'

const bytesMajor = 2
const textMajor = 3
const linkTag = 42

/** The minimum of an argument encoded in 1, 2, 4 or 8 bytes. */
const minOfSize: readonly number[] = [24, 0x100, 0x10000, 0x1_0000_0000]

const textDecoder = new TextDecoder()
const defaultNameBytes = 32
const bytesPerWork = 256

export class CborScan extends DocumentScan {
  protected item(): void {
    if (this.isInMap) this.name()
    const { bytes, at } = this
    if (at >= bytes.byteLength) throw wrongDocument('ends too early')
    const byte = bytes[at] as number
    switch (byte >> 5) {
      case 0:
      case 1:
        this.argument()
        return this.scalar('other', at)
      case bytesMajor:
        return this.scalar('bytes', this.string())
      case textMajor:
        return this.scalar('text', this.string())
      case 4:
        return this.container(false)
      case 5:
        return this.container(true)
      case 6:
        return this.link()
      default:
        this.simple(byte)
        return this.scalar('other', at)
    }
  }

  private scalar(kind: 'text' | 'bytes' | 'other', from: number): void {
    this.visitor.structure?.scalar(kind, from, this.at)
    this.itemOver()
  }

  private itemOver(): void {
    while (this.depth > 0) {
      if (--this.count > 0) return
      this.end()
    }
    this.finish()
  }

  private container(isMap: boolean): void {
    const count = this.argument()
    // Each item takes one byte or more.
    if (count * (isMap ? 2 : 1) > this.bytes.byteLength - this.at) throw wrongDocument('ends too early')
    this.begin(isMap, count)
    if (count > 0) return
    this.end()
    this.itemOver()
  }

  private name(): void {
    const byte = this.bytes[this.at]
    if (byte === undefined) throw wrongDocument('ends too early')
    if (byte >> 5 !== textMajor) throw wrongDocument('has a key that is no text')
    const from = this.string()
    this.noteName(this.textOf(from, this.at))
  }

  private textOf(from: number, to: number): string {
    if (to - from < defaultNameBytes) {
      let text = ''
      let at = from
      for (; at < to; at++) {
        const byte = this.bytes[at] as number
        if (byte >= 0x80) break
        text += String.fromCharCode(byte)
      }
      if (at === to) return text
    }
    return textDecoder.decode(this.bytes.subarray(from, to))
  }

  /** Returns the offset of the bytes or text; `at` is then after them. */
  private string(): number {
    const length = this.argument()
    const from = this.at
    if (length > this.bytes.byteLength - from) throw wrongDocument('ends too early')
    this.at = from + length
    this.spend(length / bytesPerWork)
    return from
  }

  private link(): void {
    if (this.argument() !== linkTag) throw wrongDocument('has a tag that is none of a link')
    if ((this.bytes[this.at] as number) >> 5 !== bytesMajor) throw wrongDocument('has a link that is no CID')
    // The byte before the CID is the identity multibase prefix.
    const from = this.string() + 1
    if (this.bytes[from - 1] !== 0 || from > this.at || !isCidAt(this.bytes, from, this.at))
      throw wrongDocument('has a link that is no CID')
    this.visitor.link(this.bytes, from, this.at)
    this.itemOver()
  }

  private simple(byte: number): void {
    this.at++
    // False, true, null, and undefined, which is read as null.
    if (byte >= 0xf4 && byte <= 0xf7) return
    const size = byte === 0xf9 ? 2 : byte === 0xfa ? 4 : byte === 0xfb ? 8 : 0
    if (size === 0) throw wrongDocument('has a simple value that is none of the data model')
    const { bytes, at } = this
    if (size > bytes.byteLength - at) throw wrongDocument('ends too early')
    // An exponent of all ones is NaN or an infinity.
    const [first, second] = [(bytes[at] as number) & 0x7f, bytes[at + 1] as number]
    const isNumber =
      size === 2 ? (first & 0x7c) !== 0x7c : first !== 0x7f || (size === 4 ? second < 0x80 : second < 0xf0)
    if (!isNumber) throw wrongDocument('has a number that is none')
    this.at += size
  }

  /** Reads the argument of a head: a value, a length, a count or a tag. */
  private argument(): number {
    const { bytes } = this
    const minor = (bytes[this.at++] as number) & 31
    if (minor < 24) return minor
    if (minor > 27) throw wrongDocument('has a length that is left open, or a head that means nothing')
    const size = 1 << (minor - 24)
    if (size > bytes.byteLength - this.at) throw wrongDocument('ends too early')
    let value = 0
    for (const end = this.at + size; this.at < end; this.at++) value = value * 256 + (bytes[this.at] as number)
    if (value < (minOfSize[minor - 24] as number)) throw wrongDocument('has a number in more bytes than it needs')
    return value
  }
}
