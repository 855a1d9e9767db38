// Routes of the public address, and those of this gateway's own documents, such as the front page:
// GET, HEAD and OPTIONS, readable from every origin.
import type { CostlyKind } from './limits.ts'
import { preflight } from './wire/cors.ts'
import type { RouteName } from './wire/exchange.ts'
import type { Respond } from './wire/problem.ts'
import { methodRefused, type RequestContext } from './wire/request.ts'
import type { Document } from './wire/write.ts'

export type Next = (error?: unknown) => void

/**
 * A route for one or more public paths. `at` is matched against the raw path, since a decoded one
 * could look like another path.
 */
export type Route = {
  readonly name: RouteName
  readonly at: RegExp
  readonly answer: (context: RequestContext, next: Next) => void
  /** The extra budget that this request is charged to; absent means only that of all requests. */
  readonly costs?: (context: RequestContext) => CostlyKind | undefined
}

export const readMethods = 'GET, HEAD, OPTIONS'

export function readRoute({
  name,
  at,
  read,
  refusal = () => methodRefused('this path is read with GET', readMethods),
  respond,
}: {
  readonly name: RouteName
  readonly at: RegExp
  /** Throws or rejects with a Failure. */
  readonly read: (context: RequestContext) => Document | Promise<Document>
  /** The error for any other method. */
  readonly refusal?: (method: string) => Error
  readonly respond: Respond
}): Route {
  const send = async (context: RequestContext): Promise<void> => respond.send(context, await read(context))

  return {
    name,
    at,
    answer(context) {
      const { request, response } = context
      const { method = '' } = request
      if (method === 'OPTIONS') return respond.send(context, preflight(request, readMethods))
      if (method !== 'GET' && method !== 'HEAD') respond.failed(request, response, refusal(method))
      else send(context).catch((error: unknown) => respond.failed(request, response, error))
    },
  }
}
