// The response cache (`cache.hot`): complete small answers, as the text of their head and body, under the key that
// `Hosts.keyOf` gives.
import { LRUCache } from 'lru-cache'
import { type Coding, codedHeaders, codedTag } from '../codings/codings.ts'
import { type ReadyHead, readyHead } from '../lanes/ready-head.ts'

export type CachedAnswer = {
  /** Names and values in one flat list, as writeHead takes them. */
  readonly headers: readonly string[]
  readonly body: Buffer
  readonly etag: string
  /** It depends on Accept-Encoding. */
  readonly isCompressible: boolean
}

/** One representation. */
export type ReadyForm = {
  readonly head: ReadyHead
  /** The head for a client that has the body; made when one asks. */
  unchanged: ReadyHead | undefined
  readonly body: Buffer
  readonly etag: string
}

/** The plain form, and those in codings beside it: they are counted, forgotten and purged together. */
export type ReadyAnswer = ReadyForm & {
  readonly isCompressible: boolean
  readonly coded: Readonly<Partial<Record<Coding, ReadyForm>>>
}

export interface ResponseCache {
  get(key: string): ReadyAnswer | undefined
  /** Keeps a complete, proved 200 that never changes, and gives it; not an answer that was begun in an earlier epoch. */
  add(key: string, answer: CachedAnswer, epoch?: number): ReadyAnswer | undefined
  /** The same answer in a coding; kept beside the plain one, as long as that is there. */
  addCoded(key: string, answer: ReadyAnswer, coding: Coding, body: Buffer): ReadyForm
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

/** Memory is shared with the tier that keeps the block: a block that is all of its buffer never changes, unless it was lent. */
export const lasting = (bytes: Uint8Array, isLent: boolean): Buffer =>
  !isLent && bytes.byteLength === bytes.buffer.byteLength ? Buffer.from(bytes.buffer) : Buffer.from(bytes)

// Beside the key, the head and the body.
const entryBytes = 1024

/** A client chooses the length of the key, and its path stands in the head again: in its list, its text, and that of a 304. */
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
      // It may have been purged, or made anew, meanwhile.
      if (!kept || kept.etag !== answer.etag) return coded
      const grown = { ...kept, coded: { ...kept.coded, [coding]: coded } }
      // What is larger than all the room would take the plain one along.
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
