// The record of one request and its response, for the metrics and the access log. The fast path
// does without: it increments plain counters.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Failure } from '../../core/failure.ts'
import type { Account } from '../../observe/account.ts'
import type { HttpRefusal } from './refusal.ts'
import { requestIdHeader } from './request-id.ts'
import { hasBody } from './request-target.ts'

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
  account: Account | undefined
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
