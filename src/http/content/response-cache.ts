// The response cache (`cache.responses`): complete small responses as text of their head and body,
// under the key from `Hosts.keyOf`.
import { STATUS_CODES } from 'node:http'
import { LRUCache } from 'lru-cache'
import { type Coding, codedHeaders, codedTag } from '../codings/codings.ts'

/** The head of a response that is sent many times. */
export type ReadyHead = {
  readonly status: number
  /** A flat list of names and values, as writeHead accepts it. */
  readonly headers: readonly string[]
  /** The status line and the headers. */
  readonly lines: string
}

export type CachedAnswer = {
  /** A flat list of names and values, as writeHead accepts it. */
  readonly headers: readonly string[]
  readonly body: Buffer
  readonly etag: string
  /** The response depends on Accept-Encoding. */
  readonly isCompressible: boolean
}

/** A representation in one coding. */
export type ReadyForm = {
  readonly head: ReadyHead
  /** The head of a 304, made on first use. */
  unchanged: ReadyHead | undefined
  readonly body: Buffer
  readonly etag: string
}

/** The identity form with its coded forms, which are counted, evicted and purged together. */
export type ReadyAnswer = ReadyForm & {
  readonly isCompressible: boolean
  readonly coded: Readonly<Partial<Record<Coding, ReadyForm>>>
}

export interface ResponseCache {
  get(key: string): ReadyAnswer | undefined
  /**
   * Caches a complete, verified, immutable 200 and returns it; refuses a response that was begun in
   * an earlier epoch.
   */
  add(key: string, answer: CachedAnswer, epoch?: number): ReadyAnswer | undefined
  /** Adds a coded form to the identity form, if that is still cached. */
  addCoded(key: string, answer: ReadyAnswer, coding: Coding, body: Buffer): ReadyForm
  forget(key: string): void
  /** Removes everything, and refuses responses that were begun earlier. */
  clear(): void
  /** Incremented by each `clear`. */
  readonly epoch: number
  readonly maxItem: number
  readonly maxBytes: number
  readonly bytes: number
  readonly items: number
}

const form = ({ headers, body, etag }: Omit<CachedAnswer, 'isCompressible'>): ReadyForm => ({
  head: readyHead(200, headers),
  unchanged: undefined,
  body,
  etag,
})

const readyAnswer = (answer: CachedAnswer): ReadyAnswer => ({
  ...form(answer),
  isCompressible: answer.isCompressible,
  coded: {},
})

/**
 * Shares memory with the tier that holds the block if possible: a block that spans its buffer never
 * changes, unless the buffer is reusable.
 */
export const lasting = (bytes: Uint8Array, isLent: boolean): Buffer =>
  !isLent && bytes.byteLength === bytes.buffer.byteLength ? Buffer.from(bytes.buffer) : Buffer.from(bytes)

// Overhead of an entry in addition to key, head and body.
const entryBytes = 1024

/**
 * The client determines the length of the key, and its path is repeated in the head as list, as
 * text and in the 304.
 */
function sizeOf(answer: ReadyAnswer, key: string): number {
  let size = key.length + sizeOfForm(answer)
  for (const coded of Object.values(answer.coded)) size += sizeOfForm(coded)
  return size
}

const sizeOfForm = ({ head, body }: ReadyForm): number => body.byteLength + entryBytes + 3 * head.lines.length

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
      if (!answers || begun !== epoch || answer.body.byteLength > maxItem) return undefined
      const ready = readyAnswer(answer)
      answers.set(key, ready)
      return ready
    },
    addCoded(key, answer, coding, body) {
      const headers = codedHeaders(answer.head.headers, coding, body.byteLength)
      const coded = form({ headers, body, etag: codedTag(answer.etag, coding) })
      const kept = answers?.peek(key)
      // The entry may have been purged or replaced meanwhile.
      if (!kept || kept.etag !== answer.etag) return coded
      const grown = { ...kept, coded: { ...kept.coded, [coding]: coded } }
      // An entry above the cache size would be rejected and evict the identity form.
      if (sizeOf(grown, key) <= maxBytes) answers?.set(key, grown)
      return coded
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

export function readyHead(status: number, headers: readonly string[]): ReadyHead {
  const pieces = [`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n`]
  for (let at = 0; at < headers.length; at += 2)
    pieces.push(headers[at] as string, ': ', headers[at + 1] as string, '\r\n')
  return { status, headers, lines: pieces.join('') }
}
