// Reads documents: their links, or the value at a path. Both yield to the event loop between
// slices.
import type { CID } from 'multiformats/cid'
import { type Block, cidAt, codec } from '../../core/cid.ts'
import { CborScan } from './cbor.ts'
import { JsonScan } from './json.ts'
import type { DocumentScan, DocumentStructure, DocumentVisitor } from './scan.ts'

/** Undefined means to continue at once. */
export type YieldIfDue = () => Promise<void> | undefined

/** For background work: runs each slice in an event-loop iteration of its own. */
export const inOwnIterations: YieldIfDue = () => new Promise((resolve) => setImmediate(resolve))

// About one millisecond.
const pieceOfWork = 10_000

/** Undefined for a codec without links. */
function scanOf({ cid, bytes }: Block, visitor: DocumentVisitor): DocumentScan | undefined {
  if (cid.code === codec.dagCbor) return new CborScan(bytes, visitor)
  if (cid.code === codec.dagJson) return new JsonScan(bytes, visitor)
  return undefined
}

/** Rejects if the block does not decode. */
export async function visitDocument(block: Block, visitor: DocumentVisitor, yieldIfDue: YieldIfDue): Promise<void> {
  const scan = scanOf(block, visitor)
  while (scan && !scan.advance(pieceOfWork)) await yieldIfDue()
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
  while (scan && !scan.advance(pieceOfWork));
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
