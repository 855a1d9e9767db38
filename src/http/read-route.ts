// Routes of this gateway's own documents, such as the front page: GET, HEAD and OPTIONS, readable
// from every origin.
import type { Route } from './add/add.ts'
import { corsHeaders, preflight } from './wire/cors.ts'
import type { RouteName } from './wire/exchange.ts'
import type { Respond } from './wire/problem.ts'
import { methodRefused, type RequestContext } from './wire/request.ts'
import { cutWhenStalled } from './wire/write.ts'

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
  async function send(context: RequestContext): Promise<void> {
    const { request, response } = context
    const { body, status = body ? 200 : 204, headers } = await read(context)
    for (const [name, value] of corsHeaders) response.setHeader(name, value)
    response.setHeader('X-Content-Type-Options', 'nosniff')
    if (body) response.setHeader('Content-Length', body.byteLength)
    response.writeHead(status, headers).end(request.method === 'HEAD' ? undefined : body)
    cutWhenStalled(response, respond.stalledMs)
  }

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
