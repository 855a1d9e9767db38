// A parsed request, for the routes.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { cancelled } from '../../core/failure.ts'
import { type RequestTarget, readTarget } from './request-target.ts'

export type RequestContext = {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly target: RequestTarget
  /** Aborts when the client leaves before it has the complete response. */
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
 * Caches the contexts of requests in progress; one is parsed again only if its URL was changed. The
 * cache is a property of the response: a WeakMap entry that refers to its key survives every young
 * collection, and with it the complete request.
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
