// An HTTP request to an upstream: timeouts for the first byte and for silence later, statuses as
// Failures, no redirect off the site, and a check of the media type. Used by every upstream that
// speaks HTTP.
import type { Readable } from 'node:stream'
import { type Dispatcher, request } from 'undici'
import { type Clock, onceLate } from '../../src/core/clock.ts'
import { Failure, type FailureKind, isFailure } from '../../src/core/failure.ts'
import { oneOf, parseRetryAfter } from '../../src/core/wire/http.ts'
import { piecesOf } from './body.ts'
import { followed, isOwnSubdomain, maxHops, type Redirects } from './redirects.ts'

export type HttpQuestion = {
  readonly name: string
  readonly url: URL
  readonly method?: 'GET' | 'POST'
  readonly headers: Readonly<Record<string, string>>
  /** The required media type of the body; undefined means any except HTML. */
  readonly expects: string | undefined
  readonly agent: Dispatcher
  /** The allowed redirects. Default: within the host. */
  readonly redirects?: Redirects
  readonly signal: AbortSignal
  readonly clock: Clock
  readonly firstByteMs: number
  readonly idleMs: number
}

export interface UpstreamResponse {
  /**
   * Each chunk arrives within the idle timeout, which runs only while a reader waits. Chunks belong
   * to the reader.
   */
  readonly chunks: AsyncIterable<Uint8Array>
  readonly trailers: () => Readonly<Record<string, string | string[] | undefined>>
  readonly contentLength: number | undefined
  readonly contentType: string | undefined
  /** Releases the socket without reading the rest of the body. */
  readonly stop: () => void
}

const maxErrorBytes = 4096
export const redirections: ReadonlySet<number> = new Set([301, 302, 303, 307, 308])

export async function ask(question: HttpQuestion): Promise<UpstreamResponse> {
  try {
    return await askOnce(question)
  } catch (error) {
    // A reused connection that the server had just closed says nothing about the upstream: try once
    // more on a new one.
    if (!isStaleSocket(error) || question.method === 'POST') throw error
    return await askOnce(question)
  }
}

async function askOnce(question: HttpQuestion, site = question.url, hops = 0): Promise<UpstreamResponse> {
  const { name, url, agent, signal, clock, redirects = 'site' } = question
  signal.throwIfAborted()
  const own = new AbortController()
  const leave = () => own.abort(signal.reason)
  signal.addEventListener('abort', leave, { once: true })
  const stopClock = onceLate(clock, question.firstByteMs, () =>
    own.abort(late(name, 'begin to answer', question.firstByteMs)),
  )
  const end = () => {
    stopClock()
    signal.removeEventListener('abort', leave)
  }
  const stop = () => {
    end()
    own.abort(new Failure('cancelled', 'the answer is not needed any more', { source: 'ours' }))
  }
  try {
    const response = await request(url, {
      method: question.method ?? 'GET',
      headers: { ...question.headers, 'accept-encoding': 'identity' },
      dispatcher: agent,
      signal: own.signal,
    })
    response.body.on('error', () => {}) // the reader sees the error; without a reader it must not end the process
    const { statusCode, headers } = response
    if (redirections.has(statusCode)) {
      const location = oneOf(headers['location'])
      const target = followed(location, { site, from: url, redirects })
      stop()
      if (!target || hops === maxHops[redirects]) throw elsewhere(name, statusCode, location, site)
      return await askOnce({ ...question, url: target }, site, hops + 1)
    }
    if (statusCode !== 200) {
      const said = await beginning(response.body)
      stop()
      throw refusal(name, statusCode, oneOf(headers['retry-after']), said, clock.now())
    }
    const wrong = unlikeAsked(question, headers)
    if (wrong) {
      stop()
      throw wrong
    }
    const length = oneOf(headers['content-length'])
    stopClock()
    return {
      chunks: chunksOf(question, response.body, own, end),
      trailers: () => response.trailers,
      contentLength: length === undefined ? undefined : Number(length),
      contentType: oneOf(headers['content-type']),
      stop,
    }
  } catch (error) {
    stop()
    throw translate(name, error, own.signal, signal)
  }
}

async function* chunksOf(
  { name, clock, idleMs, signal }: HttpQuestion,
  body: Readable,
  own: AbortController,
  end: () => void,
): AsyncGenerator<Uint8Array> {
  const iterator = piecesOf(body)
  let isDone = false
  try {
    for (;;) {
      const stopClock = onceLate(clock, idleMs, () => own.abort(late(name, 'go on', idleMs)))
      const next = await iterator.next().finally(stopClock)
      if (next.done) {
        isDone = true
        return
      }
      yield next.value
    }
  } catch (error) {
    throw translate(name, error, own.signal, signal)
  } finally {
    end()
    if (!isDone) own.abort(new Failure('cancelled', 'the answer is not needed any more', { source: 'ours' }))
  }
}

/** Detects by the headers that a response does not match the request. */
export function unlikeAsked(
  { name, expects }: Pick<HttpQuestion, 'name' | 'expects'>,
  headers: Readonly<Record<string, string | string[] | undefined>>,
): Failure | undefined {
  const encoding = oneOf(headers['content-encoding'])
  if (encoding && encoding !== 'identity')
    return failure('upstream-error', `${name} sent a body with Content-Encoding ${encoding}, which is not supported`)
  const said = oneOf(headers['content-type'])
  if (said !== undefined && said === expects) return undefined
  const type = said?.split(';')[0]?.trim().toLowerCase()
  if (expects === undefined ? type !== 'text/html' : type === expects) return undefined
  return new Failure(
    'upstream-error',
    `${name} answered with Content-Type ${type ?? 'none'}, expected ${expects ?? 'a file'}`,
    {
      source: 'upstream',
      facts: refusesFormat,
    },
  )
}

/** The upstream may have the content in another format. */
const refusesFormat = { refuses: 'format' } as const

const failure = (kind: FailureKind, message: string, cause?: unknown) =>
  new Failure(kind, message, { source: 'upstream', cause })
export const late = (name: string, what: string, ms: number) =>
  failure('timeout', `${name} timed out: it did not ${what} within ${ms} ms`)

export function translate(name: string, error: unknown, own?: AbortSignal, outer?: AbortSignal): unknown {
  if (outer?.aborted) return outer.reason
  if (own?.aborted && isFailure(own.reason) && own.reason.kind === 'timeout') return own.reason
  if (isFailure(error)) return error
  const code = codeOf(error)
  if (code !== undefined && ourShortage.has(code)) return noSocket(name, code, error)
  if (code === 'UND_ERR_CONNECT_TIMEOUT') return failure('timeout', `${name}: connection timed out`, error)
  const inner = (error as { cause?: unknown } | null)?.cause
  if (isFailure(inner)) return inner
  return failure('upstream-error', `${name}: connection failed (${code ?? 'no reason given'})`, error)
}

// Errors of this process or machine, which say nothing about the upstream.
const ourShortage: ReadonlySet<string> = new Set(['EMFILE', 'ENFILE', 'EADDRNOTAVAIL', 'ENOBUFS'])

const noSocket = (name: string, code: string, cause: unknown): Failure =>
  new Failure(
    'overloaded',
    `this gateway has no socket left to ask ${name} (${code}): raise its limit of open files (ulimit -n)`,
    { source: 'ours', cause, retryAfterMs: 1000 },
  )

const codeOf = (error: unknown): string | undefined => {
  const code = (error as { code?: unknown } | null)?.code
  return typeof code === 'string' ? code : undefined
}

export function isStaleSocket(error: unknown): boolean {
  if (!isFailure(error, 'upstream-error')) return false
  const cause = error.cause as { code?: string; socket?: { bytesRead?: number; bytesWritten?: number } } | undefined
  // undici counts per socket: a reused one has read an earlier response. A connection that breaks
  // within a body does not get here: that fails the body, not the request.
  return (cause?.code === 'UND_ERR_SOCKET' || cause?.code === 'ECONNRESET') && (cause.socket?.bytesRead ?? 0) > 0
}

export function elsewhere(name: string, status: number, location: string | undefined, site: URL): Failure {
  const isOwn =
    location !== undefined && URL.canParse(location, site.href) && isOwnSubdomain(new URL(location, site), site)
  const what = isOwn
    ? `redirects to a subdomain of its own (${status}); set \`redirects: subdomains\` if that is meant`
    : `redirects to another host (${status}); set url to that host if it is meant`
  return failure('upstream-error', `${name} ${what}`)
}

async function beginning(body: AsyncIterable<Uint8Array>): Promise<string> {
  const parts: Uint8Array[] = []
  let bytes = 0
  try {
    for await (const chunk of body) {
      parts.push(chunk)
      bytes += chunk.byteLength
      if (bytes >= maxErrorBytes) break
    }
  } catch {
    // The text of a refusal is optional.
  }
  return Buffer.concat(parts).toString('utf8', 0, maxErrorBytes)
}

/** Statuses of gateways that do not support a format. */
const noFormat: ReadonlySet<number> = new Set([400, 405, 406, 415, 422, 501])

export function refusal(
  name: string,
  status: number,
  retryAfter: string | undefined,
  said: string,
  now: number,
): Failure {
  const retryAfterMs = parseRetryAfter(retryAfter, now)
  const isThrottled = status === 429 || (status === 503 && retryAfterMs !== undefined)
  if (isThrottled)
    return new Failure('throttled', `rate limited by ${name} (${status})`, { source: 'upstream', retryAfterMs })
  // 412: the reply to only-if-cached, with which a gateway named by a router is asked.
  if (status === 404 || status === 412) return failure('not-found', `${name} does not have it`)
  if (noFormat.has(status))
    return new Failure('refused', `${name} refused (${status})`, { source: 'upstream', facts: refusesFormat })
  if (status === 401 || status === 403 || status === 410 || status === 451)
    return failure('refused', `${name} refused (${status})`)
  // Some gateways send 500 for a 404, with one of a few known messages.
  if (status === 500 && /(block|ipld|path).{0,40}not found|no link named/i.test(said))
    return failure('not-found', `${name} does not have it`)
  if (status === 504) return failure('timeout', `${name} answered with 504 (gateway timeout)`)
  // 502, 503 and the codes of proxies: a proxy in front could not reach the upstream.
  const unreachable = status === 502 || status === 503 || status >= 520
  const facts = { isIll: status >= 500, ...(unreachable && { unreachable }) }
  return new Failure('upstream-error', `${name} answered with ${status}`, { source: 'upstream', facts })
}
