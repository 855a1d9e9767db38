// Filebase's S3: an object with `import: car` becomes what the CAR holds, and a HEAD says its CID. 4EVERLAND is the same
// with another name for the CID and without CARs. The SDK is loaded when it is first needed.
import { Readable } from 'node:stream'
import type { S3Client } from '@aws-sdk/client-s3'
import { LRUCache } from 'lru-cache'
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { causeCode, Failure } from '../../src/core/failure.ts'
import { isMissingPackage, packageOf } from '../../src/core/packages.ts'
import { duration } from '../../src/core/units.ts'
import { failed } from './call.ts'
import type { PinState, Provider, ProviderContext, ProviderKind, ReadBack, Upload } from './contract.ts'
import { clocks, gateway, readGateway, url } from './options.ts'

const options = z.strictObject({
  bucket: z.string().min(1).describe('A bucket on the IPFS network.'),
  accessKeyId: z.string().min(1),
  secretAccessKey: z.string().min(1),
  variant: z
    .enum(['filebase', '4everland'])
    .default('filebase')
    .describe('4everland takes files, not CARs: its CIDs are compared.'),
  endpoint: url().optional().describe('By default that of the variant.'),
  region: z.string().default('us-east-1'),
  patience: duration()
    .prefault('30s')
    .describe('How long an object that was stored may be without its CID; then it is looked at again later.'),
  gateway: gateway('By default that of the variant, where `endpoint` is not set.'),
  ...clocks,
})

const variants = {
  filebase: {
    endpoint: 'https://s3.filebase.com',
    cidKey: 'cid',
    car: true,
    gateway: { use: 'trustless', options: { url: 'https://ipfs.filebase.io' }, perMinute: 200 },
  },
  '4everland': {
    endpoint: 'https://endpoint.4everland.co',
    cidKey: 'ipfs-hash',
    car: false,
    gateway: { use: 'trustless', options: { url: 'https://4everland.io', redirects: 'subdomains' }, perMinute: 300 },
  },
} as const

const firstLookMs = 250
const mostLookMs = 5_000
const mostStored = 1_000

export const filebase: ProviderKind<typeof options> = { use: 'filebase', options, readBack, create: createFilebase }

function readBack({
  gateway: said,
  endpoint,
  variant,
  connect,
}: z.output<typeof options>): ReadBack | false | undefined {
  if (said !== undefined || endpoint !== undefined) return readGateway(said, connect)
  return variants[variant].gateway
}

function createFilebase(settings: z.output<typeof options>, { name, userAgent, clock }: ProviderContext): Provider {
  const variant = variants[settings.variant]
  /** Stored, and without a CID yet: the next attempt asks for the CID and does not send it again. */
  const stored = new LRUCache<string, true>({ max: mostStored })
  const { open: s3, close } = createClient({ ...settings, endpoint: settings.endpoint ?? variant.endpoint, userAgent })

  const object = (cid: CID) => ({ Bucket: settings.bucket, Key: cid.toString() })

  async function said<T>(what: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      signal.throwIfAborted()
      throw translate(name, what, error)
    }
  }

  /** Whether there is an object for it, and the CID that it has, if it has one already. */
  async function look(
    cid: CID,
    signal: AbortSignal,
  ): Promise<{ readonly isThere: boolean; readonly cid?: string | undefined }> {
    const { client, sdk } = await s3()
    try {
      const { Metadata } = await client.send(new sdk.HeadObjectCommand(object(cid)), { abortSignal: signal })
      return { isThere: true, cid: Metadata?.[variant.cidKey] }
    } catch (error) {
      if (statusOf(error) === 404) return { isThere: false }
      throw error
    }
  }

  async function store(upload: Upload, signal: AbortSignal): Promise<void> {
    const { client, sdk } = await s3()
    const body = Readable.from(variant.car ? upload.car(signal) : upload.file(signal), { objectMode: false })
    // The SDK does not listen for stream errors, and an unhandled one ends the process.
    const unread = new AbortController()
    body.once('error', (error) => unread.abort(error))
    const put = new sdk.PutObjectCommand({
      ...object(upload.cid),
      Body: body,
      ContentLength: variant.car ? upload.carBytes : upload.bytes,
      ...(variant.car && { Metadata: { import: 'car' } }),
    })
    await client.send(put, { abortSignal: AbortSignal.any([signal, unread.signal]) }).catch((error: unknown) => {
      throw unread.signal.aborted ? unread.signal.reason : error
    })
  }

  /** The object shows a moment after it was stored, and its CID a moment after that. */
  async function untilNamed(cid: CID, signal: AbortSignal): Promise<CID> {
    const until = clock.monotonic() + settings.patience
    for (let waitMs = firstLookMs; ; waitMs = Math.min(mostLookMs, waitMs * 2)) {
      const told = await look(cid, signal)
      if (told.cid !== undefined) {
        stored.delete(cid.toString())
        return CID.parse(told.cid)
      }
      if (clock.monotonic() + waitMs > until) {
        if (!told.isThere) stored.delete(cid.toString())
        throw unnamed(told.isThere)
      }
      await clock.sleep(waitMs, signal)
    }
  }

  const unnamed = (isThere: boolean): Failure => {
    const { patience, bucket } = settings
    if (!isThere) return failed(name, `the stored object does not show up after ${patience} ms`, 'transient')
    const what = `the stored object has no CID after ${patience} ms`
    return failed(name, `${what}; if it never has, the bucket ${bucket} is not on the IPFS network`, 'transient')
  }

  return {
    name,
    traits: { takesBytes: true, local: false },
    pin: (upload, signal) =>
      said('store it', signal, async () => {
        const key = upload.cid.toString()
        if (!stored.has(key))
          await store(upload, signal).catch(async (error: unknown) => {
            // The answer for a large object may get lost while it is imported: an object exists whole or not at all.
            if (signal.aborted || statusOf(error) !== undefined || !(await look(upload.cid, signal)).isThere)
              throw error
          })
        stored.set(key, true)
        return untilNamed(upload.cid, signal)
      }),
    unpin: (cid, signal) =>
      said('remove it', signal, async () => {
        const { client, sdk } = await s3()
        stored.delete(cid.toString())
        await client.send(new sdk.DeleteObjectCommand(object(cid)), { abortSignal: signal })
      }),
    status: (cid, signal): Promise<PinState> =>
      said('look for it', signal, async () => {
        const told = await look(cid, signal)
        if (!told.isThere) return 'absent'
        return told.cid === undefined ? 'queued' : 'pinned'
      }),
    probe: (signal) =>
      said('open the bucket', signal, async () => {
        const { client, sdk } = await s3()
        await client.send(new sdk.HeadBucketCommand({ Bucket: settings.bucket }), { abortSignal: signal })
      }),
    close,
  }
}

type ClientOptions = Pick<
  z.output<typeof options>,
  'region' | 'accessKeyId' | 'secretAccessKey' | 'connect' | 'idle'
> & { readonly endpoint: string; readonly userAgent: string }

type Opened = { readonly client: S3Client; readonly sdk: typeof import('@aws-sdk/client-s3') }

/** Loaded and made when it is first needed, and again after that failed. */
function createClient(settings: ClientOptions): { open(): Promise<Opened>; close(): Promise<void> } {
  let making: Promise<Opened> | undefined

  async function make(): Promise<Opened> {
    const sdk = await packageOf('@aws-sdk/client-s3', () => import('@aws-sdk/client-s3'))
    const client = new sdk.S3Client({
      endpoint: settings.endpoint,
      region: settings.region,
      forcePathStyle: true,
      credentials: { accessKeyId: settings.accessKeyId, secretAccessKey: settings.secretAccessKey },
      // Neither knows the checksums newer SDKs add by themselves; the CID that comes back is checked instead.
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
      maxAttempts: 1, // a stream cannot be sent twice; the caller tries again with a new one
      requestHandler: {
        connectionTimeout: settings.connect,
        // Silence, not the whole of a request, however large: that one has the caller's clock.
        socketTimeout: settings.idle,
      },
      logger: { trace() {}, debug() {}, info() {}, warn() {}, error() {} },
    })
    // Ours alone: behind the SDK's own, which says what we run on, too. It is not signed.
    client.middlewareStack.add(
      (next) => (args) => {
        Object.assign((args.request as { headers: Record<string, string> }).headers, {
          'user-agent': settings.userAgent,
        })
        return next(args)
      },
      { step: 'finalizeRequest', name: 'ourUserAgent' },
    )
    return { sdk, client }
  }

  return {
    open() {
      making ??= make()
      making.catch(() => {
        making = undefined
      })
      return making
    },
    async close() {
      const made = await making?.catch(() => undefined)
      making = undefined
      made?.client.destroy()
    },
  }
}

const statusOf = (error: unknown): number | undefined =>
  (error as { $metadata?: { httpStatusCode?: number } } | null)?.$metadata?.httpStatusCode

function translate(name: string, what: string, error: unknown): Failure {
  // An operator has to see to it, as to a wrong key.
  if (isMissingPackage(error)) return failed(name, error.message, 'auth', { cause: error })
  if (error instanceof Failure) return error
  const status = statusOf(error)
  const { name: kind } = (error ?? {}) as { name?: string }
  const code = status === undefined ? causeCode(error) : undefined
  const why = `it could not ${what}: ${code ? `connection failed (${code})` : `${kind ?? 'unknown reason'} (${status ?? 'no answer'})`}`
  if (status === 401 || status === 403)
    return failed(name, `${why}; check accessKeyId and secretAccessKey`, 'auth', { cause: error })
  if (status === 402) return failed(name, why, 'quota', { cause: error })
  if (status === undefined || status === 408 || status === 429 || status >= 500)
    return failed(name, why, 'transient', { cause: error })
  return failed(name, why, 'content', { cause: error })
}
