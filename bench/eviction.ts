// `node bench/eviction.ts`: what share of reads a cache answers, by the order in which it evicts: LRU, S3-FIFO and SIEVE over the same
// traces. Blocks of one size, random numbers of a fixed seed: the same figures on every machine.
import { fileURLToPath } from 'node:url'

export interface Cache {
  /** Whether it had the key. It has it now. */
  read(key: number): boolean
}

export function lru(most: number): Cache {
  const keys = new Set<number>()
  return {
    read(key) {
      const isHit = keys.delete(key)
      keys.add(key)
      if (keys.size > most) for (const oldest of keys) return keys.delete(oldest) && isHit
      return isHit
    },
  }
}

/** One queue and a hand: what was read since the hand came by stays where it is. */
export function sieve(most: number): Cache {
  type Node = { readonly key: number; wasRead: boolean; newer: Node | undefined; older: Node | undefined }
  const nodes = new Map<number, Node>()
  let newest: Node | undefined
  let oldest: Node | undefined
  let hand: Node | undefined

  function remove(node: Node): void {
    nodes.delete(node.key)
    if (node.newer) node.newer.older = node.older
    else newest = node.older
    if (node.older) node.older.newer = node.newer
    else oldest = node.newer
  }

  function evict(): void {
    let at = hand ?? oldest
    while (at?.wasRead) {
      at.wasRead = false
      at = at.newer ?? oldest
    }
    if (!at) return
    hand = at.newer
    remove(at)
  }

  return {
    read(key) {
      const known = nodes.get(key)
      if (known) return (known.wasRead = true)
      if (nodes.size >= most) evict()
      const node: Node = { key, wasRead: false, newer: undefined, older: newest }
      if (newest) newest.newer = node
      newest = node
      oldest ??= node
      nodes.set(key, node)
      return false
    },
  }
}

const smallShare = 0.1
const mostReads = 3

/** A small queue that what is read once leaves quickly, a large one, and names of what left the small one. */
export function s3fifo(most: number): Cache {
  const mostSmall = Math.max(1, Math.round(most * smallShare))
  const small = new Map<number, number>()
  const main = new Map<number, number>()
  const ghosts = new Set<number>()

  function evictMain(): void {
    for (const [key, reads] of main) {
      main.delete(key)
      if (reads === 0) return
      main.set(key, reads - 1)
    }
  }

  function evictSmall(): void {
    for (const [key, reads] of small) {
      small.delete(key)
      if (reads > 1) {
        main.set(key, 0)
        if (main.size > most - mostSmall) evictMain()
        continue
      }
      ghosts.add(key)
      if (ghosts.size > most - mostSmall) for (const first of ghosts) return void ghosts.delete(first)
      return
    }
  }

  return {
    read(key) {
      for (const queue of [small, main]) {
        const reads = queue.get(key)
        if (reads === undefined) continue
        queue.set(key, Math.min(mostReads, reads + 1))
        return true
      }
      while (small.size + main.size >= most) {
        if (small.size >= mostSmall || main.size === 0) evictSmall()
        else evictMain()
      }
      if (ghosts.delete(key)) main.set(key, 0)
      else small.set(key, 0)
      return false
    },
  }
}

/** Numbers below 1, the same in each run (mulberry32). */
export function numbers(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** Keys from 0, the first the most wanted. */
export function zipf(keys: number, skew: number, random: () => number): () => number {
  const upTo = new Float64Array(keys)
  let sum = 0
  for (let rank = 0; rank < keys; rank++) upTo[rank] = sum += 1 / (rank + 1) ** skew
  return () => {
    const wanted = random() * sum
    let [low, high] = [0, keys - 1]
    while (low < high) {
      const middle = (low + high) >> 1
      if ((upTo[middle] ?? 0) < wanted) low = middle + 1
      else high = middle
    }
    return low
  }
}

/** A key below 0 is read once. */
export type Trace = { readonly name: string; reads(): Generator<number> }

const seed = 2026

const popular = (keys: number, skew: number, count: number): Trace => ({
  name: `Zipf ${skew}`,
  *reads() {
    const next = zipf(keys, skew, numbers(seed))
    for (let at = 0; at < count; at++) yield next()
  },
})

/** Now and then a crawler, or one large file, reads new blocks in a row, which are never read again. Those do not count as asked for. */
const scanned = (keys: number, skew: number, count: number, every: number): Trace => ({
  name: `Zipf ${skew}, a scan of as many new blocks after each ${every.toLocaleString('en')} reads`,
  *reads() {
    const next = zipf(keys, skew, numbers(seed))
    let fresh = 0
    for (let at = 1; at <= count; at++) {
      yield next()
      if (at % every === 0) for (let block = 0; block < every; block++) yield --fresh
    }
  },
})

/** What is wanted changes, as news do. */
const drifting = (keys: number, skew: number, count: number, every: number): Trace => ({
  name: `Zipf ${skew}, a tenth of it replaced after each ${(every / 10).toLocaleString('en')} reads`,
  *reads() {
    const next = zipf(keys, skew, numbers(seed))
    for (let at = 0; at < count; at++) {
      const key = next()
      yield key + keys * Math.floor(at / every + (key % 10) / 10)
    }
  },
})

export const traces = (keys: number, count: number): readonly Trace[] => [
  popular(keys, 0.8, count),
  popular(keys, 1, count),
  scanned(keys, 1, count, keys / 5),
  drifting(keys, 1, count, keys * 2),
]

export const orders: Readonly<Record<string, (most: number) => Cache>> = { LRU: lru, 'S3-FIFO': s3fifo, SIEVE: sieve }

/** Of reads of what may come again, after a warm-up of a fifth. */
export function hitRatio(cache: Cache, trace: Trace, count: number): number {
  let [at, hits, asked] = [0, 0, 0]
  for (const key of trace.reads()) {
    const isHit = cache.read(key)
    if (++at <= count / 5 || key < 0) continue
    asked++
    if (isHit) hits++
  }
  return hits / asked
}

export const shares: readonly number[] = [0.01, 0.1]

function main(): void {
  const [keys, count] = [50_000, 500_000]
  process.stdout.write(
    `| trace | blocks that fit | ${Object.keys(orders).join(' | ')} |\n|---|---|${'---|'.repeat(3)}\n`,
  )
  for (const trace of traces(keys, count))
    for (const share of shares) {
      const ratios = Object.values(orders).map((make) => hitRatio(make(keys * share), trace, count))
      const words = ratios.map((ratio) => `${(ratio * 100).toFixed(1)} %`)
      process.stdout.write(`| ${trace.name} | ${(keys * share).toLocaleString('en')} | ${words.join(' | ')} |\n`)
    }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main()
