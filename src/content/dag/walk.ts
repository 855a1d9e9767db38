// Traverses the blocks of an entity, or of everything below it: depth first, parents before
// children. Fetches only what the scope and the range need, so other missing blocks do not matter.
import type { CID } from 'multiformats/cid'
import { type Block, codec, isIdentity } from '../../core/cid.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { type LazyLink, lazyLinksInOrder } from '../../ipld/block-links.ts'
import { declaredSize, type Node, startsOf, wrongContent } from '../../ipld/unixfs.ts'
import type { DagWant, Expected, Session } from '../../retrieval/session.ts'
import { maxFileBytes } from '../file.ts'
import { type PathChain, pathChainFrom, visitBelow } from '../resolve.ts'
import { isShardLink, namesInShard } from './hamt.ts'
import { between, type Children, createPending, madeOf } from './pending.ts'

/** A byte range of a file, `to` excluded. */
export type Span = { readonly from: number; readonly to: number }

type WalkOptions = {
  readonly scope: 'entity' | 'all'
  /** The wanted bytes if the entity is a file; undefined means all. */
  readonly range?: Span | undefined
  /** Yields a block each time it occurs. */
  readonly dups: boolean
  /**
   * The path of the root. Entries of a directory are checked against the denylists by their full
   * path.
   */
  readonly chain?: PathChain | undefined
  /** Names inside the root, a document: only links below the value at that path are followed. */
  readonly names?: readonly string[]
  /** Yields a block that does not decode as one without links, instead of failing. */
  readonly isLenient?: boolean
}

const maxDepth = 1024
const maxSeen = 262_144
const guessedBytes = 1024 * 1024

type PendingBlock = {
  readonly link: LazyLink
  readonly bytes?: Uint8Array | undefined
  readonly depth: number
  /** False for a sibling outside the scope or range. */
  readonly isPart: boolean
  /** The bytes of the file in this block; undefined without a range. */
  readonly span: Span | undefined
  /** The path to this block: known for entries of a directory, not for links of a document. */
  readonly chain?: PathChain | undefined
}

/** Every block of a DAG, each once. */
export const walkWhole = (session: Session, root: Block): AsyncGenerator<Block> =>
  walkDag(session, root, { scope: 'all', dups: false, chain: pathChainFrom(root.cid) })

/** Yields identity blocks too; the caller decides if they are sent. */
export async function* walkDag(session: Session, root: Block, options: WalkOptions): AsyncGenerator<Block> {
  const { scope, range, dups, chain, names = [], isLenient = false } = options
  const seen = createSeen()
  const pending = createPending<PendingBlock>()
  const span = range && { from: 0, to: Number.MAX_SAFE_INTEGER }
  pending.push([{ link: { Hash: root.cid }, bytes: root.bytes, depth: 0, isPart: true, span, chain }], 0)
  let sentBytes = 0

  const wantOf = ({ span }: PendingBlock): DagWant => ({
    cid: root.cid,
    segments: names,
    scope,
    range: range && span && { from: Math.max(range.from, span.from), to: range.to - 1 },
  })
  const fetch = async (part: PendingBlock): Promise<Uint8Array> => {
    if (part.bytes) return part.bytes
    if (part.chain) visitBelow(session, part.chain)
    return session.get(part.link.Hash, wantOf(part))
  }
  const isKnown = (cid: CID) => !dups && seen.stateOf(cid) === 'complete'
  /**
   * The next blocks to prefetch, up to the first that may have links: its children come before its
   * siblings.
   */
  function* upcoming(): Generator<Expected> {
    for (const part of pending.upcoming()) {
      const { span, chain } = part
      const { Hash: cid } = part.link
      if (!part.isPart || part.bytes || isKnown(cid)) continue
      const visit = chain && (() => visitBelow(session, chain))
      yield {
        cid,
        around: wantOf(part),
        bytes: Math.min(span ? span.to - span.from : guessedBytes, guessedBytes),
        visit,
      }
      if (cid.code !== codec.raw) return
    }
  }

  for (let part = pending.pop(); part; part = pending.pop()) {
    const { depth } = part
    const { Hash: cid } = part.link
    // Thousands of skipped parts may follow each other without an await, so yield to the event
    // loop.
    const due = session.yieldIfDue()
    if (due !== undefined) await due
    if (!part.isPart || isKnown(cid)) continue
    if (depth > maxDepth) throw wrongContent(root.cid, `it is nested more than ${maxDepth} levels deep`)
    const bytes = await fetch(part)
    const below = await childrenOf(session, { cid, bytes }, part, options)
    if (!isFailure(below)) pending.push(below, bytes.byteLength)
    const isNew = dups || seen.stateOf(cid) === undefined
    if (!dups) seen.note(cid, isComplete(part.span, range) ? 'complete' : 'sent')
    if (!isIdentity(cid)) session.expect(upcoming())
    if (!isNew) continue
    sentBytes += bytes.byteLength
    if (sentBytes > maxFileBytes)
      throw new Failure('too-large', `${root.cid} is too large to be sent`, { source: 'content' })
    yield { cid, bytes }
    // Yield the malformed block before failing, so that the client can see why the response ends
    // here.
    if (isFailure(below) && !(isLenient && (scope === 'all' || depth === 0))) throw below
  }
}

async function childrenOf(
  session: Session,
  block: Block,
  part: PendingBlock,
  { scope, range, names }: WalkOptions,
): Promise<Children<PendingBlock> | Failure> {
  try {
    return scope === 'all'
      ? await everything(session, block, part, part.depth === 0 ? names : undefined)
      : ofEntity(session, block, part, range)
  } catch (error) {
    if (isFailure(error, 'malformed')) return error
    throw error
  }
}

/**
 * Remembers the blocks sent, and those sent with everything below them. Bounded: beyond the bound a
 * block may be sent twice.
 */
function createSeen() {
  const seen = new Map<string, 'sent' | 'complete'>()
  const keyOf = (cid: CID): string => Buffer.from(cid.bytes).toString('latin1')
  return {
    stateOf: (cid: CID) => seen.get(keyOf(cid)),
    note(cid: CID, as: 'sent' | 'complete'): void {
      const key = keyOf(cid)
      if (seen.size < maxSeen || seen.has(key)) seen.set(key, as)
    },
  }
}

const isComplete = (span: Span | undefined, range: Span | undefined): boolean =>
  !range || !span || (span.from >= range.from && span.to <= range.to)

async function everything(
  session: Session,
  block: Block,
  part: PendingBlock,
  names: readonly string[] | undefined,
): Promise<Children<PendingBlock>> {
  const depth = part.depth + 1
  if (block.cid.code === codec.dagPb) return named(session, block, part.chain, depth)
  return madeOf(await lazyLinksInOrder(block, session.yieldIfDue, names), (link) => pendingBlock(link, depth))
}

const pendingBlock = (link: LazyLink, depth: number): PendingBlock => ({ link, span: undefined, depth, isPart: true })

/**
 * The children of a node; those of a directory have a path if its own is known. A shard keeps the
 * path of its directory; parts of a file have none.
 */
function named(
  { readOnce }: Session,
  { cid, bytes }: Block,
  chain: PathChain | undefined,
  depth: number,
): Children<PendingBlock> {
  const node = readOnce(cid, bytes)
  const nameOf = chain && namesIn(cid, node)
  return madeOf(node.links, (link) => {
    const name = nameOf?.(link.Name ?? '')
    if (!chain || name === undefined) return pendingBlock(link, depth)
    return {
      ...pendingBlock(link, depth),
      chain: name === '' ? chain : { cid: link.Hash, names: [name], above: chain },
    }
  })
}

function namesIn(cid: CID, node: Node): ((name: string) => string) | undefined {
  switch (node.unixfs?.type) {
    case undefined:
    case 'directory':
      return (name) => name
    case 'hamt-sharded-directory':
      return namesInShard(cid, node)
    default:
      return undefined
  }
}

/** The children that belong to the entity: parts of a file or shards of a directory. */
function ofEntity(
  { readNode }: Session,
  { cid, bytes }: Block,
  part: PendingBlock,
  range: Span | undefined,
): Children<PendingBlock> {
  const depth = part.depth + 1
  if (cid.code !== codec.dagPb) return []
  const node = readNode(cid, bytes)
  switch (node.unixfs?.type) {
    case 'hamt-sharded-directory': {
      const isShard = isShardLink(cid, node)
      return madeOf(node.links, (link) => ({ ...pendingBlock(link, depth), isPart: isShard(link) }))
    }
    case 'file':
    case 'raw': {
      if (!range || !part.span) return madeOf(node.links, (link) => pendingBlock(link, depth))
      const size = declaredSize(cid, node)
      if (part.depth > 0 && size !== part.span.to - part.span.from) {
        throw wrongContent(cid, 'its size is not the one declared above it')
      }
      const starts = startsOf(node, part.span.from)
      return madeOf(
        node.links,
        (link, index) => {
          const span = { from: starts[index] as number, to: starts[index + 1] as number }
          return { link, span, depth, isPart: span.to > span.from }
        },
        ...between(starts, range.from, range.to),
      )
    }
    default:
      return []
  }
}
