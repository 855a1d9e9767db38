// The way of thin mode to the other service, by http-proxy-middleware. It is given a request and a response of its own: ours
// have a client behind them who is answered in our shape, and whose headers and tokens are nobody else's business.
import { Agent as HttpAgent, type IncomingMessage, ServerResponse } from 'node:http'
import { Agent as HttpsAgent } from 'node:https'
import { addAbortSignal } from 'node:stream'
import { createProxyMiddleware } from 'http-proxy-middleware'
import { addOptionsOfKubo, type Profile, shapes } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { readAnswer, type TargetFailure } from './answer.ts'
import { createOnward, type Onward } from './body.ts'

export type Target = {
  /** `…/add` of a service like this one, or the RPC of a Kubo: `…/api/v0`. */
  readonly url: string
  /** The Authorization header that is sent there. */
  readonly authorization?: string | undefined
}

export type Forward = Pick<Onward, 'part' | 'end'> & {
  /** Aborts when the service cannot be reached, breaks off, or answers before it was told everything. */
  readonly failed: AbortSignal
  /** The names of what it says it holds. */
  readonly answer: Promise<ReadonlySet<string>>
  /** What to say when the answer is not there in time. */
  late(): Failure
  abort(reason: unknown): void
}

export type Forwarding = {
  /** `via`: who it has come through, for the header CDN-Loop. */
  begin(via?: string): Forward
  readonly failure: TargetFailure
}

/** Sooner than whoever receives says that it got stuck here. */
const mostStuckMs = 50_000

export const isKuboAddress = ({ pathname }: URL): boolean => /\/api\/v0(\/add)?\/?$/.test(pathname)

export function createForwarding(options: {
  readonly target: Target
  readonly profile: Profile
  /** How long the service may take nothing, and how long its answer may take. */
  readonly answerMs: number
  readonly userAgent: string
  readonly clock: Clock
}): Forwarding {
  const { answerMs, clock } = options
  const stuckMs = Math.min(answerMs, mostStuckMs)
  const url = new URL(options.target.url)
  const isKubo = isKuboAddress(url)
  if (isKubo) {
    url.pathname = url.pathname.replace(/(\/add)?\/?$/, '/add')
    url.search = new URLSearchParams(addOptionsOfKubo(shapes[options.profile])).toString()
  }
  const listeners = new WeakMap<object, { onAnswer(response: IncomingMessage): void; onError(error: unknown): void }>()
  const forward = createProxyMiddleware({
    target: url,
    ignorePath: true,
    changeOrigin: true,
    selfHandleResponse: true,
    // A connection of its own: a POST on one that the other side just closed cannot be sent again.
    agent: new (url.protocol === 'https:' ? HttpsAgent : HttpAgent)({ keepAlive: false }),
    // Only what is said here: the usual ones write answers and log lines.
    ejectPlugins: true,
    plugins: [
      (proxy) => {
        proxy.on('proxyRes', (response, request) => listeners.get(request)?.onAnswer(response))
        proxy.on('error', (error, request) => void (request && listeners.get(request)?.onError(error)))
        proxy.on('econnreset', (error, request) => listeners.get(request)?.onError(error))
      },
    ],
  })

  const failure: TargetFailure = (kind, why, { as = 'broken', ...more } = {}) =>
    new Failure(as, `${url.host} does not hold the upload: ${why}`, {
      source: 'provider',
      ...more,
      facts: { class: kind, service: url.host, outcomes: [{ provider: url.host, outcome: kind, detail: why }] },
    })

  function begin(via?: string): Forward {
    const stop = new AbortController()
    const answer = Promise.withResolvers<ReadonlySet<string>>()
    answer.promise.catch(() => {})
    const stuck = () => failure('transient', `it took nothing for ${stuckMs} ms`)
    const body = createOnward({ stuckMs, clock, late: stuck })
    let hasBegun = false
    const fail = (error: unknown): void => {
      const reason = isFailure(error)
        ? error
        : failure('transient', 'it cannot be reached or broke off', { cause: error })
      answer.reject(reason)
      if (!stop.signal.aborted) stop.abort(reason)
    }
    const own = Object.assign(body.stream, {
      method: 'POST',
      url: '/',
      httpVersion: '1.1',
      httpVersionMajor: 1,
      httpVersionMinor: 1,
      headers: headersFor(body.contentType, via, options),
      socket: { writable: true },
    }) as unknown as IncomingMessage
    listeners.set(own, {
      onError: fail,
      onAnswer(response) {
        hasBegun = true
        // A Kubo begins behind the first part and goes on as we do: until all was sent, the clocks of our body are its own.
        readAnswer(addAbortSignal(stop.signal, response), { isKubo, failure, now: clock.now() }).then((held) => {
          if (body.hasEnded()) answer.resolve(held)
          else fail(failure('transient', 'it answered before it was sent everything'))
        }, fail)
      },
    })
    body.stream.on('error', () => {})
    const response = new ServerResponse(own)
    forward(own, response, (error) => error !== undefined && fail(error)).catch(fail)
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
        // What makes the proxy let go of its connection: the other side sees a request that was cut.
        response.emit('close')
      },
    }
  }

  return { begin, failure }
}

function headersFor(
  contentType: string,
  via: string | undefined,
  { target, userAgent }: { readonly target: Target; readonly userAgent: string },
): Record<string, string> {
  return {
    'content-type': contentType,
    // Who refuses early and closes at once takes away what it said.
    connection: 'keep-alive',
    'user-agent': userAgent,
    accept: 'application/json',
    ...(via !== undefined && { 'cdn-loop': via }),
    ...(target.authorization !== undefined && { authorization: target.authorization }),
  }
}
