// The public routes, as an Express router for mounting and as the handler of cidgate's own server.

import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { Router } from 'express'
import type { CID } from 'multiformats/cid'
import { parseLeaf } from '../core/cid.ts'
import { Failure, malformed } from '../core/failure.ts'
import type { Trace } from '../core/wire/trace.ts'
import { type AnswerDeps, answerContent } from './content/answer.ts'
import { type ContentPlace, correctedPath, type Hosts, type Located, sharedPlace } from './hosts.ts'
import type { Limits } from './limits.ts'
import { type Next, type Route, readMethods } from './route.ts'
import { preflight } from './wire/cors.ts'
import type { Exchange } from './wire/exchange.ts'
import {
  baseOf,
  HttpRefusal,
  hasBody,
  methodRefused,
  type RequestContext,
  type RequestIds,
  readContext,
  requestIdHeader,
} from './wire/request.ts'
import { closeAfter, type Document } from './wire/write.ts'

export type AppDeps = AnswerDeps & {
  readonly limits: Limits
  readonly hosts: Hosts
  /** Routes for uploads, names and pages. */
  readonly routes?: readonly Route[]
  /**
   * Routes for cidgate's own server only: in another application these paths belong to that
   * application.
   */
  readonly ownRoutes?: readonly Route[]
  /** True if a tier of this machine surely has the block. */
  readonly holds: (cid: CID) => boolean
  readonly requestIds: RequestIds
  readonly trace: Trace
  /** Records the request for metrics and the access log. */
  readonly watch: (request: IncomingMessage, response: ServerResponse) => Exchange
}

type Exchanged = RequestContext | Pick<RequestContext, 'request' | 'response'>

export function createApp(deps: AppDeps) {
  const { limits, hosts, respond } = deps
  const refuse = ({ request, response }: Exchanged, error: unknown): void =>
    void respond.failed(request, response, error)

  const holdsLeaf = ({ url = '' }: IncomingMessage): boolean => {
    const cid = url.startsWith(ipfs) ? parseLeaf(url.slice(ipfs.length)) : undefined
    return cid !== undefined && deps.holds(cid)
  }

  /**
   * Counts a request of this gateway, once, and validates it. Undefined if it was refused and
   * answered.
   */
  function enter(exchanged: Exchanged): RequestContext | undefined {
    const { request, response } = exchanged
    const exchange = deps.watch(request, response)
    if (exchange.context) return exchange.context
    exchange.requestId = deps.requestIds.next(request)
    // Replaces an id set by the mounting application: the response must carry the id in our log.
    response.removeHeader(requestIdHeader)
    // Node would read the unused body of a GET to its end before the next request: close the
    // connection instead.
    if (readOnly.has(request.method ?? '') && hasBody(request)) closeAfter(request, response)
    try {
      const refused = limits.enter(request, response, () => holdsLeaf(request))
      // Not thrown, since throwing would be a tenth of the cost of a refusal.
      if (refused) return void refuse(exchanged, refused)
      refuseExpectation(request, response)
      const context = 'target' in exchanged ? exchanged : readContext(request, response)
      const { path, search } = context.target
      // Reduces an absolute URL to its path: a mounted router reads nothing else.
      if (!request.url?.startsWith('/')) request.url = search === '' ? path : `${path}?${search}`
      exchange.context = context
      return context
    } catch (error) {
      refuse(exchanged, error)
      return undefined
    }
  }

  /** Passes the request on if none of these routes is for its path. */
  function answerBy(routes: readonly Route[] = [], path: string, exchanged: Exchanged, next: Next): void {
    const route = routes.find(({ at }) => at.test(path))
    if (!route) return next()
    deps.watch(exchanged.request, exchanged.response).route = route.name
    const context = enter(exchanged)
    if (!context) return
    const kind = route.costs?.(context)
    if (kind) limits.charge(kind, context.request)
    route.answer(context, next)
  }

  /**
   * Allows the methods of content for redirects too, since browsers refuse a redirected preflight.
   */
  function read(context: RequestContext, answer: () => void): void {
    const { method = '' } = context.request
    if (method === 'GET' || method === 'HEAD') return answer()
    if (method === 'OPTIONS') return respond.send(context, preflight(context.request, readMethods))
    refuse(context, methodRefused(`method ${method} is not allowed: content is read with GET`, readMethods))
  }

  function content(context: RequestContext, place: ContentPlace, next: Next): void {
    const { request, response } = context
    deps.watch(request, response).route = place.namespace
    read(context, () => {
      if (!place.own && request.headers['service-worker'] !== undefined) return refuse(context, noServiceWorker())
      answerContent(context, place, deps, next)
    })
  }

  function located(exchanged: Exchanged, found: Located, next: Next): void {
    const context = enter(exchanged)
    if (!context) return
    if (found.kind === 'moved') read(context, () => respond.send(context, moved(found.location)))
    else if (found.kind !== 'by-path') content(context, found.place, next)
  }

  function byPath(path: string, exchanged: Exchanged, next: Next): void {
    answerBy(deps.routes, path, exchanged, (error) => {
      if (error !== undefined || !contentUrl.test(path)) return next(error)
      const { request } = exchanged
      const context = enter(exchanged)
      const place = context && sharedPlace(context.target, baseOf(request), hosts.keyOf(request))
      if (!place) return
      const isRead = request.method === 'GET' || request.method === 'HEAD'
      const corrected = isRead ? correctedPath(context.target) : undefined
      if (corrected === undefined) content(context, place, next)
      else respond.send(context, moved(place.base + corrected))
    })
  }

  /** Answers a request of this gateway; passes every other on, uncounted and unchanged. */
  function answer(exchanged: Exchanged, pass: () => void): void {
    const { request, response } = exchanged
    const fail = (error: unknown): void => {
      if (enter(exchanged)) refuse(exchanged, error)
    }
    const next: Next = (error) => (error === undefined ? pass() : fail(error))
    try {
      const context = 'target' in exchanged ? exchanged : quietly(() => readContext(request, response))
      // A malformed request for another path may be one that the mounting application handles.
      if (!context) return byPath(pathIn(request), exchanged, next)
      const { path } = context.target
      // The host decides before the path.
      const found = hosts.locate(request, context.target)
      if (found.kind === 'by-path') return byPath(path, context, next)
      if (found.kind !== 'site') return located(context, found, next)
      // A host without a DNSLink may belong to the mounting application, so it is not counted yet.
      hosts
        .hasLink(found.name, context.signal)
        .then((has) => (has ? located(context, found, next) : byPath(path, context, next)))
        .catch(fail)
    } catch (error) {
      fail(error)
    }
  }

  const handler: RequestListener = (request, response) => {
    const context = enter({ request, response })
    const otherwise: Next = (error) => refuse({ request, response }, error ?? noSuchPath(request))
    if (context)
      within(deps.trace, request, () =>
        answer(context, () => answerBy(deps.ownRoutes, context.target.path, context, otherwise)),
      )
  }

  return {
    /**
     * Handles the gateway's paths; passes every other request, uncounted and unchanged, to the
     * mounting application.
     */
    router: Router().use((request, response, next) =>
      within(deps.trace, request, () => answer({ request, response }, next)),
    ),
    handler,
  }
}

/** Runs a request in its trace: the client's, or a new one. */
function within(trace: Trace, request: IncomingMessage, go: () => void): void {
  const point = trace.of(request)
  if (point) trace.run(point, go)
  else go()
}

const ipfs = '/ipfs/'
const contentUrl = /^\/ip[fn]s\//

/** Undefined if it throws. */
function quietly<Read>(read: () => Read): Read | undefined {
  try {
    return read()
  } catch {
    return undefined
  }
}

const readOnly: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS'])

/**
 * The client may or may not send its body after an unknown expectation, so the connection cannot be
 * reused.
 */
function refuseExpectation(request: IncomingMessage, response: ServerResponse): void {
  const { expect } = request.headers
  if (expect === undefined || request.httpVersion === '1.0' || continues.test(expect)) return
  closeAfter(request, response)
  const said = 'the only Expect that is supported is 100-continue'
  throw new HttpRefusal('unsupported', said, { source: 'client', status: 417 })
}

// As Node parses it.
const continues = /(?:^|\W)100-continue(?:$|\W)/i

const pathIn = ({ url = '' }: IncomingMessage): string => url.split('?', 1)[0] ?? ''

const noSuchPath = (request: IncomingMessage): Failure =>
  new Failure('path-not-found', `no such path: ${JSON.stringify(pathIn(request))}; content is at /ipfs/<cid>`, {
    source: 'client',
  })

const noServiceWorker = (): Failure =>
  malformed('a service worker needs an origin of its own; this one is shared by all content')

const moved = (to: string): Document => ({
  status: 301,
  headers: { Location: to, Vary: 'X-Forwarded-Host, X-Forwarded-Proto' },
})
