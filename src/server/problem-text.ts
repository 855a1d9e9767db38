// A complete error response as text, for a socket without a response object.
import { STATUS_CODES } from 'node:http'
import type { FailureKind } from '../core/failure.ts'
import { corsHeaders } from '../http/wire/cors.ts'
import { requestIdHeader } from '../http/wire/request-id.ts'

type Said = { readonly kind: FailureKind; readonly detail: string; readonly requestId: string }

export function problemText(
  status: number,
  { kind, detail, requestId }: Said,
  more: readonly (readonly [string, string])[] = [],
): string {
  const body = JSON.stringify({
    type: `urn:problem-type:cidgate:${kind}`,
    title: STATUS_CODES[status],
    status,
    detail,
    message: detail,
    requestId,
  })
  const headers: readonly (readonly [string, string])[] = [
    ...corsHeaders,
    ['Content-Type', 'application/problem+json'],
    ['Content-Length', String(Buffer.byteLength(body))],
    ['Cache-Control', 'no-store'],
    [requestIdHeader, requestId],
    ['X-Content-Type-Options', 'nosniff'],
    ['Connection', 'close'],
    ...more,
  ]
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join('')
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines}\r\n${body}`
}
