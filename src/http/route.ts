// Routes of the public address, and those of this gateway's own documents, such as the front page:
// GET, HEAD and OPTIONS, readable from every origin.
import type { CostlyKind } from './limits.ts'
import { corsHeaders, preflight } from './wire/cors.ts'
import type { RouteName } from './wire/exchange.ts'
import type { Respond } from './wire/problem.ts'
import { methodRefused, type RequestContext } from './wire/request.ts'
import { cutWhenStalled } from './wire/write.ts'

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

export type Document = {
  /** Default: 200, or 204 without a body. */
  readonly status?: number
  readonly body?: Uint8Array | undefined
  readonly headers: Readonly<Record<string, string>>
}

export function readRoute({
  name,
  at,
  read,
  refusal = () => methodRefused('this path is read with GET'),
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
  const send = async (context: RequestContext): Promise<void> =>
    sendDocument(context, await read(context), respond.stalledMs)

  return {
    name,
    at,
    answer(context) {
      const { request, response } = context
      const { method = '' } = request
      if (method === 'OPTIONS') return preflight(request, response, readMethods)
      if (method !== 'GET' && method !== 'HEAD')
        respond.failed(request, response, refusal(method), { headers: { Allow: readMethods } })
      else send(context).catch((error: unknown) => respond.failed(request, response, error))
    },
  }
}

/** Sends a document that every origin may read. */
export function sendDocument(
  { request, response }: Pick<RequestContext, 'request' | 'response'>,
  { body, status = body ? 200 : 204, headers }: Document,
  stalledMs: number,
): void {
  for (const [name, value] of corsHeaders) response.setHeader(name, value)
  response.setHeader('X-Content-Type-Options', 'nosniff')
  if (body) response.setHeader('Content-Length', body.byteLength)
  response.writeHead(status, headers).end(request.method === 'HEAD' ? undefined : body)
  cutWhenStalled(response, stalledMs)
}
