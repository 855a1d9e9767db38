// Any S3-compatible bucket: a Keyv storage adapter over @aws-sdk/client-s3, and the tier made of it. The SDK is loaded
// when it is first needed, so a gateway without a bucket does not pay for it.
import type { S3Client as S3ClientType } from '@aws-sdk/client-s3'
import { z } from 'zod'
import { maxBlockBytes } from '../../src/block.ts'
import { duration } from '../../src/config/units.ts'
import { Failure } from '../../src/failure.ts'
import type { TierKind } from './contract.ts'
import { createAdapterTier, type KeyvAdapter } from './keyv.ts'

const options = z
  .strictObject({
    bucket: z.string().min(1).describe('The bucket.'),
    prefix: z.string().default('').describe('Put before every key, such as blocks/.'),
    region: z.string().default('us-east-1').describe('What the store calls its region; R2 wants auto, Garage what it was set up with.'),
    endpoint: z.url({ protocol: /^https?$/ }).optional().describe('Where it is, when it is not AWS.'),
    forcePathStyle: z.boolean().default(false).describe('The bucket in the path instead of the host: MinIO, Garage, versitygw.'),
    accessKeyId: z.string().optional().describe("Without keys: the SDK's own chain (environment, files, roles)."),
    secretAccessKey: z.string().optional(),
    missing403: z
      .boolean()
      .default(true)
      .describe('Some stores answer 403 for a key that is not there, when the credentials may not list. false: a 403 is a failure.'),
    timeout: duration().prefault('1s').describe('A read that takes longer counts as a failure.'),
    writeTimeout: duration().prefault('10s').describe('The same for a write.'),
    connections: z.int().min(1).default(64).describe('Connections at once.'),
  })
  .refine(({ accessKeyId, secretAccessKey }) => (accessKeyId === undefined) === (secretAccessKey === undefined), {
    error: 'expected accessKeyId and secretAccessKey together, or neither',
  })

type Settings = z.output<typeof options>
type Sdk = typeof import('@aws-sdk/client-s3')

/** Keys in, bytes in, bytes out. Keyv's shape, so that it can stand where any Keyv store can. */
export class S3Store implements KeyvAdapter {
  readonly opts: Settings
  namespace?: string
  readonly #sdk: Sdk
  readonly #client: S3ClientType
  /** False once the store has said that it does not know conditional writes. */
  #conditional = true

  constructor(sdk: Sdk, settings: Settings) {
    this.opts = settings
    this.#sdk = sdk
    const { region, endpoint, forcePathStyle, accessKeyId, secretAccessKey, timeout, writeTimeout, connections } = settings
    this.#client = new sdk.S3Client({
      region,
      forcePathStyle,
      ...(endpoint !== undefined && { endpoint }),
      ...(accessKeyId !== undefined && secretAccessKey !== undefined && { credentials: { accessKeyId, secretAccessKey } }),
      // Several stores refuse the checksums newer SDKs add by themselves; ours is the CID.
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
      maxAttempts: 2,
      requestHandler: {
        connectionTimeout: Math.min(1000, timeout),
        requestTimeout: writeTimeout,
        throwOnRequestTimeout: true,
        httpAgent: { maxSockets: connections, keepAlive: true },
        httpsAgent: { maxSockets: connections, keepAlive: true },
      },
    })
  }

  #object(key: string): { Bucket: string; Key: string } {
    return { Bucket: this.opts.bucket, Key: key }
  }

  async get(key: string): Promise<Uint8Array | undefined> {
    try {
      const { Body, ContentLength } = await this.#client.send(new this.#sdk.GetObjectCommand(this.#object(key)))
      if (!Body) return undefined
      if ((ContentLength ?? 0) > maxBlockBytes) {
        ;(Body as { destroy?: () => void }).destroy?.()
        await this.delete(key)
        return undefined
      }
      return await Body.transformToByteArray()
    } catch (error) {
      if (this.#isMissing(error)) return undefined
      throw error
    }
  }

  async set(key: string, value: Uint8Array): Promise<void> {
    const put = { ...this.#object(key), Body: value, ContentLength: value.byteLength }
    try {
      await this.#client.send(new this.#sdk.PutObjectCommand(this.#conditional ? { ...put, IfNoneMatch: '*' } : put))
    } catch (error) {
      const status = statusOf(error)
      if (status === 412 || status === 409) return // it is there, or somebody is writing the same bytes
      if (!this.#conditional || (status !== 501 && status !== 400)) throw error
      this.#conditional = false
      await this.#client.send(new this.#sdk.PutObjectCommand(put))
    }
  }

  async has(key: string): Promise<boolean> {
    try {
      await this.#client.send(new this.#sdk.HeadObjectCommand(this.#object(key)))
      return true
    } catch (error) {
      if (this.#isMissing(error)) return false
      throw error
    }
  }

  async delete(key: string): Promise<boolean> {
    await this.#client.send(new this.#sdk.DeleteObjectCommand(this.#object(key)))
    return true
  }

  /** Keyv's interface has it; a bucket that others share is not emptied by a gateway. */
  clear(): Promise<void> {
    return Promise.reject(new Failure('unsupported', 'the S3 store is not cleared as a whole', { source: 'tier' }))
  }

  async disconnect(): Promise<void> {
    this.#client.destroy()
  }

  /** Writes, reads, looks for something absent, deletes: wrong credentials are told from a missing permission to list. */
  async probe(): Promise<void> {
    const key = `${this.opts.prefix}probe-${process.pid}`
    const step = async <T>(what: string, work: () => Promise<T>): Promise<T> => {
      try {
        return await work()
      } catch (error) {
        const { name } = error as { name?: string }
        const why = `the bucket ${this.opts.bucket} refuses to ${what}: ${name ?? 'unknown reason'} (${statusOf(error) ?? 'no answer'})`
        throw new Failure('broken', why, { source: 'tier', cause: error })
      }
    }
    const bytes = new TextEncoder().encode('probe')
    await step('delete', () => this.delete(key))
    await step('write', () => this.set(key, bytes))
    const back = await step('read', () => this.get(key))
    if (!back || Buffer.compare(back, bytes) !== 0) {
      throw new Failure('broken', `the bucket ${this.opts.bucket} gave back something else than was written`, { source: 'tier' })
    }
    await step('delete', () => this.delete(key))
    await step('look for an absent key', () => this.has(`${key}-absent`))
  }

  #isMissing(error: unknown): boolean {
    const status = statusOf(error)
    if (status === 404) return (error as { name?: string }).name !== 'NoSuchBucket'
    return status === 403 && this.opts.missing403 && (error as { name?: string }).name !== 'SignatureDoesNotMatch' && (error as { name?: string }).name !== 'InvalidAccessKeyId'
  }
}

function statusOf(error: unknown): number | undefined {
  return (error as { $metadata?: { httpStatusCode?: number } } | null)?.$metadata?.httpStatusCode
}

export const s3: TierKind<typeof options> = {
  use: 's3',
  options,
  create: (settings, context) =>
    createAdapterTier(
      {
        prefix: settings.prefix,
        timeoutMs: settings.timeout,
        writeTimeoutMs: settings.writeTimeout,
        binary: true,
        traits: { persistent: true, shared: true, trusted: false },
        adapter: async () => new S3Store(await import('@aws-sdk/client-s3'), settings),
        probe: (store) => (store as S3Store).probe(),
      },
      context,
    ),
}
