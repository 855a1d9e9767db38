// What an answer carries: a type, a tag, a size where one is known, and the bytes. The type is decided by as few bytes as
// it takes, and is the same whatever part of a file is asked for.
import type { CID } from 'multiformats/cid'
import { listDirectory } from '../content/directory.ts'
import type { Entity, Resolution } from '../content/entity.ts'
import { readFile } from '../content/file.ts'
import type { Rendering } from '../content/format.ts'
import { isJson, mayBeJson } from '../content/json.ts'
import { symlinkTarget } from '../content/resolve.ts'
import type { Session } from '../retrieval/session.ts'
import { etagOf } from './headers.ts'
import type { Target } from './target.ts'

export type Body = {
  readonly type: string
  readonly etag: string
  readonly cacheControl?: string
  /** Undefined: not known before it is made. */
  readonly size: number | undefined
  readonly ranges: boolean
  /** All of it, when it is here already. */
  readonly whole?: Uint8Array | undefined
  /** How it is saved, and under which name, when the request does not say. */
  readonly save?: { readonly kind: 'inline' | 'attachment'; readonly filename: string }
  /** Bytes `from` up to, not including, `to`. */
  readonly read: (from: number, to: number) => AsyncIterable<Uint8Array>
}

export type BodyLimits = {
  /** The largest file that is looked into to see whether it is JSON. */
  readonly jsonMaxBytes: number
  /** Up to this a file is read whole, to be kept ready. */
  readonly wholeBytes: number
}

const octets = 'application/octet-stream'
const json = 'application/json'
const listingCacheControl = 'public, max-age=604800, stale-while-revalidate=2678400'

export async function bodyOf(
  session: Session,
  { entity, path }: Resolution,
  target: Target,
  limits: BodyLimits,
): Promise<Body> {
  switch (entity.kind) {
    case 'directory':
      return listing(session, entity.cid, entity, target)
    case 'symlink':
      return held(symlinkTarget(entity), octets, etagOf(entity.cid))
    case 'data':
      return held(entity.block, isJson(entity.block) ? json : octets, etagOf(entity.cid))
    case 'file':
      return file(session, entity, target.query.get('filename') ?? path.segments.at(-1) ?? '', limits)
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

async function file(
  session: Session,
  entity: Entity,
  name: string,
  { jsonMaxBytes, wholeBytes }: BodyLimits,
): Promise<Body> {
  const size = entity.size ?? 0
  const etag = etagOf(entity.cid)
  const read = (from: number, to: number) => readFile(session, entity, from, to)
  if (size > jsonMaxBytes) return { type: /\.json$/i.test(name) ? json : octets, etag, size, ranges: true, read }
  if (size === 0) return held(new Uint8Array(), octets, etag)
  const pieces = read(0, size)[Symbol.asyncIterator]()
  const first = await pieces.next()
  const start = first.done ? new Uint8Array() : first.value
  const rest = { [Symbol.asyncIterator]: () => pieces }
  if (mayBeJson(start)) {
    const whole = await joined(start, rest)
    return held(whole, isJson(whole) ? json : octets, etag)
  }
  if (size <= wholeBytes) return held(await joined(start, rest), octets, etag)
  // What was read to see the type is the beginning of the answer, unless only a part is wanted.
  let isUsed = false
  const begun = async function* () {
    yield start
    yield* rest
  }
  return {
    type: octets,
    etag,
    size,
    ranges: true,
    read(from, to) {
      if (from === 0 && to >= size && !isUsed) {
        isUsed = true
        return begun()
      }
      pieces.return?.(undefined).catch(() => {})
      return read(from, to)
    },
  }
}

function listing(session: Session, cid: CID, entity: Entity, target: Target): Body {
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
  return {
    type: json,
    etag: `W/"${cid}.listing"`,
    cacheControl: listingCacheControl,
    size: undefined,
    ranges: false,
    read,
  }
}

function held(whole: Uint8Array, type: string, etag: string): Body {
  const read = async function* (from: number, to: number) {
    yield whole.subarray(from, to)
  }
  return { type, etag, size: whole.byteLength, ranges: true, whole, read }
}

async function joined(first: Uint8Array, rest: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
  const pieces = [first]
  for await (const piece of rest) pieces.push(piece)
  return pieces.length === 1 ? first : Buffer.concat(pieces)
}

function decodeQuietly(path: string): string {
  try {
    return decodeURIComponent(path)
  } catch {
    return path
  }
}
