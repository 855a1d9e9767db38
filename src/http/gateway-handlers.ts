// Handlers of a gateway in a program, which an application can mount before the gateway runs. They
// send 503 before `start` and after `close`, and queue requests during the start. Requests for
// other paths always pass the router.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { Request, Response, Router } from 'express'
import { Failure } from '../core/failure.ts'
import type { CachedResponses } from './content/response-cache.ts'
import { createHosts, type HostOptions, isByHost } from './hosts.ts'
import { createForwarded, createRequestIds, requestIdHeader } from './wire/client.ts'
import { createRespond, type Mode } from './wire/problem.ts'
import { readTarget } from './wire/request.ts'
import { closeAfter } from './wire/write.ts'

/** Compatible with `app.use` of Express 5 and 4, and with similar frameworks. */
export type Middleware = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void

/** The handlers of the running gateway. */
export type Inside = {
  readonly router: Router
  readonly handler: RequestListener
  readonly admin: RequestListener
  readonly hot: CachedResponses['find']
}

export type GatewayHandlers = ReturnType<typeof createGatewayHandlers>

type GatewayHandlersOptions = StartingOptions & {
  readonly hosts: Readonly<Record<string, HostOptions>>
  /** True if unknown hosts may be sites with a DNSLink. */
  readonly sites: boolean
  readonly trustedProxies: readonly string[]
  /** Path prefixes of the gateway in addition to content. */
  readonly paths: readonly string[]
  readonly why: Failure
}

type HandlersState = { readonly inside: Inside } | { readonly why: Failure } | 'starting'

export function createGatewayHandlers(options: GatewayHandlersOptions) {
  const starting = createStarting(options)
  const forwarded = createForwarded(options.trustedProxies)
  const requestIds = createRequestIds(forwarded)
  const hasLink = options.sites ? async () => false : undefined
  const hosts = createHosts({ table: options.hosts, hasLink, forwarded })
  let state: HandlersState = { why: options.why }

  /** True if the gateway will handle this request, as far as that is known before it runs. */
  function isOurs(request: IncomingMessage): boolean {
    try {
      const target = readTarget(request)
      const { path } = target
      const isHere = options.paths.some((one) => path === one || path.startsWith(`${one}/`))
      return isHere || /^\/ip[fn]s\//.test(path) || isByHost(hosts, request, target)
    } catch {
      return /^\/ip[fn]s\//.test(request.url ?? '')
    }
  }

  function wait(request: IncomingMessage, response: ServerResponse, go: () => void): void {
    if (state === 'starting') return starting.hold(request, response, go)
    if (!('why' in state)) return go()
    response.setHeader(requestIdHeader, requestIds.next(request))
    starting.refuse(request, response, state.why)
  }

  function handlerOf(which: 'handler' | 'admin'): RequestListener {
    return function pass(request, response) {
      if (typeof state === 'object' && 'inside' in state) return void state.inside[which](request, response)
      if (which === 'admin') return void starting.admin(request, response)
      wait(request, response, () => pass(request, response))
    }
  }

  function router(request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void): void {
    // The router uses only properties of Node's objects, so requests of Express 4 work too.
    if (typeof state === 'object' && 'inside' in state)
      state.inside.router(request as Request, response as Response, next)
    else if (isOurs(request)) wait(request, response, () => router(request, response, next))
    else next()
  }

  return {
    router: router as Middleware,
    handler: handlerOf('handler'),
    admin: handlerOf('admin'),
    /** Undefined unless the gateway runs. */
    get hot(): CachedResponses['find'] | undefined {
      return typeof state === 'object' && 'inside' in state ? state.inside.hot : undefined
    },
    serves: hosts.serves,
    /** Queues requests from now on. */
    hold(): void {
      state = 'starting'
    },
    open(inside: Inside): void {
      state = { inside }
      starting.over()
    },
    /** Answers every queued or new request with this Failure. */
    shut(why: Failure): void {
      state = { why }
      starting.over()
    },
  }
}

type StartingOptions = {
  readonly mode: Mode
  readonly stalledMs: number
  /** The maximum number of waiting requests. */
  readonly max: number
}

export function createStarting({ mode, stalledMs, max }: StartingOptions) {
  const respond = createRespond({ mode, stalledMs, onError() {} })
  const waiting = new Map<ServerResponse, () => void>()

  function refuse(request: IncomingMessage, response: ServerResponse, why: Failure): void {
    closeAfter(request, response)
    respond.failed(request, response, why)
  }

  return {
    refuse,
    /** Calls `go` at the end of the start, unless the client has left. */
    hold(request: IncomingMessage, response: ServerResponse, go: () => void): void {
      if (waiting.size >= max) return refuse(request, response, notYet())
      waiting.set(response, go)
      response.once('close', () => waiting.delete(response))
    },
    admin(request: IncomingMessage, response: ServerResponse): void {
      const isHealth = request.url?.split('?')[0] === '/healthz'
      const text = JSON.stringify(isHealth ? { status: 'alive' } : { ready: false, starting: true })
      closeAfter(request, response)
      response.writeHead(isHealth ? 200 : 503, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' })
      response.end(text)
    },
    /** Releases all waiting requests. */
    over(): void {
      const all = [...waiting.values()]
      waiting.clear()
      for (const go of all) go()
    },
  }
}

const notYet = (): Failure =>
  new Failure('overloaded', 'this gateway is starting; retry in a second', { source: 'ours', retryAfterMs: 1000 })
