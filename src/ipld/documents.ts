// Documents of dag-cbor and dag-json: their links, or the value at a path. The tokenizers of the
// ecosystem's libraries read them, without the objects: creating those of 2 MiB would block the
// event loop for half a second. Reading yields to the event loop between slices.
import { decodeOptions } from '@ipld/dag-cbor'
import { Tokenizer as CborTokenizer, Token, Type } from 'cborg'
import { Tokenizer as JsonTokenizer } from 'cborg/json'
import { CID } from 'multiformats/cid'
import { type Block, cidAt, codec, isCidAt, maxCidChars, parseCommon } from '../core/cid.ts'

/** Undefined means to continue at once. */
export type YieldIfDue = () => Promise<void> | undefined

/** For background work: runs each slice in an event-loop iteration of its own. */
export const inOwnIterations: YieldIfDue = () => new Promise((resolve) => setImmediate(resolve))

/**
 * Called for each part of the document in order. A visitor without `structure` receives links only.
 */
export interface DocumentVisitor {
  /** The bytes of the CID, valid for `CID.decode`. */
  link(bytes: Uint8Array, from: number, to: number): void
  readonly structure?: DocumentStructure
}

export interface DocumentStructure {
  open(isList: boolean): void
  close(): void
  key(name: string): void
  /** Text, bytes, a number, a boolean or null. */
  scalar(value: unknown): void
}

const wrongDocument = (what: string): Error => new Error(`the document ${what}`)

/** The nesting limit: more than the recursive libraries can read. */
const maxDepth = 16_384
// About one millisecond.
const workPerSlice = 2000
const bytesPerWork = 64
// Decoding a base that is not a power of two takes time quadratic in the length.
const cidWork = 400
// The bytes of a CID of version 1 with SHA-256.
const commonBytes = 36
const linkTag = 42

/** A list or map that has not ended. */
type Open = {
  /** The items until its end; infinite in dag-json, where a token ends it. */
  left: number
  /** True if a key of the map follows. */
  isAtKey: boolean
  /** The keys so far; undefined for a list. */
  readonly keys: Set<string> | undefined
}

type Tokens = Pick<CborTokenizer, 'next' | 'pos'>

class DocumentScan {
  private readonly bytes: Uint8Array
  private readonly visitor: DocumentVisitor
  private readonly tokens: Tokens
  private readonly open: Open[] = []
  /** Work units until the next stop: one for a token, more for long ones. */
  private left = 0
  private isOver = false

  constructor(bytes: Uint8Array, visitor: DocumentVisitor, tokens: Tokens) {
    this.bytes = bytes
    this.visitor = visitor
    this.tokens = tokens
  }

  /** Scans a slice; true at the end of the document. Throws if it is malformed. */
  advance(): boolean {
    this.left = workPerSlice
    while (!this.isOver && this.left > 0) {
      const from = this.tokens.pos()
      this.take(this.tokens.next())
      this.left -= 1 + (this.tokens.pos() - from) / bytesPerWork
    }
    return this.isOver
  }

  private take({ type, value }: Token): void {
    const inner = this.open.at(-1)
    if (type === Type.break) return this.end()
    if (inner?.isAtKey) {
      if (type !== Type.string) throw wrongDocument('has a key that is no text')
      return this.key(inner, value)
    }
    if (type === Type.map || type === Type.array) return this.begin(type === Type.map, value as number)
    if (type === Type.tag) this.link(value)
    else this.visitor.structure?.scalar(value)
    this.itemOver()
  }

  private begin(isMap: boolean, count: number): void {
    if (this.open.length >= maxDepth) throw wrongDocument('is nested too deep')
    this.open.push({ left: count, isAtKey: isMap, keys: isMap ? new Set() : undefined })
    this.visitor.structure?.open(!isMap)
    if (count === 0) this.end()
  }

  private end(): void {
    this.open.pop()
    this.visitor.structure?.close()
    this.itemOver()
  }

  private itemOver(): void {
    for (let inner = this.open.at(-1); inner; inner = this.open.at(-1)) {
      inner.isAtKey = inner.keys !== undefined
      if (--inner.left > 0) return
      this.open.pop()
      this.visitor.structure?.close()
    }
    this.finish()
  }

  private finish(): void {
    if (this.tokens.pos() !== this.bytes.byteLength) throw wrongDocument('has bytes after its end')
    this.isOver = true
  }

  private key(map: Open, name: string): void {
    if (map.keys?.has(name)) throw wrongDocument(`has the key ${JSON.stringify(name.slice(0, 64))} twice in one map`)
    map.keys?.add(name)
    map.isAtKey = false
    this.visitor.structure?.key(name)
  }

  /** `tag`: the number of a tag in dag-cbor, or the CID of a link in dag-json. */
  private link(tag: number | bigint | Uint8Array): void {
    if (tag instanceof Uint8Array) {
      if (tag.byteLength !== commonBytes) this.left -= cidWork
      return this.visitor.link(tag, 0, tag.byteLength)
    }
    const { type, value } = this.tokens.next()
    if (tag !== linkTag || type !== Type.bytes) throw wrongDocument('has a tag that is none of a link')
    const to = this.tokens.pos()
    // The byte before the CID is the identity multibase prefix.
    const from = to - value.byteLength + 1
    if (value[0] !== 0 || !isCidAt(this.bytes, from, to)) throw wrongDocument('has a link that is no CID')
    this.visitor.link(this.bytes, from, to)
  }
}

const [quote, backslash] = [0x22, 0x5c]
const longTextBytes = 16 * 1024
const longNumberBytes = 1024
const numberBytes: ReadonlySet<number> = new Set(Buffer.from('0123456789+-.eE'))
const textDecoder = new TextDecoder('utf-8', { ignoreBOM: true })

/** As in `@ipld/dag-json`, a map whose only key is `/` may be a link or bytes. */
class DagJsonTokenizer extends JsonTokenizer {
  private readonly ahead: Token[] = []

  override next(): Token {
    const token = this.ahead.shift() ?? super.next()
    if (token.type !== Type.map || !isText(this.peek(0), '/')) return token
    const { type, value } = this.peek(1)
    if (type === Type.string) {
      this.skip(2, 1)
      return new Token(Type.tag, cidBytes(value))
    }
    if (type !== Type.map || !isText(this.peek(2), 'bytes') || !isText(this.peek(3))) return token
    const { value: encoded } = this.peek(3)
    this.skip(4, 2)
    return new Token(Type.bytes, base64Bytes(encoded))
  }

  /** The library takes a quarter of a second for a text of 2 MiB. */
  override parseString(): Token {
    const { data, _pos: from } = this
    if (data[from] !== quote) return super.parseString()
    let at = from + 1
    while (at < data.byteLength && data[at] !== quote) at += data[at] === backslash ? 2 : 1
    if (at - from < longTextBytes) return super.parseString()
    const text = textDecoder.decode(data.subarray(from + 1, at))
    // An escape that only this format has.
    const json = text.includes("\\'") ? text.replaceAll(/\\./gs, (pair) => (pair === "\\'" ? "'" : pair)) : text
    this._pos = at + 1
    return new Token(Type.string, JSON.parse(`"${json}"`))
  }

  /** The library needs time quadratic in the digits. No value is read here. */
  override parseNumber(): Token {
    const { data, _pos: from } = this
    let end = from
    while (end < data.byteLength && numberBytes.has(data[end] as number)) end++
    if (end - from < longNumberBytes) return super.parseNumber()
    const text = textDecoder.decode(data.subarray(from, end))
    if (!/^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/.test(text)) throw wrongDocument('has a number that is none')
    this._pos = end
    return new Token(Type.uint, 0)
  }

  private peek(at: number): Token {
    while (this.ahead.length <= at) this.ahead.push(super.next())
    return this.ahead[at] as Token
  }

  /** Drops tokens, and the ends of maps that have to follow. */
  private skip(tokens: number, ends: number): void {
    for (let at = tokens; at < tokens + ends; at++)
      if (this.peek(at).type !== Type.break) throw wrongDocument('has a link or bytes with another key')
    this.ahead.splice(0, tokens + ends)
  }
}

const isText = ({ type, value }: Token, text: unknown = value): boolean => type === Type.string && value === text

function base64Bytes(text: string): Uint8Array {
  let end = text.length
  while (text[end - 1] === '=') end--
  const bytes = Buffer.from(text, 'base64')
  // Node skips other characters, and ignores bits that are left over.
  if (bytes.toString('base64').slice(0, end) !== text.slice(0, end)) throw wrongDocument('has bytes that are no base64')
  return bytes
}

function cidBytes(text: string): Uint8Array {
  const common = parseCommon(text)
  if (common) return common
  // In some bases decoding takes time quadratic in the length: a text of 2 MiB would take hours.
  if (text.length > maxCidChars) throw wrongDocument('has a CID that is too long')
  return CID.parse(text).bytes
}

const jsonOptions = { allowBigInt: true } as const

/** Undefined for a codec without links. */
function scanOf({ cid, bytes }: Block, visitor: DocumentVisitor): DocumentScan | undefined {
  if (cid.code === codec.dagCbor) return new DocumentScan(bytes, visitor, new CborTokenizer(bytes, decodeOptions))
  if (cid.code === codec.dagJson) return new DocumentScan(bytes, visitor, new DagJsonTokenizer(bytes, jsonOptions))
  return undefined
}

/** Rejects if the block does not decode. */
export async function visitDocument(block: Block, visitor: DocumentVisitor, yieldIfDue: YieldIfDue): Promise<void> {
  const scan = scanOf(block, visitor)
  while (scan && !scan.advance()) await yieldIfDue()
}

/** A link whose CID is created on access. */
class DocumentLink {
  private readonly bytes: Uint8Array
  private readonly from: number
  private readonly to: number
  private made: CID | undefined

  constructor(bytes: Uint8Array, from: number, to: number) {
    this.bytes = bytes
    this.from = from
    this.to = to
  }

  get Hash(): CID {
    this.made ??= cidAt(this.bytes, this.from, this.to)
    return this.made
  }
}

/** Lists the links of a document, or of the value that `names` select, in encoded order. */
export async function documentLinks(
  block: Block,
  yieldIfDue: YieldIfDue,
  names: readonly string[] = [],
): Promise<DocumentLink[]> {
  const links: DocumentLink[] = []
  const visitor = names.length === 0 ? noteIn(links) : new PathVisitor(names, (link) => links.push(link))
  await visitDocument(block, visitor, yieldIfDue)
  return links
}

/** Synchronous version, for small blocks. */
export function documentLinksNow(block: Block): DocumentLink[] {
  const links: DocumentLink[] = []
  const scan = scanOf(block, noteIn(links))
  while (scan && !scan.advance());
  return links
}

const noteIn = (links: DocumentLink[]): DocumentVisitor => ({
  link: (bytes, from, to) => void links.push(new DocumentLink(bytes, from, to)),
})

/**
 * The result of following names: the first link on the path with the number of names used, or the
 * value at the end.
 */
export type DocumentStep = { readonly link: DocumentLink; readonly used: number } | 'value' | undefined

export async function stepIntoDocument(
  block: Block,
  names: readonly string[],
  yieldIfDue: YieldIfDue,
): Promise<DocumentStep> {
  const visitor = new PathVisitor(names)
  await visitDocument(block, visitor, yieldIfDue)
  return visitor.found
}

const isIndex = /^(?:0|[1-9]\d*)$/

/** A value is on the path if as many lists and maps are open around it as names were matched. */
class PathVisitor implements DocumentVisitor, DocumentStructure {
  found: DocumentStep
  readonly structure = this
  private readonly names: readonly string[]
  private depth = 0
  private met = 0
  private isOver = false
  /** In a list on the path: the number of values before the selected one. */
  private before: number | undefined
  private readonly inside: ((link: DocumentLink) => void) | undefined
  /** The nesting depth of the selected value, while it is open. */
  private insideDepth: number | undefined

  /** `inside` is called with each link in the selected value. */
  constructor(names: readonly string[], inside?: (link: DocumentLink) => void) {
    this.names = names
    this.inside = inside
  }

  link(bytes: Uint8Array, from: number, to: number): void {
    if (this.insideDepth !== undefined) this.inside?.(new DocumentLink(bytes, from, to))
    if (!this.isOnWay()) return
    if (this.met > 0) this.found = { link: new DocumentLink(bytes, from, to), used: this.met }
    this.isOver = true
  }

  scalar(): void {
    if (!this.isOnWay()) return
    if (this.met === this.names.length) this.found = 'value'
    this.isOver = true
  }

  open(isList: boolean): void {
    if (this.isOnWay()) {
      const name = this.names[this.met]
      if (name === undefined) {
        this.found = 'value'
        this.insideDepth = this.depth
      }
      this.isOver = name === undefined
      this.before = isList && name !== undefined && isIndex.test(name) ? Number(name) : undefined
    }
    this.depth++
  }

  close(): void {
    this.depth--
    if (this.depth === this.insideDepth) this.insideDepth = undefined
    if (this.depth === this.met) this.isOver = true
  }

  key(name: string): void {
    if (!this.isOver && this.depth === this.met + 1 && name === this.names[this.met]) this.met++
  }

  private isOnWay(): boolean {
    if (this.isOver) return false
    if (this.before !== undefined && this.depth === this.met + 1 && this.before-- === 0) {
      this.before = undefined
      this.met++
    }
    return this.depth === this.met
  }
}
