// Handlers of a gateway in a program, which an application can mount before the gateway runs. They
// send 503 before `start` and after `close`, and queue requests during the start. Requests for
// other paths always pass the router.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { Request, Response, Router } from 'express'
import { Failure } from '../core/failure.ts'
import type { CachedResponses } from './content/response-cache.ts'
import { createHosts, type HostOptions, isByHost } from './hosts.ts'
import { createRespond, type Mode } from './wire/problem.ts'
import { createForwarded, createRequestIds, readTarget, requestIdHeader } from './wire/request.ts'
import { closeAfter } from './wire/write.ts'

/** Compatible with `app.use` of Express 5 and 4, and with similar frameworks. */
export type Middleware = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void

/** The handlers of the running gateway. */
export type Inside = {
  readonly router: Router
  readonly handler: RequestListener
  readonly admin: RequestListener
  readonly hot: CachedResponses['take']
  close(): Promise<void>
}

type GatewayHandlersOptions<Running extends Inside> = StartingOptions & {
  /** Creates the gateway, at `start`. */
  readonly make: () => Promise<Running>
  readonly hosts: Readonly<Record<string, HostOptions>>
  /** True if unknown hosts may be sites with a DNSLink. */
  readonly sites: boolean
  readonly trustedProxies: readonly string[]
  /** Path prefixes of the gateway in addition to content. */
  readonly paths: readonly string[]
}

export function createGatewayHandlers<Running extends Inside>(options: GatewayHandlersOptions<Running>) {
  const waiting = createStarting(options)
  const forwarded = createForwarded(options.trustedProxies)
  const requestIds = createRequestIds(forwarded)
  const hasLink = options.sites ? async () => false : undefined
  const hosts = createHosts({ table: options.hosts, hasLink, forwarded })
  let begun: Promise<Running> | undefined
  let closing: Promise<void> | undefined
  /** The running gateway, or why there is none; undefined while it starts. */
  let state: { readonly running: Running } | { readonly why: Failure } | undefined = { why: notStarted() }

  /** Releases the requests that waited for the start. */
  function become(next: NonNullable<typeof state>): void {
    state = next
    waiting.over()
  }

  async function begin(): Promise<Running> {
    state = undefined
    try {
      const running = await options.make()
      if (closing === undefined) become({ running })
      return running
    } catch (error) {
      if (closing === undefined) become({ why: notRunning('this gateway could not start') })
      throw error
    }
  }

  async function end(): Promise<void> {
    become({ why: ended() })
    const made = await begun?.catch(() => undefined)
    await made?.close()
  }

  const current = (): Running | undefined => (state && 'running' in state ? state.running : undefined)

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
    if (state === undefined) return waiting.hold(request, response, go)
    if (!('why' in state)) return go()
    response.setHeader(requestIdHeader, requestIds.next(request))
    waiting.refuse(request, response, state.why)
  }

  function handler(request: IncomingMessage, response: ServerResponse): void {
    const running = current()
    if (running) running.handler(request, response)
    else wait(request, response, () => handler(request, response))
  }

  function router(request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void): void {
    const running = current()
    // The router uses only properties of Node's objects, so requests of Express 4 work too.
    if (running) running.router(request as Request, response as Response, next)
    else if (isOurs(request)) wait(request, response, () => router(request, response, next))
    else next()
  }

  return {
    router: router as Middleware,
    handler: handler as RequestListener,
    admin: ((request, response) => (current() ?? waiting).admin(request, response)) as RequestListener,
    serves: hosts.serves,
    /** Undefined unless it runs. */
    current,
    async start(): Promise<void> {
      if (closing !== undefined) throw ended()
      begun ??= begin()
      await begun
      if (closing !== undefined) throw ended()
    },
    close(): Promise<void> {
      closing ??= end()
      return closing
    },
    /** Resolves once it has started. Rejects with a Failure if it does not run. */
    async running(): Promise<Running> {
      const running = current() ?? (await begun?.catch(() => undefined))
      if (state && 'why' in state) throw state.why
      return running as Running
    },
  }
}

const notRunning = (what: string): Failure => new Failure('overloaded', what, { source: 'ours', retryAfterMs: 1000 })
const ended = (): Failure => notRunning('this gateway is closed')
const notStarted = (): Failure => notRunning('this gateway is not started: call its start()')

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
