// A request, read once: routes get this, and none reads the request line again.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { cancelled } from '../../core/failure.ts'
import { type RequestTarget, readTarget } from './request-target.ts'

export type RequestContext = {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly target: RequestTarget
  /** Aborts when the client leaves before it has the whole answer. */
  readonly signal: AbortSignal
}

/** Throws a Failure `malformed`. */
export function readContext(request: IncomingMessage, response: ServerResponse): RequestContext {
  const target = readTarget(request)
  const left = new AbortController()
  response.once('close', () => {
    if (!response.writableFinished) left.abort(cancelled())
  })
  return { request, response, target, signal: left.signal }
}

/**
 * The contexts of the requests in progress. One is read again only where its URL was changed. It hangs on the response itself: what
 * a WeakMap holds outlives every collection of young memory where it leads back to its key, and with it all of the request.
 */
export function createContexts(): (request: IncomingMessage, response: ServerResponse) => RequestContext {
  const key = Symbol('context')
  type Read = { readonly url: string | undefined; readonly context: RequestContext }
  return (request, response: ServerResponse & { [key]?: Read }) => {
    const known = response[key]
    if (known && known.url === request.url) return known.context
    const context = readContext(request, response)
    response[key] = { url: request.url, context }
    return context
  }
}
