// The response cache (`cache.hot`): complete small answers, as raw header lines and body, under the key that
// `Hosts.keyOf` gives.
import { LRUCache } from 'lru-cache'
import { requestIdHeader } from '../wire/request-id.ts'

export type CachedAnswer = {
  /** Names and values in one flat list, as writeHead takes them. */
  readonly headers: readonly string[]
  readonly body: Buffer
  readonly etag: string
}

/** Its header list has a place for the request id at its end: a new list for each request would cost more. */
export type ReadyAnswer = CachedAnswer & { headersFor(requestId: string): string[] }

export interface ResponseCache {
  get(key: string): ReadyAnswer | undefined
  /** Keeps a complete, proved 200 that never changes; not an answer that was begun in an earlier epoch. */
  add(key: string, answer: CachedAnswer, epoch?: number): void
  forget(key: string): void
  /** Forgets everything, and keeps no answer that was begun before. */
  clear(): void
  /** Rises with each `clear`. */
  readonly epoch: number
  readonly maxItem: number
  readonly maxBytes: number
  readonly bytes: number
  readonly items: number
}

function ready(answer: CachedAnswer): ReadyAnswer {
  const headers = [...answer.headers, requestIdHeader, '']
  return {
    ...answer,
    headersFor(requestId) {
      headers[headers.length - 1] = requestId
      return headers
    },
  }
}

// Beside the key, the headers and the body.
const entryBytes = 1024

/** A client chooses the length of the key, and its path stands in the headers again. */
const sizeOf = ({ headers, body }: CachedAnswer, key: string): number =>
  headers.reduce((sum, text) => sum + text.length, key.length + body.byteLength + entryBytes)

export function createResponseCache({
  maxBytes,
  maxItem,
}: {
  readonly maxBytes: number
  readonly maxItem: number
}): ResponseCache {
  const answers =
    maxBytes > 0
      ? new LRUCache<string, ReadyAnswer>({
          maxSize: maxBytes,
          sizeCalculation: sizeOf,
        })
      : undefined
  let epoch = 0
  return {
    get: (key) => answers?.get(key),
    add(key, answer, begun = epoch) {
      if (begun === epoch && answer.body.byteLength <= maxItem) answers?.set(key, ready(answer))
    },
    forget: (key) => answers?.delete(key),
    clear() {
      epoch++
      answers?.clear()
    },
    get epoch() {
      return epoch
    },
    maxBytes,
    maxItem: maxBytes > 0 ? Math.min(maxItem, maxBytes - entryBytes) : 0,
    get bytes() {
      return answers?.calculatedSize ?? 0
    },
    get items() {
      return answers?.size ?? 0
    },
  }
}
