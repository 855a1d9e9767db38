// The public routes, as an Express router that anybody can mount, and what stands around every request.
import type { IncomingMessage, ServerResponse } from 'node:http'
import express, { type Express, type NextFunction, type Router } from 'express'
import { cancelled, Failure } from '../failure.ts'
import { type AnswerDeps, answerContent } from './answer.ts'
import { corsHeaders, preflight } from './cors.ts'
import type { Hosts } from './hosts.ts'
import type { Limits } from './limits.ts'
import { closeAfter } from './linger.ts'
import { type Place, sharedPlace } from './place.ts'
import { type RequestIds, requestIdHeader } from './request-id.ts'
import { hasBody, readTarget, type Target } from './target.ts'

export type AppDeps = AnswerDeps & {
  readonly limits: Limits
  readonly hosts: Hosts
  /** Routes that come with uploads, names and pages; each takes what is its own and calls next for the rest. */
  readonly routes?: readonly ((
    request: IncomingMessage,
    response: ServerResponse,
    next: (error?: unknown) => void,
  ) => void)[]
  readonly requestIds: RequestIds
}

const readMethods = 'GET, HEAD, OPTIONS'

export function createApp(deps: AppDeps): Router {
  const { limits, hosts, respond } = deps
  const router = express.Router({ caseSensitive: true, strict: true })

  const refuse = (request: IncomingMessage, response: ServerResponse, error: unknown, headers = {}): void => {
    const before = () => {
      if (hasBody(request)) closeAfter(request, response)
    }
    respond.failed(request, response, error, { before, headers })
  }

  /** What may be asked of content, and of where it has moved to: a preflight that is sent on has failed. */
  function read(request: IncomingMessage, response: ServerResponse, answer: () => void): void {
    switch (request.method) {
      case 'GET':
      case 'HEAD':
        return answer()
      case 'OPTIONS':
        return preflight(request, response, readMethods)
      default:
        refuse(request, response, notAllowed(request.method ?? ''), { Allow: readMethods })
    }
  }

  function content(request: IncomingMessage, response: ServerResponse, place: Place, next: NextFunction): void {
    read(request, response, () => {
      if (!place.own && request.headers['service-worker'] !== undefined)
        return refuse(request, response, noServiceWorker())
      answerContent(request, response, place, deps).catch(next)
    })
  }

  router.use((request, response, next) => {
    response.setHeader(requestIdHeader, deps.requestIds.next(request))
    // What is only read brings nothing to read here, and would be read to its end for the next request.
    if (readOnly.has(request.method) && hasBody(request)) closeAfter(request, response)
    const refused = limits.enter(request, response)
    if (refused) return refuse(request, response, refused)
    let target: Target
    try {
      target = readTarget(request)
    } catch (error) {
      return refuse(request, response, error)
    }
    const { path, search } = target
    // From here on it is a path, also where the client sent the whole URL.
    if (!request.url.startsWith('/')) request.url = search === '' ? path : `${path}?${search}`
    const left = new AbortController()
    response.once('close', () => left.abort(cancelled()))
    hosts.find(request, target, left.signal).then(
      (found) => {
        if (!found) next()
        else if ('location' in found) read(request, response, () => moved(response, found.location))
        else content(request, response, found.place, next)
      },
      (error) => refuse(request, response, error),
    )
  })

  for (const route of deps.routes ?? []) router.use(route)

  // By the raw URL: a router that decodes first would let an encoded slash look like one.
  router.use((request, response, next) => {
    const target = readTarget(request)
    const place = sharedPlace(target, hosts.keyOf(request))
    if (!place) return next()
    const isRead = request.method === 'GET' || request.method === 'HEAD'
    const meant = isRead ? meantPath(target) : undefined
    if (meant === undefined) content(request, response, place, next)
    else moved(response, meant)
  })

  router.use((request, response) => {
    const failure = new Failure(
      'no-link',
      `there is nothing at ${JSON.stringify(request.url.split('?')[0])}; content is at /ipfs/<cid>`,
      {
        source: 'client',
        facts: { status: 404 },
      },
    )
    refuse(request, response, failure)
  })

  router.use((error: unknown, request: IncomingMessage, response: ServerResponse, _next: unknown) =>
    refuse(request, response, error),
  )
  return router
}

/** The routes as an application of their own, which adds nothing to an answer. */
export function application(router: Router): Express {
  const app = express()
  app.disable('x-powered-by')
  app.disable('etag')
  app.enable('case sensitive routing')
  app.use(router)
  return app
}

const readOnly: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS'])

const notAllowed = (method: string): Failure =>
  new Failure('unsupported', `${method} is not a method of content; it is read with GET`, {
    source: 'client',
    facts: { status: 405 },
  })

const noServiceWorker = (): Failure =>
  new Failure('malformed', 'a service worker needs an origin of its own; this one is shared by all content', {
    source: 'client',
  })

/** Where a link leads that says it in another way: one /ipfs too many, or a whole ipfs:// address as `uri`. */
function meantPath({ path, query, search }: Target): string | undefined {
  const twice = /^\/ip[fn]s(\/ip[fn]s\/.+)$/.exec(path)?.[1]
  if (twice !== undefined) return search === '' ? twice : `${twice}?${search}`
  if (path !== '/ipfs/' && path !== '/ipns/') return undefined
  const [, scheme, rest] = /^(ipfs|ipns):\/\/([^/?#].*)$/.exec(query.get('uri') ?? '') ?? []
  return rest === undefined ? undefined : `/${scheme}/${rest.replace(/[^\x21-\x7e]/gu, encodeURIComponent)}`
}

function moved(response: ServerResponse, to: string): void {
  for (const [name, value] of corsHeaders) response.setHeader(name, value)
  response.setHeader('Vary', 'X-Forwarded-Host, X-Forwarded-Proto')
  response.writeHead(301, { Location: to, 'Content-Length': '0' }).end()
}
