// Blocks as objects of a bucket: AWS and everything that speaks its protocol. Instances that share
// a bucket share what they have. How long objects stay is the bucket's own rule (lifecycle), not
// ours.
import { z } from 'zod'
import { causeCode, Failure } from '../../src/core/failure.ts'
import { isMissingPackage } from '../../src/core/packages.ts'
import { duration } from '../../src/core/units.ts'
import type { TierKind } from './contract.ts'
import { createKeyvTier } from './keyv-tier.ts'
import { concurrency, S3Error, S3Store, s3Records } from './s3-store.ts'

const options = z
  .strictObject({
    bucket: z.string().min(1).describe('The bucket. It must be there already.'),
    prefix: z.string().default('blocks/').describe('Prefix of every key.'),
    region: z
      .string()
      .min(1)
      .optional()
      .describe(
        'As the store names it: R2 `auto`, Garage as in its own configuration. By default us-east-1, on AWS that of AWS_REGION.',
      ),
    endpoint: z
      .url({ protocol: /^https?$/, error: 'expected an http(s) address' })
      .optional()
      .describe('The address of the store. By default AWS.'),
    forcePathStyle: z
      .boolean()
      .optional()
      .describe('The bucket in the path, not in the host name. By default true with `endpoint`.'),
    accessKeyId: z
      .string()
      .min(1)
      .optional()
      .describe(
        "With secretAccessKey. Without: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS's own chain (npm install @aws-sdk/credential-provider-node).",
      ),
    secretAccessKey: z.string().min(1).optional(),
    treat403AsMissing: z
      .union([z.literal('auto'), z.boolean()])
      .default('auto')
      .describe(
        'Whether 403 means that an object is missing, as it does without s3:ListBucket. auto: a probe finds out.',
      ),
    timeout: duration().prefault('1s').describe('Timeout of a read. A write may take ten times that.'),
  })
  .refine(({ accessKeyId, secretAccessKey }) => (accessKeyId === undefined) === (secretAccessKey === undefined), {
    path: ['secretAccessKey'],
    error: 'expected both accessKeyId and secretAccessKey, or neither',
  })

export const s3: TierKind<typeof options> = {
  use: 's3',
  options,
  create({ timeout, forcePathStyle, ...rest }, { name, userAgent, log, clock }) {
    const writeTimeoutMs = timeout * 10
    const own = {
      ...rest,
      userAgent,
      forcePathStyle: forcePathStyle ?? (rest.endpoint === undefined ? undefined : true),
      writeTimeoutMs,
    }
    return createKeyvTier({
      name,
      traits: { persistent: true, shared: true, trusted: false },
      clock,
      log,
      async open(signalOf) {
        const store = new S3Store({ ...own, signalOf })
        await store.load()
        return store
      },
      binary: true,
      prefix: '', // the store puts its own before each key
      timeoutMs: timeout,
      concurrency,
      records: s3Records(),
      explain: (error) => explain(name, rest.bucket, error),
      async probe(store, signal) {
        if (store instanceof S3Store) await store.probe(signal)
      },
    })
  },
}

function explain(name: string, bucket: string, cause: unknown): Failure {
  if (isMissingPackage(cause))
    return new Failure('unsupported', `tier ${name}: ${cause.message}`, { source: 'tier', cause })
  const place = `tier ${name}: bucket ${bucket}`
  const because = { source: 'tier', cause } as const
  // The words are our own: the bucket answered, and not as a bucket has to.
  if (cause instanceof RangeError) return new Failure('upstream-error', `${place}: ${cause.message}`, because)
  if (!(cause instanceof S3Error)) return unreachable(place, because)
  const { status, name: code } = cause
  const said = `${place} answered ${status} (${code})`
  if (code === 'NoSuchBucket') return new Failure('refused', `${said}; create the bucket, or correct its name`, because)
  if (status === 301) return new Failure('refused', `${said}; correct its region`, because)
  if (status === 401 || status === 403)
    return new Failure('refused', `${said}; check its keys and permissions`, because)
  if (status === 429 || status === 503) return new Failure('throttled', `${said}; rate limited`, because)
  return new Failure('upstream-error', `${said}; check the store and its endpoint`, because)
}

function unreachable(place: string, because: { readonly source: 'tier'; readonly cause: unknown }): Failure {
  const code = causeCode(because.cause)
  if (because.cause instanceof Error && because.cause.name === 'CredentialsProviderError')
    return new Failure('refused', `${place}: this machine has no credentials; set accessKeyId, or its profile`, because)
  const said = `${place}: connection failed (${code ?? 'no reason given'}); check the network and its endpoint`
  return new Failure(/TIME(?:D_?)?OUT/.test(code ?? '') ? 'timeout' : 'upstream-error', said, because)
}
