// Sends uploads of thin mode to the other service, by http-proxy-middleware. The middleware gets a request and a response of
// its own: the client is answered in our shape, and its headers and tokens must not reach the service.

import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { Agent as HttpAgent, type IncomingMessage, ServerResponse } from 'node:http'
import { Agent as HttpsAgent } from 'node:https'
import { addAbortSignal, PassThrough } from 'node:stream'
import { CID } from 'multiformats/cid'
import { addOptionsOfKubo, type Profile, shapes } from '../../backends/pinning/contract.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, type FailureKind, isFailure } from '../core/failure.ts'
import { loadProxyMiddleware } from '../core/packages.ts'
import { parseRetryAfter } from '../core/wire/http.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { FailureClass } from '../store/store.ts'
import { nameOf } from './stored-upload.ts'

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

type Forwarding = {
  /** `via`: the gateways that it came through, for the header CDN-Loop. `name`: of the pin. */
  begin(kind: ForwardedKind, via?: string, name?: string): Forward
  readonly failure: TargetFailure
  readonly host: string
}

/** Below the time after which the receiver reports that the upload got stuck in this gateway. */
const maxStuckMs = 50_000

export const isKuboAddress = ({ pathname }: URL): boolean => /\/api\/v0(\/add)?\/?$/.test(pathname)

export function createForwarding(options: {
  readonly target: Target
  readonly profile: Profile
  /** Limits the time in which the service reads nothing, and that of its answer. */
  readonly answerMs: number
  readonly userAgent: string
  readonly clock: Clock
  readonly trace?: Trace
}): Forwarding {
  const { answerMs, clock } = options
  const stuckMs = Math.min(answerMs, maxStuckMs)
  const url = new URL(options.target.url)
  const isKubo = isKuboAddress(url)
  const listeners = new WeakMap<object, { onAnswer(response: IncomingMessage): void; onError(error: unknown): void }>()
  // A new connection for each upload: a POST on a connection that the service just closed cannot be sent again.
  const agent = new (url.protocol === 'https:' ? HttpsAgent : HttpAgent)({ keepAlive: false })
  const forward = loadProxyMiddleware().createProxyMiddleware({
    target: url.origin,
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

  const failure: TargetFailure = (kind, why, { as = 'upstream-error', ...more } = {}) =>
    new Failure(as, `${url.host} does not hold the upload: ${why}`, {
      source: 'provider',
      ...more,
      facts: { class: kind, service: url.host, outcomes: [{ provider: url.host, outcome: kind, detail: why }] },
    })

  function begin(kind: ForwardedKind, via?: string, name?: string): Forward {
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
      url: targetOf(url, kind, options.profile, name),
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
        // Makes the proxy drop its connection: the service sees a request that was cut.
        response.emit('close')
      },
    }
  }

  return { begin, failure, host: url.host }
}

/** The path and query of an upload of this kind. */
function targetOf(service: URL, kind: ForwardedKind, profile: Profile, name: string | undefined): string {
  const url = new URL(service)
  const isKubo = isKuboAddress(url)
  if (isKubo) {
    url.pathname = url.pathname.replace(/(\/add)?\/?$/, '/add')
    const wanted = { ...addOptionsOfKubo(shapes[profile]), 'wrap-with-directory': String(kind === 'directory') }
    url.search = new URLSearchParams(wanted).toString()
  } else if (kind === 'directory') url.searchParams.set('wrap', 'true')
  if (name !== undefined) url.searchParams.set(isKubo ? 'pin-name' : 'name', name)
  return url.pathname + url.search
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

// Reads the answer of thin mode's service: the CIDs that the service says it holds, or a Failure that says why it holds none.

type TargetFailure = (
  kind: FailureClass,
  why: string,
  more?: {
    readonly cause?: unknown
    readonly retryAfterMs?: number | undefined
    /** The kind of a refusal that the gateway hands on to the client. Otherwise the service is `broken`. */
    readonly as?: FailureKind | undefined
  },
) => Failure

/** Refusals that the client can act on. The service's own words stay here: they may repeat our token. */
const handedOn: Readonly<Record<number, { readonly as: FailureKind; readonly why: string }>> = {
  401: { as: 'refused', why: 'it wants a token, and does not take the one that this gateway sends' },
  413: { as: 'too-large', why: 'the upload is larger than it takes' },
  429: { as: 'throttled', why: 'it asks for fewer uploads' },
}

/** A line or a CID for each file. */
const maxAnswerBytes = { files: 1024 * 1024, directory: 16 * 1024 * 1024 } as const
export type ForwardedKind = keyof typeof maxAnswerBytes

async function readAnswer(
  response: IncomingMessage,
  {
    isKubo,
    kind,
    failure,
    now,
  }: {
    readonly isKubo: boolean
    readonly kind: ForwardedKind
    readonly failure: TargetFailure
    readonly now: number
  },
): Promise<ReadonlySet<string>> {
  const status = response.statusCode ?? 0
  // Fail at once: a service that refuses often stops reading, and then the connection breaks.
  if (status < 200 || status > 299) {
    const { as, why } = handedOn[status] ?? {}
    const retryAfterMs = parseRetryAfter(response.headers['retry-after'], now)
    throw failure(classOf(status), `it answered ${status}${why ? `: ${why}` : ''}`, { retryAfterMs, as })
  }
  const pieces: Buffer[] = []
  let bytes = 0
  for await (const piece of response as AsyncIterable<Buffer>) {
    bytes += piece.byteLength
    if (bytes > maxAnswerBytes[kind]) throw failure('content', 'its answer is longer than an answer can be')
    pieces.push(piece)
  }
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

// The body that thin mode sends on: the client's `data` parts and nothing else, with part headers and a boundary of ours.
// Another service may keep every part (Kubo does), or parse headers and the bytes around the parts differently.

type Onward = {
  readonly stream: PassThrough
  readonly contentType: string
  /** Yields the bytes once they were sent on. The part before this one must have ended. */
  part(bytes: AsyncIterable<Uint8Array>, signal: AbortSignal, as?: PartInFolder): AsyncGenerator<Uint8Array>
  /** Sends the closing boundary: without it the service has no whole body. */
  end(): void
  hasEnded(): boolean
}

/** `path`: checked. In a folder it is content, and goes on as the client sent it. */
type PartInFolder = { readonly path: string; readonly isFolder: boolean }

export function createOnward(options: {
  /** A Kubo reads a file name as a part of a URL. */
  readonly isKubo: boolean
  /** Time without a read by the service after which the upload fails. */
  readonly stuckMs: number
  readonly clock: Clock
  readonly late: () => Failure
}): Onward {
  const boundary = `cidgate-${randomUUID()}`
  const stream = new PassThrough()
  let parts = 0
  let hasEnded = false

  async function write(piece: Uint8Array | string, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (stream.write(piece)) return
    const drained = (own: AbortSignal) => once(stream, 'drain', { signal: own })
    await withDeadline({ ...options, ms: options.stuckMs, signal }, drained)
  }

  return {
    stream,
    contentType: `multipart/form-data; boundary=${boundary}`,
    async *part(bytes, signal, as) {
      const before = parts++ === 0 ? '' : '\r\n'
      // With a file name every parser takes the part for a file. The client's own name stays private, and each name is
      // different, because Kubo skips a part that seems to lie inside a file it has seen.
      const fileName = as ? written(as.path, options.isKubo) : `data-${parts}`
      const disposition = `Content-Disposition: form-data; name="data"; filename="${fileName}"`
      const type = as?.isFolder ? folderType : 'application/octet-stream'
      await write(`${before}--${boundary}\r\n${disposition}\r\nContent-Type: ${type}\r\n\r\n`, signal)
      for await (const piece of bytes) {
        await write(piece, signal)
        yield piece
      }
    },
    end() {
      hasEnded = true
      stream.end(`\r\n--${boundary}--\r\n`)
    },
    hasEnded: () => hasEnded,
  }
}

const folderType = 'application/x-directory'

/** It has no control characters and no backslashes. */
const written = (path: string, isKubo: boolean): string =>
  isKubo ? path.split('/').map(encodeURIComponent).join('/') : path.replaceAll('"', '\\"')
