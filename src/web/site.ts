// Resolves a path as browsers expect of a site: index.html for a directory, and the site's
// `_redirects` for a missing path. `_redirects` apply only on the site's own origin, and are read
// only when the path is proved to be absent.

import type { CID } from 'multiformats/cid'
import { readSmall } from '../content/file.ts'
import { type ContentPath, parsePath, type Resolution, type ResolveOptions, resolve } from '../content/resolve.ts'
import { Failure, isFailure } from '../core/failure.ts'
import { decoded, headerSafe } from '../core/wire/http.ts'
import type { Session } from '../retrieval/session.ts'

export type SiteRequest = {
  readonly path: ContentPath
  /** Lists a directory as data: always, only without an index.html, or never. */
  readonly listing: 'always' | 'without-page' | 'never'
  /** The path ends in a slash, as the relative links of an index.html assume. */
  readonly hasSlash: boolean
  /** The site has its own origin. */
  readonly own: boolean
  /** The client's query, without the `?`. */
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
  /** A redirect to the same path with a trailing slash. */
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

/** Undefined if the name does not exist. */
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
    // The rule's target is missing too: report the error of the requested path.
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

const maxRedirectsBytes = 64 * 1024
// Clients refuse headers of more than 8 or 16 KiB.
const maxLocationChars = 8 * 1024

type RedirectRule = { readonly from: string; readonly to: string; readonly status: number }

type Redirected =
  /** Serves this path of the same site, with this status. */
  | { readonly kind: 'rewrite'; readonly path: string; readonly status: number }
  | { readonly kind: 'redirect'; readonly location: string; readonly status: number }

const statuses: ReadonlySet<number> = new Set([200, 301, 302, 303, 307, 308, 404, 410, 451])
const rewrites: ReadonlySet<number> = new Set([200, 404, 410, 451])

/** A mistake of the site's author, which no other path of the site avoids. */
const wrongRedirects = (what: string): Failure =>
  new Failure('malformed', `could not parse _redirects: ${what}`, { source: 'content' })

const tooLargeRedirects = (): Failure => wrongRedirects(`redirects file size cannot exceed ${maxRedirectsBytes} bytes`)

const wrong = (line: number, what: string): Failure => wrongRedirects(`line ${line}: ${what}`)

export function parseRedirects(text: string): RedirectRule[] {
  if (Buffer.byteLength(text) > maxRedirectsBytes) throw tooLargeRedirects()
  const rules: RedirectRule[] = []
  for (const [index, row] of text.split(/\r?\n/).entries()) {
    const line = row.trim()
    if (line === '' || line.startsWith('#')) continue
    const [from = '', to, statusText = '301', ...rest] = line.split(/\s+/)
    if (to === undefined || rest.length > 0) throw wrong(index + 1, 'expected `from to [status]`')
    if (!from.startsWith('/')) throw wrong(index + 1, '`from` must begin with /')
    if (/\*./.test(from)) throw wrong(index + 1, '`*` may only stand at the end of `from`')
    if (!to.startsWith('/') && !isWebUrl(to)) throw wrong(index + 1, '`to` must be a path or an http(s) address')
    if (/^[^?]*%(?![0-9a-f]{2})/i.test(to)) throw wrong(index + 1, '`to` has a % without two hexadecimal digits')
    const status = Number(statusText)
    if (!statuses.has(status)) throw wrong(index + 1, `${statusText} is not a status that is supported`)
    const names = placeholders(from)
    if (new Set(names).size < names.length) throw wrong(index + 1, 'a placeholder occurs twice in `from`')
    rules.push({ from: from.split('/').map(inOneSpelling).join('/'), to, status })
  }
  return rules
}

const isWebUrl = (text: string): boolean => /^https?:\/\//i.test(text) && URL.canParse(text)
const placeholders = (from: string): string[] => from.split('/').filter((segment) => segment.startsWith(':'))

/** Normalizes a segment: rules have it percent-encoded or not. */
function inOneSpelling(segment: string): string {
  if (segment.startsWith(':')) return segment
  const name = decoded(segment)
  return name === undefined ? segment : encodeURIComponent(name)
}

/**
 * Returns the first rule that matches a missing path. Segments are encoded by encodeURIComponent,
 * so that placeholders are safe in a URL; `query` is the client's.
 */
export function redirect(rules: readonly RedirectRule[], path: string, query: string): Redirected | undefined {
  // Split once: a file may have thousands of rules, and a path a thousand segments.
  const asked = path.split('/')
  for (const { from, to, status } of rules) {
    const values = match(from, asked)
    if (!values) continue
    const target = filled(to, values)
    if (rewrites.has(status) && target.startsWith('/')) {
      return { kind: 'rewrite', path: target.split(/[?#]/)[0] as string, status }
    }
    const location = headerSafe(withQuery(target, query))
    if (location.length > maxLocationChars) throw tooLong()
    return {
      kind: 'redirect',
      location,
      status: rewrites.has(status) ? 302 : status,
    }
  }
  return undefined
}

/** Bounds the result, since a rule may repeat a long part of the path ten thousand times. */
function filled(to: string, values: ReadonlyMap<string, string>): string {
  let length = to.length
  return to.replace(/:[A-Za-z][A-Za-z0-9_]*/g, (name) => {
    const value = values.get(name) ?? name
    length += value.length - name.length
    if (length > maxLocationChars) throw tooLong()
    return value
  })
}

const tooLong = (): Failure =>
  new Failure('malformed', `a rule of _redirects leads to an address of more than ${maxLocationChars} characters`, {
    source: 'content',
  })

function match(from: string, asked: readonly string[]): Map<string, string> | undefined {
  const values = new Map<string, string>()
  const splat = from.endsWith('*')
  const pattern = (splat ? from.slice(0, -1) : from).split('/')
  if (splat) {
    // `/posts/*` means /posts/ and everything below, and /posts itself.
    const fixed = pattern.slice(0, -1)
    if (pattern.at(-1) !== '' || asked.length < fixed.length) return undefined
    if (!fixed.every((segment, index) => takes(segment, asked[index] ?? '', values))) return undefined
    return values.set(':splat', asked.slice(fixed.length).join('/'))
  }
  const trimmedSegments = (segments: readonly string[]) =>
    segments.length > 2 && segments.at(-1) === '' ? segments.slice(0, -1) : segments
  const [want, have] = [trimmedSegments(pattern), trimmedSegments(asked)]
  if (want.length !== have.length) return undefined
  return want.every((segment, index) => takes(segment, have[index] ?? '', values)) ? values : undefined
}

function takes(segment: string, value: string, values: Map<string, string>): boolean {
  if (!segment.startsWith(':')) return segment === value
  if (value === '') return false
  values.set(segment, value)
  return true
}

/** The client's own parameters win over those of the rule. */
function withQuery(target: string, query: string): string {
  const [address = '', fragment] = target.split('#', 2)
  const [trimmedSegments = '', fixed = ''] = address.split('?', 2)
  const asked = new URLSearchParams(query)
  const merged = new URLSearchParams(fixed)
  for (const name of new Set(asked.keys())) {
    merged.delete(name)
    for (const value of asked.getAll(name)) merged.append(name, value)
  }
  const text = merged.toString()
  return `${trimmedSegments}${text ? `?${text}` : ''}${fragment === undefined ? '' : `#${fragment}`}`
}
