// Request ids, as in `X-Request-Id`, in problems and in log lines.
import { randomBytes } from 'node:crypto'
import type { Forwarded } from '../hosts/forwarded.ts'
import type { RequestHead } from './request-head.ts'

export const requestIdHeader = 'X-Request-Id'

export interface RequestIds {
  /** The id that a trusted proxy sent, or a new one. */
  next(request: RequestHead): string
}

const wellFormed = /^[\w.:+/=-]{1,128}$/

export function createRequestIds(forwarded: Pick<Forwarded, 'requestIdOf'>): RequestIds {
  // A random prefix for each gateway, followed by a counter.
  const prefix = randomBytes(6).toString('base64url')
  let count = 0
  return {
    next(request) {
      const given = forwarded.requestIdOf(request)
      return given !== undefined && wellFormed.test(given) ? given : `${prefix}-${(count++).toString(36)}`
    },
  }
}
