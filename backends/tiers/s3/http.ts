// How the S3 client speaks HTTP: each answer straight into one buffer of its Content-Length. The SDK's own handler reads through streams of
// node:http, whose copies and garbage were half of what a block from S3 cost. The SDK still signs, retries and reads the answers.
import { Readable } from 'node:stream'
import { Agent, type Dispatcher } from 'undici'
import { oneOf } from '../../../src/core/header.ts'

/** What of the SDK's request goes out. */
export type S3HttpRequest = {
  readonly protocol: string
  readonly hostname: string
  readonly port?: number | undefined
  readonly path: string
  readonly method: string
  readonly headers: Record<string, string>
  readonly query?: Readonly<Record<string, string | readonly string[] | null>> | undefined
  readonly body?: Dispatcher.DispatchOptions['body']
}
type Head = { readonly statusCode: number; readonly reason: string; readonly headers: Record<string, string> }
export type S3HttpResponse = { readonly response: Head & { readonly body: WholeBody } }

export type S3CallOptions = {
  readonly abortSignal?: object | undefined
  /** What was answered already: taken, once, in place of an answer of the store. */
  first?: Promise<S3HttpResponse | undefined> | undefined
}

/** What the SDK wants of its `requestHandler`. */
export interface S3Http {
  readonly metadata: { readonly handlerProtocol: string }
  handle(request: S3HttpRequest, options?: S3CallOptions): Promise<S3HttpResponse>
  destroy(): void
  updateHttpClientConfig(): void
  httpHandlerConfigs(): object
}

export type S3HttpOptions = {
  readonly connectMs: number
  readonly requestMs: number
  readonly connections: number
  /** Of a longer answer nothing is kept. */
  readonly mostBytes: number
}

/** The body of an answer: a stream for the SDK, its bytes for us. */
export class WholeBody extends Readable {
  /** Undefined: it is longer than `mostBytes`. */
  readonly bytes: Buffer | undefined
  constructor(bytes: Buffer | undefined) {
    super()
    this.bytes = bytes
  }

  override _read(): void {
    if (this.bytes === undefined) return void this.destroy(new RangeError('the object is too large'))
    if (this.bytes.byteLength > 0) this.push(this.bytes)
    this.push(null)
  }
}

export function createS3Http({ connectMs, requestMs, connections, mostBytes }: S3HttpOptions): S3Http {
  const agent = new Agent({
    connections,
    allowH2: false,
    pipelining: 1,
    headersTimeout: requestMs,
    bodyTimeout: requestMs,
    connect: { timeout: connectMs },
  })
  return {
    metadata: { handlerProtocol: 'http/1.1' },
    updateHttpClientConfig() {},
    httpHandlerConfigs: () => ({}),
    destroy: () => void agent.destroy().catch(() => {}),
    async handle(request, options = {}) {
      const { abortSignal: signal, first } = options
      options.first = undefined
      const had = await first
      if (had) return had
      const { promise, resolve, reject } = Promise.withResolvers<S3HttpResponse>()
      const collector = createCollector(mostBytes, signal instanceof AbortSignal ? signal : undefined, resolve, reject)
      try {
        agent.dispatch(
          {
            origin: originOf(request),
            path: request.path + queryOf(request),
            method: request.method as Dispatcher.HttpMethod,
            headers: request.headers,
            body: request.body ?? null,
          },
          collector,
        )
      } catch (error) {
        collector.onResponseError(undefined, error as Error)
      }
      return promise
    },
  }
}

function originOf({ protocol, hostname, port }: S3HttpRequest): string {
  return `${protocol}//${hostname}${port === undefined ? '' : `:${port}`}`
}

/** As it was signed. */
function queryOf({ query }: S3HttpRequest): string {
  const parts = Object.entries(query ?? {}).flatMap(([key, value]) =>
    [value].flat().map((one) => (one === null ? escaped(key) : `${escaped(key)}=${escaped(one)}`)),
  )
  return parts.length === 0 ? '' : `?${parts.join('&')}`
}

const escaped = (text: string): string =>
  encodeURIComponent(text).replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`)

const nothing = Buffer.alloc(0)

function createCollector(
  mostBytes: number,
  signal: AbortSignal | undefined,
  resolve: (answer: S3HttpResponse) => void,
  reject: (error: unknown) => void,
) {
  let controller: Dispatcher.DispatchController | undefined
  let isOver = false
  let head: Head | undefined
  let body = nothing
  let taken = 0
  let length: number | undefined
  const leave = () => fail(abortError(signal))

  function end(): boolean {
    if (isOver) return false
    isOver = true
    signal?.removeEventListener('abort', leave)
    return true
  }
  function fail(error: unknown): void {
    if (!end()) return
    controller?.abort(enough)
    reject(error)
  }
  function answer(bytes: Buffer | undefined): void {
    if (end() && head) resolve({ response: { ...head, body: new WholeBody(bytes) } })
  }
  function tooLong(): void {
    answer(undefined)
    controller?.abort(enough)
  }

  signal?.addEventListener('abort', leave, { once: true })
  if (signal?.aborted) leave()
  return {
    onRequestStart(own: Dispatcher.DispatchController) {
      controller = own
      if (isOver) own.abort(enough)
    },
    onResponseStart(
      _own: unknown,
      statusCode: number,
      headers: Parameters<NonNullable<Dispatcher.DispatchHandler['onResponseStart']>>[2],
      reason = '',
    ) {
      if (isOver || statusCode < 200) return
      const all: Record<string, string> = {}
      for (const [name, value] of Object.entries(headers))
        if (value !== undefined) all[name] = Array.isArray(value) ? value.join(', ') : value
      head = { statusCode, reason, headers: all }
      const told = oneOf(headers['content-length'])
      length = told === undefined ? undefined : Number(told)
    },
    onResponseData(_own: unknown, chunk: Uint8Array) {
      if (isOver) return
      if (taken + chunk.byteLength > mostBytes || (length ?? 0) > mostBytes) return tooLong()
      if (taken + chunk.byteLength > body.byteLength) {
        const larger = Buffer.allocUnsafeSlow(length ?? Math.max(taken + chunk.byteLength, body.byteLength * 2))
        body.copy(larger, 0, 0, taken)
        body = larger
      }
      body.set(chunk, taken)
      taken += chunk.byteLength
    },
    onResponseEnd() {
      answer(taken === body.byteLength ? body : body.subarray(0, taken))
    },
    onResponseError(_own: unknown, error: Error) {
      fail(named(error))
    },
  }
}

const enough = new Error('the answer is not needed any more')

function abortError(signal: AbortSignal | undefined): Error {
  return Object.assign(new Error('the request was aborted', { cause: signal?.reason }), { name: 'AbortError' })
}

/** By the names that the SDK knows what to try again by. */
function named(error: Error): Error {
  const code = (error as { code?: string }).code ?? ''
  if (/^UND_ERR_\w+_TIMEOUT$/.test(code)) return Object.assign(error, { name: 'TimeoutError' })
  return code === 'UND_ERR_SOCKET' ? Object.assign(error, { code: 'ECONNRESET' }) : error
}
