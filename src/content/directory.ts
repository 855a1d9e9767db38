// Lists a directory entry by entry, flat or HAMT. Nothing is fetched to describe an entry beyond what the directory
// says; blocks in a tier may be read.
import type { CID } from 'multiformats/cid'
import { type Block, isIdentity } from '../core/block.ts'
import { codec } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'
import type { DagWant, Session } from '../retrieval/session.ts'
import { listShards, type ShardLink } from './dag/hamt.ts'
import { createMemoryBound } from './dag/pending.ts'
import type { DirectoryEntry, Entity } from './entity.ts'
import { entityOf } from './resolve.ts'

export type ListingLimits = {
  /** More entries than this are a failure, not a shorter list. */
  readonly mostEntries: number
  /** How many entries are read from the tiers to find out their type. */
  readonly mostLooks: number
}

export const listingLimits: ListingLimits = { mostEntries: 1_000_000, mostLooks: 256 }

// A slow tier is asked for several at once: one after another would take as long as the listing.
const looksAhead = 15
// A page waits until it has what it sorts: thousands of blocks, which the one deadline until the first byte is not for. So many
// entries have to come within it, and from there each block has a deadline of its own.
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
    if (++count > limits.mostEntries) {
      throw new Failure('too-large', `${entity.cid} has more than ${limits.mostEntries} entries`, { source: 'content' })
    }
    if (count === entriesToBegin) session.begun()
    const turn = session.giveWay()
    if (turn !== undefined) await turn
    const mayLook = count <= limits.mostLooks
    waiting.push(typeOf(session, cid, mayLook).then((type) => ({ name, cid, size, type })))
    while (waiting.length > (mayLook ? looksAhead : 0)) yield (await waiting.shift()) as DirectoryEntry
  }
  yield* waiting
}

/** Names and links in stored order; the shards of a HAMT are fetched as part of `around`. */
export async function* linksOfDirectory(
  session: Session,
  root: Block,
  around: DagWant,
  memory = createMemoryBound(),
): AsyncGenerator<ShardLink> {
  // Who comes here has decoded it already, and it may be large.
  const turn = session.giveWay()
  if (turn !== undefined) await turn
  const { links, unixfs } = session.readOnce(root.cid, root.bytes)
  if (unixfs?.type === 'hamt-sharded-directory') return yield* listShards(session, root, around, memory)
  memory.take(root.bytes.byteLength)
  for (const { Name, Hash, Tsize } of links) yield { name: Name ?? '', cid: Hash, size: Tsize }
  memory.give(root.bytes.byteLength)
}

/** Never rejects: a malformed entry, or a tier that is down, does not spoil the listing. */
async function typeOf(session: Session, cid: CID, mayLook: boolean): Promise<DirectoryEntry['type']> {
  if (cid.code === codec.raw) return 'file'
  try {
    if (!isIdentity(cid) && (!mayLook || !(await session.has(cid)))) return 'unknown'
    const { kind } = entityOf(cid, await session.get(cid), session.readOnce)
    return kind === 'data' ? 'unknown' : kind
  } catch {
    return 'unknown'
  }
}
