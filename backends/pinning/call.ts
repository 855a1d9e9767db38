// Calls to a provider's API: timeouts, a bounded response, and errors in four classes that decide
// about retries. Each provider has its own sockets, so that a response to one is never read by
// another.

import { randomBytes } from 'node:crypto'
import { Readable } from 'node:stream'
import { Agent, type Dispatcher, request } from 'undici'
import type { Clock } from '../../src/core/clock.ts'
import { causeCode, Failure, isFailure } from '../../src/core/failure.ts'
import { oneOf, parseRetryAfter } from '../../src/core/wire/http.ts'
import { s3ErrorCode } from '../../src/core/wire/s3.ts'
import { withTrace } from '../../src/core/wire/trace.ts'
import type { ProviderContext } from './contract.ts'

type FailureClass = 'auth' | 'quota' | 'transient' | 'content'

type ServiceCall = {
  readonly name: string
  readonly agent: Dispatcher
  readonly clock: Clock
  readonly signal: AbortSignal
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE' | 'HEAD'
  readonly url: string | URL
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: AsyncIterable<Uint8Array> | string | undefined
  /** The timeout for silence before or within the response, once the request was sent. */
  readonly idleMs: number
  /** Statuses in addition to 2xx that are not failures. */
  readonly accept?: readonly number[] | undefined
}

export type Reply = {
  readonly status: number
  readonly header: (name: string) => string | undefined
  readonly trailer: (name: string) => string | undefined
  readonly text: string
  /** The text parsed as JSON, or undefined if it is not JSON. */
  readonly json: unknown
}

const maxReplyBytes = 4 * 1024 * 1024

export type CallService = (
  method: ServiceCall['method'],
  url: string | URL,
  signal: AbortSignal,
  more?: Pick<ServiceCall, 'headers' | 'body' | 'accept'>,
) => Promise<Reply>

/** The service of one provider: all calls share its sockets, timeouts and credentials. */
export function createService(
  { name, clock, userAgent, trace }: ProviderContext,
  { connectTimeout, idleTimeout }: { readonly connectTimeout: number; readonly idleTimeout: number },
  headers: Readonly<Record<string, string>>,
): { readonly ask: CallService; close(): Promise<void> } {
  const agent = createAgent(connectTimeout).compose(withTrace(trace))
  const shared = { ...headers, 'user-agent': userAgent }
  return {
    ask: (method, url, signal, more = {}) =>
      call({
        name,
        agent,
        clock,
        signal,
        method,
        url,
        idleMs: idleTimeout,
        ...more,
        headers: { ...shared, ...more.headers },
      }),
    close: () => agent.destroy(),
  }
}

const createAgent = (connectMs: number): Agent =>
  new Agent({
    connections: 16,
    pipelining: 1,
    headersTimeout: 0,
    bodyTimeout: 0,
    // Short, so that a POST rarely uses a connection that the server has just closed.
    keepAliveTimeout: 1_000,
    keepAliveMaxTimeout: 1_000,
    maxHeaderSize: 16 * 1024,
    allowH2: false,
    connect: { timeout: connectMs },
  })

async function call(options: ServiceCall): Promise<Reply> {
  const { name, signal, clock, idleMs } = options
  signal.throwIfAborted()
  const own = new AbortController()
  const leave = () => own.abort(signal.reason)
  signal.addEventListener('abort', leave, { once: true })
  let stopClock = () => {}
  const alive = () => {
    stopClock()
    stopClock = clock.after(idleMs, () => own.abort(silent(name, idleMs)))
  }
  try {
    alive()
    const body =
      typeof options.body === 'object'
        ? Readable.from(watched(options.body, alive), { objectMode: false })
        : options.body
    const answer = await request(options.url, {
      method: options.method,
      headers: { ...options.headers },
      ...(body !== undefined && { body }),
      dispatcher: options.agent,
      signal: own.signal,
    })
    const pieces: Uint8Array[] = []
    let bytes = 0
    for await (const piece of answer.body as AsyncIterable<Uint8Array>) {
      alive()
      bytes += piece.byteLength
      if (bytes > maxReplyBytes) throw failed(name, `its answer is larger than ${maxReplyBytes} bytes`, 'transient')
      pieces.push(piece)
    }
    const text = Buffer.concat(pieces).toString('utf8')
    const reply: Reply = {
      status: answer.statusCode,
      header: (key) => oneOf(answer.headers[key]),
      trailer: (key) => oneOf(answer.trailers[key]),
      text,
      json: parse(text),
    }
    if ((reply.status < 200 || reply.status > 299) && !options.accept?.includes(reply.status))
      throw refusal(name, reply, clock.now())
    return reply
  } catch (error) {
    own.abort(new Failure('cancelled', 'the call is over', { source: 'ours' }))
    if (signal.aborted) throw signal.reason
    if (isFailure(error)) throw error
    if (isFailure(own.signal.reason, 'timeout')) throw own.signal.reason
    throw failed(name, `connection failed (${causeCode(error) ?? 'no reason given'})`, 'transient', {
      cause: error,
    })
  } finally {
    stopClock()
    signal.removeEventListener('abort', leave)
  }
}

export function failed(
  name: string,
  what: string,
  kind: FailureClass,
  more: { readonly retryAfterMs?: number | undefined; readonly cause?: unknown } = {},
): Failure {
  return new Failure(kind === 'transient' ? 'upstream-error' : 'refused', `provider ${name}: ${what}`, {
    source: 'provider',
    facts: { class: kind },
    ...more,
  })
}

const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `provider ${name} timed out: no data for ${ms} ms`, {
    source: 'provider',
    facts: { class: 'transient' },
  })

async function* watched(body: AsyncIterable<Uint8Array>, alive: () => void): AsyncGenerator<Uint8Array> {
  for await (const piece of body) {
    alive()
    yield piece
  }
}

/**
 * The failure for a status, with the service's message shortened (and without secrets: secrets.ts).
 */
function refusal(name: string, reply: Reply, now: number): Failure {
  const { status } = reply
  const what = `it answered ${status}${reasonIn(reply)}`
  if (status === 401) return failed(name, `${what}; its token, password or key in the configuration is wrong`, 'auth')
  if (status === 403 && /PAID_FEATURE_ONLY/.test(reply.text)) return failed(name, what, 'quota')
  if (status === 403)
    return failed(name, `${what}; its token or key in the configuration is wrong, or lacks this permission`, 'auth')
  if (status === 402 || status === 409 || status === 418) return failed(name, what, 'quota')
  // The upload came back in a loop, and a retry would too.
  if (status === 508) return failed(name, what, 'content')
  if ([408, 425, 429].includes(status) || status >= 500) {
    return failed(name, what, 'transient', { retryAfterMs: parseRetryAfter(reply.header('retry-after'), now) })
  }
  return failed(name, what, 'content')
}

/** Error bodies have many formats, including HTML of proxies: shorten them to one line. */
function reasonIn({ json, text }: Reply): string {
  const body = (json ?? {}) as Record<string, unknown>
  const inner =
    typeof body['error'] === 'object' && body['error'] !== null ? (body['error'] as Record<string, unknown>) : body
  const reasons = [
    s3ErrorCode(text),
    body['error'],
    inner['reason'],
    inner['details'],
    inner['message'],
    inner['Message'],
    inner['code'],
  ]
  const reason = reasons.find((one): one is string => typeof one === 'string' && one !== '')
  return reason === undefined ? '' : `: ${reason.replaceAll(/\s+/g, ' ').slice(0, 200)}`
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** Parses one object per line, as Kubo streams them; skips other lines. */
export const jsonLines = (text: string): Record<string, unknown>[] =>
  text.split('\n').flatMap((line) => {
    const value = parse(line)
    return typeof value === 'object' && value !== null ? [value as Record<string, unknown>] : []
  })

type Credentials = { readonly basic?: string | undefined; readonly bearer?: string | undefined }

export function authorization(auth: 'none' | Credentials): Record<string, string> {
  if (auth === 'none') return {}
  if (auth.bearer !== undefined) return { authorization: `Bearer ${auth.bearer}` }
  return { authorization: `Basic ${Buffer.from(auth.basic ?? '').toString('base64')}` }
}

type Form = { readonly headers: Record<string, string>; readonly body: AsyncIterable<Uint8Array> }

export function fileForm(
  file: {
    readonly field: string
    readonly type: string
    readonly bytes: number
    readonly content: AsyncIterable<Uint8Array>
  },
  fields: Readonly<Record<string, string>> = {},
): Form {
  const boundary = `cidgate-${randomBytes(16).toString('hex')}`
  const texts = Object.entries(fields)
    .map(([name, value]) => `--${boundary}\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`)
    .join('')
  const head = Buffer.from(
    `${texts}--${boundary}\r\nContent-Disposition: form-data; name="${file.field}"; filename="file"\r\nContent-Type: ${file.type}\r\n\r\n`,
  )
  const tail = Buffer.from(`\r\n--${boundary}--\r\n`)
  return {
    headers: {
      'content-type': `multipart/form-data; boundary=${boundary}`,
      'content-length': String(head.byteLength + file.bytes + tail.byteLength),
    },
    body: (async function* () {
      yield head
      yield* file.content
      yield tail
    })(),
  }
}
