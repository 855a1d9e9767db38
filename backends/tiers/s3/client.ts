// Calls to an S3 bucket over undici: each answer straight into one buffer of its Content-Length, errors as the store names them, one
// further attempt where that may help.
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, type Dispatcher } from 'undici'
import { oneOf } from '../../../src/core/wire/http.ts'
import { type S3Place, type S3Request, s3ErrorCode, s3Signer } from '../../../src/core/wire/s3.ts'

export type S3Connection = S3Place & {
  readonly connectMs?: number | undefined
  readonly requestMs?: number | undefined
  readonly userAgent?: string | undefined
  /** Of a longer answer nothing is kept. */
  readonly maxBytes?: number | undefined
}

export type S3Call = S3Request & {
  readonly body?: Uint8Array | undefined
  readonly signal?: AbortSignal | undefined
}

export type S3Answer = {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  /** Undefined: longer than `maxBytes`. */
  readonly bytes: Buffer | undefined
}

export interface S3Client {
  /** Resolves for 2xx. Rejects with an S3Error for any other answer, or as the network does. */
  call(call: S3Call): Promise<S3Answer>
  close(): void
}

export class S3Error extends Error {
  readonly status: number
  constructor(status: number, code: string) {
    super(`the store answered ${status} (${code})`)
    this.status = status
    this.name = code
  }
}

/** Calls on their way; with blocks of 256 KiB and 100 ms for each of them, reads alone are 160 MB/s. */
export const atOnce = { reads: 96, writes: 24 } as const
const defaultConnectMs = 1000
export const defaultRequestMs = 10_000
const maxAttempts = 2
const maxPauseMs = 100

export async function openS3({
  connectMs = defaultConnectMs,
  requestMs = defaultRequestMs,
  maxBytes = Number.POSITIVE_INFINITY,
  userAgent,
  ...place
}: S3Connection): Promise<S3Client> {
  const sign = await s3Signer(place)
  const agent = new Agent({
    connections: atOnce.reads + atOnce.writes,
    allowH2: false,
    pipelining: 1,
    headersTimeout: requestMs,
    bodyTimeout: requestMs,
    connect: { timeout: connectMs },
  })
  /** How far the clock of the store is ahead. */
  let skewMs = 0

  async function callOnce({ signal, ...request }: S3Call): Promise<S3Answer> {
    const { origin, path, headers } = await sign(request, new Date(Date.now() + skewMs))
    const { method, body } = request
    const length = method === 'PUT' ? { 'content-length': String(body?.byteLength ?? 0) } : {}
    const all = { ...headers, ...length, ...(userAgent !== undefined && { 'user-agent': userAgent }) }
    const { status, ...answer } = await dispatched(
      agent,
      { origin, path, method, headers: all, body: body ?? null },
      { signal, maxBytes },
    )
    if (status >= 200 && status < 300) return answer
    const error = new S3Error(status, s3ErrorCode(String(answer.bytes ?? '')) ?? nameOf(status))
    const date = Date.parse(oneOf(answer.headers['date']) ?? '')
    if (error.name === 'RequestTimeTooSkewed' && Number.isFinite(date)) skewMs = date - Date.now()
    throw error
  }

  return {
    async call(call) {
      for (let attempt = 1; ; attempt++) {
        try {
          return await callOnce(call)
        } catch (error) {
          call.signal?.throwIfAborted()
          if (attempt === maxAttempts || !mayPass(error)) throw error
          await sleep(Math.random() * maxPauseMs, undefined, call.signal && { signal: call.signal })
        }
      }
    },
    close: () => void agent.destroy().catch(() => {}),
  }
}

const passing: ReadonlySet<number> = new Set([429, 500, 502, 503, 504])

/** The network, a store that is busy, or one whose clock is known now. */
const mayPass = (error: unknown): boolean =>
  !(error instanceof S3Error) || passing.has(error.status) || /^Request(?:Timeout|TimeTooSkewed)$/.test(error.name)

const nameOf = (status: number): string => (status === 404 ? 'NotFound' : status === 403 ? 'Forbidden' : 'no code')

type Whole = S3Answer & { readonly status: number }

const nothing = Buffer.alloc(0)
const enough = new Error('the answer is not needed any more')

function dispatched(
  agent: Dispatcher,
  options: Dispatcher.DispatchOptions,
  { signal, maxBytes }: { readonly signal: AbortSignal | undefined; readonly maxBytes: number },
): Promise<Whole> {
  const { promise, resolve, reject } = Promise.withResolvers<Whole>()
  let controller: Dispatcher.DispatchController | undefined
  let isOver = false
  let status = 0
  let headers: S3Answer['headers'] = {}
  let body = nothing
  let taken = 0
  let length: number | undefined
  const leave = () => fail(signal?.reason)

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
    if (end()) resolve({ status, headers, bytes })
  }

  signal?.addEventListener('abort', leave, { once: true })
  if (signal?.aborted) leave()
  else
    agent.dispatch(options, {
      onRequestStart(own) {
        controller = own
        if (isOver) own.abort(enough)
      },
      onResponseStart(_own, code, all) {
        if (isOver || code < 200) return
        status = code
        headers = all
        const told = oneOf(all['content-length'])
        length = told === undefined ? undefined : Number(told)
      },
      onResponseData(own, chunk) {
        if (isOver) return
        if (taken + chunk.byteLength > maxBytes || (length ?? 0) > maxBytes) {
          answer(undefined)
          return void own.abort(enough)
        }
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
      onResponseError(_own, error) {
        fail(error)
      },
    })
  return promise
}

export const statusOf = (error: unknown): number | undefined => (error instanceof S3Error ? error.status : undefined)

/** A HEAD has no body, so its name says nothing of the bucket; a GET does, and a missing bucket is no missing object. */
export const isMissing = (error: unknown): boolean =>
  statusOf(error) === 404 && (error as S3Error).name !== 'NoSuchBucket'

/** Keys that are wrong are said so by name (but not on HEAD); only AccessDenied can mean that nothing is there. */
export const isBadKey = (error: unknown): boolean =>
  error instanceof S3Error &&
  /^(InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|RequestTimeTooSkewed)$/.test(error.name)
