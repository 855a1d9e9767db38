// Resolves a path block by block; upstreams are never trusted to resolve one. The first missing
// block is requested together with everything the path needs, so that a cold path costs one
// request.
import type { CID } from 'multiformats/cid'
import { type Block, codec, isProvable } from '../core/cid.ts'
import { after, type Soon } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import { stepInto } from '../ipld/dag-links.ts'
import type { ReadNode } from '../ipld/node-memory.ts'
import { declaredSize, readNode, wrongContent } from '../ipld/unixfs.ts'
import type { DagWant, Session } from '../retrieval/session.ts'
import { findInShards, type ShardMatch } from './dag/hamt.ts'
import type { ContentPath, Entity, Resolution } from './entity.ts'
import { visitWay, type Way, wayFrom } from './way.ts'

export type ResolveOptions = {
  /** The bytes that will be read, if known: upstreams are asked for no more. */
  readonly range?: DagWant['range']
  readonly scope?: DagWant['scope']
  /** Returns the last block as it is, even if malformed (raw, CAR), as an entity of kind `data`. */
  readonly opaque?: boolean
  /**
   * Allows the last block, if it is a leaf, to be in a reusable buffer; the reader then calls the
   * entity's `release`.
   */
  readonly lends?: boolean
}

export async function resolve(session: Session, path: ContentPath, options: ResolveOptions = {}): Promise<Resolution> {
  return resolveSoon(session, path, options)
}

/** The same, at once for a leaf that needs no wait. */
export function resolveSoon(session: Session, path: ContentPath, options: ResolveOptions = {}): Soon<Resolution> {
  if (!isLeaf(path)) return resolveWalk(session, path, options)
  const { cid } = path
  const near = leafAtHand(session, path, options)
  if (near) return near
  const { scope = 'entity', range } = options
  return after(session.get(cid, { cid, segments: [], scope, range }), (block) => leafOf(path, block, options))
}

async function resolveWalk(session: Session, path: ContentPath, options: ResolveOptions): Promise<Resolution> {
  const walk = walkPath(session, path, options)
  for (;;) {
    const { value, done } = await walk.next()
    if (done) return value
  }
}

/** A bare CID of a leaf, as most requests are. There is nothing to walk. */
const isLeaf = ({ cid, segments }: ContentPath): boolean => segments.length === 0 && cid.code === codec.raw

/** The leaf, if it can be had without a wait. Undefined: `resolveSoon` waits for it. */
export function leafAtHand(session: Session, path: ContentPath, options: ResolveOptions): Resolution | undefined {
  if (!isLeaf(path)) return undefined
  const { cid, segments } = path
  session.visitNames(segments)
  if (!isProvable(cid)) throw wrongContent(cid, 'its hash cannot be proved')
  session.pass(cid, [])
  const held = session.atHand(cid, options.lends ? lent : undefined)
  return held && leafOf(path, held.bytes, options, held.release)
}

function leafOf(
  path: ContentPath,
  block: Uint8Array,
  { opaque }: ResolveOptions,
  release?: (() => void) | undefined,
): Resolution {
  const { cid } = path
  const entity = opaque ? opaqueEntity(cid, block) : entityOf(cid, block)
  return {
    path,
    entity: release ? { ...entity, release } : entity,
    roots: [cid],
    remainder: [],
    way: wayFrom(cid),
  }
}

/**
 * Yields every block that proves the path, in order: the root, shards on the path, the entity last.
 */
export async function* walkPath(
  session: Session,
  path: ContentPath,
  options: ResolveOptions = {},
): AsyncGenerator<Block, Resolution> {
  const read = options.opaque ? opaqueEntity : (at: CID, block: Uint8Array) => entityOf(at, block, session.readNode)
  const scope = options.scope ?? 'entity'
  const roots: CID[] = []
  let cid = path.cid
  let at = 0
  let way: Way = wayFrom(cid)
  // Checks the denylists again, because the entry has another name than the one already checked.
  let isRenamed = false
  const visitRenamed = (rest: readonly string[]) => {
    if (isRenamed) visitWay(session, way, rest)
  }
  session.visitNames(path.segments)
  for (;;) {
    if (!isProvable(cid)) throw wrongContent(cid, 'its hash cannot be proved')
    const rest = path.segments.slice(at)
    session.pass(cid, rest)
    roots.push(cid)
    if (rest.length === 0) visitRenamed(rest)
    const around: DagWant = { cid, segments: rest, scope, range: options.range }
    const held = options.lends && rest.length === 0 && cid.code === codec.raw ? session.atHand(cid, lent) : undefined
    const bytes = held?.bytes ?? (await session.get(cid, around))
    yield { cid, bytes }
    if (at === path.segments.length) {
      const entity = read(cid, bytes)
      return { path, entity: held?.release ? { ...entity, release: held.release } : entity, roots, remainder: [], way }
    }
    const step = await next(session, { cid, bytes }, { path, at, around })
    if (step === undefined) throw noLink(path, at)
    yield* step.way
    if (step.cid === undefined) {
      visitRenamed(rest)
      return { path, entity: read(cid, bytes), roots, remainder: path.segments.slice(step.at), way }
    }
    const names = step.name === undefined ? path.segments.slice(at, step.at) : [step.name]
    if (names[0] !== path.segments[at]) isRenamed = true
    way = { cid: step.cid, names, above: way }
    cid = step.cid
    at = step.at
  }
}

const lent = { lends: true } as const

type PathStep = {
  readonly cid: CID | undefined
  readonly at: number
  readonly way: readonly Block[]
  /** The name that matched, if there were two readings of it. */
  readonly name?: string
}
type PathPosition = { readonly path: ContentPath; readonly at: number; readonly around: DagWant }

async function next(session: Session, block: Block, { path, at, around }: PathPosition): Promise<PathStep | undefined> {
  const { cid, bytes } = block
  switch (cid.code) {
    case codec.raw:
      return undefined
    case codec.dagPb: {
      const node = session.readNode(cid, bytes)
      const turn = session.giveWay()
      if (turn !== undefined) await turn
      const lookUp = async (name: string): Promise<ShardMatch | undefined> => {
        if (node.unixfs?.type === 'hamt-sharded-directory') return findInShards(session, block, name, around)
        if (node.unixfs !== undefined && node.unixfs.type !== 'directory') return undefined
        const link = node.links.named(name)
        return link && { cid: link.Hash, way: [] }
      }
      for (const name of new Set([path.segments[at] as string, path.encoded[at] as string])) {
        const found = await lookUp(name)
        if (found) return { ...found, at: at + 1, name }
      }
      return undefined
    }
    default:
      return intoDocument(session, block, path.segments, at)
  }
}

/** Follows names in a document up to the first link, or to the value at the end of the path. */
async function intoDocument(
  session: Session,
  block: Block,
  segments: readonly string[],
  from: number,
): Promise<PathStep | undefined> {
  const step = await stepInto(block, segments.slice(from), session.giveWay)
  if (step === 'value') return { cid: undefined, at: from, way: [] }
  return step && { cid: step.link.Hash, at: from + step.used, way: [] }
}

export function entityOf(cid: CID, block: Uint8Array, read: ReadNode = readNode): Entity {
  if (cid.code === codec.raw) return { cid, kind: 'file', block, size: block.byteLength }
  if (cid.code !== codec.dagPb) return opaqueEntity(cid, block)
  const node = read(cid, block)
  const { unixfs } = node
  const stored = { mtime: unixfs?.mtime && Number(unixfs.mtime.secs), mode: unixfs?.mode }
  switch (unixfs?.type) {
    case 'file':
    case 'raw':
      return { cid, kind: 'file', block, node, size: declaredSize(cid, node), ...stored }
    case 'directory':
    case 'hamt-sharded-directory':
      return { cid, kind: 'directory', block, size: undefined, ...stored }
    case 'symlink':
      return { cid, kind: 'symlink', block, size: unixfs.data?.byteLength ?? 0, target: unixfs.data, ...stored }
    default:
      return opaqueEntity(cid, block)
  }
}

const opaqueEntity = (cid: CID, block: Uint8Array): Entity => ({ cid, kind: 'data', block, size: block.byteLength })

/** The target of a symlink, as stored. */
export const symlinkTarget = ({ target }: Entity): Uint8Array => target ?? new Uint8Array()

function noLink({ cid, segments }: ContentPath, at: number): Failure {
  const parent = ['', 'ipfs', cid.toString(), ...segments.slice(0, at)].join('/')
  return new Failure('path-not-found', `no link named ${JSON.stringify(segments[at])} under ${parent}`, {
    source: 'content',
  })
}
