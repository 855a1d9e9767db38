// A dag-json or dag-cbor document as a page with links to follow. A bounded view, not a conversion:
// the bytes are one link away.

import { base64 } from 'multiformats/bases/base64'
import type { CID } from 'multiformats/cid'
import type { Entity } from '../content/resolve.ts'
import { cidAt, codec, spell } from '../core/cid.ts'
import { readable } from '../ipld/block-links.ts'
import {
  type DocumentStructure,
  type DocumentVisitor,
  inOwnIterations,
  visitDocument,
  type YieldIfDue,
} from '../ipld/documents.ts'
import { cidLink, escaped, pageEnd, pageTop, shown, templateHash, type Whereabouts } from './page.ts'

const codecs: ReadonlyMap<number, string> = new Map([
  [codec.dagCbor, 'dag-cbor'],
  [codec.dagJson, 'dag-json'],
])
const maxChars = 512 * 1024
// V8 retains every piece of a concatenated string until it is read: hundreds of thousands here.
const pieceChars = 16 * 1024
const maxDepth = 64
const maxStringChars = 4096

export const hasPage = ({ cid }: Entity): boolean => codecs.has(cid.code)

export async function documentPage(
  at: Whereabouts,
  { cid, block }: Entity,
  yieldIfDue: YieldIfDue = inOwnIterations,
): Promise<Uint8Array> {
  const codec = codecs.get(cid.code) ?? ''
  const page = new Markup(at, top(cid.toString(), codec))
  await readable(cid, visitDocument({ cid, bytes: block }, page, yieldIfDue))
  return page.endingWith(bottom(block.byteLength, page.isWhole))
}

const top = (cid: string, codec: string): string => `${pageTop(`${codec} ${cid}`)}<h1>A ${codec} document</h1>
<p>CID <code class="whole" translate="no">${cid}</code></p>
<p class="dim"><a href="?format=${codec}">View as ${codec}</a><a href="?format=raw">Download the block</a><a href="?format=car">Download as .car</a></p>
<pre translate="no">`

const bottom = (bytes: number, isWhole: boolean): string =>
  `</pre>\n<footer>${bytes} bytes${isWhole ? '' : '; only the beginning is shown'}</footer>\n${pageEnd}`

/** Writes JSON text, with links as anchors and bytes in base64. */
class Markup implements DocumentVisitor, DocumentStructure {
  isWhole = true
  readonly structure = this
  private readonly at: Whereabouts
  private readonly pieces: Uint8Array[] = []
  private text: string
  private chars: number
  /** The open lists and maps, outermost first, with the number of items that each has so far. */
  private readonly within: { readonly isList: boolean; count: number }[] = []
  private depth = 0

  constructor(at: Whereabouts, begin: string) {
    this.at = at
    this.text = begin
    this.chars = begin.length
  }

  endingWith(end: string): Uint8Array {
    return Buffer.concat([...this.pieces, Buffer.from(this.text + end)])
  }

  open(isList: boolean): void {
    if (!this.isWhole) return
    this.item()
    this.depth++
    if (this.depth > maxDepth) {
      if (this.depth === maxDepth + 1) this.write('…')
      return
    }
    this.within.push({ isList, count: 0 })
    this.write(isList ? '[' : '{')
  }

  close(): void {
    if (!this.isWhole || this.depth-- > maxDepth) return
    const { isList = false, count = 0 } = this.within.pop() ?? {}
    this.write(`${count === 0 ? '' : `\n${this.indent}`}${isList ? ']' : '}'}`)
  }

  key(name: string): void {
    const map = this.within.at(-1)
    if (this.isHidden || !map) return
    this.write(`${map.count++ === 0 ? '' : ','}\n${this.indent}<span class="k">${quoted(name)}</span>: `)
  }

  link(bytes: Uint8Array, from: number, to: number): void {
    this.item()
    if (this.isHidden) return
    const link = spell(cidAt(bytes, from, to))
    this.write(`<a class="ipfs-hash" ${cidLink(this.at, link)}>${link}</a>`)
  }

  scalar(value: unknown): void {
    this.item()
    if (this.isHidden) return
    const isText = typeof value === 'string'
    const text = isText ? quoted(value) : escaped(value instanceof Uint8Array ? inBase64(value) : cut(String(value)))
    this.write(`<span class="${isText || value instanceof Uint8Array ? 's' : 'n'}">${text}</span>`)
  }

  private get isHidden(): boolean {
    return !this.isWhole || this.depth > maxDepth
  }

  private get indent(): string {
    return '  '.repeat(this.within.length)
  }

  /** Writes the separator and indentation before an item of a list. */
  private item(): void {
    const list = this.within.at(-1)
    if (this.isHidden || !list?.isList) return
    this.write(`${list.count++ === 0 ? '' : ','}\n${this.indent}`)
  }

  private write(piece: string): void {
    this.isWhole &&= this.chars + piece.length <= maxChars
    if (!this.isWhole) return
    this.chars += piece.length
    this.text += piece
    if (this.text.length < pieceChars) return
    this.pieces.push(Buffer.from(this.text))
    this.text = ''
  }
}

const inBase64 = (bytes: Uint8Array): string => `bytes(${cut(base64.baseEncode(bytes.subarray(0, maxStringChars)))})`
const cut = (long: string): string => (long.length > maxStringChars ? `${long.slice(0, maxStringChars)}…` : long)
const quoted = (value: string): string => shown(JSON.stringify(cut(value)))

const template = templateHash(top('', '') + bottom(0, false))

export const documentEtag = (cid: CID): string => `"DagIndex-${template}_CID-${cid}"`
