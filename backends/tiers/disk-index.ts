// The index of the disk tier: from a block's hash to its record, in tables of four bytes a record.
// The hash itself is in the records of its segment, so a lookup compares it there.
import { randomInt } from 'node:crypto'
import type { CID } from 'multiformats/cid'

/** Eight bytes of a block's digest, which tell records apart. */
export type Hash = { readonly low: number; readonly high: number }

/** The number of a segment, and of a record in it. */
export type RecordId = number
const ordinalBits = 20
export const maxRecords = 1 << ordinalBits
export const maxSegments = (1 << (32 - ordinalBits)) - 1
export const idOf = (slot: number, ordinal: number): RecordId => slot * maxRecords + ordinal
export const slotOf = (id: RecordId): number => id >>> ordinalBits
export const ordinalOf = (id: RecordId): number => id & (maxRecords - 1)

/** A record: two words of hash, where it lies, and its length with its marks. */
export const recordWords = 4

export function hashOf(cid: CID): Hash {
  const { bytes } = cid.multihash
  const word = (at: number) =>
    (((bytes[at] ?? 0) << 24) | ((bytes[at + 1] ?? 0) << 16) | ((bytes[at + 2] ?? 0) << 8) | (bytes[at + 3] ?? 0)) >>> 0
  return { low: word(bytes.length - 8), high: word(bytes.length - 4) }
}

export interface BlockIndex {
  /** One record of this hash, outside of one segment; -1: there is none. */
  find(hash: Hash, exceptSlot?: number): RecordId
  /** By the hash in the record. A hash may have several records. */
  add(id: RecordId): void
  remove(id: RecordId): void
  readonly size: number
}

type Part = { places: Uint32Array; count: number }

// Each part grows by itself, in less than a millisecond.
const partBits = 8
const minPlaces = 16
const maxLoad = 0.75
const oddWord = () => (randomInt(0x100000000) | 1) >>> 0

/** `recordsOf`: the records of a segment, by its number. */
export function createBlockIndex(recordsOf: (slot: number) => Uint32Array): BlockIndex {
  // Secret multipliers, against hash flooding: blocks made to share a place.
  const [oddLow, oddHigh] = [oddWord(), oddWord()]
  const parts = Array.from({ length: 1 << partBits }, (): Part => ({ places: new Uint32Array(minPlaces), count: 0 }))
  let size = 0

  const mixed = (low: number, high: number): number => (Math.imul(low, oddLow) + Math.imul(high, oddHigh)) >>> 0
  const partOf = (mix: number): Part => parts[mix >>> (32 - partBits)] as Part
  /** By the bits behind those of the part: the lowest ones would not depend on all of the hash. */
  const homeOf = (mix: number, mask: number): number => (mix >>> (Math.clz32(mask) - partBits)) & mask

  function insert(places: Uint32Array, mix: number, id: RecordId): void {
    const mask = places.length - 1
    let at = homeOf(mix, mask)
    while (places[at] !== 0) at = (at + 1) & mask
    places[at] = id + 1
  }

  function mixOf(id: RecordId): number {
    const records = recordsOf(slotOf(id))
    const at = ordinalOf(id) * recordWords
    return mixed(records[at] as number, records[at + 1] as number)
  }

  function grow(part: Part): void {
    const old = part.places
    part.places = new Uint32Array(old.length * 2)
    for (const one of old) if (one !== 0) insert(part.places, mixOf(one - 1), one - 1)
  }

  return {
    find({ low, high }, exceptSlot = -1) {
      const mix = mixed(low, high)
      const { places } = partOf(mix)
      const mask = places.length - 1
      for (let at = homeOf(mix, mask); ; at = (at + 1) & mask) {
        const one = places[at] as number
        if (one === 0) return -1
        const slot = slotOf(one - 1)
        const records = recordsOf(slot)
        const word = ordinalOf(one - 1) * recordWords
        if (records[word] === low && records[word + 1] === high && slot !== exceptSlot) return one - 1
      }
    },
    add(id) {
      const mix = mixOf(id)
      const part = partOf(mix)
      if (part.count >= part.places.length * maxLoad) grow(part)
      insert(part.places, mix, id)
      part.count++
      size++
    },
    remove(id) {
      const mix = mixOf(id)
      const part = partOf(mix)
      const { places } = part
      const mask = places.length - 1
      let at = homeOf(mix, mask)
      while (places[at] !== id + 1) {
        if (places[at] === 0) return
        at = (at + 1) & mask
      }
      // Backward-shift deletion of linear probing: a later entry moves into the gap, if its probe
      // sequence passes there.
      for (let next = (at + 1) & mask; places[next] !== 0; next = (next + 1) & mask) {
        const home = homeOf(mixOf((places[next] as number) - 1), mask)
        if (((next - home) & mask) < ((next - at) & mask)) continue
        places[at] = places[next] as number
        at = next
      }
      places[at] = 0
      part.count--
      size--
    },
    get size() {
      return size
    },
  }
}
