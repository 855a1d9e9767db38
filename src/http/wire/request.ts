// A request as parsed for the routes: target, context, client and connection, and its refusal. What two
// parsers could read differently is refused (request smuggling). Any client can send X-Forwarded-*, so
// these headers are read from trusted proxies only.
import { randomBytes } from 'node:crypto'
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import { BlockList, isIP, isIPv6, type Socket } from 'node:net'
import type { TLSSocket } from 'node:tls'
import { remembered } from '../../core/cache.ts'
import { cancelled, Failure, type FailureKind, type FailureOptions, malformed } from '../../core/failure.ts'
import { headerSafe, isHost, isUnixPeer, plainAddress } from '../../core/wire/http.ts'

export type RequestHead = Pick<IncomingMessage, 'method' | 'url' | 'headers' | 'rawHeaders' | 'socket'>

export type RequestTarget = {
  /** As sent, still encoded. */
  readonly path: string
  readonly query: URLSearchParams
  readonly search: string
}

const longestTold = 100

/** A request line may claim a version other than its own syntax; HTTP/2 requests have a stream. */
const isHttp1 = (request: IncomingMessage): boolean => request.httpVersion.startsWith('1.') || 'stream' in request

const noSuchVersion = ({ httpVersion }: IncomingMessage): Failure =>
  new HttpRefusal('unsupported', `HTTP/${httpVersion} is not supported here; use HTTP/1.1`, {
    source: 'client',
    status: 505,
  })

/** Throws a Failure: `malformed`, or `unsupported` for a version other than HTTP/1. */
export function readTarget(request: IncomingMessage): RequestTarget {
  if (!isHttp1(request)) throw noSuchVersion(request)
  const { rawHeaders } = request
  let hosts = 0
  for (let index = 0; index < rawHeaders.length; index += 2) if (rawHeaders[index]?.toLowerCase() === 'host') hosts++
  if (hosts > 1) throw malformed('there is more than one Host header')
  const { host } = request.headers
  if (host !== undefined && !isHost(host))
    throw malformed(`the Host header is not a host[:port]: ${JSON.stringify(host.slice(0, longestTold))}`)
  if (hosts === 0 && request.httpVersion !== '1.0') throw malformed('the Host header is missing')
  const url = originForm(request.url ?? '', host)
  if (/[#\\]/.test(url)) throw malformed('the request target cannot hold # or \\')
  const coding = request.headers['transfer-encoding']
  if (coding !== undefined && coding.toLowerCase() !== 'chunked')
    throw malformed(`the transfer coding ${coding} is not supported`)
  // RFC 9112 §6.1: a forwarding proxy may have read the body differently.
  if (coding !== undefined && request.httpVersion === '1.0') throw malformed('HTTP/1.0 has no transfer codings')
  const mark = url.indexOf('?')
  const path = mark < 0 ? url : url.slice(0, mark)
  const search = mark < 0 ? '' : url.slice(mark + 1)
  return { path, query: new URLSearchParams(search), search }
}

/**
 * An absolute URL in the request line (RFC 9112 §3.2.2) is accepted only with the host of the Host
 * header.
 */
function originForm(url: string, host: string | undefined): string {
  if (url.startsWith('/') || url === '*') return url
  const [, authority, rest = ''] = /^https?:\/\/([^/?#\\]*)(.*)$/i.exec(url) ?? []
  if (authority === undefined || authority === '' || authority.toLowerCase() !== host?.toLowerCase())
    throw malformed('the request target must be a path on this host')
  return rest.startsWith('/') ? rest : `/${rest}`
}

/** The path under which the application mounted the routes. */
export function baseOf(request: IncomingMessage): string {
  const { baseUrl } = request as { readonly baseUrl?: unknown }
  return typeof baseUrl === 'string' ? headerSafe(baseUrl) : ''
}

/** True if the request has a body. If the body stays unread, the connection cannot be reused. */
export function hasBody(request: IncomingMessage): boolean {
  return request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0
}

export type RequestContext = {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly target: RequestTarget
  /** Aborts when the client leaves before it has the complete response. */
  readonly signal: AbortSignal
}

/** Throws a Failure `malformed`. */
export function readContext(request: IncomingMessage, response: ServerResponse): RequestContext {
  const target = readTarget(request)
  const left = new AbortController()
  response.once('close', () => {
    if (!response.writableFinished) left.abort(cancelled())
  })
  return { request, response, target, signal: left.signal }
}

type RefusalOptions = Omit<FailureOptions, 'facts'> & {
  readonly status: number
  /** Of the response, such as `Allow`. */
  readonly headers?: Readonly<Record<string, string>>
}

export class HttpRefusal extends Failure {
  readonly status: number
  readonly headers: Readonly<Record<string, string>> | undefined

  constructor(kind: FailureKind, message: string, { status, headers, ...options }: RefusalOptions) {
    super(kind, message, options)
    this.status = status
    this.headers = headers
  }
}

export const methodRefused = (why: string, allow: string, status = 405): HttpRefusal =>
  new HttpRefusal('unsupported', why, { source: 'client', status, headers: { Allow: allow } })

/**
 * A refusal by the server before there was a request to handle: malformed, too long, or not
 * received in time.
 */
export type ParserRefusal = {
  readonly status: number
  /** The reason sent to the client. */
  readonly why: string
  /** The `X-Request-Id` sent to the client. */
  readonly requestId: string
  /** The address of the socket: forwarding headers were not read. */
  readonly address: string
  /** If only the rest of a request was refused: the response that its handler was about to send. */
  readonly response: ServerResponse | undefined
}

/** A connection to a server of cidgate, as handlers see it. */
export interface OwnConnection {
  /** Notes that this response has a Retry-After: a client that ignores it is throttled. */
  refused(response: ServerResponse): void
}

/** The property of a socket that leads to its connection. */
export const ownConnection = Symbol('connection of our own')

type Marked = { readonly [ownConnection]?: OwnConnection }

/** Undefined if the request came to another server. */
export const connectionOf = ({ socket }: { readonly socket: Socket & Marked }): OwnConnection | undefined =>
  socket[ownConnection]

export const isAtOwnServer = (request: IncomingMessage): boolean => connectionOf(request) !== undefined

export type Forwarded = ReturnType<typeof createForwarded>

/** The entry of the proxy list for unix sockets, whose peers have no address. */
const unix = 'unix'

/** `proxies`: addresses and ranges, such as 127.0.0.1, 10.0.0.0/8 and fd00::/8, and `unix`. */
export function createForwarded(proxies: readonly string[]) {
  const known = new BlockList()
  const ranges = proxies.filter((one) => one !== unix)
  const isValidHost = remembered(isHost)
  const trustsUnix = ranges.length < proxies.length
  for (const range of ranges) {
    const [address = '', bits] = range.split('/')
    const family = isIPv6(address) ? 'ipv6' : 'ipv4'
    if (bits === undefined) known.addAddress(address, family)
    else known.addSubnet(address, Number(bits), family)
  }

  const isKnown = (address: string): boolean =>
    ranges.length > 0 && address !== '' && known.check(address, isIPv6(address) ? 'ipv6' : 'ipv4')

  const isOfProxy = ({ socket }: RequestHead): boolean =>
    socket.remoteAddress === undefined ? trustsUnix && isUnixPeer(socket) : isKnown(socket.remoteAddress)

  function forwardedHeader(request: RequestHead, name: keyof IncomingHttpHeaders): string | undefined {
    const value = request.headers[name]
    if (value === undefined || proxies.length === 0 || !isOfProxy(request)) return undefined
    // Chained proxies append: the first value is what the client asked for.
    return String(value).split(',')[0]?.trim() || undefined
  }

  /** The client's address: the last one in the chain that is not a trusted proxy. */
  function addressOf(request: RequestHead): string {
    const remoteAddress = plainAddress(request.socket.remoteAddress ?? '')
    if (proxies.length === 0 || !isOfProxy(request)) return remoteAddress
    // Each proxy appends its peer's address; the client may have forged everything before.
    const chain = String(request.headers['x-forwarded-for'] ?? '')
      .split(',')
      .map((one) => oneSpelling(withoutPort(one.trim())))
    const client = chain.findLast((one) => isIP(one) === 0 || !isKnown(one))
    return client !== undefined && isIP(client) !== 0 ? client : remoteAddress
  }

  return {
    /** With the port, as in the header. An invalid forwarded host is ignored. */
    hostOf(request: RequestHead): string {
      const said = forwardedHeader(request, 'x-forwarded-host')
      return said !== undefined && isValidHost(said) ? said : (request.headers.host ?? '')
    },
    schemeOf(request: IncomingMessage): 'http' | 'https' {
      const scheme = forwardedHeader(request, 'x-forwarded-proto')?.toLowerCase()
      if (scheme === 'https' || scheme === 'http') return scheme
      return (request.socket as TLSSocket).encrypted ? 'https' : 'http'
    },
    /** True if a connection from this address is from a trusted proxy. */
    isProxy: isKnown,
    /**
     * True if the request may be one of many clients on its connection: it has a forwarding header,
     * or came from a proxy or over a unix socket.
     */
    isPassedOn: (request: IncomingMessage): boolean =>
      saysProxy.some((name) => request.headers[name] !== undefined) || isUnixPeer(request.socket) || isOfProxy(request),
    /** Undefined if no trusted proxy sent one. */
    requestIdOf: (request: RequestHead) => forwardedHeader(request, 'x-request-id'),
    addressOf,
    /** Identifies the client for limits. */
    clientOf: (request: RequestHead): string => clientOf(addressOf(request)),
  }
}

/** Headers that any proxy adds. A client may send them itself, which gains it nothing. */
const saysProxy = ['x-forwarded-for', 'forwarded', 'via'] as const

/** Some proxies add the port: 1.2.3.4:5678, [2001:db8::1]:5678. */
const withoutPort = (address: string): string =>
  address.replace(/^\[([^\]]+)\](:\d+)?$/, '$1').replace(/^(\d+\.\d+\.\d+\.\d+):\d+$/, '$1')

/** Normalizes the spelling of an address. */
function oneSpelling(address: string): string {
  if (!isIPv6(address)) return address
  const [unscoped = ''] = address.split('%')
  return plainAddress(URL.parse(`http://[${unscoped}]`)?.hostname.slice(1, -1) ?? address)
}

/** An IPv4 address, or the /64 of an IPv6 one, since a client usually controls all of it. */
export function clientOf(address: string): string {
  const plain = plainAddress(address)
  if (!plain.includes(':')) return plain
  const [head = '', tail] = plain.split('%')[0]?.split('::') ?? []
  const before = head.split(':').filter(Boolean)
  const after = tail?.split(':').filter(Boolean) ?? []
  const zeros = tail === undefined ? 0 : Math.max(0, 8 - before.length - after.length)
  return [...before, ...Array(zeros).fill('0'), ...after].slice(0, 4).join(':')
}

export const requestIdHeader = 'X-Request-Id'

export type RequestIds = ReturnType<typeof createRequestIds>

const wellFormed = /^[\w.:+/=-]{1,128}$/

export function createRequestIds(forwarded: Pick<Forwarded, 'requestIdOf'>) {
  // A random prefix for each gateway, followed by a counter.
  const prefix = randomBytes(6).toString('base64url')
  let count = 0
  return {
    /** The id that a trusted proxy sent, or a new one. */
    next(request: RequestHead): string {
      const given = forwarded.requestIdOf(request)
      return given !== undefined && wellFormed.test(given) ? given : `${prefix}-${(count++).toString(36)}`
    },
  }
}
