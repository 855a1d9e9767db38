// /ipni/v1/ad: the chain of advertisements, as indexers fetch it. A block that the disk cannot give now is 503: an indexer leaves
// one that is 404 out for ever.
import type { CID } from 'multiformats/cid'
import { encodeHead } from '../../announce/advertisement.ts'
import type { Chain } from '../../announce/chain.ts'
import type { Identity } from '../../announce/identity.ts'
import { Failure, isFailure, wordsOf } from '../../core/failure.ts'
import type { Route } from '../add/add.ts'
import { closeAfter } from '../wire/close-after-answer.ts'
import { preflight } from '../wire/cors.ts'
import { HttpRefusal } from '../wire/refusal.ts'
import type { RequestContext } from '../wire/request-context.ts'
import { hasBody } from '../wire/request-target.ts'
import type { Respond } from '../wire/respond.ts'
import { cutWhenStalled } from '../wire/write.ts'

const methods = 'GET, HEAD, OPTIONS'
const prefix = '/ipni/v1/ad/'
const jsonType = 'application/json'

export function createIpniRoute({
  chain,
  identity,
  respond,
}: {
  readonly chain: Pick<Chain, 'head' | 'block'>
  readonly identity: Identity
  readonly respond: Respond
}): Route {
  let signed: { readonly head: CID; readonly bytes: Uint8Array } | undefined

  function signedHead(head: CID): Uint8Array {
    if (!signed?.head.equals(head)) signed = { head, bytes: encodeHead(head, identity) }
    return signed.bytes
  }

  async function give(context: RequestContext): Promise<void> {
    const { response, target } = context
    const name = target.path.slice(prefix.length)
    const unwell = (error: unknown): never => {
      throw isFailure(error, 'cancelled') ? error : notReadable(error)
    }
    if (name === 'head') {
      const head = await chain.head().catch(unwell)
      if (head) return send(context, signedHead(head), 'no-store')
      response.writeHead(204, { 'Cache-Control': 'no-store' }).end()
      return
    }
    const bytes = /^[a-z0-9]{1,128}$/.test(name) ? await chain.block(name).catch(unwell) : undefined
    if (!bytes)
      throw new Failure('not-found', 'no advertisement or list of this gateway has that CID', { source: 'tier' })
    send(context, bytes, 'public, max-age=29030400, immutable')
  }

  function send({ request, response }: RequestContext, bytes: Uint8Array, cacheControl: string): void {
    response.writeHead(200, {
      'Content-Type': jsonType,
      'Content-Length': bytes.byteLength,
      'Cache-Control': cacheControl,
      'X-Content-Type-Options': 'nosniff',
    })
    response.end(request.method === 'HEAD' ? undefined : bytes)
    cutWhenStalled(response, respond.stalledMs)
  }

  return {
    name: 'routing',
    at: /^\/ipni\/v1\/ad\//,
    answer(context) {
      const { request, response } = context
      const { method = '' } = request
      if (method === 'OPTIONS') return preflight(request, response, methods)
      const before = () => {
        if (hasBody(request)) closeAfter(request, response)
      }
      if (method === 'GET' || method === 'HEAD')
        return void give(context).catch((error: unknown) => respond.failed(request, response, error, { before }))
      const refusal = new HttpRefusal('unsupported', 'advertisements are read with GET', {
        source: 'client',
        status: 405,
      })
      respond.failed(request, response, refusal, { before, headers: { Allow: methods } })
    },
  }
}

const notReadable = (error: unknown): Failure =>
  new Failure('overloaded', `the store cannot be read now: ${wordsOf(error)}; retry`, {
    source: 'ours',
    cause: error,
    retryAfterMs: 5000,
  })
