// Sends a response: its headers, the requested range, and the bytes at the client's pace.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import type { Representation } from '../../content/formats/format.ts'
import { textOf } from '../../core/cid.ts'
import type { Clock, Soon } from '../../core/clock.ts'
import { oneOf } from '../../core/wire/http.ts'
import { cacheStatus, type RequestRecord } from '../../observe/request-record.ts'
import type { Session } from '../../retrieval/session.ts'
import { policyFor } from '../../web/page.ts'
import { type AboutBody, type Coding, type Compression, codedHeaders, codedTag } from '../compression.ts'
import type { ContentPlace } from '../hosts.ts'
import { corsHeaders, corsRequests } from '../wire/cors.ts'
import type { Mode } from '../wire/problem.ts'
import { HttpRefusal, type RequestContext, type RequestTarget } from '../wire/request.ts'
import { cutWhenStalled, endWith, notAsPromised, onceSent, type PendingResponses, writeAll } from '../wire/write.ts'
import { parseRange, type Range, rangeApplies } from './negotiate.ts'
import { type ReadyAnswer, type ResponseCache, unchangedHeaders } from './response-cache.ts'
import type { Moved } from './web-body.ts'

export type OutgoingAnswer = Pick<RequestContext, 'request' | 'response' | 'target'> & {
  readonly place: ContentPlace
  readonly session: Pick<Session, 'begun'>
  readonly requestRecord: RequestRecord
  /** The epoch of the response cache at the start of the request. */
  readonly epoch: number
  readonly roots: readonly (CID | string)[]
  /** Content-Location: the URL of this representation without an Accept header. */
  readonly location?: string | undefined
  /** The status of a site's error page (`_redirects`). */
  readonly status?: number | undefined
  readonly deps: {
    readonly hot: ResponseCache
    readonly compression: Compression
    readonly clock: Clock
    readonly mode: Mode
    readonly stalledMs: number
    readonly pendingResponses: PendingResponses
  }
}

/** A flat list of names and values, as writeHead accepts it. */
type Headers = string[]

const bufferedBytes = 256 * 1024

export function notModified(
  delivery: OutgoingAnswer,
  body: Pick<Representation, 'etag' | 'cacheControl' | 'ageSeconds' | 'varies'> & AboutBody,
): void {
  const { response, deps } = delivery
  const headers = headersOf(delivery, { ...body, type: '', ranges: true }, deps.compression.covers(body))
  response.writeHead(304, unchangedHeaders(headers, body.etag)).end()
}

export function moved(delivery: Pick<OutgoingAnswer, 'response' | 'place' | 'requestRecord'>, to: Moved): void {
  const { response, place, requestRecord } = delivery
  for (const [name, value] of corsHeaders) response.setHeader(name, value)
  response.setHeader('Location', to.location)
  response.setHeader('X-Ipfs-Path', headerSafe(place.path))
  response.setHeader('Cache-Status', cacheStatus(requestRecord))
  if (place.namespace === 'ipfs') response.setHeader('Cache-Control', 'public, max-age=604800')
  if (to.varies) response.setHeader('Vary', 'Accept')
  response.writeHead(to.status, { 'Content-Length': '0' }).end()
}

/** At once if all bytes are in memory and are sent as they are. */
export function deliver(delivery: OutgoingAnswer, body: Representation): Soon<void> {
  const { request, response, deps, status = 200 } = delivery
  const { size, complete } = body
  const mayBePart = request.method === 'GET' && body.ranges && status === 200
  const range = mayBePart && size !== undefined ? rangeOf(request, body, size) : undefined
  const [from, to] = range ? [range.from, range.to + 1] : [0, size ?? 0]
  const isCompressible = deps.compression.covers(body)
  const wanted = isCompressible ? codingFor(delivery) : undefined
  const headers = headersOf(delivery, body, isCompressible)
  if (size !== undefined) headers.push('Content-Length', String(to - from))
  if (complete && wanted) return deliverCoded(delivery, headers, body, { complete, coding: wanted })
  // Without a length or chunks, a downstream cache would keep a truncated file as complete.
  const coding = size !== undefined && request.httpVersion === '1.0' ? undefined : wanted
  if (range) headers.push('Content-Range', `bytes ${range.from}-${range.to}/${size}`)
  const code = range ? 206 : status
  if (complete) return deliverComplete(delivery, body, { complete, from, to, code, headers, isCompressible })
  if (request.method === 'HEAD')
    return void response.writeHead(code, coding ? codedHeaders(headers, coding, undefined) : headers).end()
  if (size === undefined) return deliverUnsized(delivery, body, { code, headers, coding, size }, isCompressible)
  return deliverPieces(delivery, body, { code, headers, coding, size: to - from }, from)
}

async function deliverPieces(
  delivery: OutgoingAnswer,
  body: Representation,
  streamed: Streamed & { readonly size: number },
  from: number,
): Promise<void> {
  // Waits for the first piece before it sends headers: until then a failure can still be an error
  // status.
  const pieces = body.read(from, from + streamed.size)[Symbol.asyncIterator]()
  const first = await pieces.next()
  delivery.session.begun()
  await send(delivery, prepend(first, pieces), streamed)
}

type CompleteAnswer = {
  readonly complete: Uint8Array
  readonly from: number
  readonly to: number
  readonly code: number
  readonly headers: Headers
  readonly isCompressible: boolean
}

function deliverComplete(delivery: OutgoingAnswer, body: Representation, answer: CompleteAnswer): void {
  const { request, response, deps } = delivery
  const { complete, from, to, code, headers, isCompressible } = answer
  response.writeHead(code, headers)
  // After writeHead, so that Node has validated these headers; cached responses skip that check.
  if (code === 200) keepReady(delivery, headers, body, { complete, isCompressible })
  if (request.method === 'HEAD') return void response.end()
  const isCopied = endWith(response, complete.subarray(from, to))
  if (isCopied) body.release?.()
  else if (body.release) onceSent(response, body.release)
  cutWhenStalled(
    response,
    deps.stalledMs,
    isCopied ? undefined : { pendingResponses: deps.pendingResponses, buffer: complete.buffer },
  )
}

/**
 * Compresses bytes in memory, sends them, and caches the result with the identity form. Sends
 * identity above the compression limit.
 */
async function deliverCoded(
  delivery: OutgoingAnswer,
  headers: Headers,
  body: Representation,
  { complete, coding }: { readonly complete: Uint8Array; readonly coding: Coding },
): Promise<void> {
  const { request, response, place, target, deps, status = 200 } = delivery
  const { hot, compression } = deps
  // Coalesce plain responses only: others, such as listings, may have the same ETag and different
  // bytes for different paths.
  const name = body.isPlain ? codedTag(body.etag, coding) : undefined
  // Another request may have cached it, which has the same bytes with any query.
  const key = body.isPlain ? place.cacheKey?.replace(`?${target.search}`, '') : undefined
  const cached = key === undefined ? undefined : hot.get(key)
  const known = cached?.etag === body.etag ? cached.coded[coding]?.body : undefined
  const made = known ?? (await compression.compress(complete, coding, name))
  const rest = { complete, from: 0, to: complete.byteLength, code: status, headers, isCompressible: true }
  if (!made) return deliverComplete(delivery, body, rest)
  response.writeHead(status, codedHeaders(headers, coding, made.byteLength))
  if (status === 200 && !known && place.cacheKey !== undefined) {
    const kept = keepReady(delivery, headers, body, rest)
    if (kept) hot.addCoded(place.cacheKey, kept, coding, made)
  }
  body.release?.()
  if (request.method === 'HEAD') return void response.end()
  endWith(response, made)
  cutWhenStalled(response, deps.stalledMs)
}

/** Sends a body of unknown size: buffers a small one to set Content-Length, streams a large one. */
async function deliverUnsized(
  delivery: OutgoingAnswer,
  body: Representation,
  streamed: Streamed,
  isCompressible: boolean,
): Promise<void> {
  const { code, headers, coding } = streamed
  const pieces = body.read(0, 0)[Symbol.asyncIterator]()
  const start: Uint8Array[] = []
  let bytes = 0
  let next = await pieces.next()
  for (; !next.done && bytes <= bufferedBytes; next = await pieces.next()) {
    start.push(next.value)
    bytes += next.value.byteLength
  }
  delivery.session.begun()
  if (next.done) {
    headers.push('Content-Length', String(bytes))
    const complete = Buffer.concat(start)
    // Compress small bodies too: a HEAD cannot know the size and has already promised the coding.
    if (coding) return deliverCoded(delivery, headers, body, { complete, coding })
    return deliverComplete(delivery, body, { complete, from: 0, to: bytes, code, headers, isCompressible })
  }
  const rest = prepend(next, pieces)
  const all = (async function* () {
    yield* start
    yield* rest
  })()
  await send(delivery, all, streamed)
}

type Streamed = {
  readonly code: number
  readonly headers: Headers
  readonly coding: Coding | undefined
  /** Undefined if the size is unknown. */
  readonly size: number | undefined
}

/** Streams a response, compressed if the limit allows. */
async function send(
  { response, deps }: OutgoingAnswer,
  pieces: AsyncGenerator<Uint8Array>,
  { code, headers, coding, size }: Streamed,
): Promise<void> {
  const coded = coding && deps.compression.stream(exactly(pieces, size), coding)
  if (!coding || !coded) {
    response.writeHead(code, headers)
    return void (await writeAll(response, pieces, { ...deps, size }))
  }
  try {
    response.writeHead(code, codedHeaders(headers, coding, undefined))
    await writeAll(response, coded, deps)
  } finally {
    coded.close()
  }
}

/** Verifies the size, because compressed bytes do not show that some are missing. */
async function* exactly(pieces: AsyncIterable<Uint8Array>, size: number | undefined): AsyncGenerator<Uint8Array> {
  let bytes = 0
  for await (const piece of pieces) {
    bytes += piece.byteLength
    yield piece
  }
  if (size !== undefined && bytes !== size) throw notAsPromised(bytes, size)
}

/**
 * The content coding, or undefined for identity. A request with a Range header always gets
 * identity, even if the range is then ignored.
 */
function codingFor({ request, deps }: OutgoingAnswer): Coding | undefined {
  const { range, 'accept-encoding': header } = request.headers
  return range === undefined ? deps.compression.accepted(oneOf(header)).best : undefined
}

async function* prepend(
  first: IteratorResult<Uint8Array>,
  pieces: AsyncIterator<Uint8Array>,
): AsyncGenerator<Uint8Array> {
  try {
    for (let next = first; !next.done; next = await pieces.next()) yield next.value
  } finally {
    await pieces.return?.()
  }
}

const variesBy = {
  format: { plain: 'Accept', coded: 'Accept, Accept-Encoding' },
  none: { plain: undefined, coded: 'Accept-Encoding' },
} as const

/** For responses made for programs: a browser that opens one runs and loads nothing. */
const programsOnly = "default-src 'none'; sandbox"

export const immutable = 'public, max-age=29030400, immutable'

function headersOf(
  { place, target, roots, requestRecord, location, deps }: OutgoingAnswer,
  body: Pick<Representation, 'etag' | 'type' | 'cacheControl' | 'ageSeconds' | 'varies' | 'policy' | 'save' | 'ranges'>,
  isCompressible: boolean,
): Headers {
  const { own } = place
  const isWeb = deps.mode === 'web'
  const policy = body.policy ?? (isWeb ? policyFor(body.type, { own }) : own ? undefined : programsOnly)
  // Without a format in the URL, Accept may select another representation (RFC 9110 §12.5.5).
  const byFormat = body.varies || !target.query.has('format') ? 'format' : 'none'
  const varies = variesBy[byFormat][isCompressible ? 'coded' : 'plain']
  const saved = dispositionOf(target, body.save)
  const headers: Headers = [
    'Content-Type',
    body.type,
    'ETag',
    body.etag,
    'Cache-Control',
    body.cacheControl ?? immutable,
    'Accept-Ranges',
    body.ranges ? 'bytes' : 'none',
    'X-Ipfs-Path',
    headerSafe(place.path),
    'X-Content-Type-Options',
    'nosniff',
    'Cross-Origin-Resource-Policy',
    'cross-origin',
  ]
  if (roots.length > 0) headers.push('X-Ipfs-Roots', roots.map(spelled).join(','))
  // Pages on an origin of their own set their Referrer-Policy themselves.
  if (!own) headers.push('Referrer-Policy', 'no-referrer')
  if (policy !== undefined) headers.push('Content-Security-Policy', policy)
  if (varies !== undefined) headers.push('Vary', varies)
  if (saved !== undefined) headers.push('Content-Disposition', saved)
  for (const [name, value] of corsHeaders) headers.push(name, value)
  if (body.ageSeconds) headers.push('Age', String(body.ageSeconds))
  if (location !== undefined) headers.push('Content-Location', location)
  if (isWeb) for (const [name, value] of corsRequests) headers.push(name, value)
  headers.push('Cache-Status', cacheStatus(requestRecord))
  return place.provider ? headers.filter((_, at) => !forBrowsers.has(headers[at - (at % 2)] as string)) : headers
}

const spelled = (root: CID | string): string => (typeof root === 'string' ? root : textOf(root))

/**
 * Headers left out for other nodes: they accept at most 2 KiB of headers, and read none of these.
 * Some are as long as the requested path.
 */
const forBrowsers: ReadonlySet<string> = new Set([
  'Access-Control-Allow-Headers',
  'Access-Control-Allow-Methods',
  'Access-Control-Expose-Headers',
  'Content-Disposition',
  'Content-Location',
  'Content-Security-Policy',
  'Referrer-Policy',
  'X-Ipfs-Path',
  'X-Ipfs-Roots',
])

/**
 * The client's `filename` and `download` override the format's name; without any of them there is
 * no Content-Disposition.
 */
function dispositionOf({ query }: RequestTarget, save: Representation['save']): string | undefined {
  const filename = query.get('filename') ?? undefined
  const isDownload = query.get('download') === 'true'
  if (!isDownload && filename === undefined && save === undefined) return undefined
  return disposition(isDownload ? 'attachment' : (save?.kind ?? 'inline'), filename ?? save?.filename)
}

function rangeOf({ headers }: IncomingMessage, { etag }: Representation, size: number): Range | undefined {
  const ifRange = headers['if-range']
  if (!rangeApplies(oneOf(ifRange), etag)) return undefined
  const range = parseRange(headers.range, size)
  if (range !== 'unsatisfiable') return range
  throw new HttpRefusal('malformed', `range not satisfiable: there are ${size} bytes`, {
    source: 'client',
    status: 416,
    size,
  })
}

/**
 * True if the path is in normal form (RFC 3986 §6.2.2): no unreserved character is percent-encoded.
 * Otherwise `%62` and `b` would be two cache keys for one file.
 */
const isNormalized = (path: string): boolean => !/%(?:2[DE]|3\d|4[1-9A-F]|5[\dAF]|6[1-9A-F]|7[\dAE]|.?[a-f])/.test(path)

/**
 * Caches responses to URLs without a query only: variants of the query could fill the cache with
 * copies.
 */
function keepReady(
  { deps, place, target, epoch }: OutgoingAnswer,
  headers: Headers,
  { etag, release, isPlain }: Representation,
  { complete, isCompressible }: Pick<CompleteAnswer, 'complete' | 'isCompressible'>,
): ReadyAnswer | undefined {
  if (!isPlain || place.cacheKey === undefined) return undefined
  if (complete.byteLength > deps.hot.maxItemBytes || target.search !== '' || !isNormalized(target.path))
    return undefined
  const kept = headers.with(headers.indexOf('Cache-Status') + 1, 'cidgate; hit; detail=responses')
  const answer = { headers: kept, body: complete, isLent: release !== undefined, etag, isCompressible }
  return deps.hot.add(place.cacheKey, answer, epoch)
}

/** Encodes a path for a header: everything except printable ASCII is percent-encoded. */
export function headerSafe(path: string): string {
  return path.toWellFormed().replace(/[^\x21-\x7e]/gu, encodeURIComponent)
}

/**
 * RFC 6266: an ASCII name for every client, and the exact one for clients that support RFC 8187.
 * Never a path, never a second header.
 */
export function disposition(kind: 'inline' | 'attachment', filename: string | undefined): string {
  const name = filename
    ?.replace(/[\p{Cc}\p{Cf}]/gu, '')
    .split(/[/\\]/)
    .at(-1)
    ?.slice(0, 255)
  if (!name) return kind
  const ascii = name.replace(/[^\x20-\x7e]/g, '_').replace(/["\\]/g, '_')
  const exact = encodeURIComponent(name.toWellFormed()).replace(
    /['()*]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `${kind}; filename="${ascii}"; filename*=UTF-8''${exact}`
}
