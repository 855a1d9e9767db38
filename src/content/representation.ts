// What an answer carries: a type, a tag, a size where one is known, and the bytes. A file, a page, a record and every format
// are this.
import type { CID } from 'multiformats/cid'

export type Representation = {
  readonly type: string
  readonly etag: string
  readonly cacheControl?: string
  /** How much of the time that `cacheControl` gives is over (RFC 9111 §5.1). */
  readonly ageSeconds?: number
  /** Another client may get another representation from the same address. */
  readonly varies?: boolean
  /** What a browser may do with it, where that is not what its type says. */
  readonly policy?: string
  /** Undefined: not known before it is made, and then there are no ranges. */
  readonly size: number | undefined
  readonly ranges: boolean
  /** All of it, when it is here already. */
  readonly whole?: Uint8Array | undefined
  /** Every client gets this answer from this URL, whatever it accepts: it may be kept ready. */
  readonly isPlain?: boolean
  /** How it is saved, and under which name, when the request does not say. */
  readonly save?: { readonly kind: 'inline' | 'attachment'; readonly filename: string }
  /** Bytes `from` up to, not including, `to`; all of it where there are no ranges. Nothing is fetched before it is read. */
  readonly read: (from: number, to: number) => AsyncIterable<Uint8Array>
}

/** The tag of a thing, or of what is made of it: `suffix` says what that is. */
export const etagOf = (cid: CID, suffix = ''): string => `"${cid}${suffix}"`
