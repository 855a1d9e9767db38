// Decodes dag-pb in one pass that makes nothing but an offset for each link: a block may hold a quarter of a million of them, and their
// names and CIDs, made all at once, held up the event loop for longer than any request may. Accepts what `@ipld/dag-pb`
// accepts, where the numbers in a CID are numbers that JavaScript can hold.
import type { CID } from 'multiformats/cid'
import { cidAt } from '../core/cid.ts'
import { isCidAt } from './cid-bytes.ts'
import type { GiveWay } from './documents/read.ts'

/** Its CID and its name are made when they are asked for. */
export interface PbLink {
  readonly Hash: CID
  readonly Name: string | undefined
  readonly Tsize: number | undefined
}

/** In their order. Each is made when it is asked for: a block of a quarter of a million made as many objects at once. */
export interface PbLinks extends Iterable<PbLink> {
  readonly length: number
  /** What they take at most, besides the block. */
  readonly heldBytes: number
  at(index: number): PbLink | undefined
  /** The first one of this name. A link without a name has the empty one. */
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

// Made once, and kept with what was made of them: each range of a file and each path through a folder asks for the same ones.
const mostKept = 8192
// With its CID as objects, besides the bytes that they are views of.
const linkBytes = 800

class Links implements PbLinks {
  private readonly block: Uint8Array
  private readonly scan: Scan
  /** Where each link stands. */
  private readonly starts: Uint32Array
  private readonly kept: (Link | undefined)[] | undefined

  constructor(block: Uint8Array, scan: Scan, starts: Uint32Array) {
    this.block = block
    this.scan = scan
    this.starts = starts
    this.kept = starts.length <= mostKept ? [] : undefined
  }

  get length(): number {
    return this.starts.length
  }

  get heldBytes(): number {
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
    // What is no UTF-8 is read as this character.
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

// A byte order mark begins with it, which is no part of a name.
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

// A millisecond or two, also when the code runs for the first time.
const linksATurn = 8192

/** The same in pieces, between which others are served. */
export async function decodePbInTurns(block: Uint8Array, giveWay: GiveWay): Promise<PbNode> {
  const decoding = createDecoding(block)
  while (!decoding.advance(linksATurn)) await giveWay()
  return decoding.node()
}

function createDecoding(block: Uint8Array) {
  let starts = new Uint32Array(16)
  let count = 0
  const scan = new Scan(block)
  return {
    /** True: it came to the end of the block. */
    advance(links: number): boolean {
      for (let left = links; left > 0; left--) {
        if (!scan.next()) return true
        // Not a list: what the collector of garbage has to look through, for each block that is read, stops the loop as well.
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

/** Calls `each` with the offset at which the CID of each link ends, so that its digest ends there, too. */
export function eachHashEnd(block: Uint8Array, each: (end: number) => void): void {
  const scan = new Scan(block)
  while (scan.next()) each(scan.hashEnd)
}

/** The same in pieces, between which others are served. */
export async function eachHashEndInTurns(
  block: Uint8Array,
  each: (end: number) => void,
  giveWay: GiveWay,
): Promise<void> {
  const scan = new Scan(block)
  for (let left = linksATurn; scan.next(); left--) {
    each(scan.hashEnd)
    if (left > 0) continue
    await giveWay()
    left = linksATurn
  }
}

/** A pass over a block that stops behind each link. */
class Scan {
  data: Uint8Array | undefined
  /** Of the link that was read last. */
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

  /** False at the end of the block. */
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

  /** Reads a link that was read before. */
  again(startsAt: number): void {
    const { byteLength } = this.block
    this.at = startsAt
    this.varint(byteLength)
    this.link(this.end(byteLength))
  }

  /** The fields of a link stand in their order. */
  private link(end: number): void {
    this.hashEnd = 0
    this.nameAt = -1
    this.tsize = undefined
    let last = 0
    while (this.at < end) {
      const key = this.varint(end)
      const field = key >> 3
      if (field <= last || field > 3) throw wrong(`a link has a field ${field} behind ${last}`)
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

  /** Where a field of bytes ends that begins with its length. */
  private end(most: number): number {
    const length = this.varint(most)
    if (this.at + length > most) throw wrong('it ends in the middle of a field')
    return this.at + length
  }
}
