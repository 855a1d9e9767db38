// If-None-Match and If-Range (RFC 9110 §13). What a CID names never changes, so a weak comparison is as good as a strong
// one for the first; the second wants a strong one.

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

function splitTags(header: string): string[] {
  return header.match(/(?:W\/)?"[^"]*"|[^,\s]+/g) ?? []
}

/** Whether a Range request may get a part: the client's copy has this ETag. */
export function rangeApplies(ifRange: string | undefined, etag: string): boolean {
  return ifRange === undefined || (ifRange.trim() === etag && !etag.startsWith('W/'))
}
