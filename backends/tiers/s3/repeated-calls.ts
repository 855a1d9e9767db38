// GETs and PUTs after the pattern of one that the SDK has made: its address, its headers, its signer with its credentials. Each pass through
// the SDK's own two dozen steps costs a block half of its processor time. What such a call answers other than success is the SDK's to judge.
import type { S3Client } from '@aws-sdk/client-s3'
import type { S3Http, S3HttpRequest, S3HttpResponse } from './http.ts'

export type Repeatable = 'GetObjectCommand' | 'PutObjectCommand'
/** As the SDK's commands have it. Calls differ in their key and body; all else is part of the pattern. */
export type CallInput = {
  readonly Bucket: string
  readonly Key: string
  readonly Body?: Uint8Array
  readonly ContentLength?: number
} & Readonly<Record<string, unknown>>

/**
 * The answer to such a call; rejects as the network does. Undefined: the SDK has made none yet, or none that can be
 * repeated.
 */
export type RepeatedCall = (
  name: Repeatable,
  input: CallInput,
  signal: AbortSignal | undefined,
) => Promise<S3HttpResponse | undefined>

type Pattern = {
  readonly request: S3HttpRequest
  readonly pathBefore: string
  readonly sign: (request: S3HttpRequest) => Promise<S3HttpRequest>
}
type AuthScheme = NonNullable<Parameters<S3Client['config']['signer']>[0]>

// In a path these are written as they are.
const plainKey = /^[\w./-]+$/
// Reads, writes of new blocks, and writes for stores without conditions. Conditions that name an ETag are all different.
const mostPatterns = 4

export function createRepeatedCall(client: S3Client, http: S3Http, userAgent: string | undefined): RepeatedCall {
  const patterns = new Map<string, Pattern>()

  async function learn(kind: string, request: S3HttpRequest, key: string, scheme?: AuthScheme): Promise<void> {
    // Sessions of directory buckets and signatures for several regions are left to the SDK.
    if (scheme?.name !== 'sigv4' || !plainKey.test(key) || !request.path.endsWith(`/${key}`)) return
    const signer = await client.config.signer(scheme)
    const { body: _, ...rest } = request
    const headers = { ...request.headers, ...(userAgent !== undefined && { 'user-agent': userAgent }) }
    patterns.set(kind, {
      request: { ...rest, headers },
      pathBefore: request.path.slice(0, -key.length),
      async sign(unsigned) {
        const signingDate = new Date(Date.now() + client.config.systemClockOffset)
        return (await signer.sign(unsigned as Parameters<typeof signer.sign>[0], { signingDate })) as S3HttpRequest
      },
    })
  }

  client.middlewareStack.add(
    (next, context) => async (args) => {
      const { commandName: name } = context
      if (name === 'GetObjectCommand' || name === 'PutObjectCommand') {
        const input = args.input as CallInput
        const kind = kindOf(name, input)
        const [scheme] = (context.endpointV2?.properties?.authSchemes ?? []) as readonly AuthScheme[]
        // The SDK says itself what is wrong.
        if (!patterns.has(kind) && patterns.size < mostPatterns)
          await learn(kind, args.request as S3HttpRequest, input.Key, scheme).catch(() => {})
      }
      return next(args)
    },
    { step: 'build', priority: 'low', name: 'ourPattern' },
  )

  return async (name, input, signal) => {
    const pattern = patterns.get(kindOf(name, input))
    if (!pattern || !plainKey.test(input.Key)) return undefined
    const { request, pathBefore, sign } = pattern
    const headers = { ...request.headers }
    if (input.Body) headers['content-length'] = String(input.Body.byteLength)
    const unsigned = { ...request, headers, path: pathBefore + input.Key, ...(input.Body && { body: input.Body }) }
    const signed = await sign(unsigned).catch(() => undefined)
    return signed && http.handle(signed, { abortSignal: signal })
  }
}

function kindOf(name: Repeatable, { Bucket: _, Key: __, Body: ___, ContentLength: ____, ...rest }: CallInput): string {
  return name + JSON.stringify(rest)
}
