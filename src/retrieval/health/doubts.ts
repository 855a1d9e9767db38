// What an upstream was asked for lately and did not bring: asked for again, it may be nowhere, and has to be content with
// the places that others leave.
import { LRUCache } from 'lru-cache'

export interface Doubts {
  has(key: string): boolean
  add(key: string): void
  delete(key: string): void
}

const mostKept = 10_000
const keptMs = 600_000

export function createDoubts(): Doubts {
  const keys = new LRUCache<string, true>({ max: mostKept, ttl: keptMs })
  return {
    has: (key) => keys.has(key),
    add(key) {
      keys.set(key, true)
    },
    delete(key) {
      keys.delete(key)
    },
  }
}
