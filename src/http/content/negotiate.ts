// The headers and the query of a request select the format (`?format=` overrides Accept,
// IPIP-523), the range (RFC 9110 §14) and the copy that the client has (§13). Content of a CID never
// changes, so a weak comparison suffices for If-None-Match; If-Range requires a strong one.
import type { IncomingHttpHeaders } from 'node:http'
import type { FormatName } from '../../content/formats/format.ts'
import { formats } from '../../content/formats/formats.ts'
import { malformed } from '../../core/failure.ts'
import { oneOf, weightedList } from '../../core/wire/http.ts'
import { type Accepted, codedTag, codings } from '../compression.ts'
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
