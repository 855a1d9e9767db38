// Routes for other nodes: /routing/v1 (Delegated Routing V1) names this gateway as the provider of
// every CID that is pinned on its disk, and /ipni/v1/ad serves the chain of advertisements to
// indexers. A request never starts a search.

import type { CID } from 'multiformats/cid'
import { encodeHead, type Identity, publicKeyIn } from '../announce/advertisement.ts'
import type { Chain } from '../announce/chain.ts'
import { parseCid, parseKey } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { Failure, isFailure, malformed, wordsOf } from '../core/failure.ts'
import { hashTag } from '../core/wire/http.ts'
import type { Names } from '../names/names.ts'
import { qualityOf } from './content/negotiate.ts'
import { type Route, readMethods, readRoute } from './route.ts'
import type { Respond } from './wire/problem.ts'
import { HttpRefusal, methodRefused, type RequestContext } from './wire/request.ts'
import type { Document } from './wire/write.ts'

/** This gateway as other nodes know it. */
export type Self = {
  readonly peerId: string
  /** Multiaddrs, best first: some clients read the first only. */
  readonly addresses: readonly string[]
}

type RoutingOptions = {
  readonly self: Self
  /** True if the CID is pinned here and not denied. Rejects if the disk fails. */
  readonly holds: (cid: CID) => Promise<boolean>
  readonly names: Pick<Names, 'record'>
  readonly respond: Respond
  readonly clock: Clock
}

const gatewayProtocol = 'transport-ipfs-gateway-http'
const recordType = 'application/vnd.ipfs.ipns-record'
const ndjson = 'application/x-ndjson'
const json = 'application/json'

// The cache times of other routers: an empty answer expires soon.
const foundSeconds = 300
const emptySeconds = 15
const staleSeconds = 172_800

export function createRoutingRoute(options: RoutingOptions): Route {
  const { self, holds, names, respond, clock } = options

  async function read({ request, target, signal }: RequestContext): Promise<Document> {
    const [, , , kind = '', name = '', ...rest] = target.path.split('/')
    if (rest.length > 0 || name === '') throw noSuchPath()
    const { accept } = request.headers
    if (kind === 'ipns') return record(name, accept, signal)
    const type = typeFor(accept)
    if (kind === 'peers') {
      if (!parseKey(name)) throw malformed(`${JSON.stringify(name.slice(0, longestTold))} is no peer ID`)
      return peers(target.query, type, 'Peers', publicKeyIn(name)?.peerId === self.peerId)
    }
    if (kind !== 'providers') throw noSuchPath()
    const cid = parseCid(name)
    if (!cid) throw malformed(`${JSON.stringify(name.slice(0, longestTold))} is no CID`)
    const isHere = await holds(cid)
    signal.throwIfAborted()
    return peers(target.query, type, 'Providers', isHere)
  }

  function peers(query: URLSearchParams, type: string, list: 'Providers' | 'Peers', isHere: boolean): Document {
    const found = isHere ? filtered(self, query.get('filter-addrs'), query.get('filter-protocols')) : undefined
    const records = found ? [found] : []
    const text =
      type === json ? JSON.stringify({ [list]: records }) : records.map((one) => `${JSON.stringify(one)}\n`).join('')
    const seconds = records.length > 0 ? foundSeconds : emptySeconds
    return {
      body: text,
      headers: {
        'Content-Type': type,
        Vary: 'Accept',
        'Last-Modified': new Date(clock.now()).toUTCString(),
        'Cache-Control': `public, max-age=${seconds}, stale-while-revalidate=${staleSeconds}, stale-if-error=${staleSeconds}`,
      },
    }
  }

  /** Returns a record that this gateway has verified before. */
  async function record(name: string, accept: string | undefined, signal: AbortSignal): Promise<Document> {
    if (
      accept !== undefined &&
      accept !== '*/*' &&
      qualityOf(accept, recordType) === 0 &&
      qualityOf(accept, '*/*') === 0
    )
      throw new HttpRefusal('unsupported', `records are sent as ${recordType}`, { source: 'client', status: 406 })
    if (!parseKey(name)) throw malformed(`${JSON.stringify(name.slice(0, longestTold))} is no key of a name`)
    const found = await names.record(name, { signal, onlyIfCached: true, noCache: false }).catch((error: unknown) => {
      if (isFailure(error, 'not-found'))
        throw new Failure('not-found', 'no record of it is stored here', { source: 'tier' })
      throw error
    })
    const leftMs = Math.max(0, found.endsAt - clock.now())
    const seconds = Math.floor(Math.min(found.ttlMs, leftMs) / 1000)
    return {
      body: found.bytes,
      headers: {
        'Content-Type': recordType,
        Vary: 'Accept',
        ETag: hashTag(found.bytes),
        Expires: new Date(found.endsAt).toUTCString(),
        'Cache-Control': `public, max-age=${seconds}`,
      },
    }
  }

  return readRoute({
    name: 'routing',
    at: /^\/routing\/v1\//,
    read,
    // This router names its own gateway only.
    refusal: (method) => methodRefused('this router accepts no records', readMethods, method === 'PUT' ? 501 : 405),
    respond,
  })
}

const longestTold = 100

/**
 * Applies the client's filters (IPIP-484) to the record of this gateway; undefined if nothing
 * remains.
 */
export function filtered(self: Self, addresses: string | null, protocols: string | null): object | undefined {
  const wanted = words(protocols)
  if (wanted.length > 0 && !wanted.includes(gatewayProtocol)) return undefined
  const left = words(addresses)
  const included = left.filter((word) => !word.startsWith('!') && word !== 'unknown')
  const excluded = left.flatMap((word) => (word.startsWith('!') ? [word.slice(1)] : []))
  const isOnlyUnknown = included.length === 0 && left.includes('unknown')
  const kept = self.addresses.filter((address) => {
    const parts = address.split('/')
    if (excluded.some((word) => parts.includes(word)) || isOnlyUnknown) return false
    return included.length === 0 || included.some((word) => parts.includes(word))
  })
  return kept.length === 0 ? undefined : { Schema: 'peer', ID: self.peerId, Addrs: kept, Protocols: [gatewayProtocol] }
}

const words = (list: string | null): readonly string[] =>
  (list ?? '').split(',').flatMap((word) => (word.trim() === '' ? [] : [word.trim().toLowerCase()]))

function typeFor(accept: string | undefined): typeof ndjson | typeof json {
  if (accept === undefined) return json
  const [lines, complete] = [qualityOf(accept, ndjson), qualityOf(accept, json)]
  if (lines > 0 && lines >= complete) return ndjson
  if (complete > 0 || qualityOf(accept, '*/*') > 0 || qualityOf(accept, 'application/*') > 0) return json
  throw malformed(`providers are sent as ${ndjson} or ${json}`)
}

const noSuchPath = (): Failure =>
  new Failure(
    'path-not-found',
    'no such path: there are /routing/v1/providers/{cid}, /routing/v1/ipns/{name} and /routing/v1/peers/{id}',
    {
      source: 'client',
    },
  )

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

  async function read(name: string): Promise<Document> {
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
    name: 'routing',
    at: /^\/ipni\/v1\/ad\//,
    read: ({ target }) => read(target.path.slice(prefix.length)),
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
