// Parses the request target, and refuses what two parsers could read differently (request
// smuggling).
import type { IncomingMessage } from 'node:http'
import { Failure } from '../../core/failure.ts'
import { isHost } from '../../core/wire/http.ts'
import { HttpRefusal } from './refusal.ts'

export type RequestTarget = {
  /** As sent, still encoded. */
  readonly path: string
  readonly query: URLSearchParams
  readonly search: string
}

const longestTold = 100

/** A request line may claim a version other than its own syntax; HTTP/2 requests have a stream. */
export const isHttp1 = (request: IncomingMessage): boolean =>
  request.httpVersion.startsWith('1.') || 'stream' in request

const noSuchVersion = ({ httpVersion }: IncomingMessage): Failure =>
  new HttpRefusal('unsupported', `HTTP/${httpVersion} is not supported here; use HTTP/1.1`, {
    source: 'client',
    status: 505,
  })

const malformed = (what: string): Failure => new Failure('malformed', what, { source: 'client' })

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
  if (hosts === 0 && request.httpVersion !== '1.0') throw malformed('there is no Host header')
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
  return typeof baseUrl === 'string' ? baseUrl.replace(/[^\x21-\x7e]/g, encodeURIComponent) : ''
}

/** True if the request has a body. If the body stays unread, the connection cannot be reused. */
export function hasBody(request: IncomingMessage): boolean {
  return request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0
}
