// Options of every upstream that speaks HTTP.
import { base36 } from 'multiformats/bases/base36'
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { codec, textOf } from '../../src/core/cid.ts'
import { duration } from '../../src/core/units.ts'

export const httpOptions = {
  url: z
    .url({ protocol: /^https?$/, error: 'expected an http(s) address' })
    .refine(hasNoUser, { error: 'expected an address without a user; use headers' })
    .describe('Where it is; paths such as /ipfs/<cid> are added to it.'),
  headers: z.record(z.string(), z.string()).default({}).describe('Sent with every request, such as an API key.'),
  connectTimeout: duration().prefault('3s').describe('Until a connection is there.'),
  firstByteTimeout: duration().prefault('5s').describe('Until the answer begins.'),
  bodyTimeout: duration().prefault('5s').describe('The longest silence in the middle of an answer.'),
  maxConnections: z
    .int()
    .min(1)
    .default(32)
    .describe('Requests at once: on a connection each, or on one that speaks HTTP/2.'),
  allowPrivate: z
    .boolean()
    .default(false)
    .describe(
      'Whether its name may resolve to a private or loopback address. An address in the url itself always may.',
    ),
} as const

export const gatewayOptions = {
  ...httpOptions,
  redirects: z
    .enum(['site', 'subdomains'])
    .default('site')
    .describe(
      'Which redirects are followed: on the same host (site), or also to the subdomain of that host which is for the same CID, <cid>.ipfs.<host> (subdomains).',
    ),
} as const

function hasNoUser(text: string): boolean {
  const { username, password } = URL.parse(text) ?? { username: '', password: '' }
  return username === '' && password === ''
}

/** Builds `/ipfs/…` below the operator's URL from a parsed CID and names, never from a request. */
export function contentUrl(
  base: string,
  cid: string,
  segments: readonly string[],
  query: Readonly<Record<string, string>>,
): URL {
  const url = new URL(base)
  const path = ['ipfs', cid, ...segments.map(encodeURIComponent)].join('/')
  url.pathname = `${url.pathname.replace(/\/+$/, '')}/${path}`
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value)
  return url
}

/** Builds the URL once as a template for many CIDs without names. */
export function contentUrls(base: string, query: Readonly<Record<string, string>>): (cid: CID) => string {
  const place = 'the-cid'
  const { href } = contentUrl(base, place, [], query)
  const at = href.indexOf(`/ipfs/${place}`, new URL(base).pathname.replace(/\/+$/, '').length) + '/ipfs/'.length
  const [before, after] = [href.slice(0, at), href.slice(at + place.length)]
  return (cid) => before + textOf(cid) + after
}

/** Spells a key as every gateway does, so that none of them redirects. */
export const keyText = ({ multihash }: CID): string => CID.createV1(codec.libp2pKey, multihash).toString(base36)

export function recordUrl(base: string, key: CID): URL {
  const url = new URL(base)
  url.pathname = `${url.pathname.replace(/\/+$/, '')}/ipns/${keyText(key)}`
  url.searchParams.set('format', 'ipns-record')
  return url
}
