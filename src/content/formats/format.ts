// What a response format is: how it wants its path resolved, and what it makes of the result. One file per format, one
// line each in formats.ts.
import type { CID } from 'multiformats/cid'
import { Failure } from '../../core/failure.ts'
import type { Session } from '../../retrieval/session.ts'
import type { Resolution } from '../entity.ts'
import { etagOf, type Representation } from '../representation.ts'
import type { ResolveOptions } from '../resolve.ts'

export type FormatName = 'raw' | 'car' | 'tar' | 'dag-json' | 'dag-cbor' | 'json' | 'cbor'

/** How a request asked for it; what stands in the query wins over parameters of the media type (IPIP-523). */
export type FormatRequest = {
  readonly query: URLSearchParams
  /** Of the media type in Accept: `version`, `order`, `dups`. */
  readonly parameters: Readonly<Record<string, string>>
  /** Stands in the tag of what is made while it is walked: other denylists may leave something else of it. */
  readonly revision?: string | undefined
}

export interface Format {
  readonly name: FormatName
  readonly mediaType: string
  /** What to resolve the path with. Throws `malformed` for parameters that make no sense. */
  wants(request: FormatRequest): Pick<ResolveOptions, 'scope' | 'range' | 'opaque'>
  /** Undefined: the answer is the one that is given when no format is asked for. */
  render(session: Session, resolution: Resolution, request: FormatRequest): Promise<Representation | undefined>
}

export const malformedRequest = (what: string): Failure => new Failure('malformed', what, { source: 'client' })

/** IPIP-524: what is stored is never turned into another codec here. */
export const notAcceptable = (cid: CID, name: FormatName, because: string): Failure =>
  new Failure(
    'unsupported',
    `${cid} is not available as ${name}: ${because}; ?format=raw or ?format=car gives the blocks`,
    {
      source: 'client',
    },
  )

/** A path that ends inside a document: its blocks can be had, the value by itself cannot. */
export function refuseRemainder({ entity, remainder }: Resolution): void {
  if (remainder.length === 0) return
  const value = remainder.join('/')
  throw new Failure('unsupported', `${value} in ${entity.cid} is a value, not a link; read ${entity.cid} itself`, {
    source: 'client',
    facts: { remainder: value },
  })
}

/** What is made of a thing while it is walked: the same request may give other bytes that mean the same. */
export const weakTag = (cid: CID, suffix: string, { revision }: FormatRequest): string =>
  `W/${etagOf(cid, suffix + (revision === undefined ? '' : `.${revision}`))}`

/** A block as it is stored, under one of the names it may go by. */
export function storedBlock(
  { entity }: Resolution,
  as: { type: string; suffix: string; extension: string; kind: 'inline' | 'attachment' },
): Representation {
  const { cid, block } = entity
  const { type, suffix, extension, kind } = as
  return {
    type,
    etag: etagOf(cid, suffix),
    save: { kind, filename: `${cid}${extension}` },
    size: block.byteLength,
    ranges: true,
    async *read(from, to) {
      const piece = block.subarray(from, Math.max(from, to))
      if (piece.byteLength > 0) yield piece
    },
  }
}
