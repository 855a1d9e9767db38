// Which names a folder of shards may have, so that a look for what it lacks costs no look at the disk: a fingerprint of four bytes
// for each name. It may say "perhaps" of a name that is gone, or for two names of one fingerprint; it says "no" only of what
// was not there when the shard was read, and was not written by its owner since.
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { orIfGone } from './files.ts'

export interface KnownNames {
  /** False where it is not known: then the shard is read soon. `now`: of a clock that only goes forward. */
  lacks(name: string, now: number): boolean
  /** The owner writes it. To be called before and after: the shard may be read in between. */
  add(name: string): void
  /** Files of these shards were taken away: they are read again when they are asked for. */
  forget(shards: Iterable<string>): void
}

type Shard = { readonly names: Fingerprints; isComplete: boolean }

const afterFailureMs = 10_000

export function createKnownNames(folder: string, shardOf: (name: string) => string): KnownNames {
  const shards = new Map<string, Shard>()
  /** The shards that have a folder; undefined until that was read. */
  let made: ReadonlySet<string> | undefined
  const wanted = new Set<string>()
  let isReading = false
  let notBefore = Number.NEGATIVE_INFINITY

  function stateOf(shard: string): Shard {
    let state = shards.get(shard)
    if (!state) shards.set(shard, (state = { names: createFingerprints(), isComplete: false }))
    return state
  }

  /** One after another, with no reader waiting. */
  async function readWanted(): Promise<void> {
    made ??= new Set(await orIfGone(readdir(folder), []))
    for (const shard of wanted) {
      wanted.delete(shard)
      const state = stateOf(shard)
      // A shard that was made since has only what was added since.
      if (made.has(shard)) for (const name of await orIfGone(readdir(join(folder, shard)), [])) state.names.add(name)
      state.isComplete = true
    }
  }

  function read(shard: string, now: number): void {
    wanted.add(shard)
    if (isReading || now < notBefore) return
    isReading = true
    readWanted()
      .catch(() => {
        // Looks at the disk itself say what is wrong with it.
        notBefore = now + afterFailureMs
      })
      .finally(() => {
        isReading = false
      })
  }

  return {
    lacks(name, now) {
      const shard = shardOf(name)
      const known = stateOf(shard)
      if (made && !made.has(shard)) known.isComplete = true
      if (known.isComplete) return !known.names.has(name)
      read(shard, now)
      return false
    },
    add: (name) => stateOf(shardOf(name)).names.add(name),
    forget(evicted) {
      // A folder may have been made since they were read first.
      if (made) made = new Set([...made, ...evicted])
      for (const shard of evicted) shards.delete(shard)
    },
  }
}

interface Fingerprints {
  has(name: string): boolean
  add(name: string): void
}

const leastPlaces = 16

/** A table with open addressing; 0 is a free place. */
function createFingerprints(): Fingerprints {
  let places = new Uint32Array(leastPlaces)
  let count = 0

  function placeOf(print: number): number {
    const last = places.length - 1
    let at = print & last
    while (places[at] !== 0 && places[at] !== print) at = (at + 1) & last
    return at
  }

  function grow(): void {
    const old = places
    places = new Uint32Array(old.length * 2)
    for (const print of old) if (print !== 0) places[placeOf(print)] = print
  }

  return {
    has: (name) => places[placeOf(printOf(name))] !== 0,
    add(name) {
      const print = printOf(name)
      const at = placeOf(print)
      if (places[at] !== 0) return
      places[at] = print
      if (++count > places.length / 2) grow()
    },
  }
}

// FNV-1a of what tells names of one shard apart. Names are hashes themselves: some letters are enough.
const lettersTaken = 16

function printOf(name: string): number {
  let print = 0x811c9dc5
  for (let at = Math.max(0, name.length - lettersTaken); at < name.length; at++)
    print = Math.imul(print ^ name.charCodeAt(at), 0x01000193)
  return print >>> 0 || 1
}
