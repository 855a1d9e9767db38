// Content codings of responses (RFC 9110 §8.4): their names, and the headers that differ from
// identity.

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
