// Stores for tests: made in a folder, filled with files of one leaf or many.
import { createHash, randomBytes } from 'node:crypto'
import { encode as encodePb, prepare } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { codec, hash } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { createStore } from '../../src/store/open.ts'
import type { Filling, StagedDag, Standing, Store } from '../../src/store/store.ts'

export const openStore = (folder: string, log = silentLog): Store => createStore(folder, { clock: systemClock, log })

export const here: Standing = { kind: 'here', state: 'pinned', tries: 1 }

export const cidOfBytes = (bytes: Uint8Array, code: number = codec.raw): CID =>
  CID.createV1(code, createDigest(hash.sha256, createHash('sha256').update(bytes).digest()))

export async function putLeaf(dag: Filling, bytes: Uint8Array): Promise<StagedDag> {
  const cid = cidOfBytes(bytes)
  await dag.put(cid, bytes)
  return dag.finish(cid, 'unixfs-v1-2025', bytes.byteLength)
}

/** A file of these leaves. */
export async function putFile(dag: Filling, leaves: readonly Uint8Array[]): Promise<StagedDag> {
  const sizes = leaves.map(({ byteLength }) => BigInt(byteLength))
  for (const bytes of leaves) await dag.put(cidOfBytes(bytes), bytes)
  const node = encodePb(
    prepare({
      Data: new UnixFS({ type: 'file', blockSizes: sizes }).marshal(),
      Links: leaves.map((bytes) => ({ Name: '', Hash: cidOfBytes(bytes), Tsize: bytes.byteLength })),
    }),
  )
  const root = cidOfBytes(node, codec.dagPb)
  await dag.put(root, node)
  return dag.finish(root, 'unixfs-v1-2025', Number(sizes.reduce((sum, size) => sum + size, 0n)))
}

export const leavesOf = (count: number, bytes: number): Uint8Array[] =>
  Array.from({ length: count }, () => randomBytes(bytes))

/** Accepts one upload, held here. */
export async function keep(
  store: Store,
  fill: (dag: Filling) => Promise<StagedDag>,
  holders = { local: here },
): Promise<StagedDag> {
  const intake = store.begin()
  try {
    const staged = await fill(intake.dag())
    await store.accept([{ staged, at: Date.now(), holders }])
    return staged
  } finally {
    await intake.drop()
  }
}

export const keepLeaf = (store: Store, bytes: Uint8Array): Promise<StagedDag> =>
  keep(store, (dag) => putLeaf(dag, bytes))
