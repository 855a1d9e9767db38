// The headers and the query of a request select the format (`?format=` overrides Accept,
// IPIP-523), the content coding (RFC 9110 §8.4), the range (§14) and the copy that the client has (§13). Content of a CID never
// changes, so a weak comparison suffices for If-None-Match; If-Range requires a strong one.
import type { IncomingHttpHeaders } from 'node:http'
import type { FormatName } from '../../content/formats/format.ts'
import { formats } from '../../content/formats/formats.ts'
import { malformed } from '../../core/failure.ts'
import { oneOf, weightedList } from '../../core/wire/http.ts'
import { HttpRefusal } from '../wire/request.ts'

export type FormatChoice = 'file' | FormatName | 'ipns-record'

export type Negotiated = {
  readonly as: FormatChoice
  /** Parameters of the requested media type: `version=1; order=dfs`. */
  readonly parameters: Readonly<Record<string, string>>
  /** The Accept header decided, so a cache must not give this response to other clients. */
  readonly byAccept: boolean
}

const mediaTypes: Readonly<Record<string, FormatChoice>> = {
  ...Object.fromEntries([...formats.values()].map(({ mediaType, name }) => [mediaType, name])),
  'application/vnd.ipfs.ipns-record': 'ipns-record',
}

export const formatNames: ReadonlySet<string> = new Set(Object.values(mediaTypes))

type AcceptedFormat = { readonly as: FormatChoice; readonly parameters: Readonly<Record<string, string>> }

export function negotiate(query: URLSearchParams, accept: string | undefined): Negotiated {
  const asked = query.get('format')
  const accepted = accept === undefined ? undefined : best(accept)
  if (asked !== null && asked !== '') {
    if (!formatNames.has(asked)) {
      throw malformed(`unknown format ${JSON.stringify(asked)}; known are ${[...formatNames].join(', ')}`)
    }
    const as = asked as FormatChoice
    return { as, parameters: accepted?.as === as ? accepted.parameters : {}, byAccept: false }
  }
  return accepted ? { ...accepted, byAccept: true } : { as: 'file', parameters: {}, byAccept: false }
}

/**
 * The choice by an Accept header alone. A client that accepts JSON wants a file that is JSON: `json`
 * as a format would be a codec.
 */
export function formatFor(accept: string): FormatChoice {
  const as = best(accept)?.as ?? 'file'
  return as === 'json' ? 'file' : as
}

function best(accept: string): AcceptedFormat | undefined {
  const accepted = weightedList(accept).flatMap(({ name, weight, parameters }) => {
    const as = mediaTypes[name]
    return as && weight > 0 ? [{ as, weight, parameters }] : []
  })
  return accepted.reduce<(typeof accepted)[0] | undefined>(
    (one, next) => (one && one.weight >= next.weight ? one : next),
    undefined,
  )
}

/** The weight of a media type; 0 if the client does not name it. */
export const qualityOf = (accept: string | undefined, type: string): number =>
  weightedList(accept).find(({ name }) => name === type)?.weight ?? 0

/**
 * The part that `Range` asks for; undefined means to send all bytes. Throws 416. The part of a client's copy with
 * another ETag (`If-Range`) is not enough.
 */
export function rangeFor(headers: IncomingHttpHeaders, etag: string, size: number): Range | undefined {
  const ifRange = oneOf(headers['if-range'])
  if (ifRange !== undefined && (ifRange.trim() !== etag || etag.startsWith('W/'))) return undefined
  const range = parseRange(headers.range, size)
  if (range !== 'unsatisfiable') return range
  const why = `range not satisfiable: there are ${size} bytes`
  const contentRange = { 'Content-Range': `bytes */${size}` }
  throw new HttpRefusal('malformed', why, { source: 'client', status: 416, headers: contentRange })
}

/** `to` is inclusive, as in Content-Range. */
export type Range = { readonly from: number; readonly to: number }

/** Undefined means to send all bytes; `unsatisfiable` means 416. */
export function parseRange(header: string | undefined, size: number): Range | 'unsatisfiable' | undefined {
  // An empty file ignores ranges, as in nginx and Kubo, since caches request every file in ranges.
  if (size === 0) return undefined
  const specs = specsOf(header)
  if (!specs) return undefined
  for (const { first, last } of specs) {
    if (first === undefined) {
      const length = Math.min(last ?? 0, size)
      if (length > 0) return { from: size - length, to: size - 1 }
    } else if (first < size) return { from: first, to: Math.min(last ?? size - 1, size - 1) }
  }
  return 'unsatisfiable'
}

/**
 * The range as far as it is known without the size, so that upstreams are asked for no more than
 * that.
 */
export function rangeHint(header: string | undefined): { from: number; to?: number } | undefined {
  const [spec] = specsOf(header) ?? []
  if (spec?.first === undefined) return undefined
  return spec.last === undefined ? { from: spec.first } : { from: spec.first, to: spec.last }
}

/** Without `first` it is a suffix: the last `last` bytes. */
type Spec = { readonly first: number | undefined; readonly last: number | undefined }

/** One malformed range invalidates the header. */
function specsOf(header: string | undefined): Spec[] | undefined {
  const list = /^bytes=(.*)$/i.exec(header?.trim() ?? '')?.[1]
  if (list === undefined) return undefined
  const specs: Spec[] = []
  for (const text of list.split(',')) {
    if (text.trim() === '') continue
    const [, first = '', last = ''] = /^\s*(\d*)-(\d*)\s*$/.exec(text) ?? []
    if (first === '' && last === '') return undefined
    if (first !== '' && last !== '' && Number(last) < Number(first)) return undefined
    specs.push({ first: first === '' ? undefined : Number(first), last: last === '' ? undefined : Number(last) })
  }
  return specs.length > 0 ? specs : undefined
}

// Some clients drop the quotes, or add quotes around a weak ETag; the text inside is compared.
const unquoted = (tag: string): string =>
  tag
    .trim()
    .replace(/^W\//, '')
    .replace(/^"(.*)"$|^([^"]+)"+$/, '$1$2')

export function matches(header: string | undefined, etag: string): boolean {
  if (header === undefined) return false
  if (header.trim() === '*') return true
  const own = unquoted(etag)
  return splitTags(header).some((tag) => unquoted(tag) === own)
}

/**
 * Finds the ETag of the client's copy, if it may be used for this request: identity, or a coding
 * that the client accepts. A cache sends the tags of all its copies, and serves the one that the
 * 304 names (RFC 9111 §4.3.4).
 */
export function tagOfCopy(header: string | undefined, etag: string, { best, all }: Accepted): string | undefined {
  if (header === undefined) return undefined
  if (header === etag) return etag
  if (all.length === 0 || header.trim() === '*') return matches(header, etag) ? etag : undefined
  const coded = all.map((coding) => codedTag(etag, coding))
  const tags = best === undefined ? [etag, ...coded] : [...coded, etag]
  return tags.find((tag) => matches(header, tag))
}

/**
 * The ETag of the client's copy, if it is current: 304 instead of the body. Throws 412 if `If-Match` names other
 * representations. `onlyByTag`: `If-None-Match: *` is not enough for a 304.
 */
export function currentCopy(
  headers: IncomingHttpHeaders,
  etag: string,
  accepted: () => Accepted,
  onlyByTag = false,
): string | undefined {
  const { 'if-match': ifMatch, 'if-none-match': ifNoneMatch } = headers
  if (ifMatch !== undefined && !meetsIfMatch(ifMatch, etag))
    throw new HttpRefusal('unsupported', `it is not what If-Match names: its ETag is ${etag}`, {
      source: 'client',
      status: 412,
    })
  if (ifNoneMatch === undefined || (onlyByTag && ifNoneMatch.trim() === '*')) return undefined
  return tagOfCopy(ifNoneMatch, etag, accepted())
}

/** A strong comparison; a coded copy counts as the plain one. */
function meetsIfMatch(header: string, etag: string): boolean {
  if (header.trim() === '*') return true
  const tags = [etag, ...codings.map((coding) => codedTag(etag, coding))]
  return !etag.startsWith('W/') && splitTags(header).some((tag) => tags.includes(tag))
}

function splitTags(header: string): string[] {
  return header.match(/(?:W\/)?"[^"]*"|[^,\s]+/g) ?? []
}

export type Coding = 'br' | 'zstd' | 'gzip'

/** Smallest output first: small responses are cached, so they are compressed once. */
export const codings: readonly Coding[] = ['br', 'zstd', 'gzip']

/**
 * Each coding has different bytes and so needs its own ETag: `"cid-br"` for `"cid"`, spelled as in
 * Caddy.
 */
export const codedTag = (etag: string, coding: Coding): string => `${etag.slice(0, -1)}-${coding}"`

/**
 * Derives the headers of a coded response from the identity headers. Ranges are served from
 * identity only. `size` is undefined if it is not known in advance.
 */
export function codedHeaders(plain: readonly string[], coding: Coding, size: number | undefined): string[] {
  const headers: string[] = []
  for (let at = 0; at < plain.length; at += 2) {
    const name = plain[at] as string
    const value = plain[at + 1] as string
    if (name === 'ETag') headers.push(name, codedTag(value, coding))
    else if (name === 'Accept-Ranges') headers.push(name, 'none')
    else if (name === 'Content-Type') headers.push(name, value, 'Content-Encoding', coding)
    else if (name !== 'Content-Length') headers.push(name, value)
  }
  if (size !== undefined) headers.push('Content-Length', String(size))
  return headers
}

export type Accepted = {
  /** The coding to send; undefined means identity. */
  readonly best: Coding | undefined
  /** All codings that the client accepts, best first. */
  readonly all: readonly Coding[]
}

/** For a client that accepts no coding. */
export const plainOnly: Accepted = { best: undefined, all: [] }

/**
 * The highest weight wins; our order breaks ties. Identity is sent if it has more weight than each
 * coding, and also, despite `identity;q=0`, if no coding is acceptable, since every client can read
 * it.
 */
export function acceptedOf(header: string): Accepted {
  const weights = new Map(weightedList(header).map(({ name, weight }) => [name === 'x-gzip' ? 'gzip' : name, weight]))
  const weight = (coding: Coding): number => weights.get(coding) ?? weights.get('*') ?? 0
  const all = codings.filter((coding) => weight(coding) > 0).sort((one, other) => weight(other) - weight(one))
  const [first] = all
  if (first === undefined) return plainOnly
  return { best: (weights.get('identity') ?? 0) > weight(first) ? undefined : first, all }
}

/** In addition to `text/*`, and types ending in +json or +xml. */
const compressibleTypes: ReadonlySet<string> = new Set([
  'application/json',
  'application/xml',
  'application/yaml',
  'application/toml',
  'application/wasm',
  'application/vnd.apple.mpegurl',
  'application/vnd.ipld.dag-json',
  'font/ttf',
  'font/otf',
])

/** About twice the size of the response head: below it compression saves little. */
const minCompressedBytes = 1024
/**
 * A larger file is sent uncompressed, so that a client whose connection broke can resume with a
 * range.
 */
const maxCompressedBytes = 8 * 1024 * 1024

/** Undefined means not yet known. */
export type AboutBody = { readonly type?: string | undefined; readonly size?: number | undefined }

/** True if the response has coded variants. Unknown type or size counts as true. */
export function isCompressible({ type, size }: AboutBody): boolean {
  if (size !== undefined && (size <= minCompressedBytes || size > maxCompressedBytes)) return false
  if (type === undefined) return true
  const semicolon = type.indexOf(';')
  const name = semicolon < 0 ? type : type.slice(0, semicolon)
  return compressibleTypes.has(name) || name.startsWith('text/') || name.endsWith('+json') || name.endsWith('+xml')
}
