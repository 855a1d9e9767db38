// Sends a response: its headers, the requested range, and the bytes at the client's pace.

import type { Representation } from '../../content/formats/format.ts'
import { textOf } from '../../core/cid.ts'
import type { Clock, Soon } from '../../core/clock.ts'
import { headerSafe, oneOf } from '../../core/wire/http.ts'
import { cacheStatus, type RequestRecord } from '../../observe/requests.ts'
import type { Session } from '../../retrieval/session.ts'
import { policyFor } from '../../web/page.ts'
import type { Compression } from '../compression.ts'
import type { ContentPlace } from '../hosts.ts'
import { corsHeaders, corsRequests } from '../wire/cors.ts'
import type { Mode } from '../wire/problem.ts'
import type { RequestContext, RequestTarget } from '../wire/request.ts'
import { type Document, endWhole, notAsPromised, type PendingResponses, writeAll } from '../wire/write.ts'
import type { Tags } from './body.ts'
import { type Coding, codedHeaders, codedTag, rangeFor } from './negotiate.ts'
import { type CodedBody, type Found, type ResponseCache, unchangedHeaders } from './response-cache.ts'
import type { Moved } from './web-body.ts'

/** A request for content. */
export type Asked = Pick<RequestContext, 'request' | 'response' | 'target'> & {
  readonly place: ContentPlace
  readonly session: Pick<Session, 'begun'>
  readonly requestRecord: RequestRecord
  /** The epoch of the response cache at the start of the request. */
  readonly epoch: number
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

type Answer = Tags & Representation

/** The head of a response, and the part of the representation that is its body. */
type Plan = {
  readonly code: number
  readonly headers: Headers
  readonly coding: Coding | undefined
  readonly isCompressible: boolean
  readonly from: number
  /** Undefined if the size is unknown. */
  readonly to: number | undefined
}

const bufferedBytes = 256 * 1024

export function sendCached(
  { response, requestRecord, deps }: Pick<Asked, 'response' | 'requestRecord' | 'deps'>,
  { status, head, body }: Found,
): void {
  requestRecord.tierHit('responses')
  response.writeHead(status, [...head.headers])
  if (body) endWhole(response, body, deps)
  else response.end()
}

/** `etag`: of the client's copy. */
export function notModified(asked: Asked, tags: Tags, etag: string): void {
  const { response, deps } = asked
  const headers = headersOf(asked, { ...tags, type: '', ranges: true }, deps.compression.covers(tags))
  response.writeHead(304, unchangedHeaders(headers, etag)).end()
}

export const moved = (
  { place, requestRecord }: Pick<Asked, 'place' | 'requestRecord'>,
  { status, location, varies }: Moved,
): Document => ({
  status,
  headers: {
    Location: location,
    'X-Ipfs-Path': headerSafe(place.path),
    'Cache-Status': cacheStatus(requestRecord),
    ...(place.namespace === 'ipfs' && { 'Cache-Control': 'public, max-age=604800' }),
    ...(varies && { Vary: 'Accept' }),
  },
})

/** At once if all bytes are in memory and are sent as they are. */
export function deliver(asked: Asked, answer: Answer): Soon<void> {
  const { request, response, deps } = asked
  const { size, complete, status = 200 } = answer
  const mayBePart = request.method === 'GET' && answer.ranges && status === 200
  const range = mayBePart && size !== undefined ? rangeFor(request.headers, answer.etag, size) : undefined
  const isCompressible = deps.compression.covers(answer)
  const headers = headersOf(asked, answer, isCompressible)
  if (range) headers.push('Content-Range', `bytes ${range.from}-${range.to}/${size}`)
  // A request with a Range header always gets identity, even if the range is then ignored. Without a length or
  // chunks, a downstream cache would keep a truncated file as complete.
  const mayBeCoded =
    isCompressible &&
    request.headers.range === undefined &&
    (complete !== undefined || size === undefined || request.httpVersion !== '1.0')
  const coding = mayBeCoded ? deps.compression.accepted(oneOf(request.headers['accept-encoding'])).best : undefined
  const [from, to] = range ? [range.from, range.to + 1] : [0, size]
  const plan: Plan = { code: range ? 206 : status, headers, coding, isCompressible, from, to }
  if (complete) return deliverComplete(asked, answer, plan, complete)
  if (request.method !== 'HEAD') return deliverPieces(asked, answer, plan)
  response.writeHead(plan.code, coding ? codedHeaders(headers, coding, undefined) : sized(plan)).end()
}

/** The headers of the identity form. */
const sized = ({ headers, from, to }: Plan): Headers =>
  to === undefined ? headers : [...headers, 'Content-Length', String(to - from)]

function deliverComplete(asked: Asked, answer: Answer, plan: Plan, complete: Uint8Array): Soon<void> {
  if (plan.coding) return deliverCoded(asked, answer, plan, complete, plan.coding)
  const { request, response, deps } = asked
  const headers = sized(plan)
  response.writeHead(plan.code, headers)
  // After writeHead, so that Node has validated these headers; cached responses skip that check.
  keepReady(asked, answer, { ...plan, headers }, complete)
  if (request.method === 'HEAD') return void response.end()
  endWhole(response, complete.subarray(plan.from, plan.to), deps, answer.release)
}

/**
 * Compresses bytes in memory, sends them, and caches the result with the identity form. Sends
 * identity above the compression limit.
 */
async function deliverCoded(
  asked: Asked,
  answer: Answer,
  plan: Plan,
  complete: Uint8Array,
  coding: Coding,
): Promise<void> {
  const { request, response, place, target, deps } = asked
  const { hot, compression } = deps
  // Coalesce plain responses only: others, such as listings, may have the same ETag and different
  // bytes for different paths.
  const name = answer.isPlain ? codedTag(answer.etag, coding) : undefined
  // Another request may have cached it, which has the same bytes with any query.
  const key = answer.isPlain ? place.cacheKey?.replace(`?${target.search}`, '') : undefined
  const cached = key === undefined ? undefined : hot.get(key)
  const known = cached?.etag === answer.etag ? cached.coded[coding]?.body : undefined
  const made = known ?? (await compression.compress(complete, coding, name))
  if (!made) return deliverComplete(asked, answer, { ...plan, coding: undefined }, complete)
  response.writeHead(plan.code, codedHeaders(plan.headers, coding, made.byteLength))
  if (!known) keepReady(asked, answer, { ...plan, headers: sized(plan) }, complete, { coding, body: made })
  answer.release?.()
  if (request.method === 'HEAD') return void response.end()
  endWhole(response, made, deps)
}

/** Streams a body, compressed if the limit allows; a small one of unknown size is sent as a whole. */
async function deliverPieces(asked: Asked, answer: Answer, plan: Plan): Promise<void> {
  const { response, deps, session } = asked
  const { code, headers, coding, from, to } = plan
  const size = to === undefined ? undefined : to - from
  const pieces = answer.read(from, to ?? 0)[Symbol.asyncIterator]()
  const start: Uint8Array[] = []
  let bytes = 0
  // Waits for the first piece before it sends headers: until then a failure can still be an error
  // status.
  let next = await pieces.next()
  for (; size === undefined && !next.done && bytes <= bufferedBytes; next = await pieces.next()) {
    start.push(next.value)
    bytes += next.value.byteLength
  }
  session.begun()
  // Small bodies are compressed too: a HEAD cannot know the size and has already promised the coding.
  if (size === undefined && next.done)
    return deliverComplete(asked, answer, { ...plan, to: bytes }, Buffer.concat(start))
  const all = continued(start, next, pieces)
  const coded = coding && deps.compression.stream(exactly(all, size), coding)
  try {
    response.writeHead(code, coding && coded ? codedHeaders(headers, coding, undefined) : sized(plan))
    await writeAll(response, coded || all, coded ? deps : { ...deps, size })
  } finally {
    if (coded) coded.close()
  }
}

async function* continued(
  start: readonly Uint8Array[],
  first: IteratorResult<Uint8Array>,
  pieces: AsyncIterator<Uint8Array>,
): AsyncGenerator<Uint8Array> {
  try {
    yield* start
    for (let next = first; !next.done; next = await pieces.next()) yield next.value
  } finally {
    await pieces.return?.()
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

const variesBy = {
  format: { plain: 'Accept', coded: 'Accept, Accept-Encoding' },
  none: { plain: undefined, coded: 'Accept-Encoding' },
} as const

/** For responses made for programs: a browser that opens one runs and loads nothing. */
const programsOnly = "default-src 'none'; sandbox"

export const immutable = 'public, max-age=29030400, immutable'

function headersOf(
  { place, target, requestRecord, deps }: Asked,
  body: Tags & Pick<Representation, 'type' | 'policy' | 'save' | 'ranges'>,
  isCompressible: boolean,
): Headers {
  const { own } = place
  const { roots, location } = body
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
    ...shared,
  ]
  if (roots.length > 0) headers.push('X-Ipfs-Roots', roots.map(textOf).join(','))
  // Pages on an origin of their own set their Referrer-Policy themselves.
  if (!own) headers.push('Referrer-Policy', 'no-referrer')
  if (policy !== undefined) headers.push('Content-Security-Policy', policy)
  if (varies !== undefined) headers.push('Vary', varies)
  if (saved !== undefined) headers.push('Content-Disposition', saved)
  if (body.ageSeconds) headers.push('Age', String(body.ageSeconds))
  if (location !== undefined) headers.push('Content-Location', location)
  if (isWeb) headers.push(...sharedOnWeb)
  headers.push('Cache-Status', cacheStatus(requestRecord))
  return place.provider ? headers.filter((_, at) => !forBrowsers.has(headers[at - (at % 2)] as string)) : headers
}

const shared = Object.entries(corsHeaders).flat()
const sharedOnWeb = Object.entries(corsRequests).flat()

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
  { deps, place, target, epoch }: Asked,
  { etag, release, isPlain }: Answer,
  { code, headers, isCompressible }: Plan,
  body: Uint8Array,
  coded?: CodedBody,
): void {
  if (code !== 200 || !isPlain || place.cacheKey === undefined || body.byteLength > deps.hot.maxItemBytes) return
  if (target.search !== '' || !isNormalized(target.path)) return
  const kept = headers.with(headers.indexOf('Cache-Status') + 1, 'cidgate; hit; detail=responses')
  const answer = { headers: kept, body, isLent: release !== undefined, etag, isCompressible, coded }
  deps.hot.add(place.cacheKey, answer, epoch)
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
