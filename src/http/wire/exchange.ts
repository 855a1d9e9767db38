// One request and its response, as the metrics, the access log and the spans record it. A cached
// response does without: it increments plain counters.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { createTokenBucket, type TokenBucket } from '../../core/counting/token-bucket.ts'
import type { Failure } from '../../core/failure.ts'
import type { AccessMode, Log } from '../../core/log.ts'
import type { SpanFacts, Trace } from '../../core/wire/trace.ts'
import type { RequestRecord } from '../../observe/request-record.ts'
import type { Answered } from '../../observe/requests.ts'
import { requestIdHeader } from './client.ts'
import { type HttpRefusal, hasBody, type ParserRefusal, type RequestHead } from './request.ts'

/** The route that handled a request; `none` if none of this gateway's. */
export type RouteName = 'ipfs' | 'ipns' | 'add' | 'rpc' | 'openapi' | 'routing' | 'proxy' | 'front' | 'none'

export type Exchange = {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  /** The URL as sent: routers overwrite that of the request. */
  readonly url: string
  /**
   * The `X-Request-Id` of the response. It is written with the other headers: one that is set
   * earlier makes Node process all of them one by one.
   */
  requestId: string | undefined
  /** The client's address, kept because a closed socket has none. */
  client: string | undefined
  readonly now: () => number
  readonly over: (exchange: Exchange) => void
  readonly began: number
  route: RouteName
  /** The retrieval record of content. */
  account: RequestRecord | undefined
  failure: Failure | undefined
  /** The server's own response, if the rest of the request was malformed. */
  refusal: HttpRefusal | undefined
  /** The name of the client's token. */
  token: string | undefined
  /** The time when the status was sent; undefined before that. */
  answeredAt: number | undefined
  /** Sizes of the bodies. */
  bytesIn: number
  bytesOut: number
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
  const exchange: Exchange = {
    request,
    response,
    url: request.url ?? '',
    requestId: undefined,
    client: undefined,
    now,
    over,
    began: now(),
    answeredAt: undefined,
    route: 'none',
    account: undefined,
    failure: undefined,
    refusal: undefined,
    token: undefined,
    bytesIn: 0,
    bytesOut: 0,
  }
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

const sampleEvery = 100
const longest = { path: 1024, host: 255, agent: 200 } as const

const burstSeconds = 30

export function createAccessLog(options: {
  readonly access: AccessMode
  readonly failuresPerSecond: number | 'none'
  readonly log: Log
  readonly clock: Clock
  readonly addressOf: (request: RequestHead) => string
  readonly trace: Pick<Trace, 'idOf'>
}) {
  const { access: mode, log, addressOf, trace } = options
  if (mode === 'off') return undefined
  const failures = mode === 'all' ? undefined : createFailureLines(options)
  let others = 0

  function traceOf(request: RequestHead): { readonly trace?: string } {
    const id = trace.idOf(request)
    return id === undefined ? {} : { trace: id }
  }

  /**
   * Decides if a request gets a line, with the number of lines skipped before it; undefined if not.
   */
  function wanted({ status, isWhole }: Answered, kind: string | undefined): { readonly leftOut?: number } | undefined {
    if (status >= 400 || !isWhole) return failures ? failures.take(kind ?? String(status)) : {}
    return isChosen() ? {} : undefined
  }

  const isChosen = (): boolean => mode === 'all' || (mode === 'sampled' && others++ % sampleEvery === 0)

  const cached: NoteCached = (request, { requestId, status, bytes }) => {
    if (!isChosen()) return
    const { method = '', url = '' } = request
    const client = addressOf(request)
    log('info', 'http.request', {
      ...{ request: requestId, client, method, ...placeOf(request, url), ...traceOf(request) },
      ...{ route: 'ipfs', status, source: 'responses', bytes },
    })
  }

  return {
    /** Undefined if the mode never logs a successful response. */
    cached: mode === 'errors' ? undefined : cached,
    /** Logs a request that could not be parsed: it has no method and no path. */
    refused({ requestId, address: client, why }: ParserRefusal, answered: Answered): void {
      const before = wanted(answered, 'unread')
      if (!before) return
      const { route, status, source } = answered
      const line = { request: requestId, client, route, status, source, kind: 'malformed', why }
      log('info', 'http.request', { ...line, ...before })
    },
    over({ request, response, url, client, failure, token, account }: Exchange, answered: Answered): void {
      const before = wanted(answered, failure?.kind)
      if (!before) return
      const { method, route, status, source, seconds, firstByteSeconds, bytesIn, bytesOut, isWhole } = answered
      const isOurs = status >= 500
      log(isOurs ? 'warn' : 'info', 'http.request', {
        ...{
          request: requestIdOf(response),
          client,
          method,
          ...placeOf(request, url),
          ...traceOf(request),
          route,
          status,
          source,
        },
        ms: inMs(seconds),
        ...(firstByteSeconds !== undefined && { firstByteMs: inMs(firstByteSeconds) }),
        bytes: bytesOut,
        ...(bytesIn > 0 && { bytesIn }),
        ...(token !== undefined && { token }),
        ...(!isWhole && { cut: true }),
        ...(failure && { kind: failure.kind, why: failure.message }),
        ...(failure && account && account.attempts.length > 0 && { attempts: account.attempts }),
        ...(account && account.brought.length > 1 && { brought: account.brought }),
        ...before,
      })
    },
  }
}

/** Rate limits by kind of failure, or by status if there is none: both have few values. */
function createFailureLines({
  failuresPerSecond: perSecond,
  clock,
}: {
  readonly failuresPerSecond: number | 'none'
  readonly clock: Clock
}) {
  if (perSecond === 'none') return undefined
  const kinds = new Map<string, { readonly budget: TokenBucket; leftOut: number }>()
  return {
    take(name: string): { readonly leftOut?: number } | undefined {
      let kind = kinds.get(name)
      if (!kind)
        kinds.set(
          name,
          (kind = { budget: createTokenBucket({ size: perSecond * burstSeconds, perSecond, clock }), leftOut: 0 }),
        )
      if (!kind.budget.take()) {
        kind.leftOut++
        return undefined
      }
      const { leftOut } = kind
      kind.leftOut = 0
      return leftOut > 0 ? { leftOut } : {}
    },
  }
}

/** Strips the query, and the scheme and authority of an absolute URL. */
export const placeOf = ({ headers }: RequestHead, url: string) => ({
  host: headers.host?.slice(0, longest.host),
  path: (url.split('?', 1)[0] ?? '').replace(/^https?:\/\/[^/]*/i, '').slice(0, longest.path),
  agent: headers['user-agent']?.slice(0, longest.agent),
})

const inMs = (seconds: number): number => Math.round(seconds * 10_000) / 10

const contentRoutes: ReadonlySet<string> = new Set(['ipfs', 'ipns'])

export function createRequestSpans(trace: Trace, clock: Clock) {
  const cached: NoteCached = (request, { requestId, status, bytes }) => {
    const point = trace.of(request)
    if (!point?.isRecorded) return
    const facts = {
      ...factsOf(request, { route: 'ipfs', status, source: 'responses', bytes, requestId }),
      ...pathOf(request, request.url ?? ''),
    }
    const name = nameOf(request, 'ipfs')
    trace.answered(point, { name, began: clock.monotonic(), facts, isError: false })
  }
  return {
    cached,
    over({ request, response, url, began, failure }: Exchange, answered: Answered): void {
      const point = trace.of(request)
      if (!point?.isRecorded) return
      const { route, status, source, isWhole, firstByteSeconds, bytesIn, bytesOut: bytes } = answered
      const facts = {
        ...factsOf(request, { route, status, source, bytes, requestId: requestIdOf(response) }),
        ...(contentRoutes.has(route) && pathOf(request, url)),
        'cidgate.first_byte_ms': firstByteSeconds && Math.round(firstByteSeconds * 1000),
        'cidgate.cut': isWhole ? undefined : true,
        'cidgate.questions_left_out': point.leftOut || undefined,
        'error.type': failure?.kind,
        'http.request.body.size': bytesIn || undefined,
      }
      trace.answered(point, { name: nameOf(request, route), began, facts, isError: status >= 500 })
    },
  }
}

const nameOf = ({ method = '' }: RequestHead, route: string): string => `${method} ${route}`

function factsOf(
  { method }: RequestHead,
  answer: { route: string; status: number; source: string; bytes: number; requestId: string | undefined },
): SpanFacts {
  return {
    'http.request.method': method,
    'http.route': answer.route,
    'http.response.status_code': answer.status,
    'http.response.body.size': answer.bytes,
    'cidgate.source': answer.source,
    'cidgate.request_id': answer.requestId,
  }
}

function pathOf(request: RequestHead, url: string): SpanFacts {
  const { host, path } = placeOf(request, url)
  return { 'server.address': host, 'url.path': path }
}
