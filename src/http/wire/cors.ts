// CORS: every response may be read from every origin, including errors and redirects.
import type { IncomingMessage } from 'node:http'
import type { Document } from './write.ts'

const exposed = [
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
  'If-Match',
  'If-None-Match',
  'Range',
  'User-Agent',
  'X-Auth-Token',
  'X-Requested-With',
]

export const corsHeaders = { 'Access-Control-Allow-Origin': '*', 'Access-Control-Expose-Headers': exposed } as const

/** Also on responses without a preflight, where some scripts look for it. */
export const corsRequests = {
  'Access-Control-Allow-Methods': 'GET, HEAD, OPTIONS',
  'Access-Control-Allow-Headers': allowed.join(', '),
} as const

/**
 * The response to a preflight. Libraries add headers of their own to each request of a page
 * (`traceparent`, `sentry-trace`), so every requested header is allowed. Credentials are not: with
 * `*` as the origin no browser sends any.
 */
export const preflight = ({ headers }: IncomingMessage, methods: string): Document => ({
  headers: {
    'Access-Control-Allow-Methods': methods,
    'Access-Control-Allow-Headers': allowedFor(headers['access-control-request-headers']),
    'Access-Control-Max-Age': '86400',
    Vary: 'Access-Control-Request-Headers',
    Allow: methods,
  },
})

const token = /^[!#$%&'*+\-.^_`|~0-9a-z]+$/i

/** The default headers, and the others that the browser asks for. */
function allowedFor(asked = ''): string {
  const defaults = new Set(allowed.map((name) => name.toLowerCase()))
  const more = asked.split(',').map((name) => name.trim())
  return [...allowed, ...new Set(more.filter((name) => token.test(name) && !defaults.has(name.toLowerCase())))].join(
    ', ',
  )
}
