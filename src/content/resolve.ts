// Parses a content path, and resolves it block by block; upstreams are never trusted to resolve one.
// The first missing block is requested together with everything the path needs, so that a cold path
// costs one request.

import type { CID } from 'multiformats/cid'
import { type Block, codec, isProvable, maxCidChars, parseCid, parseLeaf, textOf } from '../core/cid.ts'
import { after, type Soon } from '../core/clock.ts'
import { Failure, malformed } from '../core/failure.ts'
import { decoded } from '../core/wire/http.ts'
import { stepInto } from '../ipld/block-links.ts'
import type { ReadNode } from '../ipld/node-memory.ts'
import { declaredSize, type Node, readNode, wrongContent } from '../ipld/unixfs.ts'
import type { DagWant, Session } from '../retrieval/session.ts'
import { findInShards, type ShardMatch } from './dag/hamt.ts'

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
  const near = leafInMemory(session, path, options)
  if (near) return near
  const { scope = 'entity', range } = options
  return after(session.get(cid, { cid, segments: [], scope, range }), (block) => leafOf(path, block, options))
}

async function resolveWalk(session: Session, path: ContentPath, options: ResolveOptions): Promise<Resolution> {
  const steps = walkPath(session, path, options)
  for (;;) {
    const { value, done } = await steps.next()
    if (done) return value
  }
}

/** A bare CID of a leaf, as most requests are. There is nothing to walk. */
const isLeaf = ({ cid, segments }: ContentPath): boolean => segments.length === 0 && cid.code === codec.raw

/** The leaf, if it can be had without a wait. Undefined: `resolveSoon` waits for it. */
export function leafInMemory(session: Session, path: ContentPath, options: ResolveOptions): Resolution | undefined {
  if (!isLeaf(path)) return undefined
  const { cid, segments } = path
  session.visitNames(segments)
  if (!isProvable(cid)) throw wrongContent(cid, 'its hash cannot be proved')
  session.pass(cid, [])
  const held = session.peek(cid, options.lends ? lent : undefined)
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
    chain: pathChainFrom(cid),
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
  let chain: PathChain = pathChainFrom(cid)
  // Checks the denylists again, because the entry has another name than the one already checked.
  let isRenamed = false
  const visitRenamed = (rest: readonly string[]) => {
    if (isRenamed) visitChain(session, chain, rest)
  }
  session.visitNames(path.segments)
  for (;;) {
    if (!isProvable(cid)) throw wrongContent(cid, 'its hash cannot be proved')
    const rest = path.segments.slice(at)
    session.pass(cid, rest)
    roots.push(cid)
    if (rest.length === 0) visitRenamed(rest)
    const around: DagWant = { cid, segments: rest, scope, range: options.range }
    const held = options.lends && rest.length === 0 && cid.code === codec.raw ? session.peek(cid, lent) : undefined
    const bytes = held?.bytes ?? (await session.get(cid, around))
    yield { cid, bytes }
    if (at === path.segments.length) {
      const entity = read(cid, bytes)
      return {
        path,
        entity: held?.release ? { ...entity, release: held.release } : entity,
        roots,
        remainder: [],
        chain,
      }
    }
    const step = await next(session, { cid, bytes }, { path, at, around })
    if (step === undefined) throw noLink(path, at)
    yield* step.shards
    if (step.cid === undefined) {
      visitRenamed(rest)
      return { path, entity: read(cid, bytes), roots, remainder: path.segments.slice(step.at), chain }
    }
    const names = step.name === undefined ? path.segments.slice(at, step.at) : [step.name]
    if (names[0] !== path.segments[at]) isRenamed = true
    chain = { cid: step.cid, names, above: chain }
    cid = step.cid
    at = step.at
  }
}

const lent = { lends: true } as const

type PathStep = {
  readonly cid: CID | undefined
  readonly at: number
  /** The shards passed to reach it. */
  readonly shards: readonly Block[]
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
      const due = session.yieldIfDue()
      if (due !== undefined) await due
      const lookUp = async (name: string): Promise<ShardMatch | undefined> => {
        if (node.unixfs?.type === 'hamt-sharded-directory') return findInShards(session, block, name, around)
        if (node.unixfs !== undefined && node.unixfs.type !== 'directory') return undefined
        const link = node.links.named(name)
        return link && { cid: link.Hash, shards: [] }
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
  const step = await stepInto(block, segments.slice(from), session.yieldIfDue)
  if (step === 'value') return { cid: undefined, at: from, shards: [] }
  return step && { cid: step.link.Hash, at: from + step.used, shards: [] }
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

const maxPathChars = 8 * 1024
const maxSegments = 1024

/** The codecs that this gateway can decode. */
const readable: ReadonlySet<number> = new Set<number>([
  codec.raw,
  codec.dagPb,
  codec.dagCbor,
  codec.dagJson,
  codec.json,
  codec.cbor,
])

/** `rest`: the raw, still encoded text after `/ipfs/`, without the query. */
export function parsePath(rest: string): ContentPath {
  const { root, ...names } = splitPath(rest)
  return { cid: parseRoot(root), ...names }
}

/** Splits a path into the root as sent, of any kind, and the names after it. */
export function splitPath(rest: string): Omit<ContentPath, 'cid'> & { readonly root: string } {
  if (rest.length > maxPathChars) throw malformed(`the path is longer than ${maxPathChars} characters`)
  const [root = '', ...names] = rest.split('/')
  const encoded = names.filter((name) => name !== '')
  if (encoded.length > maxSegments) throw malformed(`the path has more than ${maxSegments} segments`)
  return { root, segments: encoded.map(decodeSegment), encoded }
}

export function parseRoot(text: string): CID {
  if (text.length > maxCidChars) throw malformed('the CID is too long')
  const cid = parseLeaf(text) ?? parseCid(text)
  if (!cid) throw malformed(`invalid path ${JSON.stringify(`/ipfs/${text}`)}: not a CID; expected /ipfs/<cid>[/<path>]`)
  if (cid.code === codec.libp2pKey) throw malformed(`${text} is an IPNS key and not content: ask for /ipns/${text}`)
  if (!readable.has(cid.code))
    throw malformed(`the codec 0x${cid.code.toString(16)} of ${text} is not one this gateway reads`)
  if (!isProvable(cid)) {
    throw malformed(`${text} cannot be proved: its hash function or digest length is not one this gateway trusts`)
  }
  return cid
}

function decodeSegment(encoded: string): string {
  // No client sends these unencoded, and URL parsers disagree on them.
  if (/[\\#]/.test(encoded)) throw malformed('a backslash or # in the path has to be percent-encoded')
  const name = decoded(encoded)
  if (name === undefined) throw malformed(`${JSON.stringify(encoded)} in the path is not percent-encoded UTF-8`)
  if (name === '.' || name === '..') throw malformed('a path cannot hold . or .. segments')
  if (/[\0/]/.test(name)) throw malformed('a name in the path cannot hold a slash or NUL')
  if (!name.isWellFormed()) throw malformed('a name in the path is not well-formed Unicode')
  return name
}

/**
 * An entity on a path, its parent, and the names that lead to it from there. The topmost one is the
 * CID of the request.
 */
export type PathChain = {
  readonly cid: CID
  readonly names: readonly string[]
  readonly above: PathChain | undefined
}

export const pathChainFrom = (cid: CID): PathChain => ({ cid, names: [], above: undefined })

/** Bounds the checks for each entity of an export that is nested a thousand directories deep. */
const maxAbove = 64

/**
 * Checks the path to this entity, and `rest` below it, against the denylists, starting from each
 * entity on the path.
 */
function visitChain(session: Session, chain: PathChain, rest: readonly string[], max = Number.POSITIVE_INFINITY): void {
  let below = rest
  let count = 0
  for (let at: PathChain | undefined = chain; at && count <= max; at = at.above) {
    session.visit(at.cid, below)
    if (!at.above) session.visitNames(below)
    below = [...at.names, ...below]
    count++
  }
}

/** The same check for an entry of an export, starting from its nearest ancestors only. */
export const visitBelow = (session: Session, chain: PathChain): void => visitChain(session, chain, [], maxAbove)

/** `/ipfs/<cid>[/<segment>…]`, decoded and validated. */
export type ContentPath = {
  readonly cid: CID
  readonly segments: readonly string[]
  /**
   * The segments still encoded: old content has names with a literal `%20`, so both readings are
   * tried.
   */
  readonly encoded: readonly string[]
}

type EntityKind =
  | 'file' // UnixFS file, or a raw block
  | 'directory' // UnixFS directory, flat or HAMT
  | 'symlink'
  | 'data' // dag-cbor, dag-json, json, cbor: a document, or dag-pb that is not UnixFS

/**
 * The end of a path. Its root block is verified and in memory; the rest is read through the session
 * on demand.
 */
export type Entity = {
  readonly cid: CID
  readonly kind: EntityKind
  /** The bytes of the root block (for an identity CID: of its digest). */
  readonly block: Uint8Array
  /** The decoded block of a file, if it was decoded. */
  readonly node?: Node
  /**
   * Set if `block` is in a reusable buffer: to be called when the reader, and everything it passed
   * the block to, are done with it.
   */
  readonly release?: (() => void) | undefined
  /**
   * The size of the file, of the symlink's target or of the document; undefined for a directory.
   */
  readonly size: number | undefined
  /** UnixFS 1.5 modification time in seconds; undefined if the content has none. */
  readonly mtime?: number | undefined
  /** UnixFS mode, or the default of its kind. */
  readonly mode?: number | undefined
  /** The target of a symlink, as stored. */
  readonly target?: Uint8Array | undefined
}

export type Resolution = {
  readonly path: ContentPath
  readonly entity: Entity
  /** The CID of each path component from the root to the entity (X-Ipfs-Roots). */
  readonly roots: readonly CID[]
  /**
   * The rest of a path that ends at a value inside a dag-cbor or dag-json document; otherwise
   * empty.
   */
  readonly remainder: readonly string[]
  /** The path of the entity by the names that matched, decoded or as sent. */
  readonly chain: PathChain
}

export type DirectoryEntry = {
  readonly name: string
  readonly cid: CID
  /** Cumulative DAG size as the link declares it (Tsize); a hint, never verified. */
  readonly size: number | undefined
  /**
   * The type as far as the CID or inlined data shows it: a raw link is a file; a dag-pb link is
   * unknown.
   */
  readonly type: 'file' | 'directory' | 'symlink' | 'unknown'
}

/** Refuses a path that ends at a value inside a document: a block cannot be served in part. */
export function refuseRemainder({ entity, remainder }: Resolution): void {
  if (remainder.length === 0) return
  const value = remainder.join('/')
  throw new Failure('unsupported', `${value} in ${entity.cid} is a value, not a link; read ${entity.cid} itself`, {
    source: 'client',
    facts: { remainder: value },
  })
}

/**
 * The ETag of an entity, or of a variant of it named by `suffix`. Made elsewhere:
 *
 * - listings as JSON: `offerOf` of http/content/body.ts
 * - pages: `listingEtag` of web/listing.ts, `documentEtag` of web/document-page.ts, `textEtag` of web/page.ts
 * - compressed bodies: `codedTag` of http/content/negotiate.ts
 * - hashes of the bytes: IPNS records (http/content/name.ts), routing records (http/routing.ts), the
 *   API description (http/openapi/page.ts), the admin status (admin/admin.ts)
 */
export const etagOf = (cid: CID, suffix = ''): string => `"${textOf(cid)}${suffix}"`
