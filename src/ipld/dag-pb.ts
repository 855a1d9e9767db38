// Decodes dag-pb in one pass that creates only an offset for each link: a block may have a quarter
// of a million, and creating all names and CIDs at once would block the event loop for too long.
// Accepts what `@ipld/dag-pb` accepts, if the numbers in a CID are safe integers.
import type { CID } from 'multiformats/cid'
import { cidAt, isCidAt } from '../core/cid.ts'
import type { YieldIfDue } from './documents.ts'

/** A link; CID and name are created on access. */
export interface PbLink {
  readonly Hash: CID
  readonly Name: string | undefined
  readonly Tsize: number | undefined
}

/** Links in order, created on access, because a block may have a quarter of a million. */
export interface PbLinks extends Iterable<PbLink> {
  readonly length: number
  /** The maximum memory of the links in bytes, without the block. */
  readonly bufferedBytes: number
  at(index: number): PbLink | undefined
  /** The first link of this name. A link without a name has the empty name. */
  named(name: string): PbLink | undefined
}

export type PbNode = { readonly Data: Uint8Array | undefined; readonly Links: PbLinks }

const textDecoder = new TextDecoder()
const wrong = (what: string): Error => new Error(`dag-pb: ${what}`)

class Link implements PbLink {
  private readonly block: Uint8Array
  private readonly hashAt: number
  private readonly hashEnd: number
  private readonly nameAt: number
  private readonly nameEnd: number
  private made: CID | undefined
  readonly Tsize: number | undefined

  constructor(block: Uint8Array, { hashAt, hashEnd, nameAt, nameEnd, tsize }: Scan) {
    this.block = block
    this.hashAt = hashAt
    this.hashEnd = hashEnd
    this.nameAt = nameAt
    this.nameEnd = nameEnd
    this.Tsize = tsize
  }

  get Hash(): CID {
    this.made ??= cidAt(this.block, this.hashAt, this.hashEnd)
    return this.made
  }

  get Name(): string | undefined {
    return this.nameAt < 0 ? undefined : nameIn(this.block, this.nameAt, this.nameEnd)
  }
}

const nameIn = (block: Uint8Array, from: number, to: number): string => textDecoder.decode(block.subarray(from, to))

// Caches links and their names and CIDs: each range of a file and each path through a directory
// asks for the same ones.
const maxKept = 8192
// Includes the objects of its CID, but not the bytes that they are views of.
const linkBytes = 800

class Links implements PbLinks {
  private readonly block: Uint8Array
  private readonly scan: Scan
  /** The offset of each link. */
  private readonly starts: Uint32Array
  private readonly kept: (Link | undefined)[] | undefined

  constructor(block: Uint8Array, scan: Scan, starts: Uint32Array) {
    this.block = block
    this.scan = scan
    this.starts = starts
    this.kept = starts.length <= maxKept ? [] : undefined
  }

  get length(): number {
    return this.starts.length
  }

  get bufferedBytes(): number {
    return this.starts.byteLength + (this.kept ? this.length * linkBytes : 0)
  }

  at(index: number): Link | undefined {
    const known = this.kept?.[index]
    if (known) return known
    const start = this.starts[index]
    if (start === undefined) return undefined
    this.scan.again(start)
    const link = new Link(this.block, this.scan)
    if (this.kept) this.kept[index] = link
    return link
  }

  named(name: string): Link | undefined {
    const wanted = Buffer.from(name)
    // Invalid UTF-8 is decoded as this character.
    const mayBeOther = name.includes('\ufffd')
    const { block, scan, starts } = this
    for (let at = 0; at < starts.length; at++) {
      scan.again(starts[at] as number)
      const { nameAt, nameEnd } = scan
      if (isSame(block, nameAt, nameEnd, wanted)) return this.at(at)
      const isOdd = nameAt >= 0 && (mayBeOther || block[nameAt] === markByte)
      if (isOdd && nameIn(block, nameAt, nameEnd) === name) return this.at(at)
    }
    return undefined
  }

  *[Symbol.iterator](): Generator<Link> {
    for (let at = 0; at < this.length; at++) yield this.at(at) as Link
  }
}

// The first byte of a byte order mark, which TextDecoder drops from a name.
const markByte = 0xef

function isSame(block: Uint8Array, from: number, to: number, wanted: Uint8Array): boolean {
  const { length } = wanted
  if (from < 0) return length === 0
  if (to - from !== length || block[from] === markByte) return false
  for (let at = 0; at < length; at++) if (block[from + at] !== wanted[at]) return false
  return true
}

export function decodePb(block: Uint8Array): PbNode {
  const decoding = createDecoding(block)
  decoding.advance(block.byteLength)
  return decoding.node()
}

// Takes one or two milliseconds, even before the code is optimized.
const linksPerSlice = 8192

/** As above, but yields to the event loop between slices. */
export async function decodePbInSlices(block: Uint8Array, yieldIfDue: YieldIfDue): Promise<PbNode> {
  const decoding = createDecoding(block)
  while (!decoding.advance(linksPerSlice)) await yieldIfDue()
  return decoding.node()
}

function createDecoding(block: Uint8Array) {
  let starts = new Uint32Array(16)
  let count = 0
  const scan = new Scan(block)
  return {
    /** Returns true at the end of the block. */
    advance(links: number): boolean {
      for (let left = links; left > 0; left--) {
        if (!scan.next()) return true
        // A typed array, because garbage collection would have to scan a list, which blocks the
        // event loop too.
        if (count === starts.length) starts = wider(starts)
        starts[count++] = scan.startsAt
      }
      return false
    },
    node: (): PbNode => ({ Data: scan.data, Links: new Links(block, scan, starts.slice(0, count)) }),
  }
}

function wider(starts: Uint32Array<ArrayBuffer>): Uint32Array<ArrayBuffer> {
  const twice = new Uint32Array(2 * starts.length)
  twice.set(starts)
  return twice
}

/** Calls `each` with the offset at which the CID of each link, and thus its digest, ends. */
export function eachHashEnd(block: Uint8Array, each: (end: number) => void): void {
  const scan = new Scan(block)
  while (scan.next()) each(scan.hashEnd)
}

/** As above, but yields to the event loop between slices. */
export async function eachHashEndInSlices(
  block: Uint8Array,
  each: (end: number) => void,
  yieldIfDue: YieldIfDue,
): Promise<void> {
  const scan = new Scan(block)
  for (let left = linksPerSlice; scan.next(); left--) {
    each(scan.hashEnd)
    if (left > 0) continue
    await yieldIfDue()
    left = linksPerSlice
  }
}

/** A pass over a block that stops after each link. */
class Scan {
  data: Uint8Array | undefined
  /** Offsets in the last link that was read. */
  startsAt = 0
  hashAt = 0
  hashEnd = 0
  nameAt = -1
  nameEnd = -1
  tsize: number | undefined
  private readonly block: Uint8Array
  private at = 0
  private hasLinks = false
  private isDataBehind = false

  constructor(block: Uint8Array) {
    this.block = block
  }

  /** Returns false at the end of the block. */
  next(): boolean {
    const { block } = this
    const { byteLength } = block
    while (this.at < byteLength) {
      this.startsAt = this.at
      const key = this.varint(byteLength)
      if ((key & 7) !== 2) throw wrong(`a node has a field of wire type ${key & 7}`)
      const end = this.end(byteLength)
      if (key >> 3 === 2) {
        if (this.isDataBehind) throw wrong('Data stands between links')
        this.hasLinks = true
        this.link(end)
        return true
      }
      if (key >> 3 !== 1) throw wrong(`a node has a field ${key >> 3}`)
      if (this.data) throw wrong('a node has two Data fields')
      this.data = block.subarray(this.at, end)
      this.isDataBehind = this.hasLinks
      this.at = end
    }
    return false
  }

  /** Rereads a known link. */
  again(startsAt: number): void {
    const { byteLength } = this.block
    this.at = startsAt
    this.varint(byteLength)
    this.link(this.end(byteLength))
  }

  /** The fields of a link must be in order. */
  private link(end: number): void {
    this.hashEnd = 0
    this.nameAt = -1
    this.tsize = undefined
    let last = 0
    while (this.at < end) {
      const key = this.varint(end)
      const field = key >> 3
      if (field <= last || field > 3) throw wrong(`a link has a field ${field} after ${last}`)
      if ((key & 7) !== (field === 3 ? 0 : 2)) throw wrong(`a link has a field of wire type ${key & 7}`)
      last = field
      if (field === 3) {
        this.tsize = this.varint(end)
        continue
      }
      const fieldEnd = this.end(end)
      if (field === 1) {
        this.hashAt = this.at
        this.hashEnd = fieldEnd
      } else {
        this.nameAt = this.at
        this.nameEnd = fieldEnd
      }
      this.at = fieldEnd
    }
    if (this.hashEnd === 0 || !isCidAt(this.block, this.hashAt, this.hashEnd)) throw wrong('a link has no CID')
    this.at = end
  }

  private varint(end: number): number {
    let value = 0
    for (let shift = 0; ; shift += 7) {
      if (shift >= 64) throw wrong('a number is too long')
      if (this.at >= end) throw wrong('it ends in the middle of a number')
      const byte = this.block[this.at++] as number
      value += shift < 28 ? (byte & 0x7f) << shift : (byte & 0x7f) * 2 ** shift
      if (byte < 0x80) return value
    }
  }

  /** The end of a length-prefixed field. */
  private end(limit: number): number {
    const length = this.varint(limit)
    if (this.at + length > limit) throw wrong('it ends in the middle of a field')
    return this.at + length
  }
}
