// /ipni/v1/ad: serves the chain of advertisements to indexers. A disk that fails is 503 and never
// 404: an indexer skips a 404 for ever.
import type { CID } from 'multiformats/cid'
import { encodeHead } from '../../announce/advertisement.ts'
import type { Chain } from '../../announce/chain.ts'
import type { Identity } from '../../announce/identity.ts'
import { Failure, isFailure, wordsOf } from '../../core/failure.ts'
import type { Route } from '../add/add.ts'
import { HttpRefusal } from '../wire/refusal.ts'
import type { Respond } from '../wire/respond.ts'
import { type Read, readRoute } from './read-route.ts'

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

  async function read(name: string): Promise<Read> {
    if (name === 'head') {
      const head = await chain.head().catch(notReadable)
      return { body: head && signedHead(head), headers: { 'Content-Type': jsonType, 'Cache-Control': 'no-store' } }
    }
    const body = /^[a-z0-9]{1,128}$/.test(name) ? await chain.block(name).catch(notReadable) : undefined
    if (!body)
      throw new Failure('not-found', 'no advertisement or list of this gateway has that CID', { source: 'tier' })
    return { body, headers: { 'Content-Type': jsonType, 'Cache-Control': 'public, max-age=29030400, immutable' } }
  }

  return readRoute({
    at: /^\/ipni\/v1\/ad\//,
    read: ({ target }) => read(target.path.slice(prefix.length)),
    refusal: () =>
      new HttpRefusal('unsupported', 'advertisements are read with GET', { source: 'client', status: 405 }),
    respond,
  })
}

function notReadable(error: unknown): never {
  if (isFailure(error, 'cancelled')) throw error
  throw new Failure('overloaded', `the store cannot be read now: ${wordsOf(error)}; retry`, {
    source: 'ours',
    cause: error,
    retryAfterMs: 5000,
  })
}
