// Filebase's S3: an object uploaded with `import: car` becomes the content of the CAR, and a HEAD
// returns its CID. 4EVERLAND is the same with another header for the CID and without CARs. The
// signer is loaded on first use.
import { LRUCache } from 'lru-cache'
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { type Failure, isFailure } from '../../src/core/failure.ts'
import { isMissingPackage } from '../../src/core/packages.ts'
import { duration, serviceUrl } from '../../src/core/units.ts'
import { type S3Request, type SignS3, s3Signer } from '../../src/core/wire/s3.ts'
import { createService, failed, type Reply } from './call.ts'
import type { PinState, Provider, ProviderContext, ProviderKind, ReadBack, Upload } from './contract.ts'
import { clocks, gateway, readGateway } from './options.ts'

const options = z.strictObject({
  bucket: z.string().min(1).describe('A bucket on the IPFS network.'),
  accessKeyId: z.string().min(1),
  secretAccessKey: z.string().min(1),
  variant: z
    .enum(['filebase', '4everland'])
    .default('filebase')
    .describe('4everland takes files, not CARs: its CIDs are compared.'),
  endpoint: serviceUrl().optional().describe('By default that of the variant.'),
  region: z.string().default('us-east-1'),
  cidTimeout: duration()
    .prefault('30s')
    .describe('How long to wait for the CID of a stored object before it is checked again later.'),
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

const firstPollMs = 250
const maxPollMs = 5_000
const maxStored = 1_000

export const filebase: ProviderKind<typeof options> = { use: 'filebase', options, readBack, create: createFilebase }

function readBack({
  gateway: said,
  endpoint,
  variant,
  connectTimeout,
}: z.output<typeof options>): ReadBack | false | undefined {
  if (said !== undefined || endpoint !== undefined) return readGateway(said, connectTimeout)
  return variants[variant].gateway
}

function createFilebase(settings: z.output<typeof options>, context: ProviderContext): Provider {
  const { name, clock } = context
  const variant = variants[settings.variant]
  const { endpoint = variant.endpoint, ...place } = settings
  const { ask, close } = createService(context, settings, {})
  /**
   * Stored, but without a CID yet: the next attempt asks for the CID instead of sending it again.
   */
  const stored = new LRUCache<string, true>({ max: maxStored })
  let signer: Promise<SignS3> | undefined

  async function signed(
    request: S3Request,
  ): Promise<{ readonly url: string; readonly headers: Record<string, string> }> {
    signer ??= s3Signer({ ...place, endpoint, forcePathStyle: true })
    try {
      const { origin, path, headers } = await (await signer)(request)
      return { url: origin + path, headers }
    } catch (error) {
      signer = undefined
      // Class `auth`, because an operator has to act, as for a wrong key.
      throw isMissingPackage(error) ? failed(name, error.message, 'auth', { cause: error }) : error
    }
  }

  async function call(
    request: S3Request & { readonly method: 'HEAD' | 'DELETE' },
    signal: AbortSignal,
    accept: readonly number[] = [],
  ): Promise<Reply> {
    const { url, headers } = await signed(request)
    return ask(request.method, url, signal, { headers, accept })
  }

  /** Checks if the object exists, and returns its CID if it has one already. */
  async function findObject(
    cid: CID,
    signal: AbortSignal,
  ): Promise<{ readonly isThere: boolean; readonly cid?: string | undefined }> {
    const { status, header } = await call({ method: 'HEAD', key: cid.toString() }, signal, [404])
    return status === 404 ? { isThere: false } : { isThere: true, cid: header(`x-amz-meta-${variant.cidKey}`) }
  }

  /** Neither service supports checksums, so the returned CID is compared instead. */
  async function store(upload: Upload, signal: AbortSignal): Promise<void> {
    const { url, headers } = await signed({
      ...{ method: 'PUT', key: upload.cid.toString(), body: 'stream' },
      headers: variant.car ? { 'x-amz-meta-import': 'car' } : {},
    })
    const bytes = variant.car ? upload.carBytes : upload.bytes
    const length = bytes === undefined ? {} : { 'content-length': String(bytes) }
    const body = variant.car ? upload.car(signal) : upload.file(signal)
    await ask('PUT', url, signal, { headers: { ...headers, ...length }, body })
  }

  /** The object appears a moment after it was stored, and its CID a moment after that. */
  async function untilNamed(cid: CID, signal: AbortSignal): Promise<CID> {
    const until = clock.monotonic() + settings.cidTimeout
    for (let waitMs = firstPollMs; ; waitMs = Math.min(maxPollMs, waitMs * 2)) {
      const found = await findObject(cid, signal)
      if (found.cid !== undefined) {
        stored.delete(cid.toString())
        return CID.parse(found.cid)
      }
      if (clock.monotonic() + waitMs > until) {
        if (!found.isThere) stored.delete(cid.toString())
        throw unnamed(found.isThere)
      }
      await clock.sleep(waitMs, signal)
    }
  }

  const unnamed = (isThere: boolean): Failure => {
    const { cidTimeout, bucket } = settings
    if (!isThere) return failed(name, `the stored object does not show up after ${cidTimeout} ms`, 'transient')
    const what = `the stored object has no CID after ${cidTimeout} ms`
    return failed(name, `${what}; if it never has, the bucket ${bucket} is not on the IPFS network`, 'transient')
  }

  return {
    name,
    traits: { takesBytes: true, local: false },
    async pin(upload, signal) {
      const key = upload.cid.toString()
      if (!stored.has(key))
        await store(upload, signal).catch(async (error: unknown) => {
          // The response for a large object may get lost during its import; an object never exists
          // in part.
          const isLost = isFailure(error) && error.facts['class'] === 'transient'
          if (signal.aborted || !isLost || !(await findObject(upload.cid, signal)).isThere) throw error
        })
      stored.set(key, true)
      return untilNamed(upload.cid, signal)
    },
    async unpin(cid, signal) {
      stored.delete(cid.toString())
      await call({ method: 'DELETE', key: cid.toString() }, signal)
    },
    async status(cid, signal): Promise<PinState> {
      const found = await findObject(cid, signal)
      if (!found.isThere) return 'missing'
      return found.cid === undefined ? 'queued' : 'pinned'
    },
    async probe(signal) {
      await call({ method: 'HEAD' }, signal)
    },
    close,
  }
}
