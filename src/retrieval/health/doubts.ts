// What an upstream was asked for lately and brought nothing, or nothing true: asked for again, it may be nowhere, and has to be
// content with the slots that others leave; or another upstream has to answer.
import { LRUCache } from 'lru-cache'
import type { Clock } from '../../core/clock.ts'
import { upTo } from '../../core/lru.ts'

export interface Doubts {
  has(key: string): boolean
  add(key: string): void
  delete(key: string): void
  /** How long it is still doubted. */
  leftMs(key: string): number
}

const mostKept = 10_000

export function createDoubts(clock: Clock, keptMs: number): Doubts {
  // A time of 0 is none to the cache.
  const perf = { now: () => clock.monotonic() + 1 }
  const keys = new LRUCache<string, true>({ ...upTo(mostKept), ttl: keptMs, ttlResolution: 0, perf })
  return {
    has: (key) => keys.has(key),
    add(key) {
      keys.set(key, true)
    },
    delete(key) {
      keys.delete(key)
    },
    leftMs: (key) => Math.max(0, keys.getRemainingTTL(key)),
  }
}
