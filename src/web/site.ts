// Resolves a path as browsers expect of a site: index.html for a directory, and the site's `_redirects` for a missing
// path. `_redirects` apply only on the site's own origin, and are read only when the path is proved to be absent.
import type { CID } from 'multiformats/cid'
import { readSmall } from '../content/file.ts'
import { type ContentPath, parsePath, type Resolution, type ResolveOptions, resolve } from '../content/resolve.ts'
import { type Failure, isFailure } from '../core/failure.ts'
import type { Session } from '../retrieval/session.ts'
import {
  maxRedirectsBytes,
  parseRedirects,
  type Redirected,
  redirect,
  tooLargeRedirects,
  wrongRedirects,
} from './redirects.ts'

export type SiteRequest = {
  readonly path: ContentPath
  /** When a directory is listed as data: always, only without an index.html, or never. */
  readonly listing: 'always' | 'without-page' | 'never'
  /** The path ends in a slash, so that relative links of an index.html mean what its author meant. */
  readonly hasSlash: boolean
  /** Under an origin of its own. */
  readonly own: boolean
  /** The query that the client sent, without the `?`. */
  readonly search: string
}

export type Served =
  | {
      readonly kind: 'content'
      readonly resolution: Resolution
      /** The directory's index.html; the ETag stays that of the directory. */
      readonly index?: Resolution
      readonly status: number
      /** `_redirects` rewrote the path. */
      readonly isRewritten: boolean
    }
  | { readonly kind: 'redirect'; readonly location: string; readonly status: number }
  /** The same path with a slash behind it. */
  | { readonly kind: 'slash' }

const indexName = 'index.html'
const maxShownChars = 200

export async function serveSite(session: Session, request: SiteRequest, options: ResolveOptions): Promise<Served> {
  const { path, listing, hasSlash } = request
  let resolution: Resolution
  let status = 200
  let isRewritten = false
  try {
    resolution = await resolve(session, path, options)
  } catch (error) {
    const redirected =
      isFailure(error, 'path-not-found') && request.own ? await redirectOf(session, request) : undefined
    if (redirected === undefined) throw error
    if (redirected.kind === 'redirect') return redirected
    resolution = await rewritten(session, path.cid, redirected.path, options, error)
    status = redirected.status
    isRewritten = true
  }
  const content = { kind: 'content', resolution, status, isRewritten } as const
  if (resolution.entity.kind !== 'directory' || listing === 'always') return content
  const lacksSlash = !hasSlash && !isRewritten
  if (lacksSlash && listing === 'never') return { kind: 'slash' }
  const index = await child(session, resolution.path, indexName, options)
  if (index?.entity.kind !== 'file') return content
  return lacksSlash ? { kind: 'slash' } : { ...content, index }
}

/** Undefined when there is no such name. */
async function child(
  session: Session,
  { cid, segments, encoded }: ContentPath,
  name: string,
  options: ResolveOptions,
): Promise<Resolution | undefined> {
  try {
    return await resolve(session, { cid, segments: [...segments, name], encoded: [...encoded, name] }, options)
  } catch (error) {
    if (isFailure(error, 'path-not-found')) return undefined
    throw error
  }
}

async function redirectOf(session: Session, { path, search }: SiteRequest): Promise<Redirected | undefined> {
  const root: ContentPath = { cid: path.cid, segments: [], encoded: [] }
  const file = await child(session, root, '_redirects', {})
  if (!file) return undefined
  if (file.entity.kind !== 'file') throw wrongRedirects('it is not a file')
  const bytes = await readSmall(session, file.entity, maxRedirectsBytes)
  if (!bytes) throw tooLargeRedirects()
  const asked = path.segments.map((name) => `/${encodeURIComponent(name)}`).join('')
  return redirect(parseRedirects(new TextDecoder().decode(bytes)), asked === '' ? '/' : asked, search)
}

async function rewritten(
  session: Session,
  root: CID,
  to: string,
  options: ResolveOptions,
  missing: unknown,
): Promise<Resolution> {
  const path = pathOfRule(root, to)
  try {
    return await resolve(session, path, options)
  } catch (error) {
    // The rule's page is missing, too: the client gets the error of the path that it asked for.
    throw isFailure(error, 'path-not-found') ? missing : error
  }
}

/** A malformed target is the rule's mistake, not the client's. */
function pathOfRule(root: CID, to: string): ContentPath {
  try {
    return parsePath(`${root}${to}`)
  } catch (error) {
    const shown = JSON.stringify(to.length > maxShownChars ? `${to.slice(0, maxShownChars)}…` : to)
    throw wrongRedirects(`a rule leads to ${shown}, and ${(error as Failure).message}`)
  }
}
