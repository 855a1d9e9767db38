import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { CarReader } from '@ipld/car'
import { proves } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { openForReading } from '../../src/store/database.ts'
import { createStoreReader } from '../../src/store/reading.ts'
import type { StagedDag, Standing, Store } from '../../src/store/store.ts'
import { cidOfBytes, here, keep, keepLeaf, leavesOf, openStore, putFile, putLeaf } from '../support/stores.ts'

async function folderFor(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-store-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  return folder
}

async function storeFor(t: TestContext): Promise<{ store: Store; folder: string }> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-store-'))
  const store = openStore(folder)
  t.after(async () => {
    await store.close()
    await rm(folder, { recursive: true, force: true })
  })
  return { store, folder }
}

const files = (folder: string): Promise<string[]> => readdir(join(folder, 'uploads'))

async function assertWhole(store: Pick<Store, 'blocks'>, staged: StagedDag): Promise<void> {
  for (const cid of staged.cids) {
    const bytes = await store.blocks.get(cid)
    assert.ok(bytes && proves(cid, bytes), String(cid))
  }
}

const wanted: Standing = { kind: 'provider', state: 'pending', tries: 0 }

/** Work behind a commit: files are removed once it is over. */
async function until(check: () => Promise<boolean>): Promise<void> {
  for (let left = 200; !(await check()); left--) {
    assert.ok(left > 0, 'not in time')
    await systemClock.sleep(10)
  }
}

test('accepted uploads, small or large → there after a restart', async (t) => {
  const folder = await folderFor(t)
  const first = openStore(folder)
  const small = await keepLeaf(first, randomBytes(1000))
  const large = await keep(first, (dag) => putFile(dag, leavesOf(3, 50_000)))
  const folderOfMany = await keep(first, (dag) => putFile(dag, leavesOf(500, 500)))
  assert.equal((await files(folder)).length, 2)
  await first.close()
  const second = openStore(folder)
  t.after(() => second.close())
  for (const staged of [small, large, folderOfMany]) {
    await assertWhole(second, staged)
    const entry = await second.ledger.find(staged.cid)
    assert.deepEqual(entry?.holders, { local: here })
    assert.equal(entry?.bytes, staged.bytes)
    assert.equal(entry?.carBytes, staged.carBytes)
  }
})

test('file of an upload → a CAR that names its root', async (t) => {
  const { store, folder } = await storeFor(t)
  const staged = await keep(store, (dag) => putFile(dag, leavesOf(5, 40_000)))
  const [name = ''] = await files(folder)
  const car = await CarReader.fromBytes(await readFile(join(folder, 'uploads', name)))
  assert.deepEqual((await car.getRoots()).map(String), [String(staged.cid)])
  for (const cid of staged.cids) assert.ok(proves(cid, (await car.get(cid))?.bytes ?? new Uint8Array()))
})

test('dropped upload → no row and no file', async (t) => {
  const { store, folder } = await storeFor(t)
  const intake = store.begin()
  const staged = await putFile(intake.dag(), leavesOf(3, 50_000))
  assert.ok(await staged.get(staged.cid))
  assert.equal(await store.blocks.get(staged.cid), undefined)
  staged.offer()
  assert.ok(await store.blocks.get(staged.cid))
  await intake.drop()
  assert.equal(await store.blocks.get(staged.cid), undefined)
  assert.equal(await store.ledger.find(staged.cid), undefined)
  assert.deepEqual(await files(folder), [])
})

test('file without a row → removed at start', async (t) => {
  const folder = await folderFor(t)
  const first = openStore(folder)
  await keep(first, (dag) => putFile(dag, leavesOf(2, 50_000)))
  const [accepted] = await files(folder)
  // As a killed process leaves it.
  const intake = first.begin()
  await putFile(intake.dag(), leavesOf(2, 50_000))
  await until(async () => (await files(folder)).length === 2)
  const cut = (await files(folder)).find((name) => name !== accepted) ?? ''
  const bytes = await readFile(join(folder, 'uploads', cut))
  await intake.drop()
  await writeFile(join(folder, 'uploads', cut), bytes)
  await first.close()
  const second = openStore(folder)
  t.after(() => second.close())
  await second.ready
  await until(async () => (await files(folder)).length === 1)
})

test('uploads of one request → one file, deleted separately', async (t) => {
  const { store, folder } = await storeFor(t)
  const leaves = leavesOf(3, 40_000)
  const intake = store.begin()
  const one = await putFile(intake.dag(), leaves)
  const dag = intake.dag()
  for (const leaf of leaves) dag.adopt(cidOfBytes(leaf))
  const two = await putFile(dag, [...leaves, randomBytes(100)])
  await store.accept([one, two].map((staged) => ({ staged, at: 1, holders: { local: here } })))
  await intake.drop()
  assert.equal((await files(folder)).length, 1)
  assert.equal(await store.remove(one.cid), true)
  assert.equal(await store.remove(one.cid), false)
  await assertWhole(store, two)
  assert.equal(await store.blocks.get(one.cid), undefined)
  await store.remove(two.cid)
  await until(async () => (await files(folder)).length === 0)
  assert.equal(await store.blocks.has(cidOfBytes(leaves[0] as Uint8Array)), false)
})

test('block needed by another upload → outlives its file', async (t) => {
  const { store, folder } = await storeFor(t)
  const shared = randomBytes(20_000)
  const one = await keep(store, (dag) => putFile(dag, [shared, randomBytes(60_000)]))
  const two = await keep(store, (dag) => putFile(dag, [shared, ...leavesOf(4, 60_000)]))
  await store.remove(two.cid)
  await until(async () => (await files(folder)).length === 1)
  await assertWhole(store, one)
})

test('very large upload → delays no other, stays complete', async (t) => {
  const { store, folder } = await storeFor(t)
  const [shared, leaves] = [randomBytes(900), leavesOf(5000, 30)]
  const one = await keep(store, (dag) => putFile(dag, [shared, randomBytes(70_000)]))
  const intake = store.begin()
  const many = await putFile(intake.dag(), [shared, ...leaves])
  const order: string[] = []
  const accepting = store.accept([{ staged: many, at: 1, holders: { local: here } }]).then(() => order.push('many'))
  await keepLeaf(store, randomBytes(100))
  order.push('one')
  await accepting
  await intake.drop()
  assert.deepEqual(order, ['one', 'many'])
  await assertWhole(store, many)
  const removing = store.remove(many.cid).then(() => order.push('removed'))
  await keepLeaf(store, randomBytes(100))
  order.push('two')
  await removing
  assert.deepEqual(order.slice(2), ['two', 'removed'])
  for (const leaf of leaves.slice(0, 50)) assert.equal(await store.blocks.get(cidOfBytes(leaf)), undefined)
  await assertWhole(store, one)
  assert.deepEqual(await store.read('select id from loose'), [])
  await until(async () => (await files(folder)).length === 1)
})

test('same upload again → replaces the first', async (t) => {
  const { store, folder } = await storeFor(t)
  const leaves = leavesOf(3, 50_000)
  const one = await keep(store, (dag) => putFile(dag, leaves))
  await keep(store, (dag) => putFile(dag, leaves), { local: here })
  await until(async () => (await files(folder)).length === 1)
  await assertWhole(store, one)
  assert.equal((await store.ledger.counts()).uploads, 1)
  await store.remove(one.cid)
  await until(async () => (await files(folder)).length === 0)
})

test('last holder released → blocks go, row stays', async (t) => {
  const { store } = await storeFor(t)
  const intake = store.begin()
  const staged = await putLeaf(intake.dag(), randomBytes(100))
  await store.accept([{ staged, at: 5, holders: { kubo: { ...wanted, state: 'pinned' }, pinata: wanted } }])
  await intake.drop()
  assert.deepEqual(
    (await store.ledger.due('pinata', 10)).map(({ cid }) => String(cid)),
    [String(staged.cid)],
  )
  const { uploads, bytes, oldestAt } = await store.ledger.waiting()
  assert.deepEqual([uploads, bytes, oldestAt], [1, 100, 5])
  await assertWhole(store, staged)
  assert.equal(await store.update(staged.cid, { pinata: { ...wanted, state: 'pinned', tries: 2 } }), true)
  assert.equal(await store.blocks.get(staged.cid), undefined)
  const entry = await store.ledger.find(staged.cid)
  assert.equal(entry?.isHere, false)
  assert.equal(entry?.holders.pinata?.tries, 2)
  assert.deepEqual(await store.ledger.others(['kubo']), [{ holder: 'pinata', alone: 0, waiting: 0 }])
  assert.deepEqual(await store.ledger.others([]), [
    { holder: 'kubo', alone: 1, waiting: 0 },
    { holder: 'pinata', alone: 1, waiting: 0 },
  ])
})

test('too many wanted rows → oldest trimmed', async (t) => {
  const { store } = await storeFor(t)
  for (let at = 0; at < 5; at++) {
    const intake = store.begin()
    const staged = await putLeaf(intake.dag(), Buffer.from(`file ${at}`))
    await store.accept([{ staged, at, holders: { redis: { ...wanted, kind: 'tier' } } }])
    await intake.drop()
  }
  assert.equal(await store.trim('redis', 3, 1000), 2)
  assert.equal(await store.trim('redis', 3, 12), 1)
  assert.deepEqual(
    (await store.ledger.waitingPage(9)).map(({ at }) => at),
    [3, 4],
  )
  assert.equal(await store.trim('redis', 0, 0), 2)
  assert.equal((await store.ledger.waiting()).uploads, 0)
})

test('pages of uploads → consecutive, filtered', async (t) => {
  const { store } = await storeFor(t)
  for (let at = 0; at < 25; at++) {
    const intake = store.begin()
    const staged = await putLeaf(intake.dag(), Buffer.from(`file ${at}`))
    await store.accept([{ staged, at, holders: at % 2 ? { local: here } : { kubo: wanted } }])
    await intake.drop()
  }
  const seen: number[] = []
  for (let after: number | undefined, isFirst = true; isFirst || after !== undefined; isFirst = false) {
    const page = await store.ledger.page({ limit: 10, after })
    seen.push(...page.entries.map(({ at }) => at))
    after = page.next
  }
  assert.deepEqual(
    seen,
    Array.from({ length: 25 }, (_, at) => at),
  )
  const some = async (asked: object) => (await store.ledger.page({ limit: 100, ...asked })).entries.length
  assert.equal(await some({ holder: 'local' }), 12)
  assert.equal(await some({ holder: 'local', state: 'missing' }), 13)
  assert.equal(await some({ state: 'pending' }), 13)
  assert.equal(await some({ since: 10, until: 14 }), 5)
  assert.equal(await some({ maxBytes: 6 }), 10)
})

test('commit of another process → visible before a miss', async (t) => {
  const { store, folder } = await storeFor(t)
  await store.ready
  const reader = createStoreReader(folder, { clock: systemClock, log: silentLog })
  t.after(() => reader.close())
  await reader.ready
  const first = await keepLeaf(store, randomBytes(100))
  await assertWhole(reader, first)
  await until(async () => reader.blocks.lacks(cidOfBytes(randomBytes(9))))
  for (let count = 0; count < 50; count++) {
    const staged = await keepLeaf(store, randomBytes(100))
    assert.equal(reader.blocks.lacks(staged.cid), false)
  }
  const large = await keep(store, (dag) => putFile(dag, leavesOf(3, 50_000)))
  await assertWhole(reader, large)
})

test('commit already visible to others → block not missing', async (t) => {
  const { store, folder } = await storeFor(t)
  await store.ready
  await until(async () => store.blocks.lacks(cidOfBytes(randomBytes(9))))
  const others = openForReading(join(folder, 'cidgate.sqlite'))
  t.after(() => others.close())
  let seen = 0
  for (let tries = 0; seen === 0 && tries < 50; tries++) {
    const bytes = randomBytes(100)
    const cid = cidOfBytes(bytes)
    let isHeard = false
    const accepting = keepLeaf(store, bytes).then(() => (isHeard = true))
    while (!isHeard && seen === 0) {
      await turn()
      // Without a turn of the event loop, so that the row is seen before this process hears of its commit.
      for (const end = performance.now() + 200; seen === 0 && performance.now() < end && !isHeard; )
        if (others.get('select 1 from block where key = ?', cid.multihash.bytes)) seen++
      if (seen > 0) assert.equal(store.blocks.lacks(cid), false)
    }
    await accepting
  }
  assert.ok(seen > 0)
})

test("quota use → counted in the upload's commit", async (t) => {
  const { store } = await storeFor(t)
  const use = { token: 'a', day: 7, uploads: 1, bytes: 10 }
  await store.accept([], [use])
  await store.accept([], [use, { ...use, token: 'b' }])
  const rows = await store.read('select token, uploads, bytes from quota where day = ? order by token', [7])
  assert.deepEqual(
    rows.map((row) => ({ ...row })),
    [
      { token: 'a', uploads: 2, bytes: 20 },
      { token: 'b', uploads: 1, bytes: 10 },
    ],
  )
})

test('statements of one write → all or nothing', async (t) => {
  const { store } = await storeFor(t)
  const put = (name: string) => ({
    sql: 'insert into record (name, bytes, at) values (?, ?, ?)',
    args: [name, null, 1],
  })
  await store.write([put('a'), put('b')])
  await assert.rejects(store.write([put('c'), put('a')]))
  assert.equal((await store.read('select 1 from record')).length, 2)
})

test('empty store → no thread, small store → only the writer', async (t) => {
  let threads = 0
  const count = () => void threads++
  process.on('worker', count)
  t.after(() => process.off('worker', count))
  const { store } = await storeFor(t)
  assert.equal((await store.ledger.waiting()).uploads, 0)
  assert.equal(await store.blocks.get(cidOfBytes(randomBytes(9))), undefined)
  await store.probe()
  assert.equal(threads, 0)
  await assertWhole(store, await keepLeaf(store, randomBytes(100)))
  assert.equal((await store.ledger.counts()).uploads, 1)
  assert.equal(threads, 1)
})
