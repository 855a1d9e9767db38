// GETs after the pattern of one that the SDK has made: its address, its headers, its signer with its credentials. Each pass through the SDK's
// own two dozen steps costs a block half of its processor time. What such a GET answers other than 200 is the SDK's to judge, and to try again.
import type { S3Client } from '@aws-sdk/client-s3'
import type { S3Http, S3HttpRequest, S3HttpResponse } from './http.ts'

/**
 * The answer to a GET of this key; rejects as the network does. Undefined: the SDK has made none yet, or none that can be
 * repeated.
 */
export type RepeatedGet = (key: string, signal: AbortSignal | undefined) => Promise<S3HttpResponse | undefined>

type Pattern = {
  readonly request: S3HttpRequest
  readonly pathBefore: string
  readonly sign: (request: S3HttpRequest) => Promise<S3HttpRequest>
}
type AuthScheme = NonNullable<Parameters<S3Client['config']['signer']>[0]>

// In a path these are written as they are.
const plainKey = /^[\w./-]+$/

export function createRepeatedGet(client: S3Client, http: S3Http, userAgent: string | undefined): RepeatedGet {
  let pattern: Pattern | undefined

  async function learn(request: S3HttpRequest, key: string, scheme: AuthScheme | undefined): Promise<void> {
    // Sessions of directory buckets and signatures for several regions are left to the SDK.
    if (scheme?.name !== 'sigv4' || !plainKey.test(key) || !request.path.endsWith(`/${key}`)) return
    const signer = await client.config.signer(scheme)
    const headers = { ...request.headers, ...(userAgent !== undefined && { 'user-agent': userAgent }) }
    pattern = {
      request: { ...request, headers },
      pathBefore: request.path.slice(0, -key.length),
      async sign(unsigned) {
        const signingDate = new Date(Date.now() + client.config.systemClockOffset)
        return (await signer.sign(unsigned as Parameters<typeof signer.sign>[0], { signingDate })) as S3HttpRequest
      },
    }
  }

  client.middlewareStack.add(
    (next, context) => async (args) => {
      const { Key } = args.input as { readonly Key?: unknown }
      if (!pattern && context.commandName === 'GetObjectCommand' && typeof Key === 'string') {
        const [scheme] = (context.endpointV2?.properties?.authSchemes ?? []) as readonly AuthScheme[]
        await learn(args.request as S3HttpRequest, Key, scheme).catch(() => {}) // the SDK says itself what is wrong
      }
      return next(args)
    },
    { step: 'build', priority: 'low', name: 'ourPattern' },
  )

  return async (key, signal) => {
    if (!pattern || !plainKey.test(key)) return undefined
    const { request, pathBefore, sign } = pattern
    const headers = { ...request.headers }
    const signed = await sign({ ...request, headers, path: pathBefore + key }).catch(() => undefined)
    return signed && http.handle(signed, { abortSignal: signal })
  }
}
