// Finds the tiers that have the blocks of a DAG: each tier is asked by itself, and no upstream is. Nothing is copied from one tier to
// another, so that the lookup does not change its own result.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../backends/tiers/contract.ts'
import { type Block, blockKey, codec, isIdentity } from '../core/cid.ts'
import { eachLinkInSlices } from '../ipld/block-links.ts'
import type { Place, Placed, PlacedBlock } from '../observe/block-locations.ts'

const concurrency = 8

type Ahead = { readonly cid: CID; readonly parent: number | undefined; readonly isOnPath?: boolean }

/**
 * `path`: the blocks that a path was resolved by, the root's first; then what lies below the last of them. Does not reject: where `signal`
 * ends it, what was seen until then counts.
 */
export async function findPlaces(
  tiers: readonly Pick<Tier, 'name' | 'get' | 'has'>[],
  path: readonly CID[],
  { signal, maxBlocks }: { readonly signal: AbortSignal; readonly maxBlocks: number },
): Promise<Placed> {
  const blocks: PlacedBlock[] = []
  const seen = new Set<string>()
  const ahead: Ahead[] = []
  let isOver = false
  /** No more wait than can be looked for: a block may have a quarter of a million links. */
  const wait = (one: Ahead): void => {
    const key = `${one.cid.code}:${blockKey(one.cid)}`
    if (seen.has(key)) return
    if (blocks.length + ahead.length >= maxBlocks) {
      isOver = true
      return
    }
    seen.add(key)
    ahead.push(one)
  }
  for (const [index, cid] of path.entries())
    wait({ cid, parent: index === 0 ? undefined : index - 1, isOnPath: index < path.length - 1 })
  while (ahead.length > 0 && !signal.aborted) {
    const some = ahead.splice(0, concurrency)
    const found = await Promise.all(some.map((one) => place(tiers, one, signal)))
    const first = blocks.length
    blocks.push(...found.map(({ block }) => block))
    for (const [index, { above }] of found.entries())
      if (above) await eachLinkInSlices(above, (cid) => wait({ cid, parent: first + index }))
  }
  const isCut = signal.aborted || isOver
  return { tiers: tiers.map(({ name }) => name), blocks, isCut }
}

/** `above`: the block, where what lies below it is looked for. */
type Found = { readonly block: PlacedBlock; readonly above: Block | undefined }

async function place(
  tiers: readonly Pick<Tier, 'get' | 'has'>[],
  { cid, parent, isOnPath }: Ahead,
  signal: AbortSignal,
): Promise<Found> {
  const inline = isIdentity(cid) ? cid.multihash.digest : undefined
  const places = await Promise.all(tiers.map((tier) => (inline ? 'lacks' : placeIn(tier, cid, signal))))
  const isLeaf = cid.code === codec.raw
  const bytes = inline ?? (isLeaf ? undefined : await readFrom(tiers, { cid, places, signal }))
  const isAway = bytes === undefined && !(isLeaf && places.includes('has'))
  const block = {
    cid: cid.toString(),
    ...(parent !== undefined && { parent }),
    ...(bytes && { bytes: bytes.byteLength }),
    places,
    isAway,
  }
  // Siblings of the path are not what was asked for.
  return { block, above: bytes && !isOnPath ? { cid, bytes } : undefined }
}

const placeIn = (tier: Pick<Tier, 'has'>, cid: CID, signal: AbortSignal): Promise<Place> =>
  tier.has(cid, signal).then(
    (has) => (has ? 'has' : 'lacks'),
    () => 'unknown',
  )

type Reading = { readonly cid: CID; readonly places: readonly Place[]; readonly signal: AbortSignal }

async function readFrom(tiers: readonly Pick<Tier, 'get'>[], { cid, places, signal }: Reading) {
  for (const [index, tier] of tiers.entries()) {
    if (places[index] !== 'has') continue
    const bytes = await tier.get(cid, signal).catch(() => undefined)
    if (bytes) return bytes
  }
  return undefined
}
