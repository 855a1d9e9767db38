// Responses without a format in `api` mode: files, listings and documents as JSON.
import { listDirectory } from '../../content/directory.ts'
import type { Entity, Resolution } from '../../content/entity.ts'
import { mayBeJson } from '../../content/json.ts'
import { etagOf, type Representation } from '../../content/representation.ts'
import { symlinkTarget } from '../../content/resolve.ts'
import { spell } from '../../core/cid.ts'
import { after, type Soon } from '../../core/clock.ts'
import type { Session } from '../../retrieval/session.ts'
import type { AboutBody } from '../codings/compressible.ts'
import type { RequestTarget } from '../wire/request-target.ts'
import { fileBody, inMemory, json, octets, plainTyping } from './file-body.ts'
import type { JsonRule } from './json-rule.ts'

export type BodyOptions = {
  readonly jsonRule: JsonRule
  /** The largest file that is tested for JSON. */
  readonly jsonMaxBytes: number
  /** A file up to this size is read completely, so that the response cache can keep it. */
  readonly wholeBytes: number
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

/** The ETag and Cache-Control, known before a byte is read. */
export function tagsOf({ entity: { cid, kind } }: Resolution): Pick<Representation, 'etag' | 'cacheControl'> {
  return kind === 'directory'
    ? { etag: `W/"${cid}.listing"`, cacheControl: listingCacheControl }
    : { etag: etagOf(cid) }
}

/** The type and size as far as they are known before a byte is read. */
export function aboutPlain({ entity }: Resolution, jsonRule: JsonRule): AboutBody {
  const { cid, kind, block } = entity
  if (kind === 'directory') return { type: json }
  if (kind === 'symlink') return { type: octets }
  const size = kind === 'data' ? block.byteLength : entity.size
  return { size, type: jsonRule.known(cid) === false ? octets : undefined }
}

export function bodyOf(
  session: Session,
  resolution: Resolution,
  target: RequestTarget,
  options: BodyOptions,
): Soon<Representation> {
  const { entity, path } = resolution
  const tags = tagsOf(resolution)
  switch (entity.kind) {
    case 'directory':
      return { ...tags, ...listing(session, entity, target) }
    case 'symlink':
      return { ...tags, ...inMemory(symlinkTarget(entity), octets), isPlain: true }
    case 'data':
      return after(isJson(session, entity, options), (is) => ({
        ...tags,
        ...inMemory(entity.block, is ? json : octets),
      }))
    case 'file': {
      const name = target.query.get('filename') ?? path.segments.at(-1) ?? ''
      const typing = plainTyping(name, entity.size ?? 0, options.jsonMaxBytes)
      return after(fileBody(session, entity, typing, options), (content) => ({ ...tags, ...content, isPlain: true }))
    }
  }
}

function isJson(session: Session, { cid, block }: Entity, { jsonRule, signal }: BodyOptions): Soon<boolean> {
  if (block.byteLength === 0 || !mayBeJson(block)) return false
  return jsonRule.known(cid) ?? jsonRule.judge(cid, [block], { session, signal })
}

export type Content = Omit<Representation, 'etag' | 'cacheControl' | 'varies'>

export function listing(session: Session, entity: Entity, target: RequestTarget): Content {
  const { cid } = entity
  const read = async function* () {
    let text = `{"cid":"${cid}","path":${JSON.stringify(decodeQuietly(target.path))},"entries":[`
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

export function decodeQuietly(path: string): string {
  try {
    return decodeURIComponent(path)
  } catch {
    return path
  }
}
