// S3 as a Keyv storage adapter that carries raw bytes. Made for what the compatible stores really do: no checksum headers
// unless required, 403 for a key that is missing, 412 for one that is there, conditional writes that are not known.
import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import type { S3Client } from '@aws-sdk/client-s3'
import { maxBlockBytes } from '../../src/block.ts'

export type S3StoreOptions = {
  readonly bucket: string
  readonly prefix: string
  readonly region?: string | undefined
  readonly endpoint?: string | undefined
  readonly forcePathStyle?: boolean | undefined
  readonly accessKeyId?: string | undefined
  readonly secretAccessKey?: string | undefined
  /** Whether 403 on GET and HEAD means that the key is missing; `auto` finds out with a probe. */
  readonly missing403: boolean | 'auto'
  readonly connectMs: number
  readonly requestMs: number
  /** Aborts the call that is being made. */
  readonly signalOf: () => AbortSignal | undefined
}

type Sdk = typeof import('@aws-sdk/client-s3')
type Loaded = { readonly sdk: Sdk; readonly client: S3Client }

/** Calls on their way; with a block of 1 MiB and 100 ms each, reads alone are some 500 MB/s. */
export const atOnce = { reads: 48, writes: 24 }
const mostSockets = atOnce.reads + atOnce.writes
const attempts = 2
const conflictTries = 3
// Credentials that were withdrawn look like missing keys, so what a probe found about 403 is believed for this long.
const believeMs = 600_000

export class S3Store extends EventEmitter {
  readonly opts: { readonly dialect: 's3'; readonly url: string }
  namespace: string | undefined
  readonly #options: S3StoreOptions
  #loading: Promise<Loaded> | undefined
  #conditional = true
  #missing403: { readonly is: boolean; readonly until: number } | undefined
  #deciding: Promise<boolean> | undefined

  constructor(options: S3StoreOptions) {
    super()
    this.#options = options
    this.opts = { dialect: 's3', url: `s3://${options.bucket}/${options.prefix}` }
  }

  async get(key: string): Promise<Uint8Array | undefined> {
    const { sdk, client } = await this.load()
    const answer = await this.#orMissing(() =>
      client.send(new sdk.GetObjectCommand(this.#at(key)), callWith(this.#signal())),
    )
    if (!answer) return undefined
    const body = answer.Body as (AsyncIterable<Uint8Array> & { destroy(): void }) | undefined
    if (!body) return new Uint8Array(0)
    const bytes =
      (answer.ContentLength ?? 0) > maxBlockBytes ? undefined : await readUpTo(maxBlockBytes, body, this.#signal())
    if (bytes) return bytes
    body.destroy()
    await this.delete(key)
    return undefined
  }

  async set(key: string, value: Uint8Array): Promise<boolean> {
    await this.#put(key, value, this.#signal())
    return true
  }

  async #put(key: string, value: Uint8Array, signal: AbortSignal | undefined): Promise<void> {
    const { sdk, client } = await this.load()
    const put = (condition: object) =>
      client.send(
        new sdk.PutObjectCommand({
          ...this.#at(key),
          ...condition,
          Body: value,
          ContentLength: value.byteLength,
          ContentType: 'application/vnd.ipld.raw',
        }),
        callWith(signal),
      )
    if (!this.#conditional) {
      await put({})
      return
    }
    for (let turn = 1; ; turn++) {
      try {
        await put({ IfNoneMatch: '*' })
        return
      } catch (error) {
        const status = statusOf(error)
        if (status === 412) return // it is there: the key is the hash of the bytes
        if (status === 409 && turn < conflictTries) continue
        if (status !== 400 && status !== 501) throw error
        await put({}) // a store that does not know conditional writes; or the write itself is bad, and says so again
        this.#conditional = false
        return
      }
    }
  }

  async delete(key: string): Promise<boolean> {
    await this.#remove(key, this.#signal())
    return true
  }

  async #remove(key: string, signal: AbortSignal | undefined): Promise<void> {
    const { sdk, client } = await this.load()
    await client.send(new sdk.DeleteObjectCommand(this.#at(key)), callWith(signal))
  }

  async has(key: string): Promise<boolean> {
    const { sdk, client } = await this.load()
    return (
      (await this.#orMissing(() => client.send(new sdk.HeadObjectCommand(this.#at(key)), callWith(this.#signal())))) !==
      undefined
    )
  }

  /** All objects under the prefix, one by one: DeleteObjects needs a checksum that several stores do not know. */
  async clear(): Promise<void> {
    const { bucket, prefix } = this.#options
    if (prefix === '') throw new RangeError('a bucket without a prefix is not cleared')
    const { sdk, client } = await this.load()
    let ContinuationToken: string | undefined
    do {
      const page = await client.send(
        new sdk.ListObjectsV2Command({ Bucket: bucket, Prefix: prefix, ContinuationToken }),
        callWith(this.#signal()),
      )
      for (const { Key } of page.Contents ?? []) if (Key) await this.delete(Key)
      ContinuationToken = page.NextContinuationToken
    } while (ContinuationToken)
  }

  async disconnect(): Promise<void> {
    const loaded = await this.#loading?.catch(() => undefined)
    this.#loading = undefined
    loaded?.client.destroy()
  }

  /** Writes, reads and deletes an object of its own, then asks for one that cannot be there, and sees what 403 means. */
  async probe(signal: AbortSignal | undefined): Promise<void> {
    const { sdk, client } = await this.load()
    const key = `${this.#options.prefix}probe-${randomBytes(8).toString('hex')}`
    const read = (which: string) => client.send(new sdk.GetObjectCommand(this.#at(which)), callWith(signal))
    await this.#put(key, Uint8Array.of(1), signal)
    const bytes = await (await read(key)).Body?.transformToByteArray()
    await this.#remove(key, signal)
    if (bytes?.[0] !== 1) throw new RangeError('the bucket lost what was just written to it')
    try {
      await read(`${key}-absent`)
    } catch (error) {
      if (!isMissing(error) && statusOf(error) !== 403) throw error
      this.#missing403 = { is: statusOf(error) === 403, until: Date.now() + believeMs }
      return
    }
    throw new RangeError('the bucket has an object that was never written')
  }

  /** Loads the SDK: a gateway without S3 must not pay for it at start. A failed load is not remembered. */
  load(): Promise<Loaded> {
    this.#loading ??= this.#load().catch((error: unknown) => {
      this.#loading = undefined
      throw error
    })
    return this.#loading
  }

  async #load(): Promise<Loaded> {
    const sdk = await import('@aws-sdk/client-s3')
    const { region, endpoint, forcePathStyle, accessKeyId, secretAccessKey, connectMs, requestMs } = this.#options
    const agent = { keepAlive: true, maxSockets: mostSockets }
    const client = new sdk.S3Client({
      ...(region !== undefined || endpoint !== undefined ? { region: region ?? 'us-east-1' } : {}),
      ...(endpoint === undefined ? {} : { endpoint }),
      ...(forcePathStyle === undefined ? {} : { forcePathStyle }),
      // Without keys: the SDK's own chain (environment, profile, container, instance).
      ...(accessKeyId !== undefined && secretAccessKey !== undefined
        ? { credentials: { accessKeyId, secretAccessKey } }
        : {}),
      maxAttempts: attempts,
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
      requestHandler: {
        connectionTimeout: connectMs,
        requestTimeout: requestMs,
        socketTimeout: requestMs,
        throwOnRequestTimeout: true, // otherwise it only warns
        httpAgent: agent,
        httpsAgent: agent,
      },
      logger: { trace() {}, debug() {}, info() {}, warn() {}, error() {} },
    })
    return { sdk, client }
  }

  async #orMissing<T>(ask: () => Promise<T>): Promise<T | undefined> {
    try {
      return await ask()
    } catch (error) {
      if (isMissing(error)) return undefined
      if (statusOf(error) === 403 && !isBadKey(error) && (await this.#is403Missing())) return undefined
      throw error
    }
  }

  async #is403Missing(): Promise<boolean> {
    const { missing403 } = this.#options
    if (missing403 !== 'auto') return missing403
    if (this.#missing403 && Date.now() < this.#missing403.until) return this.#missing403.is
    // On a clock of its own: many calls may wait for it, and the one that began it may leave.
    this.#deciding ??= this.probe(AbortSignal.timeout(this.#options.requestMs))
      .then(
        () => this.#missing403?.is ?? false,
        () => false, // it cannot even write: the credentials, not the key
      )
      .finally(() => {
        this.#deciding = undefined
      })
    return this.#deciding
  }

  #at(key: string): { Bucket: string; Key: string } {
    return { Bucket: this.#options.bucket, Key: key }
  }

  #signal(): AbortSignal | undefined {
    return this.#options.signalOf()
  }
}

const callWith = (abortSignal: AbortSignal | undefined): { abortSignal?: AbortSignal } =>
  abortSignal ? { abortSignal } : {}

/** Undefined when there is more. The SDK's signal ends with the headers, so the body has its own. */
async function readUpTo(
  most: number,
  body: AsyncIterable<Uint8Array> & { destroy(): void },
  signal: AbortSignal | undefined,
): Promise<Uint8Array | undefined> {
  const stop = () => body.destroy()
  signal?.addEventListener('abort', stop, { once: true })
  try {
    const chunks: Uint8Array[] = []
    let total = 0
    for await (const chunk of body) {
      total += chunk.byteLength
      if (total > most) return undefined
      chunks.push(chunk)
    }
    return Buffer.concat(chunks, total)
  } finally {
    signal?.removeEventListener('abort', stop)
  }
}

export function statusOf(error: unknown): number | undefined {
  if (!(error instanceof Error) || !('$metadata' in error)) return undefined
  const { httpStatusCode } = error.$metadata as { httpStatusCode?: number }
  return httpStatusCode
}

/** A HEAD has no body, so its name says nothing of the bucket; a GET does, and a missing bucket is no missing block. */
const isMissing = (error: unknown): boolean =>
  error instanceof Error && statusOf(error) === 404 && error.name !== 'NoSuchBucket'

/** Keys that are wrong are said so by name (but not on HEAD); only AccessDenied can mean that nothing is there. */
const isBadKey = (error: unknown): boolean =>
  error instanceof Error &&
  /^(InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|RequestTimeTooSkewed)$/.test(error.name)
