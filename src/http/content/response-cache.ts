// The response cache (`cache.responses`): complete small responses as text of their head and body,
// for the front, which writes them itself, and for requests from `node:http`. A scan of the headers
// decides if a request wants the plain response; any other takes the normal route.
import { STATUS_CODES } from 'node:http'
import { AdmittingCache, remembered } from '../../core/cache.ts'
import { isHost } from '../../core/wire/http.ts'
import type { CachedCounts } from '../../observe/requests.ts'
import type { Compression } from '../compression.ts'
import type { Limits } from '../limits.ts'
import type { NoteCached } from '../wire/exchange.ts'
import type { RequestHead, RequestIds } from '../wire/request.ts'
import { type Coding, codedHeaders, codedTag, type FormatChoice, formatFor, plainOnly, tagOfCopy } from './negotiate.ts'

type CachedAnswer = {
  /** A flat list of names and values, as writeHead accepts it. */
  readonly headers: readonly string[]
  readonly body: Uint8Array
  /** The owner of the body overwrites it later. */
  readonly isLent: boolean
  readonly etag: string
  /** The response depends on Accept-Encoding. */
  readonly isCompressible: boolean
  /** The body in the coding of this response. */
  readonly coded?: CodedBody | undefined
}

export type CodedBody = { readonly coding: Coding; readonly body: Buffer }

/** A head that is sent many times. */
type ReadyHead = {
  readonly status: number
  /** A flat list of names and values, as writeHead accepts it. */
  readonly headers: readonly string[]
  /** The status line and the headers, made on first use. */
  lines: string | undefined
}

/** A representation in one coding. */
type ReadyForm = ReadyHead & {
  /** The head of a 304, made on first use. */
  unchanged: ReadyHead | undefined
  readonly body: Buffer
  readonly etag: string
}

/** The identity form with its coded forms, which are counted, evicted and purged together. */
type ReadyAnswer = ReadyForm & {
  readonly isCompressible: boolean
  readonly coded: Readonly<Partial<Record<Coding, ReadyForm>>>
}

export type ResponseCache = ReturnType<typeof createResponseCache>

const form = (headers: readonly string[], body: Buffer, etag: string): ReadyForm => ({
  ...{ status: 200, headers, lines: undefined },
  unchanged: undefined,
  body,
  etag,
})

/**
 * Shares memory with the tier that holds the block if possible: a block that spans its buffer never
 * changes, unless the buffer is reusable.
 */
export const lasting = (bytes: Uint8Array, isLent: boolean): Buffer =>
  !isLent && bytes.byteLength === bytes.buffer.byteLength ? Buffer.from(bytes.buffer) : Buffer.from(bytes)

// Overhead of an entry in addition to key, head and body.
const entryBytes = 1024

/** The client determines the length of its path, which is repeated in the head as list, as text and in the 304. */
const sizeOf = ({ headers, body }: Pick<CachedAnswer, 'headers' | 'body'>): number =>
  body.byteLength + entryBytes + 3 * headers.reduce((sum, { length }) => sum + length + 2, 0)

export function createResponseCache({
  maxBytes,
  maxItemBytes,
}: {
  readonly maxBytes: number
  readonly maxItemBytes: number
}) {
  // Caching a response copies it, so a response that may be requested only once is refused.
  const answers = maxBytes > 0 ? new AdmittingCache<ReadyAnswer>({ maxBytes, probation: 0 }) : undefined
  let epoch = 0
  return {
    get: (key: string) => answers?.get(key),
    /**
     * Caches a complete, verified, immutable 200; refuses a response that was begun in an earlier
     * epoch, and, in a full cache, one that was not requested before.
     */
    add(key: string, answer: CachedAnswer, begun = epoch): void {
      if (!answers || begun !== epoch || answer.body.byteLength > maxItemBytes) return
      const { headers, body, isLent, etag, isCompressible, coded } = answer
      const known = answers.peek(key)
      const others = known?.etag === etag ? known.coded : {}
      const forms = coded ? { ...others, [coded.coding]: codedForm(answer, coded) } : others
      const bytes = [answer, ...Object.values(forms)].reduce((sum, one) => sum + sizeOf(one), key.length)
      answers.set(key, bytes, () => ({
        ...form(headers, lasting(body, isLent), etag),
        isCompressible,
        coded: forms,
      }))
    },
    /** Removes everything, and refuses responses that were begun earlier. */
    clear() {
      epoch++
      answers?.clear()
    },
    /** Incremented by each `clear`. */
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

const codedForm = ({ headers, etag }: CachedAnswer, { coding, body }: CodedBody): ReadyForm =>
  form(codedHeaders(headers, coding, body.byteLength), body, codedTag(etag, coding))

function linesOf(head: ReadyHead): string {
  const { status, headers } = head
  if (head.lines !== undefined) return head.lines
  const pieces = [`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n`]
  for (let at = 0; at < headers.length; at += 2)
    pieces.push(headers[at] as string, ': ', headers[at + 1] as string, '\r\n')
  return (head.lines = pieces.join(''))
}

/** A response that is counted already and has to be written. */
export type CachedResponse = {
  /** The status line and the headers, except those about the request or the connection. */
  readonly lines: string
  readonly requestId: string
  /** Undefined means no body. */
  readonly body: Buffer | undefined
  /**
   * Counts a response that its client does not read at once; call the returned function when it was
   * read.
   */
  readonly holdPending: () => () => void
  /** The write timeout: the maximum time in which the client reads nothing. */
  readonly stalledMs: number
}

export type CachedResponses = ReturnType<typeof createCachedResponses>

/** The headers of a 304: the client has the others with its copy. */
const notModifiedHeaders: ReadonlySet<string> = new Set([
  'etag',
  'cache-control',
  'age',
  'content-location',
  'vary',
  'x-ipfs-path',
  'x-ipfs-roots',
  'cache-status',
  'access-control-allow-origin',
  'access-control-expose-headers',
])

/** A response in the cache. */
export type Found = { readonly head: ReadyHead; readonly status: 200 | 304; readonly body: Buffer | undefined }

export function createCachedResponses({
  hot,
  compression,
  limits,
  stalledMs,
  requestIds,
  keyOf,
  counts,
  notes,
}: {
  readonly hot: ResponseCache
  readonly compression: Pick<Compression, 'accepted'>
  readonly limits: Limits
  readonly stalledMs: number
  readonly requestIds: RequestIds
  readonly keyOf: (request: RequestHead) => string | undefined
  readonly counts: CachedCounts
  /** The access log and the spans. */
  readonly notes: readonly NoteCached[]
}) {
  const format = remembered(formatFor)
  const isValidHost = remembered(isHost)

  /** Undefined if the request needs another response, or a coding that is not cached. */
  function find(request: RequestHead, key: string | undefined): Found | undefined {
    const { method } = request
    const answer = key === undefined ? undefined : hot.get(key)
    if (!answer || (method !== 'GET' && method !== 'HEAD')) return undefined
    const plain = plainRequest(request.rawHeaders, format, isValidHost)
    if (!plain) return undefined
    const accepted = answer.isCompressible ? compression.accepted(plain.acceptEncoding) : plainOnly
    const { best } = accepted
    const etag = plain.ifNoneMatch && tagOfCopy(plain.ifNoneMatch, answer.etag, accepted)
    if (etag) return { head: unchangedHead(formWith(answer, etag)), status: 304, body: undefined }
    const form = best === undefined ? answer : answer.coded[best]
    return form && { head: form, status: 200, body: method === 'GET' ? form.body : undefined }
  }

  return {
    find,
    /** Finds a response within the client's rate, and counts it. */
    take(request: RequestHead): CachedResponse | undefined {
      const found = find(request, keyOf(request))
      if (!found || limits.refuses(request)) return undefined
      const { head, status, body } = found
      const requestId = requestIds.next(request)
      const bytes = body?.byteLength ?? 0
      if (request.method === 'GET') counts[status === 200 ? 'get' : 'getUnchanged']++
      else counts[status === 200 ? 'head' : 'headUnchanged']++
      counts.bytes += bytes
      for (const note of notes) note(request, { requestId, status, bytes })
      return { lines: linesOf(head), requestId, body, holdPending: limits.holdPending, stalledMs }
    },
  }
}

function unchangedHead(form: ReadyForm): ReadyHead {
  form.unchanged ??= { status: 304, headers: unchangedHeaders(form.headers, form.etag), lines: undefined }
  return form.unchanged
}

/** The client's copy may be in a coding that is no longer cached. */
function formWith(answer: ReadyAnswer, etag: string): ReadyForm {
  if (etag === answer.etag) return answer
  const coded = Object.values(answer.coded).find((form) => form.etag === etag)
  return coded ?? { ...answer, etag, unchanged: undefined }
}

export function unchangedHeaders(headers: readonly string[], etag: string): string[] {
  const kept: string[] = []
  for (let index = 0; index < headers.length; index += 2) {
    const name = headers[index] as string
    if (name === 'ETag') kept.push(name, etag)
    else if (notModifiedHeaders.has(name.toLowerCase())) kept.push(name, headers[index + 1] as string)
  }
  return kept
}

type PlainRequest = { readonly ifNoneMatch: string | undefined; readonly acceptEncoding: string | undefined }

/** Undefined if it asks for something else, or has headers that need full validation. */
function plainRequest(
  rawHeaders: readonly string[],
  format: (accept: string) => FormatChoice,
  isValidHost: (host: string) => boolean,
): PlainRequest | undefined {
  let ifNoneMatch: string | undefined
  let acceptEncoding: string | undefined
  let hosts = 0
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const value = rawHeaders[index + 1] as string
    switch ((rawHeaders[index] as string).toLowerCase()) {
      case 'host':
        if (!isValidHost(value)) return undefined
        hosts++
        break
      case 'accept':
        if (format(value) !== 'file') return undefined
        break
      case 'if-none-match':
        ifNoneMatch = value
        break
      case 'cache-control':
        if (value.includes('no-cache')) return undefined
        break
      case 'accept-encoding':
        // Node joins repeated headers, which the fast path does not.
        if (acceptEncoding !== undefined) return undefined
        acceptEncoding = value
        break
      case 'range':
      case 'if-match':
      case 'expect':
      case 'content-length':
      case 'service-worker':
      case 'transfer-encoding':
        return undefined
    }
  }
  return hosts === 1 ? { ifNoneMatch, acceptEncoding } : undefined
}
