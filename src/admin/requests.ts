// Helpers of the admin routes: parsing a CID, and error responses.
import type { Request, Response } from 'express'
import type { CID } from 'multiformats/cid'
import { parseCid } from '../core/cid.ts'
import { cancelled, type FailureKind, isFailure } from '../core/failure.ts'

/** A malformed request: 400. */
export class Wrong extends Error {}

export const refuse = (response: Response, status: number, detail: string): void => {
  response.status(status).json({ status, detail })
}

export function cidIn({ params }: Request): CID {
  const text = String(params['cid'])
  const cid = parseCid(text)
  if (!cid) throw new Wrong(`${text.slice(0, 100)} is not a CID`)
  return cid
}

/** Aborts when the client leaves. */
export function untilLeft(response: Response): AbortSignal {
  const left = new AbortController()
  response.once('close', () => left.abort(cancelled()))
  return left.signal
}

/** Any other kind is a failing provider or tier. */
const statuses: Partial<Record<FailureKind, number>> = {
  denied: 409,
  overloaded: 503,
  cancelled: 503,
  'disk-full': 507,
}

export function answerFailures(
  error: unknown,
  _request: Request,
  response: Response,
  next: (error: unknown) => void,
): void {
  if (response.headersSent) return next(error)
  if (error instanceof Wrong) return refuse(response, 400, error.message)
  if (!isFailure(error)) return next(error)
  if (error.retryAfterMs !== undefined) response.set('Retry-After', String(Math.ceil(error.retryAfterMs / 1000)))
  refuse(response, statuses[error.kind] ?? 502, error.message)
}
