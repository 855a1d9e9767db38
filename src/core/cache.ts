// A cache in memory, limited in bytes, that a crawler cannot empty. A cache with room keeps every
// value. A full one puts a new value on probation; a value that is set again displaces the least
// recently used, unless that was read since its admission, which spares it once (2Q with CLOCK's
// second chance).
import { LRUCache } from 'lru-cache'

type Entry<Value> = {
  readonly key: string
  readonly value: Value
  readonly bytes: number
  /** Since its admission, or since it was spared. */
  wasRead: boolean
  /** The count of sets at its admission. */
  readonly setAt: number
}

type Part<Value> = LRUCache<string, Entry<Value>>

type AdmittingCacheOptions = {
  readonly maxBytes: number
  /** The share of `maxBytes` for values that were set once. 0: these are not kept. */
  readonly probation: number
}

// Twice the cache's size, since a crawler may own half of the ghosts.
const ghostsPerByte = 2

export class AdmittingCache<Value> {
  readonly maxBytes: number
  readonly #maxProbationBytes: number
  readonly #main: Part<Value>
  readonly #probation: Part<Value>
  /** Hashes of keys without their values; the size of an entry is that of its value. */
  readonly #ghosts: LRUCache<number, true>
  #sets = 0

  constructor({ maxBytes, probation }: AdmittingCacheOptions) {
    this.maxBytes = maxBytes
    this.#maxProbationBytes = Math.floor(maxBytes * probation)
    this.#main = new LRUCache({ maxSize: maxBytes })
    this.#probation = new LRUCache({ maxSize: maxBytes })
    this.#ghosts = new LRUCache({ maxSize: maxBytes * ghostsPerByte })
  }

  get bytes(): number {
    return this.#main.calculatedSize + this.#probation.calculatedSize
  }

  get size(): number {
    return this.#main.size + this.#probation.size
  }

  get(key: string): Value | undefined {
    const entry = this.#main.get(key)
    if (!entry) return this.#probation.peek(key)?.value
    // The request that set the value may read it several times.
    if (entry.setAt !== this.#sets) entry.wasRead = true
    return entry.value
  }

  /** Reads without counting as a read. */
  peek(key: string): Value | undefined {
    return (this.#main.peek(key) ?? this.#probation.peek(key))?.value
  }

  /** Replaces or admits a value, made only then. `undefined`: the cache refuses it. */
  set(key: string, bytes: number, make: () => Value): Value | undefined {
    if (bytes > this.maxBytes) return undefined
    this.#sets++
    for (const part of [this.#main, this.#probation]) {
      const before = part.peek(key)
      if (before) return this.#keep(part, key, bytes, make, before.wasRead)
    }
    const hash = hashOf(key)
    if (this.#hasRoom(bytes) || (this.#ghosts.has(hash) && this.#displace(bytes))) {
      this.#ghosts.delete(hash)
      return this.#keep(this.#main, key, bytes, make)
    }
    if (this.#maxProbationBytes > 0) return this.#keep(this.#probation, key, bytes, make)
    this.#ghosts.set(hash, true, { size: bytes })
    return undefined
  }

  delete(key: string): void {
    if (!this.#main.delete(key)) this.#probation.delete(key)
  }

  clear(): void {
    for (const part of [this.#main, this.#probation, this.#ghosts]) part.clear()
  }

  #hasRoom(bytes: number): boolean {
    return this.#main.calculatedSize + bytes <= this.maxBytes - this.#maxProbationBytes
  }

  /** Makes room in the main part. False: the next victim was read, and is spared once. */
  #displace(bytes: number): boolean {
    if (bytes > this.maxBytes - this.#maxProbationBytes) return false
    while (!this.#hasRoom(bytes)) {
      const oldest = this.#main.rvalues().next().value as Entry<Value>
      if (oldest.wasRead) {
        oldest.wasRead = false
        this.#main.get(oldest.key)
        return false
      }
      this.#main.delete(oldest.key)
    }
    return true
  }

  #keep(part: Part<Value>, key: string, bytes: number, make: () => Value, wasRead = false): Value {
    const value = make()
    part.set(key, { key, value, bytes, wasRead, setAt: this.#sets }, { size: bytes })
    while (this.#probation.calculatedSize > this.#maxProbationBytes && this.#probation.size > 1) {
      const oldest = this.#probation.pop() as Entry<Value>
      this.#ghosts.set(hashOf(oldest.key), true, { size: oldest.bytes })
    }
    // A value may be larger than its part, or have grown.
    while (this.bytes > this.maxBytes) {
      const from = this.#main.size > (part === this.#main ? 1 : 0) ? this.#main : this.#probation
      from.pop()
    }
    return value
  }
}

/** FNV-1a. A collision admits a key at its first set, which is harmless. */
function hashOf(key: string): number {
  let hash = 0x811c9dc5 | 0
  for (let at = 0; at < key.length; at++) hash = Math.imul(hash ^ key.charCodeAt(at), 0x01000193)
  return hash
}

const maxRemembered = 1000
const longestRemembered = 256

/** Remembers results by text, such as a header's value: clients send few distinct ones. */
export function remembered<Value>(of: (text: string) => Value): (text: string) => Value {
  const known = new Map<string, Value>()
  return (text) => {
    const before = known.get(text)
    if (before !== undefined) return before
    const value = of(text)
    if (text.length > longestRemembered) return value
    if (known.size >= maxRemembered) known.clear()
    known.set(text, value)
    return value
  }
}

/**
 * Limits an `lru-cache` to `most` entries. Its own `max` would allocate megabytes in advance for
 * each gateway; `maxSize` grows with the entries.
 */
export const upTo = (max: number) => ({ maxSize: max, sizeCalculation: () => 1 })
