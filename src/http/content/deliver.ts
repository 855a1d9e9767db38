// Sends an answer: its headers, the range that the client wants, and the bytes at the client's pace.

import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import type { Representation } from '../../content/representation.ts'
import type { Clock } from '../../core/clock.ts'
import { oneOf } from '../../core/header.ts'
import type { Account } from '../../observe/account.ts'
import type { Session } from '../../retrieval/session.ts'
import { policyFor } from '../../web/sandbox.ts'
import { cacheStatus } from '../wire/cache-status.ts'
import { corsHeaders, corsRequests } from '../wire/cors.ts'
import type { Mode } from '../wire/problem.ts'
import { HttpRefusal } from '../wire/refusal.ts'
import type { RequestContext } from '../wire/request-context.ts'
import type { RequestTarget } from '../wire/request-target.ts'
import { cutWhenStalled, endWith, onceSent, writeAll } from '../wire/write.ts'
import { rangeApplies } from './conditional.ts'
import type { ContentPlace } from './content-place.ts'
import { contentHeaders, disposition, headerSafe, programsOnly } from './headers.ts'
import { parseRange, type Range } from './range.ts'
import { lasting, type ResponseCache } from './response-cache.ts'
import type { Moved } from './web-body.ts'

export type OutgoingAnswer = Pick<RequestContext, 'request' | 'response' | 'target'> & {
  readonly place: ContentPlace
  readonly session: Pick<Session, 'begun'>
  readonly account: Account
  /** The epoch of the response cache when the request began. */
  readonly epoch: number
  readonly roots: readonly (CID | string)[]
  /** The URL that gives this representation without an Accept header (Content-Location). */
  readonly location?: string | undefined
  /** The status of an error page of a site (`_redirects`). */
  readonly status?: number | undefined
  readonly deps: { readonly hot: ResponseCache; readonly clock: Clock; readonly mode: Mode; readonly stalledMs: number }
}

/** Names and values in one list, as writeHead takes them. */
type Headers = string[]

const bufferedBytes = 256 * 1024

// Not in a 304: the browser has the bytes, and these headers with them.
const ofBytes: ReadonlySet<string> = new Set(['Content-Type', 'Content-Security-Policy', 'Accept-Ranges'])

export function notModified(
  delivery: OutgoingAnswer,
  body: Pick<Representation, 'etag' | 'cacheControl' | 'ageSeconds' | 'varies'>,
): void {
  const { response } = delivery
  const headers = headersOf(delivery, { ...body, type: '', ranges: true })
  response.writeHead(304, withoutThoseOfBytes(headers)).end()
}

function withoutThoseOfBytes(headers: Headers): Headers {
  const kept: Headers = []
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at] as string
    if (!ofBytes.has(name)) kept.push(name, headers[at + 1] as string)
  }
  return kept
}

/** Redirects to another address. */
export function moved(delivery: Omit<OutgoingAnswer, 'roots'>, to: Moved): void {
  const { response, place, account } = delivery
  for (const [name, value] of corsHeaders) response.setHeader(name, value)
  response.setHeader('Location', to.location)
  response.setHeader('X-Ipfs-Path', headerSafe(place.path))
  response.setHeader('Cache-Status', cacheStatus(account))
  if (place.namespace === 'ipfs') response.setHeader('Cache-Control', 'public, max-age=604800')
  if (to.varies) response.setHeader('Vary', 'Accept')
  response.writeHead(to.status, { 'Content-Length': '0' }).end()
}

export async function deliver(delivery: OutgoingAnswer, body: Representation): Promise<void> {
  if (body.size === undefined) return deliverUnsized(delivery, body)
  const { request, response, session, deps } = delivery
  const { status = 200 } = delivery
  const mayBePart = request.method === 'GET' && body.ranges && status === 200
  const range = mayBePart ? rangeOf(request, body, body.size) : undefined
  const [from, to] = range ? [range.from, range.to + 1] : [0, body.size]
  const headers = headersOf(delivery, body)
  headers.push('Content-Length', String(to - from))
  if (range) headers.push('Content-Range', `bytes ${range.from}-${range.to}/${body.size}`)
  const code = range ? 206 : status
  if (request.method === 'HEAD' && !body.whole) return void response.writeHead(code, headers).end()
  if (body.whole) {
    response.writeHead(code, headers)
    // Behind Node's look at the headers, which hot answers do without.
    if (!range && status === 200 && body.isPlain) keepReady(delivery, headers, body, body.whole)
    if (request.method === 'HEAD') return void response.end()
    const isCopied = endWith(response, body.whole.subarray(from, to))
    if (isCopied) body.release?.()
    else if (body.release) onceSent(response, body.release)
    return void cutWhenStalled(response, deps.stalledMs)
  }
  // Waits for the first piece before it sends headers: until then a failure can still be an error status.
  const pieces = body.read(from, to)[Symbol.asyncIterator]()
  const first = await pieces.next()
  session.begun()
  response.writeHead(code, headers)
  await writeAll(response, behind(first, pieces), { ...deps, size: to - from })
}

/** A small body gets a Content-Length, a large one is sent as it is made; a HEAD makes no body. */
async function deliverUnsized(delivery: OutgoingAnswer, body: Representation): Promise<void> {
  const { request, response, session, deps, status = 200 } = delivery
  if (request.method === 'HEAD') return void response.writeHead(status, headersOf(delivery, body)).end()
  const pieces = body.read(0, 0)[Symbol.asyncIterator]()
  const start: Uint8Array[] = []
  let bytes = 0
  let next = await pieces.next()
  for (; !next.done && bytes <= bufferedBytes; next = await pieces.next()) {
    start.push(next.value)
    bytes += next.value.byteLength
  }
  session.begun()
  const headers = headersOf(delivery, body)
  if (next.done) headers.push('Content-Length', String(bytes))
  response.writeHead(status, headers)
  const rest = behind(next, pieces)
  await writeAll(
    response,
    (async function* () {
      yield* start
      yield* rest
    })(),
    deps,
  )
}

async function* behind(
  first: IteratorResult<Uint8Array>,
  pieces: AsyncIterator<Uint8Array>,
): AsyncGenerator<Uint8Array> {
  try {
    for (let next = first; !next.done; next = await pieces.next()) yield next.value
  } finally {
    await pieces.return?.()
  }
}

function headersOf(
  delivery: OutgoingAnswer,
  body: Pick<Representation, 'etag' | 'type' | 'cacheControl' | 'ageSeconds' | 'varies' | 'policy' | 'save' | 'ranges'>,
): Headers {
  const { place, target, roots, account, location, deps } = delivery
  const { own } = place
  const headers: Headers = contentHeaders({
    etag: body.etag,
    type: body.type,
    path: place.path,
    roots,
    acceptsRanges: body.ranges,
    own,
    policy: body.policy ?? (deps.mode === 'web' ? policyFor(body.type, { own }) : own ? undefined : programsOnly),
    // Without a format in the address, Accept may ask for another one under it (RFC 9110 §12.5.5).
    varies: body.varies || !target.query.has('format'),
    ...(body.cacheControl !== undefined && { cacheControl: body.cacheControl }),
    disposition: dispositionOf(target, body.save),
  })
  if (body.ageSeconds) headers.push('Age', String(body.ageSeconds))
  if (location !== undefined) headers.push('Content-Location', location)
  if (deps.mode === 'web') for (const [name, value] of corsRequests) headers.push(name, value)
  headers.push('Cache-Status', cacheStatus(account))
  return headers
}

/**
 * The client's `filename` and `download` win over what the format says; without either there is no Content-Disposition.
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
 * Whether a path has no character encoded that needs it nowhere (RFC 3986 §6.2.2): `%62` for `b` would give one file as
 * many keys as its name has spellings.
 */
const isUsualSpelling = (path: string): boolean =>
  !/%(?:2[DE]|3\d|4[1-9A-F]|5[\dAF]|6[1-9A-F]|7[\dAE]|.?[a-f])/.test(path)

/** Keeps answers of plain URLs only: variants of the query could otherwise fill the cache with copies. */
function keepReady(
  { deps, place, target, epoch }: OutgoingAnswer,
  headers: Headers,
  { etag, release }: Representation,
  whole: Uint8Array,
): void {
  if (place.cacheKey === undefined || whole.byteLength > deps.hot.maxItem || target.search !== '') return
  if (!isUsualSpelling(target.path)) return
  const kept = headers.with(headers.indexOf('Cache-Status') + 1, 'cidgate; hit; detail=hot')
  deps.hot.add(place.cacheKey, { headers: kept, body: lasting(whole, release !== undefined), etag }, epoch)
}
