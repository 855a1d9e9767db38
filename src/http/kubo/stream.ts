// Streamed responses and their failures after the first byte. Kubo reports those in a trailer,
// which many clients ignore, so the body must also look incomplete.

import type { Failure } from '../../core/failure.ts'
import { cutWhenStalled, reset, writeAll } from '../wire/write.ts'
import type { KuboCall } from './call.ts'

/** An error in Kubo's format. */
export type KuboError = { readonly Message: string; readonly Code: number; readonly Type: 'error' }

const trailer = 'X-Stream-Error'
const maxTrailerChars = 1024

type To = Pick<KuboCall, 'request' | 'response' | 'session' | 'deps'>
type Pieces = AsyncIterable<Uint8Array> | Iterable<Uint8Array>

/**
 * Reads the first piece before sending headers: until then a failure can still be an error status.
 */
export async function sendPieces({ response, session, deps }: Omit<To, 'request'>, pieces: Pieces): Promise<void> {
  async function* begun() {
    let isFirst = true
    for await (const piece of pieces) {
      if (isFirst) session.begun()
      isFirst = false
      yield piece
    }
  }
  await writeAll(response, begun(), deps)
}

/** Sends one line of JSON for each value. */
export async function sendLines(to: To, values: AsyncIterable<unknown>): Promise<void> {
  to.response.setHeader('Content-Type', 'application/json')
  to.response.setHeader('X-Chunked-Output', '1')
  async function* lines() {
    for await (const value of values) yield Buffer.from(`${JSON.stringify(value)}\n`)
  }
  await sendWithTrailer(to, lines())
}

/** For formats whose truncation is evident: a late failure goes into the trailer. */
export async function sendWithTrailer(to: To, pieces: Pieces): Promise<void> {
  async function* announced() {
    for await (const piece of pieces) {
      // Set only with the first piece, because an error with a length has no trailers. HTTP/1.0 has
      // none at all.
      if (!to.response.headersSent && to.request.httpVersion !== '1.0') to.response.setHeader('Trailer', trailer)
      yield piece
    }
  }
  await sendPieces(to, announced())
}

/**
 * Resets the connection if the client left or stalls, or if there is no trailer. Line formats get
 * one more line, which no client takes for data.
 */
export function endLate({ response, deps }: Omit<To, 'session'>, failure: Failure, error: KuboError): void {
  const hasTrailer = response.getHeader('Trailer') === trailer
  const isStalled = failure.kind === 'timeout' && failure.source === 'client'
  if (!hasTrailer || isStalled || response.destroyed || response.writableEnded) return reset(response)
  if (response.getHeader('Content-Type') === 'application/json') response.write(`${JSON.stringify(error)}\n`)
  response.addTrailers({ [trailer]: error.Message.slice(0, maxTrailerChars).replace(/[^\x20-\x7e]/g, '?') })
  response.end()
  cutWhenStalled(response, deps.stalledMs)
}
