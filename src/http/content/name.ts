// Requests under /ipns: resolves a name to content for as long as the record is valid, or sends the
// signed record of a key.

import { inMemory, type Representation } from '../../content/formats/format.ts'
import { type ContentPath, splitPath } from '../../content/resolve.ts'
import type { Clock } from '../../core/clock.ts'
import { malformed } from '../../core/failure.ts'
import { hashTag } from '../../core/wire/http.ts'
import { type LookupRequest, type Names, type ResolvedName, spellingOf } from '../../names/names.ts'
import type { VisitNames } from '../../retrieval/session.ts'
import type { ContentPlace } from '../hosts.ts'
import type { Mode } from '../wire/problem.ts'
import type { RequestTarget } from '../wire/request.ts'
import type { Negotiated } from './negotiate.ts'
import type { Moved } from './web-body.ts'

export type Named =
  | {
      readonly kind: 'content'
      readonly path: ContentPath
      readonly visitNames: VisitNames
      /** The Cache-Control of content under a name, which changes. */
      readonly cacheControl: string
    }
  | { readonly kind: 'record'; readonly body: Representation }
  | Moved

type Deps = { readonly names: Names; readonly clock: Clock; readonly mode: Mode }

/** Resolves `/ipns/<name>[/…]` to the representation that the client asks for. */
export async function named(
  place: ContentPlace,
  target: RequestTarget,
  negotiated: Negotiated,
  deps: Deps,
  wants: LookupRequest,
): Promise<Named> {
  if (negotiated.as === 'ipns-record') return { kind: 'record', body: await recordOf(place, deps, wants) }
  const path = deps.mode === 'web' && !place.own ? respelled(place.path, target.search) : undefined
  if (path === undefined) return locate(place, deps, wants)
  return { kind: 'moved', status: 302, location: place.base + path, varies: false }
}

async function locate({ path: asked }: ContentPlace, { names, clock }: Deps, wants: LookupRequest): Promise<Named> {
  const { path, visitNames, ttlMs, endsAt } = await pathOfName(asked, names, wants)
  return { kind: 'content', path, visitNames, cacheControl: mutable(ttlMs, endsAt - clock.now()) }
}

/** The current content path of `/ipns/<name>[/…]`, and its lifetime. */
export async function pathOfName(
  asked: string,
  names: Names,
  wants: LookupRequest,
): Promise<Omit<ResolvedName, 'via'>> {
  const { root, segments, encoded } = splitPath(asked.slice('/ipns/'.length))
  const { path, visitNames, ttlMs, endsAt } = await names.resolve(root, { ...wants, rest: segments })
  const complete = { cid: path.cid, segments: [...path.segments, ...segments], encoded: [...path.encoded, ...encoded] }
  return { path: complete, visitNames, ttlMs, endsAt }
}

/** The record of a key, for clients that verify it themselves. */
async function recordOf({ path }: ContentPlace, { names, clock }: Deps, wants: LookupRequest): Promise<Representation> {
  const { root, segments } = splitPath(path.slice('/ipns/'.length))
  if (segments.length > 0) {
    throw malformed('format=ipns-record needs a bare key: /ipns/<key>?format=ipns-record')
  }
  const { name, bytes, ttlMs, ageMs, endsAt } = await names.record(root, wants)
  return {
    ...inMemory(bytes, 'application/vnd.ipfs.ipns-record'),
    etag: hashTag(bytes, '.ipns-record'),
    cacheControl: mutable(ttlMs, endsAt - clock.now()),
    ageSeconds: Math.floor(ageMs / 1000),
    ranges: false,
    save: { kind: 'attachment', filename: `${name}.ipns-record` },
  }
}

/** Redirects keys spelled as peer IDs (`12D3…`, `Qm…`) to the spelling that fits a host name. */
function respelled(path: string, search: string): string | undefined {
  const [, , root = '', ...rest] = path.split('/')
  if (!/^(1|Qm)/.test(root)) return undefined
  const name = spellingOf(root)
  return name && `${['', 'ipns', name, ...rest].join('/')}${search === '' ? '' : `?${search}`}`
}

/** Cacheable for its TTL, and stale for as long again, but never past the end of the record. */
function mutable(ttlMs: number, leftMs: number): string {
  const left = Math.max(0, Math.floor(leftMs / 1000))
  const age = Math.min(Math.ceil(ttlMs / 1000), left)
  const stale = Math.min(age, left - age)
  return `public, max-age=${age}${stale > 0 ? `, stale-while-revalidate=${stale}` : ''}`
}
