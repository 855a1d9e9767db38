// A representation: a media type, an ETag, a size if known, and the bytes. Files, pages, records
// and every format are sent as one.
import type { CID } from 'multiformats/cid'
import { textOf } from '../core/cid.ts'

export type Representation = {
  readonly type: string
  readonly etag: string
  readonly cacheControl?: string
  /** The Age header: the elapsed part of the lifetime in `cacheControl` (RFC 9111 §5.1). */
  readonly ageSeconds?: number
  /** The same URL may give another client a different representation. */
  readonly varies?: boolean
  /** Content-Security-Policy, if it does not follow from the media type. */
  readonly policy?: string
  /** Undefined if unknown in advance; then ranges are not supported. */
  readonly size: number | undefined
  readonly ranges: boolean
  /** All bytes, if they are in memory. */
  readonly whole?: Uint8Array | undefined
  /** Set if `whole` is in a reusable buffer: to be called when it was sent. */
  readonly release?: (() => void) | undefined
  /** The response does not depend on Accept, so the response cache may keep it. */
  readonly isPlain?: boolean
  /** Content-Disposition, unless the request chooses one. */
  readonly save?: { readonly kind: 'inline' | 'attachment'; readonly filename: string }
  /**
   * Reads the bytes `from` up to, not including, `to`; all bytes if ranges are not supported.
   * Nothing is fetched before the first read. If the reader passed `lends`, a piece is valid until
   * the next one is requested.
   */
  readonly read: (from: number, to: number) => AsyncIterable<Uint8Array>
}

/** The ETag of an entity, or of a variant of it named by `suffix`. */
export const etagOf = (cid: CID, suffix = ''): string => `"${textOf(cid)}${suffix}"`
