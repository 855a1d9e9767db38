// What a response format is: how it wants its path resolved, and what it makes of the result. One file per format, one
// line each in formats.ts.
import type { CID } from 'multiformats/cid'
import { Failure } from '../../core/failure.ts'
import type { Session } from '../../retrieval/session.ts'
import type { Resolution } from '../entity.ts'
import type { ResolveOptions } from '../resolve.ts'

export type FormatName = 'raw' | 'car' | 'tar' | 'dag-json' | 'dag-cbor' | 'json' | 'cbor'

/** How a request asked for it; what stands in the query wins over parameters of the media type (IPIP-523). */
export type FormatRequest = {
  readonly query: URLSearchParams
  /** Of the media type in Accept: `version`, `order`, `dups`. */
  readonly parameters: Readonly<Record<string, string>>
}

export type Rendering = {
  readonly contentType: string
  /** Goes between the CID of the entity and the closing quote of the ETag: `.raw`. */
  readonly etagSuffix: string
  /** The same request may give other bytes that mean the same. */
  readonly weak: boolean
  /** The name to save it by, where the request names none. */
  readonly filename: string
  readonly disposition: 'inline' | 'attachment'
  /** Undefined: not known before it is made, and then there are no ranges. */
  readonly size: number | undefined
  readonly ranges: boolean
  /** Bytes `from` up to, not including, `to`; all of it where there are no ranges. Nothing is fetched before it is read. */
  read(from?: number, to?: number): AsyncGenerator<Uint8Array>
}

export interface Format {
  readonly name: FormatName
  readonly mediaType: string
  /** What to resolve the path with. Throws `malformed` for parameters that make no sense. */
  wants(request: FormatRequest): Pick<ResolveOptions, 'scope' | 'range' | 'opaque'>
  /** Undefined: the answer is the one that is given when no format is asked for. */
  render(session: Session, resolution: Resolution, request: FormatRequest): Promise<Rendering | undefined>
}

export const malformedRequest = (what: string): Failure => new Failure('malformed', what, { source: 'client' })

/** IPIP-524: what is stored is never turned into another codec here. */
export const notAcceptable = (cid: CID, name: FormatName, because: string): Failure =>
  new Failure(
    'unsupported',
    `${cid} cannot be had as ${name}: ${because}; ?format=raw or ?format=car gives the blocks`,
    {
      source: 'client',
      facts: { format: name },
    },
  )

/** A path that ends inside a document: its blocks can be had, the value by itself cannot. */
export function refuseRemainder({ entity, remainder }: Resolution): void {
  if (remainder.length === 0) return
  const value = remainder.join('/')
  throw new Failure('unsupported', `${value} in ${entity.cid} is a value and no link; read ${entity.cid} itself`, {
    source: 'client',
    facts: { remainder: value },
  })
}

/** A block as it is stored, under one of the names it may go by. */
export function blockRendering(
  { entity }: Resolution,
  as: { contentType: string; etagSuffix: string; extension: string; disposition: Rendering['disposition'] },
): Rendering {
  const { cid, block } = entity
  const { contentType, etagSuffix, extension, disposition } = as
  return {
    contentType,
    etagSuffix,
    weak: false,
    filename: `${cid}${extension}`,
    disposition,
    size: block.byteLength,
    ranges: true,
    async *read(from = 0, to = block.byteLength) {
      const piece = block.subarray(from, Math.max(from, to))
      if (piece.byteLength > 0) yield piece
    },
  }
}
