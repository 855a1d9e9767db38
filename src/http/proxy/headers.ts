// Headers for a service in the `proxy:` table, and for the client of its response. Each side is
// framed anew: headers about the connection or the length of the body are never forwarded.
import type { IncomingHttpHeaders, IncomingMessage, OutgoingHttpHeaders } from 'node:http'
import type { Forwarded } from '../hosts/forwarded.ts'

const hopByHop: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authentication-info',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
])
// Headers that only this gateway sets. It handles `expect` itself. Some services take the path or
// method from a header instead of the request line that the table has checked.
const ours =
  /^(expect|host|via|forwarded|x-real-ip|x-request-id|x-forwarded-.*|content-length|x-original-url|x-original-uri|x-rewrite-url|x-(http-)?method(-override)?)$/
// Commands to a reverse proxy, which the service must not send.
const orders = /^(x-accel-.*|x-sendfile|x-reproxy-url)$/
const personal: ReadonlySet<string> = new Set(['authorization', 'cookie'])

/** The headers that `Connection` names. */
function namedBy(headers: IncomingHttpHeaders): ReadonlySet<string> {
  const names = `${headers.connection ?? ''},${headers['proxy-connection'] ?? ''}`.toLowerCase().split(',')
  return new Set(names.map((name) => name.trim()))
}

/** Derives the request headers for the service from the client's. */
export function headersToService(
  request: IncomingMessage,
  {
    as,
    forwarded,
    sendAuthorization,
    requestId,
  }: {
    readonly as: string
    readonly forwarded: Forwarded
    readonly sendAuthorization: boolean
    readonly requestId: string | undefined
  },
): IncomingHttpHeaders {
  const { headers, socket, method, httpVersion } = request
  const named = namedBy(headers)
  const kept = Object.entries(headers).filter(([name]) => {
    // Some services read X_Forwarded_For as X-Forwarded-For.
    const read = name.replaceAll('_', '-')
    if (hopByHop.has(read) || ours.test(read) || named.has(name)) return false
    return sendAuthorization || !personal.has(read)
  })
  const address = socket.remoteAddress?.replace(/^::ffff:(?=[\d.]+$)/i, '')
  const length = headers['content-length'] ?? '0'
  const host = forwarded.hostOf(request)
  return {
    ...Object.fromEntries(kept),
    ...(method !== 'GET' && method !== 'HEAD' && { 'content-length': length }),
    'x-forwarded-for': join(headers['x-forwarded-for'], address),
    ...(host !== '' && { 'x-forwarded-host': host }),
    'x-forwarded-proto': forwarded.schemeOf(request),
    ...(requestId !== undefined && { 'x-request-id': requestId }),
    via: join(headers.via, `${httpVersion} ${as}`),
  }
}

const join = (before: string | string[] | undefined, more = 'unknown'): string =>
  [before ?? [], more].flat().filter(Boolean).join(', ')

export type Mapping = {
  /** The public path of the table entry. */
  readonly path: string
  readonly to: URL
  /** The path requested from the service. */
  readonly asked: string
}

/** The response headers for the client. Node frames the body itself. */
export function headersToClient(
  headers: IncomingHttpHeaders,
  mapping: Mapping,
  { sendAuthorization }: { readonly sendAuthorization: boolean },
): OutgoingHttpHeaders {
  const named = namedBy(headers)
  const kept = Object.entries(headers).filter(
    ([name]) =>
      !hopByHop.has(name) &&
      !named.has(name) &&
      !orders.test(name) &&
      name !== 'x-request-id' && // the response has this gateway's id, which the service received
      (sendAuthorization || name !== 'set-cookie'),
  )
  const answered: OutgoingHttpHeaders = Object.fromEntries(kept)
  if (headers.location !== undefined) answered['location'] = mapped(headers.location, mapping)
  return answered
}

/**
 * Rewrites a redirect within the proxied path to lead through this gateway; any other is forwarded
 * unchanged.
 */
function mapped(location: string, { path, to, asked }: Mapping): string {
  const url = URL.parse(location, to.origin + asked)
  const base = to.pathname.replace(/\/$/, '')
  if (url?.origin !== to.origin || !`${url.pathname}/`.startsWith(`${base}/`)) return location
  return path + url.pathname.slice(base.length) + url.search + url.hash
}
