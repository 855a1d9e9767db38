// A representation: a media type, an ETag, a size where it is known, and the bytes. Files, pages, records and every
// format are answered as one.
import type { CID } from 'multiformats/cid'
import { textOf } from '../core/cid.ts'

export type Representation = {
  readonly type: string
  readonly etag: string
  readonly cacheControl?: string
  /** Age: how much of `cacheControl`'s time has passed (RFC 9111 §5.1). */
  readonly ageSeconds?: number
  /** Another client may get another representation from the same address. */
  readonly varies?: boolean
  /** Content-Security-Policy, where it does not follow from the type. */
  readonly policy?: string
  /** Undefined: unknown before it is made; then there are no ranges. */
  readonly size: number | undefined
  readonly ranges: boolean
  /** All bytes, when they are in memory already. */
  readonly whole?: Uint8Array | undefined
  /** To be called when `whole` was sent: its memory is lent. */
  readonly release?: (() => void) | undefined
  /** The answer does not depend on Accept: the response cache may keep it. */
  readonly isPlain?: boolean
  /** Content-Disposition, when the request does not say. */
  readonly save?: { readonly kind: 'inline' | 'attachment'; readonly filename: string }
  /**
   * Bytes `from` up to, not including, `to`; all of it where there are no ranges. Nothing is fetched before it is read. Where the
   * reader said that it `lends`, a piece is valid until the next one is asked for.
   */
  readonly read: (from: number, to: number) => AsyncIterable<Uint8Array>
}

/** The ETag of an entity, or of a form of it, named by `suffix`. */
export const etagOf = (cid: CID, suffix = ''): string => `"${textOf(cid)}${suffix}"`
