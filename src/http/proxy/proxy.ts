// Forwards configured paths to another service (http-proxy-middleware). Nothing is verified or
// cached; a forbidden request is refused before a connection is made. headers.ts decides which
// headers pass.

import { Agent as HttpAgent, type IncomingMessage, ServerResponse } from 'node:http'
import { Agent as HttpsAgent } from 'node:https'
import { Failure } from '../../core/failure.ts'
import { loadProxyMiddleware } from '../../core/wire/proxy-middleware.ts'
import type { Route } from '../add/add.ts'
import type { Forwarded } from '../hosts/forwarded.ts'
import { closeAfter } from '../wire/close-after-answer.ts'
import { requestIdOf } from '../wire/exchange.ts'
import { HttpRefusal } from '../wire/refusal.ts'
import { baseOf, hasBody } from '../wire/request-target.ts'
import type { Respond } from '../wire/respond.ts'
import { reset } from '../wire/write.ts'
import { headersToClient, headersToService } from './headers.ts'
import { wrongPath } from './path.ts'

export type ProxyEntry = {
  /** `/something`: the path itself and everything below it. */
  readonly path: string
  readonly to: string
  readonly methods: readonly string[]
  /** Forwards cookies and Authorization, both ways. */
  readonly sendAuthorization: boolean
  readonly maxBytes: number
  readonly timeout: number
}

export type ProxyOptions = {
  readonly respond: Respond
  readonly userAgent: string
  readonly forwarded: Forwarded
}

// The maximum of concurrent requests per service. Further ones get 503: a queue would be one more
// thing to fill up.
const mostAtOnce = 256
const leastStalledMs = 60_000

/** One route for all entries: the longest matching path wins. */
export function createProxyRoute(
  entries: readonly ProxyEntry[],
  { respond, userAgent, forwarded }: ProxyOptions,
): Route {
  const as = userAgent.split('/')[0] ?? userAgent
  const table = [...entries]
    .sort((one, other) => other.path.length - one.path.length)
    .map((entry) => ({ entry, forward: forwarder(entry, respond), atOnce: 0 }))
  const answer: Route['answer'] = ({ request, response, target: { path } }, next) => {
    const { url = '' } = request
    const found = table.find(({ entry }) => path === entry.path || path.startsWith(`${entry.path}/`))
    if (!found) return next()
    const { entry } = found
    const refused = refusal(request, path, entry) ?? (found.atOnce < mostAtOnce ? undefined : tooMany(entry))
    if (refused) return problem(response, refused, respond, request, { Allow: entry.methods.join(', ') })
    found.atOnce++
    response.once('close', () => found.atOnce--)
    if (request.headers.expect !== undefined && request.httpVersion === '1.1') response.writeContinue()
    request.headers = headersToService(request, {
      as,
      forwarded,
      sendAuthorization: entry.sendAuthorization,
      requestId: requestIdOf(response),
    })
    const rest = url.slice(entry.path.length)
    request.url = `${pathThere(entry)}${rest.startsWith('/') ? rest : `/${rest}`}`
    found
      .forward(request, response, (error) => {
        // A failure of the service was answered already, and is not a bug.
        if (!response.headersSent && !response.destroyed) next(error)
      })
      .catch(next)
  }
  const paths = table.map(({ entry }) => entry.path.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'))
  return { name: 'proxy', at: new RegExp(`^(?:${paths.join('|')})(?:/|$)`), answer }
}

const pathThere = ({ to }: ProxyEntry): string => new URL(to).pathname.replace(/\/$/, '')

function refusal(request: IncomingMessage, path: string, entry: ProxyEntry): Failure | undefined {
  const { method = '', headers } = request
  const say = (status: number, what: string) => new HttpRefusal('malformed', what, { source: 'client', status })
  if (!entry.methods.includes(method)) return say(405, `method ${method} is not allowed at ${entry.path}`)
  const wrong = wrongPath(path)
  if (wrong !== undefined) return say(400, wrong)
  if ((method === 'GET' || method === 'HEAD') && hasBody(request)) return say(400, `a ${method} has no body`)
  if (headers['transfer-encoding'] !== undefined) return say(411, 'a body sent to this path needs a Content-Length')
  if (Number(headers['content-length'] ?? 0) > entry.maxBytes)
    return new Failure('too-large', `the body is larger than the ${entry.maxBytes} bytes that ${entry.path} takes`, {
      source: 'client',
    })
  return undefined
}

const tooMany = ({ path }: ProxyEntry): Failure =>
  new Failure('overloaded', `too many requests to ${path} in progress (${mostAtOnce}); retry in a second`, {
    source: 'ours',
    retryAfterMs: 1000,
  })

function forwarder(entry: ProxyEntry, respond: Respond) {
  const to = new URL(entry.to)
  const isSilent = new WeakSet<object>()
  const Agent = to.protocol === 'https:' ? HttpsAgent : HttpAgent

  function answerError(error: unknown, request: IncomingMessage, response: unknown): void {
    if (!(response instanceof ServerResponse)) return
    if (response.headersSent || response.destroyed) return void response.destroy()
    const [status, what] = isSilent.has(request) ? [504, 'did not answer in time'] : [502, 'cannot be reached']
    const failure = new HttpRefusal('upstream-error', `the service behind ${entry.path} ${what}`, {
      source: 'upstream',
      cause: error,
      status,
    })
    problem(response, failure, respond, request)
  }

  return loadProxyMiddleware().createProxyMiddleware<IncomingMessage, ServerResponse>({
    target: to.origin,
    changeOrigin: true,
    // Each connection is used once, so that one client cannot affect another's. `mostAtOnce` is the
    // limit, because an agent with a limit would reuse connections. The timeout also covers
    // connecting.
    agent: new Agent({ keepAlive: false, timeout: entry.timeout }),
    proxyTimeout: entry.timeout,
    selfHandleResponse: true,
    // Only these handlers: the default plugins write responses and log lines.
    ejectPlugins: true,
    plugins: [
      (proxy) => {
        proxy.on('proxyReq', (outgoing, request, response) => {
          outgoing.once('timeout', () => isSilent.add(request))
          // The gateway never asks for an upgrade. Without a listener the client would never get a
          // response.
          outgoing.once('upgrade', (_answer, socket) => {
            socket.destroy()
            answerError(new Error('it changed the protocol'), request, response)
          })
        })
        proxy.on('proxyRes', (answer, request, response) => {
          if (response.destroyed || response.headersSent) return void answer.destroy()
          // The service responded before the end of the body: discard the rest.
          if (!request.complete) closeAfter(request, response)
          try {
            const mapping = { path: baseOf(request) + entry.path, to, asked: request.url ?? '/' }
            response.writeHead(answer.statusCode ?? 0, headersToClient(answer.headers, mapping, entry))
          } catch (error) {
            answer.destroy()
            return answerError(error, request, response)
          }
          response.setTimeout(Math.max(entry.timeout, leastStalledMs), () => reset(response))
          answer.pipe(response)
        })
        proxy.on('error', (error, request, response) => {
          if (request) answerError(error, request, response)
        })
        proxy.on('econnreset', (_error, _request, response) => {
          if (response instanceof ServerResponse) response.destroy()
        })
      },
    ],
  })
}

function problem(
  response: ServerResponse,
  failure: Failure,
  respond: Respond,
  request: IncomingMessage,
  { Allow }: { readonly Allow?: string } = {},
): void {
  if (hasBody(request)) closeAfter(request, response)
  const headers: Record<string, string> =
    Allow !== undefined && failure instanceof HttpRefusal && failure.status === 405 ? { Allow } : {}
  respond.failed(request, response, failure, { headers })
}
