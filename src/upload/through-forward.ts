// The way of thin mode to the other service, by http-proxy-middleware. It is given a request and a response of its own: ours
// have a client behind them who is answered in our shape, and whose headers and tokens are nobody else's business.
import { type IncomingMessage, ServerResponse } from 'node:http'
import { Transform, type Writable } from 'node:stream'
import { createProxyMiddleware } from 'http-proxy-middleware'
import { CID } from 'multiformats/cid'
import type { Profile } from '../../backends/pinning/contract.ts'
import { Failure, isFailure } from '../failure.ts'
import { type FailureClass, nameOf } from './journal.ts'

export type Target = {
  /** `…/add` of a service like this one, or the RPC of a Kubo: `…/api/v0`. */
  readonly url: string
  /** The Authorization header that is sent there. */
  readonly authorization?: string | undefined
}

export type Forward = {
  readonly body: Writable
  /** Aborts when the service cannot be reached, breaks off, or answers before it was told everything. */
  readonly failed: AbortSignal
  /** The names of what it says it holds. */
  readonly answer: Promise<ReadonlySet<string>>
  /** Lets the last piece go. */
  finish(): void
  abort(reason: unknown): void
}

export type Forwarding = {
  begin(request: IncomingMessage): Forward
  failure(kind: FailureClass, why: string, more?: { readonly cause?: unknown; readonly retryAfterMs?: number }): Failure
}

const mostAnswerBytes = 1024 * 1024

const kuboOptions: Readonly<Record<Profile, string>> = {
  'unixfs-v1-2025': 'cid-version=1&raw-leaves=true&chunker=size-1048576&max-file-links=1024',
  'unixfs-v0-2015': 'cid-version=0&raw-leaves=false&chunker=size-262144&max-file-links=174',
}
const kuboAlways = 'hash=sha2-256&trickle=false&inline=false&pin=true&wrap-with-directory=false&progress=false'

export const isKuboAddress = ({ pathname }: URL): boolean => /\/api\/v0(\/add)?\/?$/.test(pathname)

export function createForwarding(options: {
  readonly target: Target
  readonly profile: Profile
  readonly answerMs: number
  readonly userAgent: string
}): Forwarding {
  const url = new URL(options.target.url)
  const isKubo = isKuboAddress(url)
  if (isKubo) {
    url.pathname = url.pathname.replace(/(\/add)?\/?$/, '/add')
    url.search = `${kuboOptions[options.profile]}&${kuboAlways}`
  }
  const listeners = new WeakMap<object, { onAnswer(response: IncomingMessage): void; onError(error: unknown): void }>()
  const forward = createProxyMiddleware({
    target: url,
    ignorePath: true,
    changeOrigin: true,
    selfHandleResponse: true,
    proxyTimeout: options.answerMs,
    // A connection of its own: a POST on one that the other side just closed cannot be sent again.
    agent: false,
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

  const failure: Forwarding['failure'] = (kind, why, more = {}) =>
    new Failure('broken', `${url.host} does not hold the upload: ${why}`, {
      source: 'provider',
      ...more,
      facts: { class: kind, outcomes: [{ provider: url.host, outcome: kind, detail: why }] },
    })

  function begin(request: IncomingMessage): Forward {
    const stop = new AbortController()
    const answer = Promise.withResolvers<ReadonlySet<string>>()
    answer.promise.catch(() => {})
    const body = createHoldBack()
    const fail = (error: unknown): void => {
      const reason = isFailure(error)
        ? error
        : failure('transient', 'it cannot be reached or broke off', { cause: error })
      answer.reject(reason)
      if (!stop.signal.aborted) stop.abort(reason)
    }
    const own = Object.assign(body, {
      method: 'POST',
      url: '/',
      httpVersion: '1.1',
      httpVersionMajor: 1,
      httpVersionMinor: 1,
      headers: headersFor(request, options),
      socket: { writable: true },
    }) as unknown as IncomingMessage
    listeners.set(own, {
      onError: fail,
      onAnswer(response) {
        readAnswer(response, isKubo, failure).then((held) => {
          if (body.isFinished()) answer.resolve(held)
          else fail(failure('transient', 'it answered before it was sent everything'))
        }, fail)
      },
    })
    body.on('error', () => {})
    const response = new ServerResponse(own)
    forward(own, response, (error) => error !== undefined && fail(error)).catch(fail)
    return {
      body,
      failed: stop.signal,
      answer: answer.promise,
      finish: () => body.release(),
      abort(reason) {
        answer.reject(reason)
        body.destroy()
        // What makes the proxy let go of its connection: the other side sees a request that was cut.
        response.emit('close')
      },
    }
  }

  return { begin, failure }
}

function headersFor(
  request: IncomingMessage,
  { target, userAgent }: { readonly target: Target; readonly userAgent: string },
): Record<string, string> {
  const { 'content-type': type = '', 'content-length': length } = request.headers
  return {
    'content-type': type,
    ...(length === undefined ? { 'transfer-encoding': 'chunked' } : { 'content-length': length }),
    'user-agent': userAgent,
    accept: 'application/json',
    ...(target.authorization !== undefined && { authorization: target.authorization }),
  }
}

type HoldBack = Transform & { release(): void; isFinished(): boolean }

/** Passes on each piece when the next one comes; the last one when it is told to. */
function createHoldBack(): HoldBack {
  let held: Buffer | undefined
  let isFinished = false
  const stream = new Transform({
    transform(piece: Buffer, _encoding, done) {
      const before = held
      held = piece
      done(null, before)
    },
    flush(done) {
      done(null, held)
    },
  })
  return Object.assign(stream, {
    release() {
      isFinished = true
      stream.end()
    },
    isFinished: () => isFinished,
  })
}

async function readAnswer(
  response: IncomingMessage,
  isKubo: boolean,
  failure: Forwarding['failure'],
): Promise<ReadonlySet<string>> {
  const status = response.statusCode ?? 0
  const pieces: Buffer[] = []
  let bytes = 0
  for await (const piece of response as AsyncIterable<Buffer>) {
    bytes += piece.byteLength
    if (bytes > mostAnswerBytes) throw failure('content', 'its answer is longer than an answer can be')
    pieces.push(piece)
  }
  if (status < 200 || status > 299) throw failure(classOf(status), `it answered ${status}`, retryAfter(response))
  if (response.trailers['x-stream-error'] !== undefined) throw failure('transient', 'it failed behind its answer')
  try {
    const text = Buffer.concat(pieces).toString()
    const said = isKubo
      ? text
          .split('\n')
          .filter(Boolean)
          .map((line) => JSON.parse(line).Hash)
      : JSON.parse(text).cids
    return new Set((said as unknown[]).flatMap(named))
  } catch (error) {
    throw failure('content', 'its answer is not of the form that was expected', { cause: error })
  }
}

function named(said: unknown): string[] {
  const text = /^(?:\/ipfs\/|ipfs:\/\/|ipfs\/)?([0-9A-Za-z]+)/.exec(typeof said === 'string' ? said : '')?.[1]
  return text === undefined ? [] : [nameOf(CID.parse(text))]
}

function classOf(status: number): FailureClass {
  if (status === 401 || status === 403) return 'auth'
  if (status === 402) return 'quota'
  return [408, 425, 429].includes(status) || status >= 500 || status < 400 ? 'transient' : 'content'
}

function retryAfter({ headers }: IncomingMessage): { retryAfterMs?: number } {
  const seconds = Number(headers['retry-after'])
  return Number.isFinite(seconds) && seconds > 0 ? { retryAfterMs: Math.min(seconds, 86_400) * 1000 } : {}
}
