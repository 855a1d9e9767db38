// What this gateway wants of a document: its links, or what a path in it leads to. Both are read in pieces, between which
// other clients are served.
import type { CID } from 'multiformats/cid'
import type { Block } from '../../core/block.ts'
import { cidAt, codec } from '../../core/cid.ts'
import { CborScan } from './cbor.ts'
import { JsonScan } from './json.ts'
import type { DocumentScan, DocumentStructure, DocumentVisitor } from './scan.ts'

/** Undefined: go on at once. */
export type GiveWay = () => Promise<void> | undefined

/** For work that belongs to no request: each piece in a turn of the loop of its own. */
export const inOwnTurns: GiveWay = () => new Promise((resolve) => setImmediate(resolve))

// About a millisecond.
const pieceOfWork = 10_000

/** Undefined for a codec whose documents have no links. */
function scanOf({ cid, bytes }: Block, visitor: DocumentVisitor): DocumentScan | undefined {
  if (cid.code === codec.dagCbor) return new CborScan(bytes, visitor)
  if (cid.code === codec.dagJson) return new JsonScan(bytes, visitor)
  return undefined
}

/** Rejects for what does not decode. */
export async function visitDocument(block: Block, visitor: DocumentVisitor, giveWay: GiveWay): Promise<void> {
  const scan = scanOf(block, visitor)
  while (scan && !scan.advance(pieceOfWork)) await giveWay()
}

/** A link whose CID is made when it is asked for. */
export class DocumentLink {
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

/** The links of a document, or of the value in it that the names lead to, in the order in which they are encoded. */
export async function documentLinks(
  block: Block,
  giveWay: GiveWay,
  names: readonly string[] = [],
): Promise<DocumentLink[]> {
  const links: DocumentLink[] = []
  const visitor = names.length === 0 ? noteIn(links) : new PathVisitor(names, (link) => links.push(link))
  await visitDocument(block, visitor, giveWay)
  return links
}

/** The same at once, for a block that holds up no client. */
export function documentLinksNow(block: Block): DocumentLink[] {
  const links: DocumentLink[] = []
  const scan = scanOf(block, noteIn(links))
  while (scan && !scan.advance(pieceOfWork));
  return links
}

const noteIn = (links: DocumentLink[]): DocumentVisitor => ({
  link: (bytes, from, to) => void links.push(new DocumentLink(bytes, from, to)),
})

/** What the names lead to: the first link on their way, with how many of them are used up; or the value that all of them mean. */
export type DocumentStep = { readonly link: DocumentLink; readonly used: number } | 'value' | undefined

export async function stepIntoDocument(
  block: Block,
  names: readonly string[],
  giveWay: GiveWay,
): Promise<DocumentStep> {
  const way = new PathVisitor(names)
  await visitDocument(block, way, giveWay)
  return way.found
}

const isIndex = /^(?:0|[1-9]\d*)$/

/** A value is on the way when as many lists and maps are open around it as names were met. */
class PathVisitor implements DocumentVisitor, DocumentStructure {
  found: DocumentStep
  readonly structure = this
  private readonly names: readonly string[]
  private depth = 0
  private met = 0
  private isOver = false
  /** Of the list that is on the way: how many of its values come before the one that is named. */
  private before: number | undefined
  private readonly inside: ((link: DocumentLink) => void) | undefined
  /** How many lists and maps are open around the named value, while it is open. */
  private insideDepth: number | undefined

  /** `inside` gets the links in the named value. */
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
