// One request and its response, as the metrics, the access log and the spans record it. A cached
// response does without: it increments plain counters.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { createTokenBucket, type TokenBucket } from '../../core/counting/token-bucket.ts'
import type { Failure } from '../../core/failure.ts'
import type { AccessMode, Log } from '../../core/log.ts'
import type { SpanFacts, Trace } from '../../core/wire/trace.ts'

import {
  type Answered,
  type FailedRequest,
  type RequestCounts,
  RequestRecord,
  sourceOf,
} from '../../observe/requests.ts'
import {
  HttpRefusal,
  hasBody,
  type ParserRefusal,
  type RequestContext,
  type RequestHead,
  requestIdHeader,
} from './request.ts'

/** The route that handled a request; `none` if none of this gateway's. */
export type RouteName = 'ipfs' | 'ipns' | 'add' | 'rpc' | 'openapi' | 'routing' | 'proxy' | 'front' | 'none'

export class Exchange {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  /** The URL as sent: routers overwrite that of the request. */
  readonly url: string
  readonly now: () => number
  readonly over: (exchange: Exchange) => void
  readonly began: number
  /**
   * The `X-Request-Id` of the response. It is written with the other headers: one that is set
   * earlier makes Node process all of them one by one.
   */
  requestId: string | undefined
  /** The request as parsed, once a route has it. */
  context: RequestContext | undefined
  /** The client's address, kept because a closed socket has none. */
  client: string | undefined
  route: RouteName = 'none'
  /** The retrieval record of content. */
  requestRecord: RequestRecord | undefined
  failure: Failure | undefined
  /** The server's own response, if the rest of the request was malformed. */
  refusal: HttpRefusal | undefined
  /** The name of the client's token. */
  token: string | undefined
  /** The time when the status was sent; undefined before that. */
  answeredAt: number | undefined
  /** Sizes of the bodies. */
  bytesIn = 0
  bytesOut = 0

  constructor(request: IncomingMessage, response: ServerResponse, now: () => number, over: (one: Exchange) => void) {
    this.request = request
    this.response = response
    this.url = request.url ?? ''
    this.now = now
    this.over = over
    this.began = now()
  }
}

const key = Symbol('exchange')
type Noted = ServerResponse & { [key]?: Exchange }

/**
 * Watches a request from now on, once; calls `over` when the response was sent or the client has
 * left.
 */
export function watchExchange(
  request: IncomingMessage,
  response: Noted,
  now: () => number,
  over: (exchange: Exchange) => void,
): Exchange {
  const known = response[key]
  if (known) return known
  const exchange = new Exchange(request, response, now, over)
  response[key] = exchange
  if (hasBody(request)) countBody(request, exchange)
  watchAnswer(response)
  response.once('close', isOver)
  return exchange
}

function isOver(this: Noted): void {
  const exchange = this[key]
  exchange?.over(exchange)
}

export function noteToken(response: Noted, name: string | undefined): void {
  const exchange = response[key]
  if (exchange) exchange.token = name
}

/** The exchange of a response; undefined if it is not watched. */
export const exchangeOf = (response: Noted): Exchange | undefined => response[key]

/** The record of what this request retrieves. `tiers`: names, fastest first. */
export function newRecord(response: Noted, tiers: readonly string[]): RequestRecord {
  const requestRecord = new RequestRecord(tiers)
  const exchange = response[key]
  if (exchange) exchange.requestRecord = requestRecord
  return requestRecord
}

/** Bytes of a body that nobody reads are counted as they arrive, too. */
function countBody(request: IncomingMessage, exchange: Exchange): void {
  exchange.bytesIn = request.readableLength
  const push = request.push.bind(request)
  request.push = (piece: unknown, encoding) => {
    if (piece instanceof Uint8Array) exchange.bytesIn += piece.byteLength
    return push(piece, encoding)
  }
}

/**
 * Node has no event for the first byte and no byte count of a body, so each method that a handler
 * may call is wrapped. The wrappers are shared: a closure for each response would cost more than
 * the counting.
 */
function watchAnswer(response: ServerResponse): void {
  response.writeHead = writeHead
  response.write = write as ServerResponse['write']
  response.end = end as ServerResponse['end']
}

/** The original methods, of Node or Express. */
const own = (response: ServerResponse): ServerResponse => Object.getPrototypeOf(response) as ServerResponse

function writeHead(this: Noted, ...args: unknown[]): Noted {
  const exchange = this[key]
  if (exchange) {
    exchange.answeredAt ??= exchange.now()
    addRequestId(this, exchange, args)
  }
  return Reflect.apply(own(this).writeHead, this, args) as Noted
}

/** Keeps an id that a service behind `proxy` sent. */
function addRequestId(response: Noted, { requestId }: Exchange, args: unknown[]): void {
  if (requestId === undefined || response.headersSent || response.hasHeader(requestIdHeader)) return
  const headers = args.at(-1)
  const isList = Array.isArray(headers) && !Array.isArray(headers[0])
  if (isList) args[args.length - 1] = [...headers, requestIdHeader, requestId]
  else response.setHeader(requestIdHeader, requestId)
}

/** The id in the response: that of a service behind `proxy`, if it sent one. */
export function requestIdOf(response: Noted): string | undefined {
  const id = response.getHeader(requestIdHeader)
  return typeof id === 'string' ? id : response[key]?.requestId
}

function write(this: Noted, ...args: unknown[]): boolean {
  count(this, args[0], args[1])
  return Reflect.apply(own(this).write, this, args) as boolean
}

function end(this: Noted, ...args: unknown[]): Noted {
  count(this, args[0], args[1])
  return Reflect.apply(own(this).end, this, args) as Noted
}

function count({ [key]: exchange }: Noted, piece: unknown, encoding: unknown): void {
  if (!exchange || exchange.request.method === 'HEAD') return
  if (typeof piece === 'string') exchange.bytesOut += Buffer.byteLength(piece, encoding as BufferEncoding)
  else if (piece instanceof Uint8Array) exchange.bytesOut += piece.byteLength
}

/** Records a cached response, which has no exchange. */
export type NoteCached = (
  request: RequestHead,
  response: { readonly requestId: string; readonly status: number; readonly bytes: number },
) => void

type RequestLogOptions = {
  readonly requests: Pick<RequestCounts, 'answered' | 'failed'>
  readonly access: AccessMode
  readonly failuresPerSecond: number | 'none'
  readonly log: Log
  readonly clock: Clock
  readonly addressOf: (request: RequestHead) => string
  readonly trace: Trace
  readonly hasSpans: boolean
  /** Called for a status from 400 on, and for a truncated response. */
  readonly onFailed: (failed: FailedRequest) => void
}

/** nginx's status for a client that left before the response. */
const clientLeft = 499
const longest = { path: 1024, host: 255, agent: 200, method: 20 } as const

export function createRequestLog(options: RequestLogOptions) {
  const { requests, access, log, clock, addressOf, trace, hasSpans, onFailed } = options
  const lines = createLineChoice(options)

  function answeredOf(exchange: Exchange): Answered {
    const { request, response, began, route, requestRecord, failure, answeredAt, bytesIn, bytesOut, refusal } = exchange
    return {
      route,
      method: request.method ?? '',
      source: sourceOf(requestRecord),
      bytesIn,
      bytesOut,
      status: refusal?.status ?? (response.headersSent ? response.statusCode : clientLeft),
      // Kubo's RPC ends a failed stream cleanly.
      isComplete: refusal !== undefined || (response.writableFinished && !(failure && response.statusCode < 400)),
      firstByteSeconds: answeredAt === undefined ? undefined : (answeredAt - began) / 1000,
      seconds: (clock.monotonic() - began) / 1000,
    }
  }

  function over(exchange: Exchange): void {
    const answered = answeredOf(exchange)
    requests.answered(answered)
    const { failure } = exchange
    const { status, isComplete } = answered
    const isFailed = status >= 400 || !isComplete
    const before = isFailed ? lines.ofFailure(failure?.kind ?? String(status)) : lines.ofSuccess()
    if (before) log(status >= 500 ? 'warn' : 'info', 'http.request', { ...lineOf(exchange, answered), ...before })
    if (isFailed) onFailed(failedOf(exchange, answered))
    const point = hasSpans ? trace.of(exchange.request) : undefined
    if (point?.isRecorded) trace.answered(point, spanOf(exchange, answered, point.leftOut))
  }

  function lineOf({ request, response, url, client, failure, token, requestRecord }: Exchange, answered: Answered) {
    const { method, route, status, source, seconds, firstByteSeconds, bytesIn, bytesOut, isComplete } = answered
    return {
      ...{ request: requestIdOf(response), client, method, ...placeOf(request, url), ...traceOf(request) },
      ...{ route, status, source, ms: inMs(seconds) },
      ...(firstByteSeconds !== undefined && { firstByteMs: inMs(firstByteSeconds) }),
      bytes: bytesOut,
      ...(bytesIn > 0 && { bytesIn }),
      ...(token !== undefined && { token }),
      ...(!isComplete && { cut: true }),
      ...whyOf(failure, requestRecord),
      ...(requestRecord && requestRecord.brought.length > 1 && { brought: requestRecord.brought }),
    }
  }

  const failedOf = (exchange: Exchange, { route, method, status, seconds, isComplete }: Answered): FailedRequest => {
    const { request, response, url, client, failure, requestRecord } = exchange
    return {
      at: clock.now(),
      request: requestIdOf(response),
      // A closed socket has lost its address.
      client: client || addressOf(request) || undefined,
      method: method.slice(0, longest.method),
      path: placeOf(request, url).path,
      ...{ route, status, isCut: !isComplete, ms: Math.round(seconds * 1000), ...whyOf(failure, requestRecord) },
    }
  }

  function traceOf(request: RequestHead): { readonly trace?: string } {
    const id = trace.idOf(request)
    return id === undefined ? {} : { trace: id }
  }

  const logCached: NoteCached = (request, { requestId, status, bytes }) => {
    if (!lines.ofSuccess()) return
    const { method = '', url = '' } = request
    log('info', 'http.request', {
      ...{ request: requestId, client: addressOf(request), method, ...placeOf(request, url), ...traceOf(request) },
      ...{ route: 'ipfs', status, source: 'responses', bytes },
    })
  }
  const traceCached: NoteCached = (request, { requestId, status, bytes }) => {
    const point = trace.of(request)
    if (!point?.isRecorded) return
    const { method = '', url = '' } = request
    const answered = { method, route: 'ipfs', status, source: 'responses', bytesOut: bytes }
    const facts = { ...factsOf(answered, requestId), ...pathOf(request, url) }
    trace.answered(point, { name: `${method} ipfs`, began: clock.monotonic(), facts, isError: false })
  }

  return {
    /** Record each cached response. */
    cached: [...(access === 'off' || access === 'errors' ? [] : [logCached]), ...(hasSpans ? [traceCached] : [])],
    /** Records the request at its end, in the metrics, the access log and the spans. */
    watch(request: IncomingMessage, response: ServerResponse): Exchange {
      const exchange = watchExchange(request, response, clock.monotonic, over)
      if (access !== 'off') exchange.client ??= addressOf(request)
      return exchange
    },
    /** Records a refusal by the server as if by a route. */
    refused({ status, why, requestId, address, response }: ParserRefusal): void {
      const failure = new HttpRefusal('malformed', why, { source: 'client', status })
      requests.failed(failure)
      const exchange = response && exchangeOf(response)
      // The rest is counted at its end.
      if (exchange) return void Object.assign(exchange, { refusal: failure, failure })
      // The request line may be malformed, so nothing of it is recorded.
      const unread = { route: 'none', status, kind: 'malformed', why } as const
      requests.answered({
        ...{ ...unread, method: '', source: 'none', isComplete: true, firstByteSeconds: undefined },
        ...{ seconds: 0, bytesIn: 0, bytesOut: 0 },
      })
      const before = lines.ofFailure('unread')
      const about = { request: requestId, client: address, ...unread }
      if (before) log('info', 'http.request', { ...about, source: 'none', ...before })
      onFailed({ ...about, client: address || undefined, at: clock.now(), method: '', path: '', isCut: false, ms: 0 })
    },
  }
}

const whyOf = (failure: Failure | undefined, requestRecord: RequestRecord | undefined) =>
  failure && {
    ...{ kind: failure.kind, why: failure.message },
    ...(requestRecord && requestRecord.attempts.length > 0 && { attempts: requestRecord.attempts }),
  }

const sampleEvery = 100
const burstSeconds = 30

/**
 * Decides if a request gets a line in the access log, with the number of lines skipped before it;
 * undefined if not. Failures are limited by kind, or by status if there is none: both have few values.
 */
function createLineChoice({ access, failuresPerSecond: perSecond, clock }: RequestLogOptions) {
  const kinds = new Map<string, { readonly budget: TokenBucket; leftOut: number }>()
  let others = 0
  return {
    ofSuccess: () => (access === 'all' || (access === 'sampled' && others++ % sampleEvery === 0) ? {} : undefined),
    ofFailure(name: string): { readonly leftOut?: number } | undefined {
      if (access === 'off') return undefined
      if (access === 'all' || perSecond === 'none') return {}
      const size = perSecond * burstSeconds
      const kind = kinds.get(name) ?? { budget: createTokenBucket({ size, perSecond, clock }), leftOut: 0 }
      kinds.set(name, kind)
      if (!kind.budget.take()) return void kind.leftOut++
      const { leftOut } = kind
      kind.leftOut = 0
      return leftOut > 0 ? { leftOut } : {}
    },
  }
}

/** Strips the query, and the scheme and authority of an absolute URL. */
const placeOf = ({ headers }: RequestHead, url: string) => ({
  host: headers.host?.slice(0, longest.host),
  path: (url.split('?', 1)[0] ?? '').replace(/^https?:\/\/[^/]*/i, '').slice(0, longest.path),
  agent: headers['user-agent']?.slice(0, longest.agent),
})

const inMs = (seconds: number): number => Math.round(seconds * 10_000) / 10

const contentRoutes: ReadonlySet<string> = new Set(['ipfs', 'ipns'])

function spanOf({ request, response, url, began, failure }: Exchange, answered: Answered, leftOut: number) {
  const { route, method, status, isComplete, firstByteSeconds, bytesIn } = answered
  const facts = {
    ...factsOf(answered, requestIdOf(response)),
    ...(contentRoutes.has(route) && pathOf(request, url)),
    'cidgate.first_byte_ms': firstByteSeconds && Math.round(firstByteSeconds * 1000),
    'cidgate.cut': isComplete ? undefined : true,
    'cidgate.questions_left_out': leftOut || undefined,
    'error.type': failure?.kind,
    'http.request.body.size': bytesIn || undefined,
  }
  return { name: `${method} ${route}`, began, facts, isError: status >= 500 }
}

const factsOf = (
  { method, route, status, source, bytesOut }: Pick<Answered, 'method' | 'route' | 'status' | 'source' | 'bytesOut'>,
  requestId: string | undefined,
): SpanFacts => ({
  'http.request.method': method,
  'http.route': route,
  'http.response.status_code': status,
  'http.response.body.size': bytesOut,
  'cidgate.source': source,
  'cidgate.request_id': requestId,
})

function pathOf(request: RequestHead, url: string): SpanFacts {
  const { host, path } = placeOf(request, url)
  return { 'server.address': host, 'url.path': path }
}
