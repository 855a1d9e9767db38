// Paths an operator hands on to a service of theirs, by http-proxy-middleware. Nothing is proved or kept here; what such a
// service may see of a client, and say to it, is what this file lets through.
import { type IncomingMessage, type OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { createProxyMiddleware } from 'http-proxy-middleware'
import { Failure } from '../failure.ts'
import type { Route } from './add.ts'
import { closeAfter } from './linger.ts'
import { type Mode, sendProblem } from './problem.ts'
import { hasBody } from './target.ts'

export type ProxyEntry = {
  /** `/something`: itself and all below it. */
  readonly path: string
  readonly to: string
  readonly methods: readonly string[]
  /** Cookies and Authorization pass, both ways. */
  readonly sendAuthorization: boolean
  readonly maxBytes: number
  readonly timeout: number
}

const hopByHop = ['keep-alive', 'proxy-authorization', 'proxy-connection', 'te', 'trailer', 'upgrade']
const personal = ['authorization', 'cookie']

/** One route for the whole table: the longest path that fits takes the request. */
export function createProxyRoute(
  entries: readonly ProxyEntry[],
  { mode, userAgent }: { readonly mode: Mode; readonly userAgent: string },
): Route {
  const table = [...entries]
    .sort((one, other) => other.path.length - one.path.length)
    .map((entry) => ({ entry, forward: forwarder(entry, mode, userAgent) }))
  return (request, response, next) => {
    const path = (request.url ?? '').split('?')[0] ?? ''
    const found = table.find(({ entry }) => path === entry.path || path.startsWith(`${entry.path}/`))
    if (!found) return next()
    const refused = refusal(request, path, found.entry)
    if (!refused) return void found.forward(request, response, next)
    if (hasBody(request)) closeAfter(request, response)
    problem(response, refused, mode, request)
  }
}

function refusal(request: IncomingMessage, path: string, entry: ProxyEntry): Failure | undefined {
  const { method = '', headers } = request
  const say = (status: number, what: string) => new Failure('malformed', what, { source: 'client', facts: { status } })
  if (!entry.methods.includes(method)) return say(405, `${method} is not passed on at ${entry.path}`)
  // Another reader would take these for a way out of the path that was opened.
  if (/\/(\.|%2e){1,2}(\/|%2f|$)/i.test(path)) return say(400, 'a path cannot hold . or .. segments')
  if (headers['transfer-encoding'] !== undefined) return say(411, 'a body that is passed on needs a Content-Length')
  if (Number(headers['content-length'] ?? 0) > entry.maxBytes)
    return new Failure('too-large', `more than ${entry.maxBytes} bytes are not passed on`, { source: 'client' })
  return undefined
}

function forwarder(entry: ProxyEntry, mode: Mode, userAgent: string) {
  const target = new URL(entry.to)
  const base = target.pathname.replace(/\/$/, '')
  const isSilent = new WeakSet<object>()

  function answerError(error: unknown, request: IncomingMessage, response: unknown): void {
    if (!(response instanceof ServerResponse)) return
    if (response.headersSent || response.destroyed) return void response.destroy()
    const [status, what] = isSilent.has(request) ? [504, 'did not answer in time'] : [502, 'cannot be reached']
    const failure = new Failure('broken', `what is behind ${entry.path} ${what}`, {
      source: 'upstream',
      cause: error,
      facts: { status },
    })
    problem(response, failure, mode, request)
  }

  return createProxyMiddleware({
    target: target.origin,
    changeOrigin: true,
    xfwd: true,
    proxyTimeout: entry.timeout,
    pathRewrite: (url) => {
      const rest = url.slice(entry.path.length)
      return `${base}${rest === '' || rest.startsWith('?') ? `/${rest}` : rest}`
    },
    // Only what is said here: the usual ones write answers and log lines.
    ejectPlugins: true,
    plugins: [
      (proxy) => {
        proxy.on('proxyReq', (outgoing, request) => {
          const named = String(request.headers.connection ?? '').split(/\s*,\s*/)
          for (const name of [...hopByHop, ...named, ...(entry.sendAuthorization ? [] : personal)])
            if (name !== '' && name.toLowerCase() !== 'close') outgoing.removeHeader(name)
          outgoing.setHeader('Via', `1.1 ${userAgent.split('/')[0]}`)
          outgoing.once('timeout', () => isSilent.add(request))
        })
        proxy.on('proxyRes', (answer) => rewrite(answer.headers, entry, target.origin + base))
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

function rewrite(headers: IncomingMessage['headers'], entry: ProxyEntry, base: string): void {
  const { location } = headers
  // A way on within the service leads through here; any other is the client's to follow.
  if (location?.startsWith(`${base}/`) || location === base) headers.location = entry.path + location.slice(base.length)
  if (!entry.sendAuthorization) delete (headers as OutgoingHttpHeaders)['set-cookie']
}

function problem(response: ServerResponse, failure: Failure, mode: Mode, request: IncomingMessage): void {
  const { accept } = request.headers
  sendProblem(response, failure, { mode, head: request.method === 'HEAD', accept })
}
