// Forwards configured paths to another service (http-proxy-middleware). Nothing is verified or
// cached; a forbidden request is refused before a connection is made.

import {
  Agent as HttpAgent,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  ServerResponse,
} from 'node:http'
import { Agent as HttpsAgent } from 'node:https'
import { Failure } from '../core/failure.ts'
import { loadProxyMiddleware } from '../core/packages.ts'
import { decoded } from '../core/wire/http.ts'
import type { Route } from './route.ts'
import { requestIdOf } from './wire/exchange.ts'
import type { Respond } from './wire/problem.ts'
import { baseOf, type Forwarded, HttpRefusal, hasBody, methodRefused } from './wire/request.ts'
import { closeAfter, reset } from './wire/write.ts'

type ProxyEntry = {
  /** `/something`: the path itself and everything below it. */
  readonly path: string
  readonly to: string
  readonly methods: readonly string[]
  /** Forwards cookies and Authorization, both ways. */
  readonly sendAuthorization: boolean
  readonly maxBytes: number
  readonly timeout: number
}

type ProxyOptions = {
  readonly respond: Respond
  readonly userAgent: string
  readonly forwarded: Forwarded
}

// The maximum of concurrent requests per service. Further ones get 503: a queue would be one more
// thing to fill up.
const maxAtOnce = 256
const minStalledMs = 60_000

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
    const refused = refusal(request, path, entry) ?? (found.atOnce < maxAtOnce ? undefined : tooMany(entry))
    if (refused) return void respond.failed(request, response, refused)
    found.atOnce++
    response.once('close', () => found.atOnce--)
    if (request.headers.expect !== undefined && request.httpVersion === '1.1') response.writeContinue()
    request.headers = headersToService(request, entry, { as, forwarded, requestId: requestIdOf(response) })
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
  if (!entry.methods.includes(method))
    return methodRefused(`method ${method} is not allowed at ${entry.path}`, entry.methods.join(', '))
  const wrong = wrongPath(path)
  if (wrong !== undefined) return say(400, wrong)
  if ((method === 'GET' || method === 'HEAD') && hasBody(request)) return say(400, `a ${method} has no body`)
  if (headers['transfer-encoding'] !== undefined) return say(411, 'a body sent to this path needs a Content-Length')
  if (Number(headers['content-length'] ?? 0) > entry.maxBytes)
    return new Failure('too-large', `the body is larger than the ${entry.maxBytes} bytes that ${entry.path} accepts`, {
      source: 'client',
    })
  return undefined
}

const tooMany = ({ path }: ProxyEntry): Failure =>
  new Failure('overloaded', `too many requests to ${path} in progress (${maxAtOnce}); retry in a second`, {
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
    respond.failed(request, response, failure)
  }

  return loadProxyMiddleware().createProxyMiddleware<IncomingMessage, ServerResponse>({
    target: to.origin,
    changeOrigin: true,
    // Each connection is used once, so that one client cannot affect another's. `maxAtOnce` is the
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
          response.setTimeout(Math.max(entry.timeout, minStalledMs), () => reset(response))
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

// No legitimate path is encoded more often; each round costs the length of the path.
const maxDecoded = 5

/** Undefined if the path may be forwarded. */
function wrongPath(path: string): string | undefined {
  if (decoded(path) === undefined) return 'the path is not well-formed percent-encoding'
  const isDots = (segment: string) => /^ *\.{1,2} *(;|$)/.test(segment)
  const { length: slashes } = path.split('/')
  let text = path
  for (let round = 0; round < maxDecoded; round++) {
    const segments = text.split('/')
    if (segments.length > slashes || text.includes('\\')) return 'a path cannot hold encoded slashes, or backslashes'
    if (segments.some(isDots)) return 'a path cannot hold . or .. segments'
    if (/[^\x20-\x7e\x80-\xff]/.test(text)) return 'a path cannot hold control characters'
    const next = text.replace(/%([0-9a-f]{2})/gi, (_all, code) => String.fromCharCode(Number.parseInt(code, 16)))
    if (next === text) return undefined
    text = next
  }
  return 'the path is encoded too often'
}

const hopByHop: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authentication-info',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
])
// Headers that only this gateway sets. It handles `expect` itself. Some services take the path or
// method from a header instead of the request line that the table has checked.
const ours =
  /^(expect|host|via|forwarded|x-real-ip|x-request-id|x-forwarded-.*|content-length|x-original-url|x-original-uri|x-rewrite-url|x-(http-)?method(-override)?)$/
// Commands to a reverse proxy, which the service must not send.
const orders = /^(x-accel-.*|x-sendfile|x-reproxy-url)$/
const personal: ReadonlySet<string> = new Set(['authorization', 'cookie'])

/** The headers that `Connection` names. */
function namedBy(headers: IncomingHttpHeaders): ReadonlySet<string> {
  const names = `${headers.connection ?? ''},${headers['proxy-connection'] ?? ''}`.toLowerCase().split(',')
  return new Set(names.map((name) => name.trim()))
}

/** Derives the request headers for the service from the client's. */
function headersToService(
  request: IncomingMessage,
  { sendAuthorization }: ProxyEntry,
  by: { readonly as: string; readonly forwarded: Forwarded; readonly requestId: string | undefined },
): IncomingHttpHeaders {
  const { as, forwarded, requestId } = by
  const { headers, socket, method, httpVersion } = request
  const named = namedBy(headers)
  const kept = Object.entries(headers).filter(([name]) => {
    // Some services read X_Forwarded_For as X-Forwarded-For.
    const read = name.replaceAll('_', '-')
    if (hopByHop.has(read) || ours.test(read) || named.has(name)) return false
    return sendAuthorization || !personal.has(read)
  })
  const address = socket.remoteAddress?.replace(/^::ffff:(?=[\d.]+$)/i, '')
  const length = headers['content-length'] ?? '0'
  const host = forwarded.hostOf(request)
  return {
    ...Object.fromEntries(kept),
    ...(method !== 'GET' && method !== 'HEAD' && { 'content-length': length }),
    'x-forwarded-for': join(headers['x-forwarded-for'], address),
    ...(host !== '' && { 'x-forwarded-host': host }),
    'x-forwarded-proto': forwarded.schemeOf(request),
    ...(requestId !== undefined && { 'x-request-id': requestId }),
    via: join(headers.via, `${httpVersion} ${as}`),
  }
}

const join = (before: string | string[] | undefined, more = 'unknown'): string =>
  [before ?? [], more].flat().filter(Boolean).join(', ')

type Mapping = {
  /** The public path of the table entry. */
  readonly path: string
  readonly to: URL
  /** The path requested from the service. */
  readonly asked: string
}

/** The response headers for the client. Node frames the body itself. */
function headersToClient(
  headers: IncomingHttpHeaders,
  mapping: Mapping,
  { sendAuthorization }: { readonly sendAuthorization: boolean },
): OutgoingHttpHeaders {
  const named = namedBy(headers)
  const kept = Object.entries(headers).filter(
    ([name]) =>
      !hopByHop.has(name) &&
      !named.has(name) &&
      !orders.test(name) &&
      name !== 'x-request-id' && // the response has this gateway's id, which the service received
      (sendAuthorization || name !== 'set-cookie'),
  )
  const answered: OutgoingHttpHeaders = Object.fromEntries(kept)
  if (headers.location !== undefined) answered['location'] = mapped(headers.location, mapping)
  return answered
}

/**
 * Rewrites a redirect within the proxied path to lead through this gateway; any other is forwarded
 * unchanged.
 */
function mapped(location: string, { path, to, asked }: Mapping): string {
  const url = URL.parse(location, to.origin + asked)
  const base = to.pathname.replace(/\/$/, '')
  if (url?.origin !== to.origin || !`${url.pathname}/`.startsWith(`${base}/`)) return location
  return path + url.pathname.slice(base.length) + url.search + url.hash
}
