// What random histories upload and read: one block, several, and one that the upstream lacks. Few, so that a history comes back to what
// it did; of different bytes, so that no file has a block of another one.
import { blockKey, proves } from '../../../src/core/cid.ts'
import { linksOf } from '../../../src/ipld/block-links.ts'
import { largeLeafBytes } from '../../../src/retrieval/tiers/tier-stack.ts'
import { addFile, type BlockMap, type FileFixture, noise } from '../../support/fixtures.ts'

export const remote: BlockMap = new Map()
const elsewhere: BlockMap = new Map()
export const files: readonly FileFixture[] = [
  await addFile(remote, noise(1000, 1)),
  await addFile(remote, noise(1_300_000, 2)),
  await addFile(elsewhere, noise(5000, 3)),
]
export const isRemote = (index: number): boolean => index < 2
export const fileOf = (index: number): FileFixture => files[index] as FileFixture
/** Such leaves are not kept in memory beside a disk. */
export const hasLargeLeaves = (index: number): boolean => fileOf(index).bytes.byteLength >= largeLeafBytes

const known = new Map([...remote, ...elsewhere])

/** By what is read at a key of a block. */
export type Held = (key: string) => Uint8Array | undefined

/** Every block of it, as it was. */
export function isWhole(held: Held, { cid }: FileFixture): boolean {
  const bytes = held(blockKey(cid))
  if (!bytes || !proves(cid, bytes)) return false
  return linksOf({ cid, bytes }).every((link) => isWhole(held, { cid: link, bytes }))
}

/** Some block of it, in whatever state. */
export function hasSome(held: Held, { cid }: FileFixture): boolean {
  if (held(blockKey(cid))) return true
  const bytes = known.get(blockKey(cid))
  return bytes !== undefined && linksOf({ cid, bytes }).some((link) => hasSome(held, { cid: link, bytes }))
}
