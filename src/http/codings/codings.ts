// The content codings of answers (RFC 9110 §8.4): how each one is named, and what its representation says of itself otherwise
// than the plain one.

export type Coding = 'br' | 'zstd' | 'gzip'

/** The one that makes the fewest bytes first: small answers are kept, so that they are compressed once. */
export const codings: readonly Coding[] = ['br', 'zstd', 'gzip']

/** Each coding has other bytes, and so an ETag of its own: `"cid-br"` beside `"cid"`. Caddy spells it the same. */
export const codedTag = (etag: string, coding: Coding): string => `${etag.slice(0, -1)}-${coding}"`

/**
 * The headers of an answer in a coding, made from those of the plain one. A part of it cannot be asked for: Range gets
 * the plain bytes. `size` is undefined where it is not known before the answer is made.
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
