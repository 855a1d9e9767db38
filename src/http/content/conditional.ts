// If-None-Match and If-Range (RFC 9110 §13). Content of a CID never changes, so a weak comparison
// suffices for the first; the second requires a strong one.
import type { Accepted } from '../codings/accept-encoding.ts'
import { codedTag } from '../codings/codings.ts'

// Some clients drop the quotes, or add quotes around a weak ETag; the text inside is compared.
const bare = (tag: string): string =>
  tag
    .trim()
    .replace(/^W\//, '')
    .replace(/^"(.*)"$|^([^"]+)"+$/, '$1$2')

export function matches(header: string | undefined, etag: string): boolean {
  if (header === undefined) return false
  if (header.trim() === '*') return true
  const own = bare(etag)
  return splitTags(header).some((tag) => bare(tag) === own)
}

/**
 * Finds the ETag of the client's copy, if it may be used for this request: identity, or a coding
 * that the client accepts. A cache sends the tags of all its copies, and serves the one that the
 * 304 names (RFC 9111 §4.3.4).
 */
export function tagOfCopy(header: string | undefined, etag: string, { best, all }: Accepted): string | undefined {
  if (header === undefined) return undefined
  if (all.length === 0 || header.trim() === '*') return matches(header, etag) ? etag : undefined
  const coded = all.map((coding) => codedTag(etag, coding))
  const tags = best === undefined ? [etag, ...coded] : [...coded, etag]
  return tags.find((tag) => matches(header, tag))
}

function splitTags(header: string): string[] {
  return header.match(/(?:W\/)?"[^"]*"|[^,\s]+/g) ?? []
}

/** True if a Range request may get a part: the client's copy has this ETag. */
export function rangeApplies(ifRange: string | undefined, etag: string): boolean {
  return ifRange === undefined || (ifRange.trim() === etag && !etag.startsWith('W/'))
}
