// Each request has an id: in `X-Request-Id`, in its problem, and in its log lines.
import { randomBytes } from 'node:crypto'
import type { Forwarded } from '../hosts/forwarded.ts'
import type { RequestHead } from './request-head.ts'

export const requestIdHeader = 'X-Request-Id'

export interface RequestIds {
  /** The id that a proxy of the operator sent, or a new one. */
  next(request: RequestHead): string
}

const wellFormed = /^[\w.:+/=-]{1,128}$/

export function createRequestIds(forwarded: Pick<Forwarded, 'requestIdOf'>): RequestIds {
  // Random for each gateway; a counter follows it.
  const prefix = randomBytes(6).toString('base64url')
  let count = 0
  return {
    next(request) {
      const given = forwarded.requestIdOf(request)
      return given !== undefined && wellFormed.test(given) ? given : `${prefix}-${(count++).toString(36)}`
    },
  }
}
