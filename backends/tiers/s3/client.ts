// The AWS SDK's S3 client, set up for what the compatible stores really do, and what their errors mean.
import type { S3Client } from '@aws-sdk/client-s3'
import { packageOf } from '../../../src/core/packages.ts'
import { createS3Http, type S3CallOptions, WholeBody } from './http.ts'
import { createRepeatedCall, type RepeatedCall } from './repeated-calls.ts'

export type S3Connection = {
  readonly region?: string | undefined
  readonly endpoint?: string | undefined
  readonly forcePathStyle?: boolean | undefined
  /** With `secretAccessKey`. Without: the SDK's own chain (environment, profile, container, instance). */
  readonly accessKeyId?: string | undefined
  readonly secretAccessKey?: string | undefined
  readonly connectMs?: number | undefined
  /** How we call ourselves. By default as the SDK does, with what it runs on. */
  readonly userAgent?: string | undefined
  readonly requestMs?: number | undefined
  /** Of a longer answer nothing is kept. */
  readonly mostBytes?: number | undefined
}

type Sdk = typeof import('@aws-sdk/client-s3')
export type LoadedS3 = { readonly sdk: Sdk; readonly client: S3Client; readonly repeatedCall: RepeatedCall }

/** Calls on their way; with blocks of 256 KiB and 100 ms for each of them, reads alone are 160 MB/s. */
export const atOnce = { reads: 96, writes: 24 } as const
const mostSockets = atOnce.reads + atOnce.writes
const attempts = 2
const usualConnectMs = 1000
export const usualRequestMs = 10_000

/** Loads the SDK only now: a gateway without S3 must not pay for it at start. */
export async function loadS3(connection: S3Connection): Promise<LoadedS3> {
  const sdk = await packageOf('@aws-sdk/client-s3', () => import('@aws-sdk/client-s3'))
  const { region, endpoint, forcePathStyle, accessKeyId, secretAccessKey } = connection
  const { connectMs = usualConnectMs, requestMs = usualRequestMs, mostBytes = Number.POSITIVE_INFINITY } = connection
  const http = createS3Http({ connectMs, requestMs, connections: mostSockets, mostBytes })
  const client = new sdk.S3Client({
    ...(region !== undefined || endpoint !== undefined ? { region: region ?? 'us-east-1' } : {}),
    ...(endpoint === undefined ? {} : { endpoint }),
    ...(forcePathStyle === undefined ? {} : { forcePathStyle }),
    ...(accessKeyId !== undefined && secretAccessKey !== undefined
      ? { credentials: { accessKeyId, secretAccessKey } }
      : {}),
    maxAttempts: attempts,
    // Several stores do not know the checksum headers.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    expectContinueHeader: false,
    requestHandler: http,
    logger: { trace() {}, debug() {}, info() {}, warn() {}, error() {} },
  })
  client.middlewareStack.remove('loggerMiddleware') // it copies each call for a log that is switched off
  if (connection.userAgent !== undefined) callOurselves(client, connection.userAgent)
  return { sdk, client, repeatedCall: createRepeatedCall(client, http, connection.userAgent) }
}

/** Behind the SDK's own step, and ours alone. The header is not signed. */
function callOurselves(client: S3Client, userAgent: string): void {
  client.middlewareStack.add(
    (next) => (args) => {
      Object.assign((args.request as { headers: object }).headers, { 'user-agent': userAgent })
      return next(args)
    },
    { step: 'finalizeRequest', name: 'ourUserAgent' },
  )
}

export const callWith = (
  abortSignal: AbortSignal | undefined,
  first?: S3CallOptions['first'],
): { abortSignal?: AbortSignal } => ({ ...(abortSignal && { abortSignal }), ...(first && { first }) })

/** The bytes of an answer; undefined when there are more than `most`. */
export function bytesOf({ Body }: { readonly Body?: unknown }, most: number): Buffer | undefined {
  if (!(Body instanceof WholeBody)) return Buffer.alloc(0)
  const { bytes } = Body
  return bytes && bytes.byteLength <= most ? bytes : undefined
}

export function statusOf(error: unknown): number | undefined {
  if (!(error instanceof Error) || !('$metadata' in error)) return undefined
  const { httpStatusCode } = error.$metadata as { httpStatusCode?: number }
  return httpStatusCode
}

/** A HEAD has no body, so its name says nothing of the bucket; a GET does, and a missing bucket is no missing object. */
export const isMissing = (error: unknown): boolean =>
  error instanceof Error && statusOf(error) === 404 && error.name !== 'NoSuchBucket'

/** Keys that are wrong are said so by name (but not on HEAD); only AccessDenied can mean that nothing is there. */
export const isBadKey = (error: unknown): boolean =>
  error instanceof Error &&
  /^(InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|RequestTimeTooSkewed)$/.test(error.name)
