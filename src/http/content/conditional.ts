// If-None-Match and If-Range (RFC 9110 §13). What a CID names never changes, so a weak comparison is as good as a strong
// one for the first; the second wants a strong one.
import type { Accepted } from '../codings/accept-encoding.ts'
import { codedTag } from '../codings/codings.ts'

// Some clients drop the quotes, or put new ones around a weak ETag: what is inside the quotes is still our ETag.
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
 * The ETag of the copy that the client has, if this request may be answered with it: the plain bytes, or a coding that the client
 * takes. A cache asks with the tags of all that it keeps, and gives its client the one that the 304 names (RFC 9111 §4.3.4).
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

/** Whether a Range request may get a part: the client's copy has this ETag. */
export function rangeApplies(ifRange: string | undefined, etag: string): boolean {
  return ifRange === undefined || (ifRange.trim() === etag && !etag.startsWith('W/'))
}
