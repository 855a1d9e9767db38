// GET /openapi.json: made once for each mount path, and unchanged until the configuration changes.
// A browser gets a page.

import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { JsonSchema } from '../../schemas/documents.ts'
import { pagePolicy } from '../../web/page.ts'
import type { Route } from '../add/add.ts'
import { matches } from '../content/conditional.ts'
import { qualityOf } from '../content/negotiate.ts'
import { closeAfter } from '../wire/close-after-answer.ts'
import { corsHeaders, preflight } from '../wire/cors.ts'
import type { Mode } from '../wire/problem.ts'
import { HttpRefusal } from '../wire/refusal.ts'
import { baseOf, hasBody } from '../wire/request-target.ts'
import type { Respond } from '../wire/respond.ts'
import { cutWhenStalled } from '../wire/write.ts'
import { openApiDocument } from './document.ts'
import { openApiPage } from './page.ts'
import type { Json } from './words.ts'

const methods = 'GET, HEAD, OPTIONS'

export function createOpenApiRoute(options: {
  readonly schemas: Readonly<Record<string, JsonSchema>>
  readonly hasTokens: boolean
  readonly hasRpc: boolean
  readonly mode: Mode
  readonly respond: Respond
}): Route {
  const made = new LRUCache<string, Made>({ max: mostMade })
  const madeFor = (base: string): Made => {
    const known = made.get(base) ?? make(openApiDocument({ ...options, base }))
    made.set(base, known)
    return known
  }
  const answer: Route['answer'] = ({ request, response, target }) => {
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
    const { accept } = request.headers
    const asPage =
      target.query.get('format') !== 'json' && qualityOf(accept, 'text/html') > qualityOf(accept, 'application/json')
    const { body, etag, type } = madeFor(baseOf(request))[asPage ? 'page' : 'json']
    response.setHeader('Vary', 'Accept')
    for (const [name, value] of corsHeaders) response.setHeader(name, value)
    response.setHeader('Cache-Control', 'public, max-age=3600')
    response.setHeader('ETag', etag)
    response.setHeader('X-Content-Type-Options', 'nosniff')
    if (matches(request.headers['if-none-match'], etag)) return void response.writeHead(304).end()
    if (asPage) response.setHeader('Content-Security-Policy', pagePolicy)
    response.setHeader('Content-Type', type)
    response.setHeader('Content-Length', body.byteLength)
    response.writeHead(200).end(head ? undefined : body)
    cutWhenStalled(response, options.respond.stalledMs)
  }
  return { name: 'openapi', at: /^\/openapi\.json$/, answer }
}

type MadeDescription = { readonly body: Buffer; readonly etag: string; readonly type: string }
type Made = { readonly json: MadeDescription; readonly page: MadeDescription }

// A router mounted with a pattern sees as many mount paths as clients try.
const mostMade = 8

const make = (document: Json): Made => ({
  json: described(`${JSON.stringify(document)}\n`, 'application/json'),
  page: described(openApiPage(document), 'text/html; charset=utf-8'),
})

function described(text: string, type: string): MadeDescription {
  const body = Buffer.from(text)
  return { body, type, etag: `"${createHash('sha256').update(body).digest('base64url').slice(0, 22)}"` }
}
