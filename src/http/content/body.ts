// Bodies in `api` mode: files with the media type detected from as few bytes as possible, listings
// and documents as JSON.

import { listDirectory } from '../../content/directory.ts'
import { readFile } from '../../content/file.ts'
import { inMemory, type Representation } from '../../content/formats/format.ts'
import { type JsonDetector, mayBeJson } from '../../content/json.ts'
import { type Entity, etagOf, type Resolution, symlinkTarget } from '../../content/resolve.ts'
import { codec, spell } from '../../core/cid.ts'
import { after, type Soon } from '../../core/clock.ts'
import { decoded } from '../../core/wire/http.ts'
import type { Session } from '../../retrieval/session.ts'
import { type FileType, sniffedBytes } from '../../web/media-types.ts'
import type { RequestTarget } from '../wire/request.ts'
import type { AboutBody } from './negotiate.ts'

export type BodyOptions = {
  readonly jsonDetector: JsonDetector
  /** The largest file that is tested for JSON. */
  readonly jsonMaxBytes: number
  /** A file up to this size is read completely, so that the response cache can keep it. */
  readonly maxCompleteBytes: number
  /** True for a range or HEAD: only the bytes that decide the type are read in addition. */
  readonly isPartial: boolean
  /**
   * Allows the pieces to be in reusable buffers: the reader requests the next one when the last was
   * sent, and calls `release`.
   */
  readonly lends?: boolean
  readonly signal: AbortSignal
}

export const listingCacheControl = 'public, max-age=604800, stale-while-revalidate=2678400'

/** A response as far as it is known before its body is made: as much as conditions need. */
export type Tags = Pick<Representation, 'etag' | 'cacheControl' | 'ageSeconds' | 'varies'> &
  AboutBody & {
    readonly roots: Resolution['roots']
    /** The status of a site's error page (`_redirects`). Default: 200. */
    readonly status?: number
    /** Content-Location: the URL of this representation without an Accept header. */
    readonly location?: string | undefined
    /** `If-None-Match: *` is not enough for a 304. */
    readonly onlyByTag?: boolean
  }

export type Offer = Tags & { readonly content: () => Soon<Content> }

export function offerOf(
  session: Session,
  { entity, path, roots }: Resolution,
  target: RequestTarget,
  options: BodyOptions,
): Offer {
  const { cid, block, kind, size = 0 } = entity
  const etag = etagOf(cid)
  const knownType = () => (options.jsonDetector.known(cid) === false ? octets : undefined)
  switch (kind) {
    case 'directory': {
      const tags = { etag: `W/"${cid}.listing"`, cacheControl: listingCacheControl }
      return { ...tags, roots, type: json, content: () => listing(session, entity, target) }
    }
    case 'symlink': {
      const content = () => ({ ...inMemory(symlinkTarget(entity), octets), isPlain: true })
      return { etag, roots, type: octets, content }
    }
    case 'data': {
      const content = () => after(isJson(session, entity, options), (is) => inMemory(block, is ? json : octets))
      return { etag, roots, type: knownType(), size: block.byteLength, content }
    }
    case 'file': {
      const name = target.query.get('filename') ?? path.segments.at(-1) ?? ''
      const content = () => plainFile(session, entity, plainTyping(name, size, options.jsonMaxBytes), options)
      return { etag, roots, type: knownType(), size, content }
    }
  }
}

/** A file whose response does not depend on Accept. */
export const plainFile = (session: Session, entity: Entity, typing: Typing, options: BodyOptions): Soon<Content> =>
  after(fileBody(session, entity, typing, options), (content) => ({ ...content, isPlain: true }))

function isJson(session: Session, { cid, block }: Entity, { jsonDetector, signal }: BodyOptions): Soon<boolean> {
  if (block.byteLength === 0 || !mayBeJson(block)) return false
  return jsonDetector.known(cid) ?? jsonDetector.judge(cid, [block], { session, signal })
}

export type Content = Omit<Representation, 'etag' | 'cacheControl' | 'varies'>

export function listing(session: Session, entity: Entity, target: RequestTarget): Content {
  const { cid } = entity
  const read = async function* () {
    let text = `{"cid":"${cid}","path":${JSON.stringify(decoded(target.path) ?? target.path)},"entries":[`
    let isFirst = true
    for await (const { name, cid: child, size, type } of listDirectory(session, entity)) {
      text += `${isFirst ? '' : ','}${JSON.stringify({ name, cid: spell(child), size, type })}`
      isFirst = false
      if (text.length > 16_384) {
        yield Buffer.from(text)
        text = ''
      }
    }
    yield Buffer.from(`${text}]}\n`)
  }
  return { type: json, size: undefined, ranges: false, read }
}

type Typing = FileType & {
  /** The media type of non-JSON files, if it depends on nothing else. */
  readonly otherwise?: string
}

export const octets = 'application/octet-stream'
export const json = 'application/json'
// A smaller file is read completely even without the response cache: reading it twice would cost
// more.
const smallBytes = 256 * 1024

/** Types of `api` mode: JSON, or bytes. A file too large to parse is typed by its name. */
function plainTyping(name: string, size: number, jsonMaxBytes: number): Typing {
  const byName = size <= jsonMaxBytes ? undefined : /\.json$/i.test(name) ? json : octets
  return { byName, mayBeJson: true, otherwise: octets, byBytes: () => octets }
}

/** At once if it is known from a single block. */
export function fileBody(session: Session, entity: Entity, typing: Typing, options: BodyOptions): Soon<Content> {
  const { cid, size = 0 } = entity
  const { jsonDetector, jsonMaxBytes, isPartial, signal } = options
  const leaf = leafBytes(entity)
  const isSmall = leaf !== undefined || size <= Math.max(options.maxCompleteBytes, smallBytes)
  const read = (from: number, to: number) => readFile(session, entity, from, to)
  const lent = (from: number, to: number) => readFile(session, entity, from, to, options)
  const streamed = (type: string): Content => ({ type, size, ranges: true, read: lent })
  const { byName, byBytes, otherwise } = typing
  const complete = (bytes: Uint8Array, type: string): Content => ({ ...inMemory(bytes, type), release: entity.release })
  if (size === 0) return inMemory(new Uint8Array(), byName ?? byBytes(new Uint8Array(), 0))
  if (byName !== undefined && (isPartial || !isSmall)) return streamed(byName)
  const known = byName === undefined && typing.mayBeJson && size <= jsonMaxBytes ? jsonDetector.known(cid) : false
  const settled = known ? json : known === false ? otherwise : undefined
  if (settled !== undefined && (isPartial || !isSmall)) return streamed(settled)

  if (leaf) {
    const type = byName ?? byBytes(isPartial ? leaf.subarray(0, sniffedBytes) : leaf, size)
    if (known !== false && mayBeJson(leaf))
      return jsonDetector.judge(cid, [leaf], { session, signal }).then((isJson) => complete(leaf, isJson ? json : type))
    if (known === undefined) jsonDetector.learn(cid, false)
    return isPartial ? streamed(type) : complete(leaf, type)
  }

  return (async () => {
    const pieces = read(0, isPartial ? Math.min(size, sniffedBytes) : size)
    const first = await pieces.next()
    const start = first.done === false ? first.value : new Uint8Array()
    const type = byName ?? byBytes(start, size)
    if (known !== false && mayBeJson(start)) {
      const rest = isPartial && start.byteLength < size ? read(start.byteLength, size) : pieces
      if (isSmall) {
        const bytes = start.byteLength === size ? start : await joined(start, rest)
        return complete(bytes, (await jsonDetector.judge(cid, [bytes], { session, signal })) ? json : type)
      }
      // Reads the file once to detect the type and again to send it, so that nothing is kept in
      // memory in between.
      return streamed((await jsonDetector.judge(cid, prepend(start, rest), { session, signal })) ? json : type)
    }
    if (known === undefined) jsonDetector.learn(cid, false)
    if (isPartial) {
      await pieces.return(undefined)
      return streamed(type)
    }
    if (isSmall) return complete(start.byteLength === size ? start : await joined(start, pieces), type)
    // The bytes read for detection are the beginning of the response.
    return {
      ...streamed(type),
      read: (from: number, to: number) => (from === 0 && to >= size ? prepend(start, pieces) : read(from, to)),
    }
  })()
}

/** The bytes of a file that is a single raw block. */
const leafBytes = ({ cid, block, size }: Entity): Uint8Array | undefined =>
  cid.code === codec.raw && block.byteLength === size ? block : undefined

async function* prepend(first: Uint8Array, rest: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  yield first
  yield* rest
}

async function joined(first: Uint8Array, rest: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
  const pieces = [first]
  for await (const piece of rest) pieces.push(piece)
  return pieces.length === 1 ? first : Buffer.concat(pieces)
}
