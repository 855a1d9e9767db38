// What a service behind the `proxy:` table learns of a request, and its clients of an answer. Both are framed anew on each
// side: nothing that a peer says about its own connection, or about how long a body is, passes through by its word alone.
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
// Said by this gateway, not by whoever asks. `expect` is answered here. Some services take another path or method from a
// header than from the request line, which the table has let through.
const ours =
  /^(expect|host|via|forwarded|x-real-ip|x-request-id|x-forwarded-.*|content-length|x-original-url|x-original-uri|x-rewrite-url|x-(http-)?method(-override)?)$/
// Orders to a server in front, which is not the service's.
const orders = /^(x-accel-.*|x-sendfile|x-reproxy-url)$/
const personal: ReadonlySet<string> = new Set(['authorization', 'cookie'])

/** What `Connection` calls its own. */
function namedBy(headers: IncomingHttpHeaders): ReadonlySet<string> {
  const names = `${headers.connection ?? ''},${headers['proxy-connection'] ?? ''}`.toLowerCase().split(',')
  return new Set(names.map((name) => name.trim()))
}

/** The headers to ask with. Taken from the request as it came, so that nothing later on has anything left to take away. */
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
    // Some services read X_Forwarded_For as the other.
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
  /** Where the table puts it. */
  readonly path: string
  readonly to: URL
  /** What was asked of the service. */
  readonly asked: string
}

/** The headers to answer with. Node frames the body as this client understands it. */
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
      name !== 'x-request-id' && // the answer has ours, which the service was told
      (sendAuthorization || name !== 'set-cookie'),
  )
  const answered: OutgoingHttpHeaders = Object.fromEntries(kept)
  if (headers.location !== undefined) answered['location'] = mapped(headers.location, mapping)
  return answered
}

/** A way on within what was opened leads through here; any other is the client's to follow. */
function mapped(location: string, { path, to, asked }: Mapping): string {
  const url = URL.parse(location, to.origin + asked)
  const base = to.pathname.replace(/\/$/, '')
  if (url?.origin !== to.origin || !`${url.pathname}/`.startsWith(`${base}/`)) return location
  return path + url.pathname.slice(base.length) + url.search + url.hash
}
