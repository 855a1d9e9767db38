// Headers of every content response. All are made here: headers of upstreams are never forwarded.
import type { CID } from 'multiformats/cid'
import { textOf } from '../../core/cid.ts'
import { corsHeaders } from '../wire/cors.ts'

export const immutable = 'public, max-age=29030400, immutable'

export type ContentHeaders = {
  readonly etag: string
  readonly type: string
  readonly path: string
  readonly roots: readonly (CID | string)[]
  readonly cacheControl?: string
  readonly acceptsRanges: boolean
  readonly disposition?: string | undefined
  /** The Content-Security-Policy; undefined means none. */
  readonly policy: string | undefined
  /** A site on its own origin, whose pages set their Referrer-Policy themselves. */
  readonly own: boolean
  /** The request headers that select the representation. */
  readonly varies: readonly string[]
}

/** For responses made for programs: a browser that opens one runs and loads nothing. */
export const programsOnly = "default-src 'none'; sandbox"

/** A flat list of names and values, in the order they are written. */
export function contentHeaders(content: ContentHeaders): string[] {
  const headers = [
    'Content-Type',
    content.type,
    'ETag',
    content.etag,
    'Cache-Control',
    content.cacheControl ?? immutable,
    'Accept-Ranges',
    content.acceptsRanges ? 'bytes' : 'none',
    'X-Ipfs-Path',
    headerSafe(content.path),
    'X-Content-Type-Options',
    'nosniff',
    'Cross-Origin-Resource-Policy',
    'cross-origin',
  ]
  if (content.roots.length > 0) headers.push('X-Ipfs-Roots', content.roots.map(spelled).join(','))
  if (!content.own) headers.push('Referrer-Policy', 'no-referrer')
  if (content.policy !== undefined) headers.push('Content-Security-Policy', content.policy)
  if (content.varies.length > 0) headers.push('Vary', content.varies.join(', '))
  if (content.disposition !== undefined) headers.push('Content-Disposition', content.disposition)
  for (const [name, value] of corsHeaders) headers.push(name, value)
  return headers
}

const spelled = (root: CID | string): string => (typeof root === 'string' ? root : textOf(root))

/** Encodes a path for a header: everything except printable ASCII is percent-encoded. */
export function headerSafe(path: string): string {
  return path.toWellFormed().replace(/[^\x21-\x7e]/gu, encodeURIComponent)
}

/**
 * RFC 6266: an ASCII name for every client, and the exact one for clients that support RFC 8187.
 * Never a path, never a second header.
 */
export function disposition(kind: 'inline' | 'attachment', filename: string | undefined): string {
  const name = filename
    ?.replace(/[\p{Cc}\p{Cf}]/gu, '')
    .split(/[/\\]/)
    .at(-1)
    ?.slice(0, 255)
  if (!name) return kind
  const ascii = name.replace(/[^\x20-\x7e]/g, '_').replace(/["\\]/g, '_')
  const exact = encodeURIComponent(name.toWellFormed()).replace(
    /['()*]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `${kind}; filename="${ascii}"; filename*=UTF-8''${exact}`
}
