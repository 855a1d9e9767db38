// Signed requests to an S3 bucket, by AWS's own signer.
import { createHash, createHmac, hash } from 'node:crypto'
import { packageOf } from '../packages.ts'

export type S3Place = {
  readonly bucket: string
  /** Default: the environment, or us-east-1. */
  readonly region?: string | undefined
  /** Default: AWS. */
  readonly endpoint?: string | undefined
  /** Puts the bucket in the path instead of the host name. Default: true with `endpoint`. */
  readonly forcePathStyle?: boolean | undefined
  /**
   * Used together with `secretAccessKey`. Default: the environment, or AWS's credential chain
   * (profile, container, instance).
   */
  readonly accessKeyId?: string | undefined
  readonly secretAccessKey?: string | undefined
}

export type S3Request = {
  readonly method: 'GET' | 'PUT' | 'HEAD' | 'DELETE'
  /** Undefined means the bucket itself. */
  readonly key?: string | undefined
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** The part of the body that is signed; a stream is not. */
  readonly body?: Uint8Array | 'stream' | undefined
}

type Signed = { readonly origin: string; readonly path: string; readonly headers: Record<string, string> }
export type SignS3 = (request: S3Request, at?: Date) => Promise<Signed>

type Credentials = { accessKeyId: string; secretAccessKey: string; sessionToken?: string }

const emptyHash = hash('sha256', '')

/** Loads the signer on demand: a gateway without S3 does not pay for it. */
export async function s3Signer(place: S3Place): Promise<SignS3> {
  const { SignatureV4 } = await packageOf('@smithy/signature-v4', () => import('@smithy/signature-v4'))
  const { AWS_REGION, AWS_DEFAULT_REGION } = process.env
  const region = place.region || (place.endpoint === undefined && (AWS_REGION || AWS_DEFAULT_REGION)) || 'us-east-1'
  const credentials = await credentialsOf(place)
  const signer = new SignatureV4({ service: 's3', region, credentials, sha256: Sha256, uriEscapePath: false })
  const { origin, host, hostname, path } = addressOf(place, region)
  return async ({ method, key, headers, body }, signingDate = new Date()) => {
    const unsigned = {
      ...{ method, protocol: '', hostname, query: {} },
      path: key === undefined ? path || '/' : `${path}/${key.split('/').map(escaped).join('/')}`,
      headers: { ...headers, host, 'x-amz-content-sha256': payloadHash(body) },
    }
    const signed = await signer.sign(unsigned, { signingDate })
    return { origin, path: unsigned.path, headers: signed.headers }
  }
}

function payloadHash(body: S3Request['body']): string {
  if (body === 'stream') return 'UNSIGNED-PAYLOAD'
  return body === undefined ? emptyHash : hash('sha256', body)
}

async function credentialsOf({
  accessKeyId,
  secretAccessKey,
}: S3Place): Promise<Credentials | (() => Promise<Credentials>)> {
  if (accessKeyId !== undefined && secretAccessKey !== undefined) return { accessKeyId, secretAccessKey }
  const { AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN } = process.env
  if (AWS_ACCESS_KEY_ID && AWS_SECRET_ACCESS_KEY)
    return {
      ...{ accessKeyId: AWS_ACCESS_KEY_ID, secretAccessKey: AWS_SECRET_ACCESS_KEY },
      ...(AWS_SESSION_TOKEN && { sessionToken: AWS_SESSION_TOKEN }),
    }
  const name = '@aws-sdk/credential-provider-node'
  const chain = await packageOf(name, () => import(name) as Promise<{ defaultProvider(): () => Promise<Credentials> }>)
  return chain.defaultProvider()
}

function addressOf({ bucket, endpoint, forcePathStyle }: S3Place, region: string) {
  const url = new URL(endpoint ?? `https://s3.${region}.amazonaws.com${region.startsWith('cn-') ? '.cn' : ''}`)
  // A wildcard certificate does not cover a bucket name with dots.
  const isInPath = forcePathStyle ?? (endpoint !== undefined || bucket.includes('.'))
  const before = isInPath ? '' : `${bucket}.`
  return {
    origin: `${url.protocol}//${before}${url.host}`,
    host: before + url.host,
    hostname: before + url.hostname,
    path: url.pathname.replace(/\/+$/, '') + (isInPath ? `/${bucket}` : ''),
  }
}

const escaped = (text: string): string =>
  encodeURIComponent(text).replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`)

/** SHA-256 in the interface of the signer. */
class Sha256 {
  private readonly made: ReturnType<typeof createHash | typeof createHmac>

  constructor(secret?: string | ArrayBuffer | ArrayBufferView) {
    this.made = secret === undefined ? createHash('sha256') : createHmac('sha256', secret as string | Uint8Array)
  }

  update(data: Uint8Array): void {
    this.made.update(data)
  }

  async digest(): Promise<Uint8Array> {
    return this.made.digest()
  }

  reset(): void {}
}

/**
 * The code in the XML of an error, such as NoSuchBucket; undefined if there is none, as for a HEAD.
 */
export const s3ErrorCode = (text: string): string | undefined => /<Code>(\w+)<\/Code>/.exec(text)?.[1]
