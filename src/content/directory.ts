// Lists a directory, flat or HAMT. Entries are described by the directory and by blocks in the
// tiers; nothing is fetched for them.
import type { CID } from 'multiformats/cid'
import { type Block, codec, isIdentity } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'
import type { DagWant, Session } from '../retrieval/session.ts'
import { listShards, type ShardLink } from './dag/hamt.ts'
import { createMemoryBound } from './dag/pending.ts'
import { type DirectoryEntry, type Entity, entityOf } from './resolve.ts'

type ListingLimits = {
  /** A directory with more entries fails instead of giving a shorter list. */
  readonly maxEntries: number
  /** The maximum number of entries that are read from the tiers for their type. */
  readonly maxTypeLookups: number
}

const listingLimits: ListingLimits = { maxEntries: 1_000_000, maxTypeLookups: 256 }

// Reads several entries from the tiers concurrently: one after another, a slow tier would delay the
// listing by each.
const typeLookupsAhead = 15
// An HTML listing sorts its entries before sending a byte, so it may need thousands of blocks. The
// first-byte deadline covers this many entries; after that, each block has its own.
export const entriesToBegin = 1_000

export async function* listDirectory(
  session: Session,
  entity: Entity,
  limits = listingLimits,
): AsyncGenerator<DirectoryEntry> {
  const around: DagWant = { cid: entity.cid, segments: [], scope: 'entity' }
  const waiting: Promise<DirectoryEntry>[] = []
  let count = 0
  for await (const { name, cid, size } of linksOfDirectory(session, { cid: entity.cid, bytes: entity.block }, around)) {
    if (++count > limits.maxEntries) {
      throw new Failure('too-large', `${entity.cid} has more than ${limits.maxEntries} entries`, { source: 'content' })
    }
    if (count === entriesToBegin) session.begun()
    const due = session.yieldIfDue()
    if (due !== undefined) await due
    const mayLookUp = count <= limits.maxTypeLookups
    waiting.push(typeOf(session, cid, mayLookUp).then((type) => ({ name, cid, size, type })))
    while (waiting.length > (mayLookUp ? typeLookupsAhead : 0)) yield (await waiting.shift()) as DirectoryEntry
  }
  yield* waiting
}

/** Yields names and links in stored order; the shards of a HAMT are fetched as part of `around`. */
export async function* linksOfDirectory(
  session: Session,
  root: Block,
  around: DagWant,
  memory = createMemoryBound(),
): AsyncGenerator<ShardLink> {
  // The caller has just decoded this node, which may be large: yield first.
  const due = session.yieldIfDue()
  if (due !== undefined) await due
  const { links, unixfs } = session.readOnce(root.cid, root.bytes)
  if (unixfs?.type === 'hamt-sharded-directory') return yield* listShards(session, root, around, memory)
  memory.take(root.bytes.byteLength)
  for (const { Name, Hash, Tsize } of links) yield { name: Name ?? '', cid: Hash, size: Tsize }
  memory.give(root.bytes.byteLength)
}

/** Never rejects: a malformed entry, or a failing tier, must not spoil the listing. */
async function typeOf(session: Session, cid: CID, mayLookUp: boolean): Promise<DirectoryEntry['type']> {
  if (cid.code === codec.raw) return 'file'
  try {
    if (!isIdentity(cid) && (!mayLookUp || !(await session.has(cid)))) return 'unknown'
    const { kind } = entityOf(cid, await session.get(cid), session.readOnce)
    return kind === 'data' ? 'unknown' : kind
  } catch {
    return 'unknown'
  }
}
