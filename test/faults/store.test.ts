// The store on bad days: processes killed at random, disks that forget, fill up, flip bytes, or go read-only, and two processes.
// STORE_KILLS and STORE_DAMAGES make it a long run.
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { randomBytes, randomInt } from 'node:crypto'
import { existsSync } from 'node:fs'
import { cp, mkdir, open, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, describe, test } from 'node:test'
import { CID } from 'multiformats/cid'
import { proves } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createDataFolders } from '../../src/data-folder/folder.ts'
import { blocksBelow } from '../../src/ipld/block-links.ts'
import { backUpStore } from '../../src/store/backup.ts'
import { openForReading } from '../../src/store/database.ts'
import { joinStore } from '../../src/store/open.ts'
import { salvageStore } from '../../src/store/salvage.ts'
import type { StagedDag, Store } from '../../src/store/store.ts'
import { tempFolder } from '../support/gateway.ts'
import { cidOfBytes, here, keep, keepLeaf, leavesOf, openStore, putFile } from '../support/stores.ts'

const kills = Number(process.env['STORE_KILLS'] ?? 4)
const damages = Number(process.env['STORE_DAMAGES'] ?? 6)
const script = new URL('../support/store-process.ts', import.meta.url).pathname

let root: string
before(async () => {
  root = await tempFolder()
})
after(() => rm(root, { recursive: true, force: true }))
const newFolder = () => join(root, randomBytes(6).toString('hex'))

type Writer = {
  readonly child: ChildProcess
  /** Acknowledged, and not being deleted. */
  readonly kept: Set<string>
  readonly gone: Promise<unknown>
}

async function startWriter(folder: string, kept: Set<string>, env: NodeJS.ProcessEnv = {}): Promise<Writer> {
  const child = spawn(process.execPath, [script, folder], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ready = Promise.withResolvers<void>()
  const lines = createInterface(child.stdout)
  lines.on('line', (line) => {
    if (line === 'ready') ready.resolve()
    else if (line.startsWith('-')) kept.delete(line.slice(1))
    else if (line !== 'done') kept.add(line)
  })
  const gone = new Promise((resolve) => lines.once('close', resolve))
  await Promise.race([ready.promise, gone])
  return { child, kept, gone }
}

async function kill({ child, gone }: Writer): Promise<void> {
  child.kill('SIGKILL')
  await gone
}

/** Whether every block of it can be read and hashes to its name. */
async function isWhole(store: Pick<Store, 'blocks'>, cid: CID): Promise<boolean> {
  const ahead = [cid]
  for (let next = ahead.pop(); next; next = ahead.pop()) {
    const bytes = await store.blocks.get(next).catch(() => undefined)
    if (!bytes || !proves(next, bytes)) return false
    ahead.push(...(await blocksBelow({ cid: next, bytes }, () => true)))
  }
  return true
}

/** Those that are not listed, or not whole. */
async function lostOf(store: Store, kept: Iterable<string>): Promise<string[]> {
  const lost: string[] = []
  for (const text of kept) {
    const cid = CID.parse(text)
    const entry = await store.ledger.find(cid).catch(() => undefined)
    if (!entry || !(await isWhole(store, cid))) lost.push(text)
  }
  return lost
}

async function assertSound(folder: string, kept: ReadonlySet<string>): Promise<void> {
  const store = openStore(folder)
  await store.ready
  assert.deepEqual(await lostOf(store, kept), [])
  assert.deepEqual(
    (await store.read('pragma integrity_check')).map((row) => Object.values(row)[0]),
    ['ok'],
  )
  const unlisted = await store.read(unlistedSql)
  assert.deepEqual(unlisted, [])
  // Work behind the start: what was cut between two commits goes.
  for (let left = 500; ; left--) {
    const cut = await store.read(cutSql)
    if (cut.length === 0) break
    assert.ok(left > 0, JSON.stringify(cut))
    await systemClock.sleep(20)
  }
  assert.equal(store.damage(), undefined)
  await store.close()
}

const cutSql = `select id from loose union all select id from car where
not exists (select 1 from upload where car = car.id) and not exists (select 1 from block where car = car.id)`
const unlistedSql = 'select id from block where uses < 1'

describe('store', () => {
  test(`${kills} random kills → every acknowledged upload complete`, { timeout: 3_600_000 }, async () => {
    const folder = newFolder()
    await mkdir(folder)
    const kept = new Set<string>()
    for (let count = 0; count < kills; count++) {
      const writer = await startWriter(folder, kept)
      await systemClock.sleep(randomInt(300))
      while (count === kills - 1 && kept.size === 0) await systemClock.sleep(10)
      await kill(writer)
      if (count % 10 === 9 || count === kills - 1) await assertSound(folder, kept)
      const cars = await readdir(join(folder, 'uploads')).catch(() => [])
      assert.ok(cars.length < 10_000)
    }
    assert.ok(kept.size > 0)
  })

  test('power cut without unsynced data → nothing acknowledged lost', async (t) => {
    const library = join(root, 'forgetful.so')
    try {
      const source = new URL('../support/forgetful-disk.c', import.meta.url).pathname
      execFileSync('cc', ['-shared', '-fPIC', '-O1', '-o', library, source, '-ldl', '-lpthread'], { stdio: 'ignore' })
    } catch {
      return t.skip('no C compiler here')
    }
    for (let round = 0; round < Math.max(2, kills / 5); round++) {
      const [folder, shadow, left] = [newFolder(), newFolder(), newFolder()]
      await mkdir(folder)
      await mkdir(join(shadow, '.ino'), { recursive: true })
      const env = { LD_PRELOAD: library, CUT_ROOT: folder, CUT_SHADOW: shadow }
      const writer = await startWriter(folder, new Set(), env)
      while (writer.kept.size === 0 && writer.child.exitCode === null) await systemClock.sleep(20)
      await systemClock.sleep(300 + randomInt(700))
      await kill(writer)
      await cp(shadow, left, { recursive: true, dereference: true })
      await rm(join(left, 'cidgate.sqlite-shm'), { force: true })
      assert.ok(writer.kept.size > 0)
      await assertSound(left, writer.kept)
    }
  })

  test('second process over the folder → refused, first continues', async () => {
    const folder = newFolder()
    await mkdir(folder)
    const writer = await startWriter(folder, new Set())
    const { store, leave } = joinStore(createDataFolders().enter(folder), { clock: systemClock, log: silentLog })
    await assert.rejects(store.ready, (error) => isFailure(error, 'refused'))
    await assert.rejects(keepLeaf(store, randomBytes(10)))
    await leave()
    const before = writer.kept.size
    while (writer.kept.size === before && writer.child.exitCode === null) await systemClock.sleep(10)
    await kill(writer)
    await assertSound(folder, writer.kept)
  })

  test('full disk → disk-full, uploads complete, deletions free space', async (t) => {
    const folder = newFolder()
    await mkdir(folder)
    try {
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=20m', 'none', folder], { stdio: 'ignore' })
    } catch {
      return t.skip('only root may mount a small disk')
    }
    const filler = join(folder, 'filler')
    try {
      const store = openStore(folder)
      const kept: StagedDag[] = []
      let refusal: unknown
      for (let count = 0; refusal === undefined; count++) {
        const fill = count % 10 === 0 ? leavesOf(3, 60_000) : leavesOf(1, 30_000)
        await keep(store, (dag) => putFile(dag, fill)).then(
          (one) => kept.push(one),
          (error: unknown) => (refusal = error),
        )
      }
      assert.ok(isFailure(refusal, 'disk-full'), String(refusal))
      await assert.rejects(store.probe(), (error) => isFailure(error, 'disk-full'))
      // Another program takes the rest.
      const handle = await open(filler, 'w')
      for (;;)
        if (
          await handle.write(Buffer.alloc(65_536)).then(
            () => false,
            () => true,
          )
        )
          break
      await handle.close()
      assert.deepEqual(
        await lostOf(
          store,
          kept.slice(0, 5).map(({ cid }) => String(cid)),
        ),
        [],
      )
      const [half, rest] = [kept.slice(0, kept.length / 2), kept.slice(kept.length / 2)]
      for (const { cid } of half) assert.equal(await store.remove(cid), true)
      await rm(filler)
      const more = await keep(store, (dag) => putFile(dag, leavesOf(1, 30_000)))
      await store.close()
      await assertSound(folder, new Set([...rest, more].map(({ cid }) => String(cid))))
    } finally {
      execFileSync('umount', ['-l', folder])
    }
  })

  test('full disk at start → reads and deletions work', async (t) => {
    const folder = newFolder()
    await mkdir(folder)
    try {
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'none', folder], { stdio: 'ignore' })
    } catch {
      return t.skip('only root may mount a small disk')
    }
    try {
      const first = openStore(folder)
      const kept = await keepLeaf(first, randomBytes(1000))
      await first.probe()
      await first.close()
      await writeFile(join(folder, 'cidgate.reserve'), Buffer.alloc(1024 * 1024))
      const handle = await open(join(folder, 'filler'), 'w')
      for (;;)
        if (
          await handle.write(Buffer.alloc(4096)).then(
            () => false,
            () => true,
          )
        )
          break
      await handle.close()
      const store = openStore(folder)
      assert.ok(await isWhole(store, kept.cid))
      await assert.rejects(keepLeaf(store, randomBytes(1000)), (error) => isFailure(error, 'disk-full'))
      assert.equal(await store.remove(kept.cid), true)
      await store.close()
    } finally {
      execFileSync('umount', ['-l', folder])
    }
  })

  test('read-only disk → reads work, uploads refused', async (t) => {
    const folder = newFolder()
    await mkdir(folder)
    const first = openStore(folder)
    const small = await keepLeaf(first, randomBytes(1000))
    const large = await keep(first, (dag) => putFile(dag, leavesOf(3, 60_000)))
    await first.close()
    try {
      execFileSync('mount', ['--bind', folder, folder], { stdio: 'ignore' })
      execFileSync('mount', ['-o', 'remount,bind,ro', folder], { stdio: 'ignore' })
    } catch {
      return t.skip('only root may mount a disk read-only')
    }
    const own = createDataFolders().enter(folder)
    try {
      const { store, leave } = joinStore(own, { clock: systemClock, log: silentLog })
      for (const { cid } of [small, large]) assert.ok(await isWhole(store, cid))
      assert.equal((await store.ledger.page({ limit: 10 })).entries.length, 2)
      await assert.rejects(keepLeaf(store, randomBytes(10)), (error) => isFailure(error, 'disk-error'))
      await leave()
    } finally {
      own.leave()
      execFileSync('umount', ['-l', folder])
    }
  })

  test('bit flip or zeroed page anywhere → opens, nearly all intact', {
    timeout: 3_600_000,
  }, async () => {
    const folder = newFolder()
    await mkdir(folder)
    const first = openStore(folder)
    const kept: string[] = []
    await Promise.all(
      Array.from({ length: 400 }, async () => kept.push(String((await keepLeaf(first, randomBytes(1024))).cid))),
    )
    for (let count = 0; count < 4; count++)
      kept.push(String((await keep(first, (dag) => putFile(dag, leavesOf(3, 40_000)))).cid))
    await first.close()
    const good = await readFile(join(folder, 'cidgate.sqlite'))
    const lost: Record<'byte' | 'page', number[]> = { byte: [], page: [] }
    for (let count = 0; count < damages; count++) {
      const kind = count % 2 === 0 ? 'byte' : 'page'
      const bad = Buffer.from(good)
      // The first page more often than chance would have it.
      const at = count % 6 < 2 ? randomInt(4096) : randomInt(bad.byteLength)
      if (kind === 'byte') bad[at] = (bad[at] as number) ^ (1 << randomInt(8))
      else bad.fill(0, at & ~4095, (at & ~4095) + 4096)
      const folderOf = newFolder()
      await cp(folder, folderOf, { recursive: true })
      await rename(join(folderOf, 'cidgate.sqlite'), join(folderOf, 'whole'))
      await writeFile(join(folderOf, 'cidgate.sqlite'), bad)
      const store = openStore(folderOf)
      await store.ready
      lost[kind].push((await lostOf(store, kept)).length)
      await store.close()
      await rm(folderOf, { recursive: true })
    }
    const median = (all: number[]) => all.sort((one, other) => one - other)[all.length >> 1] ?? 0
    if (process.env['STORE_DAMAGES']) console.log(JSON.stringify(lost), kept.length)
    assert.ok(median(lost.byte) <= 1, JSON.stringify(lost))
    assert.ok(median(lost.page) <= 20, JSON.stringify(lost))
  })

  test('clock jumps → order and pages stay', async () => {
    const folder = newFolder()
    await mkdir(folder)
    const store = openStore(folder)
    for (const at of [5_000, 1, 9_000_000_000_000, 3]) {
      const intake = store.begin()
      const staged = await putFile(intake.dag(), leavesOf(1, 10))
      await store.accept([
        { staged, at, holders: { k: { kind: 'provider', state: 'pending', tries: 0, notBefore: at } } },
      ])
      await intake.drop()
    }
    const { entries } = await store.ledger.page({ limit: 10 })
    assert.deepEqual(
      entries.map(({ id }) => id),
      [1, 2, 3, 4],
    )
    assert.deepEqual(
      (await store.ledger.due('k', 10)).map(({ at }) => at),
      [1, 3, 5_000, 9_000_000_000_000],
    )
    await store.close()
    assert.ok(existsSync(folder))
  })

  test('backup under load → contains every earlier acknowledged upload', async () => {
    const [folder, copy] = [newFolder(), newFolder()]
    await mkdir(folder)
    const writer = await startWriter(folder, new Set(), { STORE_KEEPS: '1' })
    while (writer.kept.size === 0) await systemClock.sleep(50)
    const before = writer.kept.size
    await backUpStore(folder, copy, new AbortController().signal)
    const acknowledged = new Set(writer.kept)
    assert.ok(acknowledged.size >= before)
    await kill(writer)
    await assertSound(copy, acknowledged)
    await assert.rejects(backUpStore(folder, copy, new AbortController().signal), /is not empty/)
  })

  test('salvage that died, then another → file contents restored', async () => {
    const folder = newFolder()
    await mkdir(folder)
    const first = openStore(folder)
    const large: string[] = []
    for (let count = 0; count < 5; count++)
      large.push(String((await keep(first, (dag) => putFile(dag, leavesOf(3, 40_000)))).cid))
    const small: string[] = []
    for (let count = 0; count < 100; count++) small.push(String((await keepLeaf(first, randomBytes(1000))).cid))
    await first.close()
    const file = join(folder, 'cidgate.sqlite')
    const bytes = await readFile(file)
    // The last pages hold blocks of small uploads.
    for (const page of [2, 5, 9]) bytes.fill(0, bytes.byteLength - 4096 * page, bytes.byteLength - 4096 * (page - 1))
    await writeFile(file, bytes)
    const cut = join(folder, 'uploads', 'cut.car')
    await symlink('nowhere', cut)
    await assert.rejects(salvageStore(folder, 'local', Date.now() - 1000), /ENOENT/)
    await rm(cut)
    const { uploads } = await salvageStore(folder, 'local', Date.now())
    assert.ok(uploads >= 80, `${uploads}`)
    const store = openStore(folder)
    assert.deepEqual(await lostOf(store, large), [])
    assert.ok((await lostOf(store, small)).length <= 25)
    assert.equal((await store.ledger.find(CID.parse(large[0] as string)))?.holders['local']?.state, 'pinned')
    await keepLeaf(store, randomBytes(10))
    await store.close()
  })

  for (const loss of ['missing', 'empty'])
    test(`database ${loss}, small uploads alone → no new database`, async () => {
      const folder = newFolder()
      const first = openStore(folder)
      await keepLeaf(first, randomBytes(1000))
      await first.close()
      const file = join(folder, 'cidgate.sqlite')
      if (loss === 'missing') await rm(file)
      else await writeFile(file, '')
      const second = openStore(folder)
      await assert.rejects(second.ready, /there is no .*cidgate.sqlite/)
      await assert.rejects(keepLeaf(second, randomBytes(10)))
      await second.close()
    })

  for (const how of ['removed', 'replaced'])
    test(`database ${how} while open → uploads refused, damage reported`, async () => {
      const folder = newFolder()
      const store = openStore(folder)
      await store.ready
      const file = join(folder, 'cidgate.sqlite')
      await cp(file, `${file}.other`)
      if (how === 'removed') await rm(file)
      else await rename(`${file}.other`, file)
      await assert.rejects(store.probe())
      await assert.rejects(keepLeaf(store, randomBytes(10)))
      assert.match(store.damage() ?? '', /removed or replaced/)
      await store.close()
    })

  for (const loss of ['missing', 'empty'])
    test(`database ${loss}, upload files present → salvage restores`, async () => {
      const folder = newFolder()
      await mkdir(folder)
      const first = openStore(folder)
      const { cid } = await keep(first, (dag) => putFile(dag, leavesOf(3, 40_000)))
      await first.close()
      const file = join(folder, 'cidgate.sqlite')
      if (loss === 'missing') await rm(file)
      else await writeFile(file, '')
      const second = openStore(folder)
      await assert.rejects(second.ready, /there is no .*cidgate.sqlite/)
      await second.close()
      await salvageStore(folder, 'local', Date.now())
      const store = openStore(folder)
      assert.deepEqual(await lostOf(store, [String(cid)]), [])
      await store.close()
    })

  test('inner page of the blocks zeroed → salvage restores those below', async () => {
    const folder = newFolder()
    const file = join(folder, 'cidgate.sqlite')
    const first = openStore(folder)
    const kept = await Promise.all(Array.from({ length: 60 }, (_, at) => keepLeaf(first, randomBytes(500 + 300 * at))))
    await first.close()
    const db = openForReading(file)
    const page = Number(db.get("select rootpage from sqlite_schema where name = 'block'")?.rootpage)
    db.close()
    const handle = await open(file, 'r+')
    await handle.write(Buffer.alloc(4096), 0, 4096, (page - 1) * 4096)
    await handle.close()
    assert.deepEqual((await salvageStore(folder, 'local', Date.now())).incomplete, [])
    const again = openStore(folder)
    for (const { cid } of kept) assert.ok(await isWhole(again, cid))
    await again.close()
  })

  test('salvage with a daily copy → used where rows are damaged', async () => {
    const folder = newFolder()
    const [file, copy] = [join(folder, 'cidgate.sqlite'), join(folder, 'cidgate-ledger.sqlite')]
    const first = openStore(folder)
    const { cid: kept } = await keepLeaf(first, randomBytes(1000))
    const { cid: deleted } = await keepLeaf(first, randomBytes(1000))
    await first.close()
    await cp(file, copy)
    const second = openStore(folder)
    await second.remove(deleted)
    await second.close()
    const { uploads } = await salvageStore(folder, 'local', Date.now() - 1000)
    const third = openStore(folder)
    assert.deepEqual([uploads, await third.ledger.find(deleted)], [1, undefined])
    assert.ok(await third.ledger.find(kept))
    await third.close()
    await writeFile(file, '')
    assert.equal((await salvageStore(folder, 'local', Date.now())).uploads, 2)
  })

  test('database older than its files → files kept, salvage restores', async () => {
    const folder = newFolder()
    const first = openStore(folder)
    const { cid: earlier } = await keepLeaf(first, randomBytes(1000))
    await first.close()
    await cp(join(folder, 'cidgate.sqlite'), join(root, 'older'))
    const second = openStore(folder)
    const { cid } = await keep(second, (dag) => putFile(dag, leavesOf(3, 40_000)))
    await second.close()
    await cp(join(root, 'older'), join(folder, 'cidgate.sqlite'))
    await writeFile(join(folder, 'uploads', 'cut.car'), randomBytes(9000).fill(0, 51, 52))
    const third = openStore(folder)
    await third.ready
    assert.match(third.damage() ?? '', /1 files of uploads are newer than the database/)
    assert.equal((await readdir(join(folder, 'uploads'))).length, 1)
    await third.close()
    const { damage } = await backUpStore(folder, newFolder(), new AbortController().signal)
    assert.match(damage.join(), /1 files of uploads are newer than the database/)
    await salvageStore(folder, 'local', Date.now())
    const fourth = openStore(folder)
    assert.deepEqual(await lostOf(fourth, [String(earlier), String(cid)]), [])
    assert.equal(fourth.damage(), undefined)
    await fourth.close()
  })

  test('salvage, one of two uploads deleted → stays deleted', async () => {
    const folder = newFolder()
    const first = openStore(folder)
    const intake = first.begin()
    const one = await putFile(intake.dag(), leavesOf(2, 40_000))
    const two = await putFile(intake.dag(), leavesOf(2, 40_000))
    await first.accept([one, two].map((staged) => ({ staged, at: 1, holders: { local: here } })))
    await intake.drop()
    await first.remove(one.cid)
    await first.close()
    assert.deepEqual((await salvageStore(folder, 'local', Date.now())).byRoots, [])
    const second = openStore(folder)
    assert.equal(await second.ledger.find(one.cid), undefined)
    assert.deepEqual(await lostOf(second, [String(two.cid)]), [])
    const entry = await second.ledger.find(two.cid)
    assert.deepEqual([entry?.bytes, entry?.carBytes, entry?.holders], [two.bytes, two.carBytes, { local: here }])
    await second.close()
  })

  test('block lost in salvage → error until uploaded again', async () => {
    const folder = newFolder()
    const first = openStore(folder)
    const leaves = leavesOf(3, 40_000)
    const { cid } = await keep(first, (dag) => putFile(dag, leaves))
    await first.close()
    const [name = ''] = await readdir(join(folder, 'uploads'))
    const file = join(folder, 'uploads', name)
    const bytes = await readFile(file)
    const at = bytes.indexOf(leaves[1] as Uint8Array)
    bytes[at] = (bytes[at] as number) ^ 1
    await writeFile(file, bytes)
    assert.deepEqual((await salvageStore(folder, 'local', Date.now())).incomplete, [String(cid)])
    const lost = cidOfBytes(leaves[1] as Uint8Array)
    const second = openStore(folder)
    assert.ok(await second.ledger.find(cid))
    assert.equal(await second.blocks.has(lost), false)
    await assert.rejects(second.blocks.get(lost), (error) => isFailure(error, 'disk-error'))
    await keep(second, (dag) => putFile(dag, leaves))
    assert.deepEqual(await lostOf(second, [String(cid)]), [])
    await second.close()
  })
})
