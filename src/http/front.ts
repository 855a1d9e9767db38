// The front page, its icon and `/robots.txt`, on cidgate's own server only: in another application
// these paths belong to that application.

import type { IncomingMessage } from 'node:http'
import { headerSafe } from '../core/wire/http.ts'
import { type FrontFacts, frontPage, frontPolicy, icon } from '../web/front-page.ts'
import { contactHref } from '../web/page.ts'
import { qualityOf } from './content/negotiate.ts'
import { type Route, readRoute } from './route.ts'
import type { Respond } from './wire/problem.ts'
import { baseOf, type RequestContext } from './wire/request.ts'
import type { Document } from './wire/write.ts'

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

const iconPolicy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"

const documentOf = (type: string, body: string | Uint8Array, maxAge: number): Document => ({
  body,
  headers: { 'Content-Type': type, 'Cache-Control': `public, max-age=${maxAge}` },
})
const plainText = 'text/plain; charset=utf-8'

// A crawler that traverses other people's content costs the upstreams as much as all visitors. If
// `/` redirects to content, the gateway is a website of the operator, which should be found.
const robots = (root: string): string =>
  root.startsWith('/')
    ? 'User-agent: *\nDisallow:\n'
    : 'User-agent: *\nDisallow: /ipfs/\nDisallow: /ipns/\nDisallow: /add\nDisallow: /api/\n'

export function createFrontRoutes(options: FrontOptions): readonly Route[] {
  const { root, logo, respond } = options
  const forms = options.subdomainHosts.flatMap((host) => [`*.ipfs.${host}:*`, `*.ipns.${host}:*`])
  const pageHeaders = { 'Content-Security-Policy': frontPolicy(forms), 'Referrer-Policy': 'no-referrer' }
  const cacheControl = `${options.isSameForAll ? 'public' : 'private'}, max-age=60`
  const favicon = logo ? documentOf(logo.type, logo.bytes, 3600) : documentOf('image/svg+xml', icon, 86_400)

  function first({ request }: RequestContext): Document {
    if (root !== 'page') {
      const { body, headers } = documentOf(plainText, '', 60)
      const location = root.startsWith('/') ? baseOf(request) + headerSafe(root) : root
      return { status: 302, body, headers: { ...headers, Location: location } }
    }
    const { accept } = request.headers
    const asPage = qualityOf(accept, 'text/html') > qualityOf(accept, 'application/json')
    const { body, headers } = asPage
      ? documentOf(
          'text/html; charset=utf-8',
          frontPage({ ...options, base: baseOf(request), uploads: options.uploadsFor(request, 'page') }),
          60,
        )
      : documentOf('application/json', described(options, request), 60)
    return {
      body,
      headers: { ...headers, 'Cache-Control': cacheControl, Vary: 'Accept', ...(asPage && pageHeaders) },
    }
  }

  const route = (at: RegExp, read: (context: RequestContext) => Document): Route =>
    readRoute({ name: 'front', at, read, respond })

  return [
    ...(root === 'none' ? [] : [route(/^\/$/, first)]),
    // An SVG opened by itself is a page: its scripts would run on this origin.
    route(/^\/favicon\.(?:ico|svg)$/, () => ({
      ...favicon,
      headers: { ...favicon.headers, 'Content-Security-Policy': iconPolicy },
    })),
    route(/^\/robots\.txt$/, () => documentOf(plainText, robots(root), 3600)),
  ]
}

/** The front page for programs: the URLs of all parts. */
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
