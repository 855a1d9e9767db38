// The front page, its icon and `/robots.txt`, on cidgate's own server only: in another application
// these paths belong to that application.
import type { IncomingMessage } from 'node:http'
import { contactHref } from '../web/contact.ts'
import { type FrontFacts, frontPage, frontPolicy, icon } from '../web/front-page.ts'
import type { Route } from './add/add.ts'
import { qualityOf } from './content/negotiate.ts'
import { corsHeaders, preflight } from './wire/cors.ts'
import type { Respond } from './wire/problem.ts'
import { baseOf, HttpRefusal, hasBody, type RequestContext } from './wire/request.ts'
import { closeAfter, cutWhenStalled } from './wire/write.ts'

export type FrontOptions = Omit<FrontFacts, 'base' | 'uploads'> & {
  readonly uploadsFor: (request: IncomingMessage, to: 'page' | 'program') => FrontFacts['uploads']
  /** True if shared caches may store the front page. */
  readonly isSameForAll: boolean
  /** `page`, `none`, or the target of a redirect from `/`. */
  readonly root: string
  /** The operator's; undefined means the own icon. */
  readonly logo: { readonly bytes: Uint8Array; readonly type: string } | undefined
  /** Hosts whose content has its own origins. */
  readonly subdomainHosts: readonly string[]
  readonly respond: Respond
}

const methods = 'GET, HEAD, OPTIONS'
const iconPolicy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"

type Text = {
  readonly type: string
  readonly text: string | Uint8Array
  readonly maxAge: number
  readonly isPrivate?: boolean
}

// A crawler that traverses other people's content costs the upstreams as much as all visitors. If
// `/` redirects to content, the gateway is a website of the operator, which should be found.
const robots = (root: string): Text => ({
  type: 'text/plain; charset=utf-8',
  text: root.startsWith('/')
    ? 'User-agent: *\nDisallow:\n'
    : 'User-agent: *\nDisallow: /ipfs/\nDisallow: /ipns/\nDisallow: /add\nDisallow: /api/\n',
  maxAge: 3600,
})

export function createFrontRoutes(options: FrontOptions): readonly Route[] {
  const forms = options.subdomainHosts.flatMap((host) => [`*.ipfs.${host}:*`, `*.ipns.${host}:*`])
  const policy = frontPolicy(forms)
  const { root, logo } = options
  const favicon: Text = logo
    ? { type: logo.type, text: logo.bytes, maxAge: 3600 }
    : { type: 'image/svg+xml', text: icon, maxAge: 86_400 }
  const kept = { maxAge: 60, isPrivate: !options.isSameForAll }

  function first(context: RequestContext): void {
    const { request, response } = context
    if (root !== 'page') {
      response.setHeader('Location', root.startsWith('/') ? baseOf(request) + encoded(root) : root)
      return send(context, { type: 'text/plain; charset=utf-8', text: '', maxAge: 60 }, 302)
    }
    const { accept } = request.headers
    response.setHeader('Vary', 'Accept')
    const asPage = qualityOf(accept, 'text/html') > qualityOf(accept, 'application/json')
    if (!asPage) return send(context, { type: 'application/json', text: described(options, request), ...kept })
    response.setHeader('Content-Security-Policy', policy)
    response.setHeader('Referrer-Policy', 'no-referrer')
    const text = frontPage({ ...options, base: baseOf(request), uploads: options.uploadsFor(request, 'page') })
    send(context, { type: 'text/html; charset=utf-8', text, ...kept })
  }

  function send({ request, response }: RequestContext, { type, text, maxAge, isPrivate }: Text, status = 200): void {
    const body = typeof text === 'string' ? Buffer.from(text) : text
    for (const [name, value] of corsHeaders) response.setHeader(name, value)
    response.setHeader('Cache-Control', `${isPrivate ? 'private' : 'public'}, max-age=${maxAge}`)
    response.setHeader('X-Content-Type-Options', 'nosniff')
    response.setHeader('Content-Type', type)
    response.setHeader('Content-Length', body.byteLength)
    response.writeHead(status).end(request.method === 'HEAD' ? undefined : body)
    cutWhenStalled(response, options.respond.stalledMs)
  }

  const route = (at: RegExp, give: (context: RequestContext) => void): Route => ({
    name: 'front',
    at,
    answer(context) {
      const { request, response } = context
      const { method = '' } = request
      if (method === 'OPTIONS') return preflight(request, response, methods)
      if (method === 'GET' || method === 'HEAD') return give(context)
      if (hasBody(request)) closeAfter(request, response)
      const said = `method ${method} is not allowed: this page is read with GET`
      const failure = new HttpRefusal('unsupported', said, { source: 'client', status: 405 })
      options.respond.failed(request, response, failure, { headers: { Allow: methods } })
    },
  })

  return [
    ...(root === 'none' ? [] : [route(/^\/$/, first)]),
    route(/^\/favicon\.(?:ico|svg)$/, (context) => {
      // An SVG that is opened by itself is a page: its scripts would run here.
      context.response.setHeader('Content-Security-Policy', iconPolicy)
      send(context, favicon)
    }),
    route(/^\/robots\.txt$/, (context) => send(context, robots(root))),
  ]
}

/** The front page for programs: where everything is. */
function described({ version, name, uploadsFor, contact }: FrontOptions, request: IncomingMessage): string {
  const uploads = uploadsFor(request, 'program')
  const about = {
    name: 'cidgate',
    version,
    title: name,
    content: ['/ipfs/{cid}', '/ipns/{name}'],
    openapi: '/openapi.json',
    ...(uploads === 'closed' ? {} : { uploads: { path: '/add', needsToken: uploads === 'token' } }),
    ...(contact === undefined ? {} : { contact: contactHref(contact) }),
  }
  return `${JSON.stringify(about, null, 2)}\n`
}

const encoded = (path: string): string => path.replace(/[^\x21-\x7e]/gu, encodeURIComponent)
