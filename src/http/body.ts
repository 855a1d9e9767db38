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
import type { JsonRule } from './json-rule.ts'
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

const octets = 'application/octet-stream'
const json = 'application/json'
const listingCacheControl = 'public, max-age=604800, stale-while-revalidate=2678400'
// Held for one client at a time, whatever is kept ready: reading these twice would cost more than they take.
const smallBytes = 256 * 1024
// Enough to see a `{` or something else; where there is only white space, all of it is read.
const lookBytes = 1024

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
      return { ...tags, ...(await file(session, entity, name, options)), isPlain: true }
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

type Content = Omit<Body, 'etag' | 'cacheControl'>

async function file(session: Session, entity: Entity, name: string, options: BodyOptions): Promise<Content> {
  const { cid, size = 0 } = entity
  const { jsonRule, jsonMaxBytes, isPartial } = options
  const isSmall = size <= Math.max(options.wholeBytes, smallBytes)
  const read = (from: number, to: number) => readFile(session, entity, from, to)
  const streamed = (type: string): Content => ({ type, size, ranges: true, read })
  if (size > jsonMaxBytes) return streamed(/\.json$/i.test(name) ? json : octets)
  if (size === 0) return held(new Uint8Array(), octets)
  const known = jsonRule.known(cid)
  if (known !== undefined && (isPartial || !isSmall)) return streamed(known ? json : octets)

  const pieces = read(0, isPartial ? Math.min(size, lookBytes) : size)
  const first = await pieces.next()
  const start = first.done ? new Uint8Array() : first.value
  if (mayBeJson(start)) {
    const rest = isPartial && start.byteLength < size ? read(start.byteLength, size) : pieces
    if (isSmall) {
      const whole = await joined(start, rest)
      return held(whole, jsonRule.judge(cid, whole) ? json : octets)
    }
    // What is read to be judged is not what is sent: it would be held for as long as a slow client takes.
    return streamed((await judgeLarge(cid, size, () => joined(start, rest), options)) ? json : octets)
  }
  jsonRule.learn(cid, false)
  if (isPartial) {
    await pieces.return(undefined)
    return streamed(octets)
  }
  if (isSmall) return held(await joined(start, pieces), octets)
  // What was read to see the type is the beginning of the answer.
  const begun = async function* () {
    yield start
    yield* pieces
  }
  return { ...streamed(octets), read: (from, to) => (from === 0 && to >= size ? begun() : read(from, to)) }
}

async function judgeLarge(
  cid: CID,
  size: number,
  readWhole: () => Promise<Uint8Array>,
  { jsonRule, signal }: BodyOptions,
): Promise<boolean> {
  const leave = await jsonRule.room(size, signal)
  try {
    return jsonRule.known(cid) ?? jsonRule.judge(cid, await readWhole())
  } finally {
    leave()
  }
}

function listing(session: Session, entity: Entity, target: Target): Content {
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

function held(whole: Uint8Array, type: string): Content {
  const read = async function* (from: number, to: number) {
    yield whole.subarray(from, to)
  }
  return { type, size: whole.byteLength, ranges: true, whole, read }
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
