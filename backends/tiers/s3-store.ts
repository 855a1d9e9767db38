// Blocks in S3 as a Keyv storage adapter, over AWS's own signer and undici: plain bytes, 2 MiB at
// most, under a key that is their hash. Compatible stores differ: 403 for a missing key, conditional
// writes that they do not know.
import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { KeyvStoreAdapter, StoredData } from 'keyv'
import { Agent, type Dispatcher } from 'undici'
import { maxBlockBytes } from '../../src/core/cid.ts'
import { oneOf } from '../../src/core/wire/http.ts'
import { type S3Place, type S3Request, type SignS3, s3ErrorCode, s3Signer } from '../../src/core/wire/s3.ts'
import type { StoredRecord } from './contract.ts'
import { isSame, type RecordSteps } from './keyv-tier.ts'

export type S3StoreOptions = S3Place & {
  /** The prefix of every key in the bucket. */
  readonly prefix?: string | undefined
  /** 403 on GET and HEAD means that the key is missing; `auto` finds out with a probe. */
  readonly treat403AsMissing?: boolean | 'auto' | undefined
  /** Timeout of a request: a read has a shorter one, by its signal. Connecting has a tenth of it. */
  readonly writeTimeoutMs: number
  readonly userAgent?: string | undefined
  /** Aborts the call that is being made. */
  readonly signalOf?: (() => AbortSignal | undefined) | undefined
}

type S3Call = S3Request & { readonly body?: Uint8Array | undefined; readonly signal?: AbortSignal | undefined }

/** `bytes` undefined: longer than a block. */
type S3Answer = {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly bytes: Buffer | undefined
}

type Headers = Readonly<Record<string, string>>
const blockHeaders: Headers = { 'content-type': 'application/vnd.ipld.raw' }

export class S3Error extends Error {
  readonly status: number
  constructor(status: number, code: string) {
    super(`the store answered ${status} (${code})`)
    this.status = status
    this.name = code
  }
}

/** The maximum of concurrent calls: with blocks of 256 KiB and 100 ms a call, reads reach 250 MB/s. */
export const concurrency = { reads: 96, writes: 24 } as const
// Credentials that were withdrawn look like missing keys, so the probe's finding about 403 expires.
const probeTtlMs = 600_000

export class S3Store extends EventEmitter implements KeyvStoreAdapter {
  readonly opts: { readonly dialect: 's3'; readonly url: string }
  namespace: string | undefined
  readonly #options: S3StoreOptions
  readonly #prefix: string
  readonly #agent: Agent
  #signing: Promise<SignS3> | undefined
  /** Milliseconds by which the clock of the store is ahead. */
  #skewMs = 0
  #missing403: { readonly is: boolean; readonly until: number } | undefined
  #probing: Promise<boolean> | undefined

  constructor(options: S3StoreOptions) {
    super()
    this.#options = options
    this.#prefix = options.prefix ?? ''
    this.opts = { dialect: 's3', url: `s3://${options.bucket}/${this.#prefix}` }
    this.#agent = new Agent({
      connections: concurrency.reads + concurrency.writes,
      allowH2: false,
      pipelining: 1,
      headersTimeout: options.writeTimeoutMs,
      bodyTimeout: options.writeTimeoutMs,
      connect: { timeout: options.writeTimeoutMs / 10 },
    })
  }

  async get<Value>(key: string): Promise<StoredData<Value> | undefined> {
    const answer = await this.orMissing(() => this.call({ method: 'GET', key }))
    if (answer && !answer.bytes) await this.call({ method: 'DELETE', key })
    return answer?.bytes as StoredData<Value> | undefined
  }

  async set(key: string, bytes: Uint8Array): Promise<boolean> {
    try {
      await this.call({ method: 'PUT', key, body: bytes, headers: blockHeaders })
    } catch (error) {
      // R2 takes one write of a key a second. The key is the hash of the bytes.
      if (statusOf(error) !== 429 || !(await this.has(key))) throw error
    }
    return true
  }

  /** S3 does not say whether something was there. */
  async delete(key: string): Promise<boolean> {
    await this.call({ method: 'DELETE', key })
    return true
  }

  async has(key: string): Promise<boolean> {
    return (await this.orMissing(() => this.call({ method: 'HEAD', key }))) !== undefined
  }

  async clear(): Promise<void> {
    throw new RangeError('clearing a bucket is not supported')
  }

  async disconnect(): Promise<void> {
    await this.#agent.destroy().catch(() => {})
  }

  /**
   * Writes, reads and deletes an object of its own, then asks for an absent one, which shows the
   * meaning of 403.
   */
  async probe(signal: AbortSignal | undefined): Promise<void> {
    const key = `probe-${randomBytes(8).toString('hex')}`
    await this.call({ method: 'PUT', key, body: Uint8Array.of(1), headers: blockHeaders, signal })
    const { bytes } = await this.call({ method: 'GET', key, signal })
    await this.call({ method: 'DELETE', key, signal })
    if (bytes?.[0] !== 1) throw new RangeError('an object was lost, or changed, that was just written to it')
    try {
      await this.call({ method: 'GET', key: `${key}-absent`, signal })
    } catch (error) {
      if (!isMissing(error) && statusOf(error) !== 403) throw error
      this.#missing403 = { is: statusOf(error) === 403, until: Date.now() + probeTtlMs }
      return
    }
    throw new RangeError('it has an object that was never written')
  }

  /** Loads the signer. A failure is not remembered. */
  load(): Promise<SignS3> {
    this.#signing ??= s3Signer(this.#options).catch((error: unknown) => {
      this.#signing = undefined
      throw error
    })
    return this.#signing
  }

  /**
   * Resolves for 2xx; rejects with an S3Error for any other answer, or as the network does, after a
   * second attempt where that may help. `key` without the prefix; undefined: the bucket. `signal`
   * by default: that of the call that is being made.
   */
  async call({ key, signal = this.#signal(), ...call }: S3Call): Promise<S3Answer> {
    const sign = await this.load()
    const request = { ...call, signal, key: key === undefined ? undefined : this.#prefix + key }
    try {
      return await this.#callOnce(sign, request)
    } catch (error) {
      signal?.throwIfAborted()
      if (!isTransient(error)) throw error
      await sleep(Math.random() * 100, undefined, signal && { signal })
      return this.#callOnce(sign, request)
    }
  }

  async #callOnce(sign: SignS3, { signal, ...request }: S3Call): Promise<S3Answer> {
    const { origin, path, headers } = await sign(request, new Date(Date.now() + this.#skewMs))
    const { method, body = null } = request
    const { userAgent } = this.#options
    const length = method === 'PUT' && { 'content-length': String(body?.byteLength ?? 0) }
    const all = { ...headers, ...length, ...(userAgent !== undefined && { 'user-agent': userAgent }) }
    const answer = await this.#agent.request({ origin, path, method, headers: all, body, signal: signal ?? null })
    const bytes = await blockOf(answer)
    const { statusCode: status } = answer
    if (status >= 200 && status < 300) return { headers: answer.headers, bytes }
    const error = new S3Error(status, s3ErrorCode(String(bytes ?? '')) ?? codes[status] ?? 'no code')
    const date = Date.parse(oneOf(answer.headers['date']) ?? '')
    if (error.name === 'RequestTimeTooSkewed' && Number.isFinite(date)) this.#skewMs = date - Date.now()
    throw error
  }

  /**
   * The answer of a call, or undefined where the store says, in its own way, that there is no such
   * key.
   */
  async orMissing<T>(ask: () => Promise<T>): Promise<T | undefined> {
    try {
      return await ask()
    } catch (error) {
      if (isMissing(error)) return undefined
      if (statusOf(error) === 403 && !isBadKey(error) && (await this.#is403Missing())) return undefined
      throw error
    }
  }

  async #is403Missing(): Promise<boolean> {
    const { treat403AsMissing = 'auto' } = this.#options
    if (treat403AsMissing !== 'auto') return treat403AsMissing
    if (this.#missing403 && Date.now() < this.#missing403.until) return this.#missing403.is
    // On a timeout of its own: many calls may wait for it, and the one that began it may leave.
    this.#probing ??= this.probe(AbortSignal.timeout(this.#options.writeTimeoutMs))
      .then(
        () => this.#missing403?.is ?? false,
        () => false, // it cannot even write: the credentials, not the key
      )
      .finally(() => {
        this.#probing = undefined
      })
    return this.#probing
  }

  #signal(): AbortSignal | undefined {
    return this.#options.signalOf?.()
  }
}

/** One buffer of its own; undefined: longer than a block. */
async function blockOf({ body }: Dispatcher.ResponseData): Promise<Buffer | undefined> {
  const chunks: Uint8Array[] = []
  let length = 0
  for await (const chunk of body as AsyncIterable<Uint8Array>) {
    length += chunk.byteLength
    // To leave the loop closes the connection.
    if (length > maxBlockBytes) return undefined
    chunks.push(chunk)
  }
  const bytes = Buffer.allocUnsafeSlow(length)
  let at = 0
  for (const chunk of chunks) {
    bytes.set(chunk, at)
    at += chunk.byteLength
  }
  return bytes
}

const statusOf = (error: unknown): number | undefined => (error instanceof S3Error ? error.status : undefined)
const codes: Readonly<Record<number, string>> = { 403: 'Forbidden', 404: 'NotFound' }
const transientStatuses: ReadonlySet<number> = new Set([429, 500, 502, 503, 504])

/** The network, a busy store, or one whose clock is known now. */
const isTransient = (error: unknown): boolean =>
  !(error instanceof S3Error) ||
  transientStatuses.has(error.status) ||
  /^Request(?:Timeout|TimeTooSkewed)$/.test(error.name)

/**
 * A HEAD has no body, so its name says nothing of the bucket; a GET does, and a missing bucket is
 * no missing object.
 */
const isMissing = (error: unknown): boolean => statusOf(error) === 404 && (error as S3Error).name !== 'NoSuchBucket'

/** Stores name wrong keys (but not on HEAD); only AccessDenied can mean that nothing is there. */
const isBadKey = (error: unknown): boolean =>
  error instanceof S3Error &&
  /^(InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|RequestTimeTooSkewed)$/.test(error.name)

const ignoresConditions = (error: unknown): boolean => statusOf(error) === 400 || statusOf(error) === 501

const maxRecordBytes = 64 * 1024

/**
 * Records as objects in the blocks' bucket. S3 compares and writes in one step: the writer names
 * the ETag that it read. With a store that does not know this, the record is read, then written.
 */
export function s3Records(): RecordSteps {
  let compares = true

  async function read(store: S3Store, key: string, signal: AbortSignal | undefined): Promise<StoredRecord | undefined> {
    const answer = await store.orMissing(() => store.call({ method: 'GET', key, signal }))
    if (!answer) return undefined
    // Bytes too large for a record are none, and are overwritten like a record that proves nothing.
    const { bytes = new Uint8Array(), headers } = answer
    return { bytes: bytes.byteLength > maxRecordBytes ? new Uint8Array() : bytes, tag: oneOf(headers['etag']) }
  }

  return {
    read: ({ store }, key, signal) => read(store as S3Store, key, signal),
    async replace(keyv, key, body, { expected }, signal) {
      const store = keyv.store as S3Store
      // Some stores ignore a condition without a word.
      if (!isSame(await read(store, key, signal), expected)) return false
      const put = (condition: Headers) => {
        const headers = { 'content-type': 'application/vnd.ipfs.ipns-record', ...condition }
        return store.call({ method: 'PUT', key, body, headers, signal })
      }
      try {
        await put(compares ? conditionOf(expected) : {})
      } catch (error) {
        const status = statusOf(error)
        // Another record is there, or none, or another instance writes at this moment.
        if (status === 412 || status === 409 || isMissing(error)) return false
        if (!compares || !ignoresConditions(error)) throw error
        await put({})
        compares = false
      }
      return true
    },
  }
}

function conditionOf(expected: StoredRecord | undefined): Headers {
  if (expected === undefined) return { 'if-none-match': '*' }
  return expected.tag === undefined ? {} : { 'if-match': expected.tag }
}
