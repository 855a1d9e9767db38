// What is in a directory, one entry after another, flat or HAMT. Nothing is fetched to say more about an entry than the
// directory itself says; what a tier holds anyway may be looked at.
import type { CID } from 'multiformats/cid'
import { type Block, isIdentity } from '../block.ts'
import { Failure } from '../failure.ts'
import type { DagWant, Session } from '../retrieval/session.ts'
import type { Entity, Entry } from './entity.ts'
import { listShards, type ShardLink } from './hamt.ts'
import { createHeld } from './held.ts'
import { entityOf } from './resolve.ts'
import { rawCode, readNode } from './unixfs.ts'

export type ListingLimits = {
  /** More entries than this are a failure, not a shorter list. */
  readonly mostEntries: number
  /** How many entries may be looked into, when a tier has them, to say what they are. */
  readonly mostLooks: number
}

export const listingLimits: ListingLimits = { mostEntries: 1_000_000, mostLooks: 512 }

export async function* listDirectory(session: Session, entity: Entity, limits = listingLimits): AsyncGenerator<Entry> {
  const around: DagWant = { cid: entity.cid, segments: [], scope: 'entity' }
  let count = 0
  for await (const { name, cid, size } of linksOfDirectory(session, { cid: entity.cid, bytes: entity.block }, around)) {
    if (++count > limits.mostEntries) {
      throw new Failure('too-large', `${entity.cid} has more than ${limits.mostEntries} entries`, { source: 'content' })
    }
    yield { name, cid, size, type: await typeOf(session, cid, count <= limits.mostLooks) }
  }
}

/** Names and what they lead to, in the order stored; `around` says as what the shards of a HAMT are fetched. */
export async function* linksOfDirectory(
  session: Session,
  root: Block,
  around: DagWant,
  held = createHeld(),
): AsyncGenerator<ShardLink> {
  const { links, unixfs } = readNode(root.cid, root.bytes)
  if (unixfs?.type === 'hamt-sharded-directory') return yield* listShards(session, root, around, held)
  held.take(root.bytes.byteLength)
  for (const { Name, Hash, Tsize } of links) yield { name: Name ?? '', cid: Hash, size: Tsize }
  held.give(root.bytes.byteLength)
}

async function typeOf(session: Session, cid: CID, mayLook: boolean): Promise<Entry['type']> {
  if (cid.code === rawCode) return 'file'
  if (!isIdentity(cid) && (!mayLook || !(await session.has(cid)))) return 'unknown'
  try {
    const { kind } = entityOf(cid, await session.get(cid))
    return kind === 'data' ? 'unknown' : kind
  } catch {
    return 'unknown' // one entry that is no good does not spoil the list
  }
}
