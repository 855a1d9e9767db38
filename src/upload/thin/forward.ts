// Sends uploads of thin mode to the other service, by http-proxy-middleware. The middleware gets a request and a response of
// its own: the client is answered in our shape, and its headers and tokens must not reach the service.
import { Agent as HttpAgent, type IncomingMessage, ServerResponse } from 'node:http'
import { Agent as HttpsAgent } from 'node:https'
import { addAbortSignal } from 'node:stream'
import { addOptionsOfKubo, type Profile, shapes } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { loadProxyMiddleware } from '../../core/wire/proxy-middleware.ts'
import type { Trace } from '../../core/wire/trace.ts'
import { type ForwardedKind, readAnswer, type TargetFailure } from './answer.ts'
import { createOnward, type Onward } from './body.ts'

export type Target = {
  /** `…/add` of a service like this one, or the RPC of a Kubo: `…/api/v0`. */
  readonly url: string
  /** The Authorization header that the gateway sends to the service. */
  readonly authorization?: string | undefined
}

export type Forward = Pick<Onward, 'part' | 'end'> & {
  /** Aborts when the service cannot be reached, breaks off, or answers before it has the whole body. */
  readonly failed: AbortSignal
  /** The CIDs that the service says it holds. */
  readonly answer: Promise<ReadonlySet<string>>
  /** The Failure for an answer that does not come in time. */
  late(): Failure
  abort(reason: unknown): void
}

export type Forwarding = {
  /** `via`: the gateways that it came through, for the header CDN-Loop. */
  begin(kind: ForwardedKind, via?: string): Forward
  readonly failure: TargetFailure
  readonly host: string
}

/** Below the time after which the receiver reports that the upload got stuck in this gateway. */
const mostStuckMs = 50_000

export const isKuboAddress = ({ pathname }: URL): boolean => /\/api\/v0(\/add)?\/?$/.test(pathname)

export function createForwarding(options: {
  readonly target: Target
  readonly profile: Profile
  /** How long the service may read nothing, and how long its answer may take. */
  readonly answerMs: number
  readonly userAgent: string
  readonly clock: Clock
  readonly trace?: Trace
}): Forwarding {
  const { answerMs, clock } = options
  const stuckMs = Math.min(answerMs, mostStuckMs)
  const url = new URL(options.target.url)
  const isKubo = isKuboAddress(url)
  const listeners = new WeakMap<object, { onAnswer(response: IncomingMessage): void; onError(error: unknown): void }>()
  // A new connection for each upload: a POST on a connection that the service just closed cannot be sent again.
  const agent = new (url.protocol === 'https:' ? HttpsAgent : HttpAgent)({ keepAlive: false })
  const middlewareTo = (target: URL) =>
    loadProxyMiddleware().createProxyMiddleware({
      target,
      ignorePath: true,
      changeOrigin: true,
      selfHandleResponse: true,
      agent,
      // No default plugins: they write answers and log lines of their own.
      ejectPlugins: true,
      plugins: [
        (proxy) => {
          proxy.on('proxyRes', (response, request) => listeners.get(request)?.onAnswer(response))
          proxy.on('error', (error, request) => void (request && listeners.get(request)?.onError(error)))
          proxy.on('econnreset', (error, request) => listeners.get(request)?.onError(error))
        },
      ],
    })
  const forward: Readonly<Record<ForwardedKind, ReturnType<typeof middlewareTo>>> = {
    files: middlewareTo(addressFor(url, 'files', options.profile)),
    directory: middlewareTo(addressFor(url, 'directory', options.profile)),
  }

  const failure: TargetFailure = (kind, why, { as = 'upstream-error', ...more } = {}) =>
    new Failure(as, `${url.host} does not hold the upload: ${why}`, {
      source: 'provider',
      ...more,
      facts: { class: kind, service: url.host, outcomes: [{ provider: url.host, outcome: kind, detail: why }] },
    })

  function begin(kind: ForwardedKind, via?: string): Forward {
    const stop = new AbortController()
    const answer = Promise.withResolvers<ReadonlySet<string>>()
    answer.promise.catch(() => {})
    const stuck = () => failure('transient', `it accepted no data for ${stuckMs} ms`)
    const body = createOnward({ isKubo, stuckMs, clock, late: stuck })
    let hasBegun = false
    const fail = (error: unknown): void => {
      const reason = isFailure(error)
        ? error
        : failure('transient', 'it cannot be reached, or the connection was lost', { cause: error })
      answer.reject(reason)
      if (!stop.signal.aborted) stop.abort(reason)
    }
    const own = Object.assign(body.stream, {
      method: 'POST',
      url: '/',
      httpVersion: '1.1',
      httpVersionMajor: 1,
      httpVersionMinor: 1,
      headers: headersFor(body.contentType, via, options.trace?.header(), options),
      socket: { writable: true },
    }) as unknown as IncomingMessage
    listeners.set(own, {
      onError: fail,
      onAnswer(response) {
        hasBegun = true
        // Kubo begins its answer after the first part: until all was sent, the time limits of the body apply to it.
        readAnswer(addAbortSignal(stop.signal, response), { isKubo, kind, failure, now: clock.now() }).then((held) => {
          if (body.hasEnded()) answer.resolve(held)
          else fail(failure('transient', 'it answered before it had the whole upload'))
        }, fail)
      },
    })
    body.stream.on('error', () => {})
    const response = new ServerResponse(own)
    forward[kind](own, response, (error) => error !== undefined && fail(error)).catch(fail)
    return {
      part: body.part,
      end: body.end,
      failed: stop.signal,
      answer: answer.promise,
      late: () =>
        failure(
          'transient',
          hasBegun ? `its answer did not end within ${answerMs} ms` : `no answer within ${answerMs} ms`,
        ),
      abort(reason) {
        answer.reject(reason)
        if (!stop.signal.aborted) stop.abort(reason)
        body.stream.destroy()
        // Makes the proxy drop its connection: the service sees a request that was cut.
        response.emit('close')
      },
    }
  }

  return { begin, failure, host: url.host }
}

/** Where uploads of this kind go, with what they become there. */
function addressFor(service: URL, kind: ForwardedKind, profile: Profile): URL {
  const url = new URL(service)
  const isFolder = kind === 'directory'
  if (!isKuboAddress(url)) {
    if (isFolder) url.searchParams.set('wrap', 'true')
    return url
  }
  url.pathname = url.pathname.replace(/(\/add)?\/?$/, '/add')
  const wanted = { ...addOptionsOfKubo(shapes[profile]), 'wrap-with-directory': String(isFolder) }
  url.search = new URLSearchParams(wanted).toString()
  return url
}

function headersFor(
  contentType: string,
  via: string | undefined,
  traceparent: string | undefined,
  { target, userAgent }: { readonly target: Target; readonly userAgent: string },
): Record<string, string> {
  return {
    'content-type': contentType,
    // A service that refuses early and closes at once would lose its own answer.
    connection: 'keep-alive',
    'user-agent': userAgent,
    accept: 'application/json',
    ...(via !== undefined && { 'cdn-loop': via }),
    ...(traceparent !== undefined && { traceparent }),
    ...(target.authorization !== undefined && { authorization: target.authorization }),
  }
}
