// The gateways that an upload passed through (CDN-Loop, RFC 8586). Two gateways that forward to
// each other would wait for each other forever, so a gateway that finds itself in the list refuses.

import { randomBytes } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import type { Failure } from '../../core/failure.ts'
import { HttpRefusal } from '../wire/refusal.ts'

/** Returns the list to forward, with this gateway appended. Throws if it is in the list already. */
export type Via = (headers: IncomingHttpHeaders) => string

/**
 * Each instance has its own name, because several instances that forward in a row are not a loop.
 */
export function createVia(self = `cidgate-${randomBytes(8).toString('hex')}`): Via {
  return (headers) => {
    const before = [headers['cdn-loop'] ?? []].flat().join(', ')
    const names = before.split(',').map((one) => one.split(';')[0]?.trim())
    if (names.includes(self)) throw loop()
    return before === '' ? self : `${before}, ${self}`
  }
}

const loop = (): Failure =>
  new HttpRefusal(
    'unsupported',
    'upload loop (CDN-Loop): this upload was forwarded from here and came back; stop one of the gateways that forward to each other',
    { source: 'client', status: 508 },
  )
