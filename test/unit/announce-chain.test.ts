// The chain over a real store: what is kept is announced in batches, what goes is removed, and no context is used again.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import * as dagJson from '@ipld/dag-json'
import { CID } from 'multiformats/cid'
import { type Advertisement, encodeAdvertisement, noEntries } from '../../src/announce/advertisement.ts'
import { type Chain, createChain } from '../../src/announce/chain.ts'
import type { Store } from '../../src/store/store.ts'
import { identityOf } from '../support/identity.ts'
import { keep, keepLeaf, leavesOf, openStore, putFile } from '../support/stores.ts'

const identity = identityOf(Buffer.alloc(32, 7))
const addresses = ['/dns/gw.example/tcp/443/https']

type Told = { readonly ad: Advertisement; readonly cid: string; readonly entries: ReadonlySet<string> }

const text = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex')

/** As an indexer walks it: every advertisement, checked, the oldest first. */
async function walk(chain: Chain): Promise<Told[]> {
  const all: Told[] = []
  for (let at = await chain.head(); at; ) {
    const bytes = (await chain.block(at.toString())) ?? assert.fail(`a gap at ${at}`)
    const ad = dagJson.decode<Advertisement>(bytes)
    assert.deepEqual(Buffer.from(encodeAdvertisement(ad, identity).bytes), Buffer.from(bytes))
    const entries = new Set<string>()
    const isLeft = !ad.IsRm && !ad.Entries.equals(noEntries)
    for (let next: CID | undefined = isLeft ? ad.Entries : undefined; next; ) {
      const chunk = await chain.block(next.toString())
      if (!chunk) break
      const { Entries, Next } = dagJson.decode<{ Entries: Uint8Array[]; Next?: CID }>(chunk)
      for (const one of Entries) entries.add(text(one))
      next = Next
    }
    all.unshift({ ad, cid: at.toString(), entries })
    at = ad.PreviousID
  }
  return all
}

/** What an indexer knows at the end, and that no context came back. */
function known(all: readonly Told[]): Set<string> {
  const contexts = new Map<string, ReadonlySet<string>>()
  const removed = new Set<string>()
  for (const { ad, entries } of all) {
    const context = text(ad.ContextID)
    if (ad.IsRm) {
      assert.ok(contexts.delete(context), 'removes what is there')
      removed.add(context)
    } else {
      assert.ok(!removed.has(context) && !contexts.has(context), 'a context of its own')
      contexts.set(context, entries)
    }
  }
  return new Set([...contexts.values()].flatMap((entries) => [...entries]))
}

const keyOf = ({ cid }: { readonly cid: CID }) => text(cid.multihash.bytes)

async function made(t: TestContext, options: { blocks?: boolean; denied?: Set<string>; folder?: string } = {}) {
  const folder = options.folder ?? (await mkdtemp(join(tmpdir(), 'cidgate-chain-')))
  const store = openStore(folder)
  t.after(async () => {
    await store.close()
    await rm(folder, { recursive: true, force: true })
  })
  const denied = options.denied ?? new Set<string>()
  const chain = chainOver(store, options.blocks, denied)
  return { folder, store, chain, denied }
}

const chainOver = (store: Pick<Store, 'read' | 'write'>, blocks = false, denied = new Set<string>()): Chain =>
  createChain({ store, identity, addresses, blocks, isDenied: (cid) => denied.has(text(cid.multihash.bytes)) })

test('stored → one batch of roots; nothing new → same head', async (t) => {
  const { store, chain } = await made(t)
  const kept = [await keepLeaf(store, randomBytes(10)), await keep(store, (dag) => putFile(dag, leavesOf(3, 100)))]
  const head = await chain.publish()
  const all = await walk(chain)
  assert.equal(all.length, 1)
  assert.deepEqual([...known(all)].sort(), kept.map(keyOf).sort())
  assert.deepEqual(all[0]?.ad.Addresses, addresses)
  assert.equal(all[0]?.ad.Provider, identity.peerId)
  assert.ok((await chain.publish())?.equals(head as CID))
  assert.deepEqual(await chain.counts(), { advertisements: 1, contexts: 1, roots: 2 })
})

test('uploaded again before or after removal → announced once', async (t) => {
  const { store, chain } = await made(t)
  const bytes = randomBytes(10)
  const kept = await keepLeaf(store, bytes)
  await chain.publish()
  await store.remove(kept.cid)
  await keepLeaf(store, bytes)
  await chain.publish()
  assert.deepEqual([...known(await walk(chain))], [keyOf(kept)])
  await store.remove(kept.cid)
  await chain.publish()
  await keepLeaf(store, bytes)
  await chain.publish()
  assert.deepEqual([...known(await walk(chain))], [keyOf(kept)])
})

test('two batches share a list, one removed → list stays', async (t) => {
  const { store, chain } = await made(t)
  const bytes = Buffer.from([0x60])
  const leaf = await keepLeaf(store, bytes)
  await chain.publish()
  const document = CID.createV1(0x71, leaf.cid.multihash)
  await keep(store, async (dag) => {
    await dag.put(document, bytes)
    return dag.finish(document, 'unixfs-v1-2025', bytes.byteLength)
  })
  await chain.publish()
  await store.remove(leaf.cid)
  await chain.publish()
  assert.deepEqual([...known(await walk(chain))], [keyOf(leaf)])
})

test('every block announced → consecutive lists', async (t) => {
  const { store, chain } = await made(t, { blocks: true })
  const kept = await keep(store, (dag) => putFile(dag, leavesOf(17_000, 20)))
  await chain.publish()
  const all = await walk(chain)
  assert.equal(all.length, 1)
  assert.deepEqual(known(all), new Set(kept.cids.map((cid) => text(cid.multihash.bytes))))
})

test('held only elsewhere → not announced', async (t) => {
  const { store, chain } = await made(t)
  const held = { kind: 'provider', state: 'pinned', tries: 1 } as const
  const intake = store.begin()
  const dag = intake.dag()
  const { cid, bytes } = {
    cid: CID.parse('bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'),
    bytes: randomBytes(10),
  }
  await dag.put(cid, bytes)
  await store.accept([{ staged: dag.finish(cid, 'unixfs-v1-2025', 10), at: 0, holders: { pinata: held } }])
  await intake.drop()
  assert.equal(await chain.publish(), undefined)
})

test('failed commit → retried, no gap, no fork', async (t) => {
  const { store } = await made(t)
  let fails = 0
  const shaky = {
    read: store.read,
    write: (statements: Parameters<Store['write']>[0]) =>
      fails++ % 2 === 0 ? Promise.reject(new Error('the disk is full')) : store.write(statements),
  }
  const chain = chainOver(shaky)
  for (let turn = 0; turn < 5; turn++) {
    await keepLeaf(store, randomBytes(10))
    await assert.rejects(chain.publish(), /full/)
    await chain.publish()
  }
  const all = await walk(chain)
  assert.equal(all.length, 5)
  assert.equal(known(all).size, 5)
})
