// The response cache (`cache.hot`): complete small answers, as the text of their head and body, under the key that
// `Hosts.keyOf` gives.
import { LRUCache } from 'lru-cache'
import { type ReadyHead, readyHead } from '../lanes/ready-head.ts'

export type CachedAnswer = {
  /** Names and values in one flat list, as writeHead takes them. */
  readonly headers: readonly string[]
  readonly body: Buffer
  readonly etag: string
}

export type ReadyAnswer = {
  readonly head: ReadyHead
  /** The head for a client that has the body; made when one asks. */
  unchanged: ReadyHead | undefined
  readonly body: Buffer
  readonly etag: string
}

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

const ready = ({ headers, body, etag }: CachedAnswer): ReadyAnswer => ({
  head: readyHead(200, headers),
  unchanged: undefined,
  body,
  etag,
})

/** Memory is shared with the tier that keeps the block: a block that is all of its buffer never changes, unless it was lent. */
export const lasting = (bytes: Uint8Array, isLent: boolean): Buffer =>
  !isLent && bytes.byteLength === bytes.buffer.byteLength ? Buffer.from(bytes.buffer) : Buffer.from(bytes)

// Beside the key, the head and the body.
const entryBytes = 1024

/** A client chooses the length of the key, and its path stands in the head again: in its list, its text, and that of a 304. */
const sizeOf = ({ head, body }: ReadyAnswer, key: string): number =>
  key.length + body.byteLength + entryBytes + 3 * head.lines.length

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
