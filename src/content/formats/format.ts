// A representation, which files, pages, records and every format are sent as, and the interface of a
// format: how it resolves a path and renders the result. One file per format.
import type { CID } from 'multiformats/cid'
import { Failure } from '../../core/failure.ts'
import type { Session } from '../../retrieval/session.ts'
import { etagOf, type Resolution, type ResolveOptions } from '../resolve.ts'

export type FormatName = 'raw' | 'car' | 'tar' | 'dag-json' | 'dag-cbor' | 'json' | 'cbor'

/** Parameters of the request; the query overrides the media type (IPIP-523). */
export type FormatRequest = {
  readonly query: URLSearchParams
  /** Parameters of the media type in Accept: `version`, `order`, `dups`. */
  readonly parameters: Readonly<Record<string, string>>
  /**
   * The revision of the denylists. Part of the ETag of exports, since other lists may leave out
   * other parts.
   */
  readonly revision?: string | undefined
}

export interface Format {
  readonly name: FormatName
  readonly mediaType: string
  /** Options for resolving the path. Throws `malformed` for invalid parameters. */
  wants(request: FormatRequest): Pick<ResolveOptions, 'scope' | 'range' | 'opaque'>
  /** Undefined means to respond as if no format was requested. */
  render(session: Session, resolution: Resolution, request: FormatRequest): Promise<Representation | undefined>
}

/** IPIP-524: stored content is never converted to another codec. */
export const notAcceptable = (cid: CID, name: FormatName, because: string): Failure =>
  new Failure(
    'unsupported',
    `${cid} is not available as ${name}: ${because}; use ?format=raw or ?format=car for the blocks`,
    { source: 'client' },
  )

/**
 * A weak ETag for exports, which are streamed: the same request may give different bytes with the
 * same meaning.
 */
export const weakTag = (cid: CID, suffix: string, { revision }: FormatRequest): string =>
  `W/${etagOf(cid, suffix + (revision === undefined ? '' : `.${revision}`))}`

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
  readonly complete?: Uint8Array | undefined
  /** Set if `complete` is in a reusable buffer: to be called when it was sent. */
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

/** The rest of a representation whose bytes are in memory. */
export const inMemory = (complete: Uint8Array, type: string) => ({
  type,
  size: complete.byteLength,
  ranges: true,
  complete,
  async *read(from: number, to: number) {
    yield complete.subarray(from, to)
  },
})
