// The response cache (`cache.responses`): complete small responses as text of their head and body,
// under the key from `Hosts.keyOf`.
import { STATUS_CODES } from 'node:http'
import { AdmittingCache } from '../../core/cache.ts'
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
  readonly body: Uint8Array
  /** The owner of the body overwrites it later. */
  readonly isLent?: boolean
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
   * an earlier epoch, and, in a full cache, one that was not requested before.
   */
  add(key: string, answer: CachedAnswer, epoch?: number): ReadyAnswer | undefined
  /** Adds a coded form to the identity form, if that is still cached. */
  addCoded(key: string, answer: ReadyAnswer, coding: Coding, body: Buffer): ReadyForm
  forget(key: string): void
  /** Removes everything, and refuses responses that were begun earlier. */
  clear(): void
  /** Incremented by each `clear`. */
  readonly epoch: number
  readonly maxItemBytes: number
  readonly maxBytes: number
  readonly bytes: number
  readonly items: number
}

type Form = Pick<ReadyForm, 'body' | 'etag'> & Pick<CachedAnswer, 'headers'>

const form = ({ headers, body, etag }: Form): ReadyForm => ({
  head: readyHead(200, headers),
  unchanged: undefined,
  body,
  etag,
})

const readyAnswer = ({ headers, body, isLent = false, etag, isCompressible }: CachedAnswer): ReadyAnswer => ({
  ...form({ headers, body: lasting(body, isLent), etag }),
  isCompressible,
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
  let size = key.length + sizeOfForm(answer.head.headers, answer.body)
  for (const { head, body } of Object.values(answer.coded)) size += sizeOfForm(head.headers, body)
  return size
}

const sizeOfForm = (headers: readonly string[], body: Uint8Array): number =>
  body.byteLength + entryBytes + 3 * headers.reduce((sum, { length }) => sum + length + 2, 0)

export function createResponseCache({
  maxBytes,
  maxItemBytes,
}: {
  readonly maxBytes: number
  readonly maxItemBytes: number
}): ResponseCache {
  // Caching a response copies it, so a response that may be requested only once is refused.
  const answers = maxBytes > 0 ? new AdmittingCache<ReadyAnswer>({ maxBytes, probation: 0 }) : undefined
  let epoch = 0
  return {
    get: (key) => answers?.get(key),
    add(key, answer, begun = epoch) {
      if (!answers || begun !== epoch || answer.body.byteLength > maxItemBytes) return undefined
      const bytes = key.length + sizeOfForm(answer.headers, answer.body)
      return answers.set(key, bytes, () => readyAnswer(answer))
    },
    addCoded(key, answer, coding, body) {
      const headers = codedHeaders(answer.head.headers, coding, body.byteLength)
      const coded = form({ headers, body, etag: codedTag(answer.etag, coding) })
      const kept = answers?.peek(key)
      // The entry may have been purged or replaced meanwhile.
      if (!kept || kept.etag !== answer.etag) return coded
      const grown = { ...kept, coded: { ...kept.coded, [coding]: coded } }
      answers?.set(key, sizeOf(grown, key), () => grown)
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
    maxItemBytes: maxBytes > 0 ? Math.min(maxItemBytes, maxBytes - entryBytes) : 0,
    get bytes() {
      return answers?.bytes ?? 0
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
