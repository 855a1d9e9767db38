// A Bloom filter of block keys: at 12 bits a key, one missing key in 300 is taken for one that may
// be there.

export type Filter = { readonly words: Uint32Array<ArrayBuffer>; readonly capacity: number; count: number }

const bitsAKey = 12
const hashes = 6
const minKeys = 65_536

export function emptyFilter(keys: number): Filter {
  const capacity = Math.max(minKeys, 2 * keys)
  return { words: new Uint32Array(Math.ceil((capacity * bitsAKey) / 32)), capacity, count: 0 }
}

/** The last bytes of a key are those of a cryptographic hash: no further hash is needed. */
function placesOf(key: Uint8Array): [number, number] {
  const view = new DataView(key.buffer, key.byteOffset, key.byteLength)
  const end = key.byteLength
  return end < 8 ? [end, 1] : [view.getUint32(end - 4), view.getUint32(end - 8) | 1]
}

export function addKey(filter: Filter, key: Uint8Array): void {
  const { words } = filter
  const bits = words.length * 32
  let [at, step] = placesOf(key)
  for (let turn = 0; turn < hashes; turn++, at = (at + step) >>> 0) {
    const bit = at % bits
    words[bit >>> 5] = (words[bit >>> 5] as number) | (1 << (bit & 31))
  }
  filter.count++
}

export function mayHave({ words }: Filter, key: Uint8Array): boolean {
  const bits = words.length * 32
  let [at, step] = placesOf(key)
  for (let turn = 0; turn < hashes; turn++, at = (at + step) >>> 0) {
    const bit = at % bits
    if (((words[bit >>> 5] as number) & (1 << (bit & 31))) === 0) return false
  }
  return true
}
