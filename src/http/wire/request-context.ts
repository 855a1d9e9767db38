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

/** The contexts of the requests in progress. One is read again only where its URL was changed. */
export function createContexts(): (request: IncomingMessage, response: ServerResponse) => RequestContext {
  const read = new WeakMap<ServerResponse, { readonly url: string | undefined; readonly context: RequestContext }>()
  return (request, response) => {
    const known = read.get(response)
    if (known && known.url === request.url) return known.context
    const context = readContext(request, response)
    read.set(response, { url: request.url, context })
    return context
  }
}
