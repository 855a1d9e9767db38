// CORS: every answer may be read from every origin, errors and redirects included.
import type { IncomingMessage, ServerResponse } from 'node:http'

export const exposed = [
  'Accept-Ranges',
  'Cache-Status',
  'Content-Disposition',
  'Content-Length',
  'Content-Location',
  'Content-Range',
  'ETag',
  'Retry-After',
  'X-Chunked-Output',
  'X-Ipfs-Path',
  'X-Ipfs-Roots',
  'X-Request-Id',
  'X-Stream-Output',
].join(', ')

const allowed: readonly string[] = [
  'Authorization',
  'Cache-Control',
  'Content-Type',
  'If-None-Match',
  'Range',
  'User-Agent',
  'X-Auth-Token',
  'X-Requested-With',
]

export const corsHeaders: readonly (readonly [name: string, value: string])[] = [
  ['Access-Control-Allow-Origin', '*'],
  ['Access-Control-Expose-Headers', exposed],
]

/** Also on answers without a preflight: some scripts look for it there. */
export const corsRequests: readonly (readonly [name: string, value: string])[] = [
  ['Access-Control-Allow-Methods', 'GET, HEAD, OPTIONS'],
  ['Access-Control-Allow-Headers', allowed.join(', ')],
]

/**
 * Answers a preflight. Libraries of a page add headers of their own to each request (`traceparent`, `sentry-trace`), so
 * every header that the browser asks about is allowed. Credentials are not: with `*` as the origin no browser sends any.
 */
export function preflight(request: IncomingMessage, response: ServerResponse, methods: string): void {
  for (const [name, value] of corsHeaders) response.setHeader(name, value)
  response.setHeader('Access-Control-Allow-Methods', methods)
  response.setHeader('Access-Control-Allow-Headers', allowedFor(request.headers['access-control-request-headers']))
  response.setHeader('Access-Control-Max-Age', '86400')
  response.setHeader('Vary', 'Access-Control-Request-Headers')
  response.setHeader('Allow', methods)
  response.writeHead(204).end()
}

const token = /^[!#$%&'*+\-.^_`|~0-9a-z]+$/i

/** The usual headers, and the other ones that the browser asks about. */
function allowedFor(asked = ''): string {
  const usual = new Set(allowed.map((name) => name.toLowerCase()))
  const more = asked.split(',').map((name) => name.trim())
  return [...allowed, ...new Set(more.filter((name) => token.test(name) && !usual.has(name.toLowerCase())))].join(', ')
}
