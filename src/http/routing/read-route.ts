// A read-only route for other nodes: GET, HEAD and OPTIONS, from every origin.
import type { Failure } from '../../core/failure.ts'
import type { Route } from '../add/add.ts'
import { closeAfter } from '../wire/close-after-answer.ts'
import { corsHeaders, preflight } from '../wire/cors.ts'
import type { RequestContext } from '../wire/request-context.ts'
import { hasBody } from '../wire/request-target.ts'
import type { Respond } from '../wire/respond.ts'
import { cutWhenStalled } from '../wire/write.ts'

const methods = 'GET, HEAD, OPTIONS'

/** The response; without a body it is 204. */
export type Read = {
  readonly body: Uint8Array | undefined
  readonly headers: Readonly<Record<string, string>>
}

export function readRoute({
  at,
  read,
  refusal,
  respond,
}: {
  readonly at: RegExp
  /** Rejects with a Failure. */
  readonly read: (context: RequestContext) => Promise<Read>
  /** The error for any other method. */
  readonly refusal: (method: string) => Failure
  readonly respond: Respond
}): Route {
  async function answer({ request, response }: RequestContext, reading: Promise<Read>): Promise<void> {
    const { body, headers } = await reading
    for (const [name, value] of corsHeaders) response.setHeader(name, value)
    if (!body) return void response.writeHead(204, headers).end()
    response.setHeader('X-Content-Type-Options', 'nosniff')
    response.setHeader('Content-Length', body.byteLength)
    response.writeHead(200, headers).end(request.method === 'HEAD' ? undefined : body)
    cutWhenStalled(response, respond.stalledMs)
  }

  return {
    name: 'routing',
    at,
    answer(context) {
      const { request, response } = context
      const { method = '' } = request
      if (method === 'OPTIONS') return preflight(request, response, methods)
      const before = () => {
        if (hasBody(request)) closeAfter(request, response)
      }
      if (method !== 'GET' && method !== 'HEAD')
        return respond.failed(request, response, refusal(method), { before, headers: { Allow: methods } })
      answer(context, read(context)).catch((error: unknown) => respond.failed(request, response, error, { before }))
    },
  }
}
