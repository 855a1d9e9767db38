// What an answer carries: a type, a tag, a size where one is known, and the bytes.
import type { CID } from 'multiformats/cid'
import { listDirectory } from '../../content/directory.ts'
import type { Entity, Resolution } from '../../content/entity.ts'
import type { Rendering } from '../../content/formats/format.ts'
import { isJson } from '../../content/json.ts'
import { symlinkTarget } from '../../content/resolve.ts'
import type { Session } from '../../retrieval/session.ts'
import type { Target } from '../wire/target.ts'
import { fileBody, held, json, octets, plainTyping } from './file-body.ts'
import { etagOf } from './headers.ts'
import type { JsonRule } from './json-rule.ts'

export type Body = {
  readonly type: string
  readonly etag: string
  readonly cacheControl?: string
  /** How much of the time that `cacheControl` gives is over (RFC 9111 §5.1). */
  readonly ageSeconds?: number
  /** Another client may get another representation from the same address. */
  readonly varies?: boolean
  /** What a browser may do with it, where that is not what its type says. */
  readonly policy?: string
  /** Undefined: not known before it is made. */
  readonly size: number | undefined
  readonly ranges: boolean
  /** All of it, when it is here already. */
  readonly whole?: Uint8Array | undefined
  /** Every client gets this answer from this URL, whatever it accepts: it may be kept ready. */
  readonly isPlain?: boolean
  /** How it is saved, and under which name, when the request does not say. */
  readonly save?: { readonly kind: 'inline' | 'attachment'; readonly filename: string }
  /** Bytes `from` up to, not including, `to`. */
  readonly read: (from: number, to: number) => AsyncIterable<Uint8Array>
}

export type BodyOptions = {
  readonly jsonRule: JsonRule
  /** The largest file that is looked into to see whether it is JSON. */
  readonly jsonMaxBytes: number
  /** Up to this a file is read whole, to be kept ready. */
  readonly wholeBytes: number
  /** Only some of the bytes are wanted, or none (HEAD): no more are read than the type needs. */
  readonly isPartial: boolean
  readonly signal: AbortSignal
}

export const listingCacheControl = 'public, max-age=604800, stale-while-revalidate=2678400'

/** What a client may have already: known before a byte of the body is read. */
export function tagsOf({ entity: { cid, kind } }: Resolution): Pick<Body, 'etag' | 'cacheControl'> {
  return kind === 'directory'
    ? { etag: `W/"${cid}.listing"`, cacheControl: listingCacheControl }
    : { etag: etagOf(cid) }
}

export async function bodyOf(
  session: Session,
  resolution: Resolution,
  target: Target,
  options: BodyOptions,
): Promise<Body> {
  const { entity, path } = resolution
  const tags = tagsOf(resolution)
  switch (entity.kind) {
    case 'directory':
      return { ...tags, ...listing(session, entity, target) }
    case 'symlink':
      return { ...tags, ...held(symlinkTarget(entity), octets), isPlain: true }
    case 'data':
      return { ...tags, ...held(entity.block, isJson(entity.block) ? json : octets) }
    case 'file': {
      const name = target.query.get('filename') ?? path.segments.at(-1) ?? ''
      const typing = plainTyping(name, entity.size ?? 0, options.jsonMaxBytes)
      return { ...tags, ...(await fileBody(session, entity, typing, options)), isPlain: true }
    }
  }
}

/** A format as it was asked for, with the tag and the name that go with it. */
export function rendered(rendering: Rendering, cid: CID, parameters: string): Body {
  const tag = etagOf(cid, `${rendering.etagSuffix}${parameters}`)
  return {
    type: rendering.contentType,
    etag: rendering.weak ? `W/${tag}` : tag,
    size: rendering.size,
    ranges: rendering.ranges && rendering.size !== undefined,
    save: { kind: rendering.disposition, filename: rendering.filename },
    read: (from, to) => (rendering.ranges ? rendering.read(from, to) : rendering.read()),
  }
}

export type Content = Omit<Body, 'etag' | 'cacheControl' | 'varies'>

export function listing(session: Session, entity: Entity, target: Target): Content {
  const { cid } = entity
  const read = async function* () {
    let text = `{"cid":"${cid}","path":${JSON.stringify(decodeQuietly(target.path))},"entries":[`
    let isFirst = true
    for await (const { name, cid: child, size, type } of listDirectory(session, entity)) {
      text += `${isFirst ? '' : ','}${JSON.stringify({ name, cid: child.toString(), size, type })}`
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
