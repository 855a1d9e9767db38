// GET /openapi.json: made once for each mount path, and the same bytes until the configuration changes.

import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { JsonSchema } from '../../schemas/documents.ts'
import type { Route } from '../add/add.ts'
import { matches } from '../content/conditional.ts'
import { closeAfter } from '../wire/close-after-answer.ts'
import { corsHeaders, preflight } from '../wire/cors.ts'
import type { Mode } from '../wire/problem.ts'
import { HttpRefusal } from '../wire/refusal.ts'
import { baseOf, hasBody } from '../wire/request-target.ts'
import type { Respond } from '../wire/respond.ts'
import { cutWhenStalled } from '../wire/write.ts'
import { openApiDocument } from './document.ts'

const methods = 'GET, HEAD, OPTIONS'

export function createOpenApiRoute(options: {
  readonly schemas: Readonly<Record<string, JsonSchema>>
  readonly hasTokens: boolean
  readonly hasRpc: boolean
  readonly mode: Mode
  readonly respond: Respond
}): Route {
  const made = new LRUCache<string, MadeDescription>({ max: mostMade })
  const madeFor = (base: string): MadeDescription => {
    const known = made.get(base) ?? make(openApiDocument({ ...options, base }))
    made.set(base, known)
    return known
  }
  const answer: Route['answer'] = ({ request, response }) => {
    const { method = '' } = request
    if (method === 'OPTIONS') return preflight(request, response, methods)
    const head = method === 'HEAD'
    if (!head && method !== 'GET') {
      const failure = new HttpRefusal('unsupported', 'the description is read with GET', {
        source: 'client',
        status: 405,
      })
      if (hasBody(request)) closeAfter(request, response)
      options.respond.failed(request, response, failure, { headers: { Allow: methods } })
      return
    }
    const { body, etag } = madeFor(baseOf(request))
    for (const [name, value] of corsHeaders) response.setHeader(name, value)
    response.setHeader('Cache-Control', 'public, max-age=3600')
    response.setHeader('ETag', etag)
    response.setHeader('X-Content-Type-Options', 'nosniff')
    if (matches(request.headers['if-none-match'], etag)) return void response.writeHead(304).end()
    response.setHeader('Content-Type', 'application/json')
    response.setHeader('Content-Length', body.byteLength)
    response.writeHead(200).end(head ? undefined : body)
    cutWhenStalled(response, options.respond.stalledMs)
  }
  return { name: 'openapi', at: /^\/openapi\.json$/, answer }
}

type MadeDescription = { readonly body: Buffer; readonly etag: string }

// A router mounted with a pattern sees as many mount paths as clients try.
const mostMade = 8

function make(document: object): MadeDescription {
  const body = Buffer.from(`${JSON.stringify(document)}\n`)
  return { body, etag: `"${createHash('sha256').update(body).digest('base64url').slice(0, 22)}"` }
}
