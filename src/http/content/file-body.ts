// The bytes of a file and its media type, detected from as few bytes as possible, and the same for
// GET, HEAD and ranges.
import type { Entity } from '../../content/entity.ts'
import { readFile } from '../../content/file.ts'
import { mayBeJson } from '../../content/json.ts'
import { codec } from '../../core/cid.ts'
import type { Soon } from '../../core/clock.ts'
import type { Session } from '../../retrieval/session.ts'
import { type FileType, sniffedBytes } from '../../web/file-type.ts'
import type { BodyOptions, Content } from './body.ts'

export type Typing = FileType & {
  /** The media type of non-JSON files, if it depends on nothing else. */
  readonly otherwise?: string
}

export const octets = 'application/octet-stream'
export const json = 'application/json'
// A smaller file is read completely even without the response cache: reading it twice would cost
// more.
const smallBytes = 256 * 1024

/** Types of `api` mode: JSON, or bytes. A file too large to parse is typed by its name. */
export function plainTyping(name: string, size: number, jsonMaxBytes: number): Typing {
  const byName = size <= jsonMaxBytes ? undefined : /\.json$/i.test(name) ? json : octets
  return { byName, mayBeJson: true, otherwise: octets, byBytes: () => octets }
}

/** At once if it is known from a single block. */
export function fileBody(session: Session, entity: Entity, typing: Typing, options: BodyOptions): Soon<Content> {
  const { cid, size = 0 } = entity
  const { jsonRule, jsonMaxBytes, isPartial, signal } = options
  const leaf = wholeLeaf(entity)
  const isSmall = leaf !== undefined || size <= Math.max(options.wholeBytes, smallBytes)
  const read = (from: number, to: number) => readFile(session, entity, from, to)
  const lent = (from: number, to: number) => readFile(session, entity, from, to, options)
  const streamed = (type: string): Content => ({ type, size, ranges: true, read: lent })
  const { byName, byBytes, otherwise } = typing
  const whole = (bytes: Uint8Array, type: string): Content => ({ ...inMemory(bytes, type), release: entity.release })
  if (size === 0) return inMemory(new Uint8Array(), byName ?? byBytes(new Uint8Array(), 0))
  if (byName !== undefined && (isPartial || !isSmall)) return streamed(byName)
  const known = byName === undefined && typing.mayBeJson && size <= jsonMaxBytes ? jsonRule.known(cid) : false
  const settled = known ? json : known === false ? otherwise : undefined
  if (settled !== undefined && (isPartial || !isSmall)) return streamed(settled)

  if (leaf) {
    const type = byName ?? byBytes(isPartial ? leaf.subarray(0, sniffedBytes) : leaf, size)
    if (known !== false && mayBeJson(leaf))
      return jsonRule.judge(cid, [leaf], { session, signal }).then((isJson) => whole(leaf, isJson ? json : type))
    if (known === undefined) jsonRule.learn(cid, false)
    return isPartial ? streamed(type) : whole(leaf, type)
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
        return whole(bytes, (await jsonRule.judge(cid, [bytes], { session, signal })) ? json : type)
      }
      // Reads the file once to detect the type and again to send it, so that nothing is kept in
      // memory in between.
      return streamed((await jsonRule.judge(cid, behind(start, rest), { session, signal })) ? json : type)
    }
    if (known === undefined) jsonRule.learn(cid, false)
    if (isPartial) {
      await pieces.return(undefined)
      return streamed(type)
    }
    if (isSmall) return whole(start.byteLength === size ? start : await joined(start, pieces), type)
    // The bytes read for detection are the beginning of the response.
    return {
      ...streamed(type),
      read: (from: number, to: number) => (from === 0 && to >= size ? behind(start, pieces) : read(from, to)),
    }
  })()
}

/** The bytes of a file that is a single raw block. */
const wholeLeaf = ({ cid, block, size }: Entity): Uint8Array | undefined =>
  cid.code === codec.raw && block.byteLength === size ? block : undefined

async function* behind(first: Uint8Array, rest: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  yield first
  yield* rest
}

export function inMemory(whole: Uint8Array, type: string): Content {
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
