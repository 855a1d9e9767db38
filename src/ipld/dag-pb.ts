// Decodes dag-pb in one pass that makes nothing but offsets: a block may hold a quarter of a million links, and their names
// and CIDs, made all at once, held up the event loop for longer than any request may. Accepts what `@ipld/dag-pb`
// accepts, where the numbers in a CID are numbers that JavaScript can hold.
import { CID } from 'multiformats/cid'
import { isCidAt } from './cid-bytes.ts'

/** Its CID and its name are made when they are asked for. */
export interface PbLink {
  readonly Hash: CID
  readonly Name: string | undefined
  readonly Tsize: number | undefined
}

export type PbNode = { readonly Data: Uint8Array | undefined; readonly Links: readonly PbLink[] }

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
    this.made ??= CID.decode(this.block.subarray(this.hashAt, this.hashEnd))
    return this.made
  }

  get Name(): string | undefined {
    return this.nameAt < 0 ? undefined : textDecoder.decode(this.block.subarray(this.nameAt, this.nameEnd))
  }
}

export function decodePb(block: Uint8Array): PbNode {
  const Links: PbLink[] = []
  const scan = new Scan(block)
  while (scan.next()) Links.push(new Link(block, scan))
  return { Data: scan.data, Links }
}

/** Calls `each` with the offset at which the CID of each link ends, so that its digest ends there, too. */
export function eachHashEnd(block: Uint8Array, each: (end: number) => void): void {
  const scan = new Scan(block)
  while (scan.next()) each(scan.hashEnd)
}

/** A pass over a block that stops behind each link. */
class Scan {
  data: Uint8Array | undefined
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
