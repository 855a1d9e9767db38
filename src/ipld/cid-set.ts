// A set of very many CIDs, such as the links of a directory of a hundred thousand names. It keeps
// 53 bits of each hash outside the heap; a false positive of `has` is less likely than one in
// 10^12.
import { randomInt } from 'node:crypto'
import type { CID } from 'multiformats/cid'

export interface CidSet {
  add(cid: CID): void
  /**
   * Adds a CID that was not created yet, given the bytes up to the end of its digest (eight bytes
   * or more).
   */
  addEnding(bytes: Uint8Array, end: number): void
  has(cid: CID): boolean
  readonly size: number
}

const minConcurrency = 16
const two32 = 2 ** 32
// Random seeds, so that an attacker cannot choose CIDs that collide.
const [lowSeed, highSeed] = [randomInt(two32), randomInt(two32)]

/** The finalizer of murmur3: every bit of the result depends on every bit of the input. */
function mixed(value: number): number {
  let bits = Math.imul(value ^ (value >>> 16), 0x85ebca6b)
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35)
  return bits ^ (bits >>> 16)
}

/** The end of the digest as a number; never 0, which marks an empty slot. */
const mark = ({ multihash: { digest } }: CID): number => markOf(digest, digest.byteLength)

function markOf(bytes: Uint8Array, end: number): number {
  let high = 0
  let low = 0
  for (let at = Math.max(0, end - 8); at < end; at++) {
    high = ((high << 8) | (low >>> 24)) >>> 0
    low = ((low << 8) | (bytes[at] as number)) >>> 0
  }
  return (high & 0x1fffff) * two32 + low || 1
}

export function createCidSet(): CidSet {
  let places = new Float64Array(minConcurrency)
  let size = 0

  /** The slot of a mark, or the empty slot for it. */
  function placeOf(wanted: number): number {
    let at = mixed(mixed((wanted >>> 0) ^ lowSeed) ^ Math.floor(wanted / two32) ^ highSeed) & (places.length - 1)
    for (;;) {
      const held = places[at]
      if (held === wanted || held === 0) return at
      at = at + 1 === places.length ? 0 : at + 1
    }
  }

  function grow(): void {
    const held = places
    places = new Float64Array(held.length * 2)
    for (const one of held) if (one !== 0) places[placeOf(one)] = one
  }

  function add(wanted: number): void {
    if (places[placeOf(wanted)] !== 0) return
    if (size >= places.length / 2) grow()
    places[placeOf(wanted)] = wanted
    size++
  }

  return {
    get size() {
      return size
    },
    has: (cid) => places[placeOf(mark(cid))] !== 0,
    add: (cid) => add(mark(cid)),
    addEnding: (bytes, end) => add(markOf(bytes, end)),
  }
}
