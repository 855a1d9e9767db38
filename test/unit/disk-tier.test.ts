// The disk tier on a real folder: its bound, what it evicts, and what it makes of a folder that others have been in.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, truncate, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, test } from 'node:test'
import type { Tier } from '../../backends/tiers/contract.ts'
import { disk } from '../../backends/tiers/disk.ts'
import { createRoom, shardOf } from '../../backends/tiers/disk-room.ts'
import { blockKey, proves } from '../../src/core/block.ts'
import { systemClock } from '../../src/core/clock.ts'
import { createFilesAtHand } from '../../src/core/disk/at-hand.ts'
import { createBuffers } from '../../src/core/disk/buffers.ts'
import { temporaryIn } from '../../src/core/disk/files.ts'
import { isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createDataFolders } from '../../src/data-folder/folders.ts'
import { bytesOf, cidOf, eventually } from '../../src/testing/tier.ts'
import { createShiftedClock, patientClock } from '../support/shifted-clock.ts'

const folders: string[] = []
const tiers: Tier[] = []
const dataFolders = createDataFolders()
afterEach(async () => {
  for (const tier of tiers.splice(0)) await tier.close()
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true })
})

async function tempFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-disk-'))
  folders.push(folder)
  return folder
}

function open(path: string, maxBytes = '8MiB', clock = systemClock): Tier {
  const options = disk.options.parse({ path, maxBytes })
  const own = { name: 'disk', userAgent: 'cidgate/test', data: path, folders: dataFolders }
  const tier = disk.create(options, { ...own, log: silentLog, clock })
  tiers.push(tier)
  return tier
}

const block = (seed: number, length = 64 * 1024) => {
  const bytes = bytesOf(length, seed)
  // The seed alone repeats after 256: the length of the pattern does not matter, the first bytes make it another block.
  new DataView(bytes.buffer).setUint32(0, seed)
  const cid = cidOf(bytes)
  return { bytes, cid, key: blockKey(cid) }
}

/** What is there now; a file that a writer renames while we look is left out. */
async function filesIn(path: string): Promise<{ path: string; bytes: number }[]> {
  const names = await readdir(path, { recursive: true, withFileTypes: true })
  const files = names.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name))
  const found = await Promise.all(
    files.map(async (file) => ({ path: file, found: await stat(file).catch(() => undefined) })),
  )
  return found.flatMap((one) => (one.found ? [{ path: one.path, bytes: one.found.size }] : []))
}
const total = (files: { bytes: number }[]): number => files.reduce((sum, { bytes }) => sum + bytes, 0)
const fileOf = (path: string, key: string): string => join(path, shardOf(key), key)

test('never holds more than maxBytes, however many write at once, and most of what fits', async () => {
  const path = await tempFolder()
  const tier = open(path)
  let most = 0
  for (let round = 0; round < 7; round++) {
    await Promise.all(
      Array.from({ length: 32 }, (_, index) =>
        tier.put(block(round * 32 + index).cid, block(round * 32 + index).bytes),
      ),
    )
    most = Math.max(most, total(await filesIn(path)))
  }
  assert.ok(most <= 8 << 20, `${most} bytes`)
  assert.ok(most >= (8 << 20) * 0.7, `only ${most} bytes`)
})

test('tiny blocks are counted as the disk counts them', async () => {
  const path = await tempFolder()
  const tier = open(path, '256KiB')
  for (let seed = 0; seed < 120; seed++) await tier.put(block(seed, 10).cid, block(seed, 10).bytes)
  const files = await filesIn(path)
  assert.ok(files.length <= 64 && files.length > 40, `${files.length} files of 4 KiB each in 256 KiB`)
})

test('what was used longest ago goes first, also when it was used by reading', async () => {
  const path = await tempFolder()
  const tier = open(path, '1MiB')
  const blocks = Array.from({ length: 15 }, (_, seed) => block(seed))
  for (const { cid, bytes } of blocks) await tier.put(cid, bytes)
  const hours = (count: number) => new Date(Date.now() - count * 3_600_000)
  for (const [index, { key }] of blocks.entries()) await utimes(fileOf(path, key), hours(30 - index), hours(30 - index))
  // The oldest is read: that is noted on its file, and the next oldest goes instead of it.
  const [read, gone] = blocks
  assert.ok(read && gone && (await tier.get(read.cid)))
  for (let seed = 100; seed < 103; seed++) await tier.put(block(seed).cid, block(seed).bytes)
  assert.ok(await tier.has(read.cid), 'the one that was read')
  assert.equal(await tier.has(gone.cid), false, 'the one that was not')
  assert.ok(await tier.has(block(102).cid), 'the newest')
})

test('after the clock was set back, what is used or written since outlives what was not', async () => {
  const path = await tempFolder()
  const tier = open(path, '1MiB')
  const blocks = Array.from({ length: 14 }, (_, seed) => block(seed))
  for (const { cid, bytes } of blocks) await tier.put(cid, bytes)
  const nextWeek = new Date(Date.now() + 7 * 24 * 3_600_000)
  for (const { key } of blocks) await utimes(fileOf(path, key), nextWeek, nextWeek)
  const used = blocks.slice(0, 3)
  for (const { cid } of used) assert.ok(await tier.get(cid))
  const written = Array.from({ length: 6 }, (_, index) => block(100 + index))
  for (const { cid, bytes } of written) await tier.put(cid, bytes)
  for (const { cid } of [...used, ...written]) assert.ok(await tier.has(cid))
  const others = await Promise.all(blocks.slice(3).map(({ cid }) => tier.has(cid)))
  assert.ok(others.includes(false), 'some of the others made room')
})

test('a file that is being written stays, however far the clock jumps ahead', async () => {
  const path = await tempFolder()
  const clock = createShiftedClock()
  const room = createRoom({ path, maxBytes: 1024 * 1024, clock, onEvicted: () => {} })
  const [ours, leftover] = [temporaryIn(join(path, 'aa')), join(path, 'aa', '.0123-4567.tmp')]
  await mkdir(join(path, 'aa'))
  for (const file of [ours, leftover]) await writeFile(file, 'half')
  clock.shift(7 * 24 * 3_600_000)
  const place = await room.reserve('aa', 1000)
  place?.landed(false)
  assert.deepEqual(
    (await filesIn(path)).map((file) => file.path),
    [ours],
  )
  await room.close()
})

test('a budget that was lowered is reached by writing, from a new process too', async () => {
  const path = await tempFolder()
  const before = open(path, '8MiB')
  for (let seed = 0; seed < 100; seed++) await before.put(block(seed).cid, block(seed).bytes)
  await before.close()
  const after = open(path, '2MiB')
  await after.put(block(200).cid, block(200).bytes)
  assert.ok(total(await filesIn(path)) <= 2 << 20)
  assert.ok(await after.get(block(200).cid))
})

test('disk tier: unwritten groups are read in turn, and old leftovers of a crash are removed', async () => {
  const path = await tempFolder()
  const room = createRoom({ path, maxBytes: 256 * 1024 * 1024, clock: systemClock, onEvicted: () => {} })
  const leftovers = ['aa', 'bc', 'zz', '77'].map((shard) => join(path, shard, 'key.0123.tmp'))
  for (const file of leftovers) {
    await mkdir(dirname(file))
    await writeFile(file, 'half')
    await utimes(file, new Date(0), new Date(0))
  }
  const fresh = join(path, 'aa', 'key.4567.tmp')
  await writeFile(fresh, 'being written')
  await eventually('all leftovers are gone', async () => {
    const place = await room.reserve('mm', 1000)
    place?.landed(false)
    return (await filesIn(path)).length === 1
  })
  assert.equal(await readFile(fresh, 'utf8'), 'being written')
  await room.close()
})

test('what the folder lacks is soon known without a look, and what it has or is given is never said to be absent', async () => {
  const path = await tempFolder()
  const before = open(path)
  const [old, given, foreign] = [block(1), block(2), block(3)]
  await before.put(old.cid, old.bytes)
  await before.close()
  const tier = open(path)
  const lacks = ({ cid }: { cid: typeof old.cid }) => tier.lacks?.(cid)
  assert.equal(lacks(old), false, 'the folder was not read yet')
  // In the shard of the old one too, which has to be read first.
  const others = Array.from({ length: 4000 }, (_, index) => block(index + 10, 64))
  const sameShard = others.filter(({ key }) => shardOf(key) === shardOf(old.key))
  assert.ok(sameShard.length > 0)
  await eventually('all others are known to be absent', () => others.every(lacks), 20_000)
  assert.equal(lacks(old), false)
  await tier.put(given.cid, given.bytes)
  assert.equal(lacks(given), false)
  await tier.delete(given.cid)
  await tier.put(given.cid, given.bytes)
  assert.ok(await tier.get(given.cid))
  // Even of what it has not seen, `get` finds what is there.
  await mkdir(dirname(fileOf(path, foreign.key)), { recursive: true })
  await writeFile(fileOf(path, foreign.key), foreign.bytes)
  assert.ok(await tier.get(foreign.cid))
})

test('what the tier of a gateway before a reload writes is not said to be absent', async () => {
  const path = await tempFolder()
  const [older, newer] = [open(path), open(path, '9MiB')]
  const blocks = Array.from({ length: 40 }, (_, index) => block(index, 64))
  await eventually('they are known to be absent', () => blocks.every(({ cid }) => newer.lacks?.(cid)))
  for (const { cid, bytes } of blocks) await older.put(cid, bytes)
  await older.close()
  assert.deepEqual(
    blocks.filter(({ cid }) => newer.lacks?.(cid)),
    [],
  )
})

test('after files were evicted, their shards are read again', async () => {
  const path = await tempFolder()
  const tier = open(path, '1MiB')
  const blocks = Array.from({ length: 40 }, (_, seed) => block(seed))
  for (const { cid, bytes } of blocks) await tier.put(cid, bytes)
  const held = await Promise.all(blocks.map(({ cid }) => tier.has(cid)))
  assert.ok(held.includes(false) && held.includes(true))
  await eventually(
    'what was evicted is known to be absent, and the rest is not',
    () => blocks.every(({ cid }, index) => tier.lacks?.(cid) === !held[index]),
    20_000,
  )
})

test('a file over 2 MiB is refused unread and deleted', async () => {
  const path = await tempFolder()
  const tier = open(path)
  const { cid, bytes, key } = block(1)
  await tier.put(cid, bytes)
  await truncate(fileOf(path, key), 3 << 20)
  assert.equal(await tier.get(cid), undefined)
  assert.equal((await filesIn(path)).length, 0)
})

for (const [what, place] of [
  ['a folder', (file) => mkdir(join(file, 'a'), { recursive: true })],
  ['a link to a device', (file) => symlink('/dev/zero', file)],
] satisfies [string, (file: string) => Promise<unknown>][])
  test(`${what} in the place of a block is a miss, and a block takes its place`, async () => {
    const path = await tempFolder()
    const tier = open(path)
    const { cid, bytes, key } = block(1)
    for (const isReadBefore of [true, false]) {
      await tier.put(cid, bytes)
      await rm(fileOf(path, key))
      await place(fileOf(path, key))
      assert.equal(await tier.has(cid), false)
      if (isReadBefore) assert.equal(await tier.get(cid), undefined)
      await tier.put(cid, bytes)
      assert.ok(Buffer.from(bytes).equals((await tier.get(cid)) ?? Buffer.alloc(0)))
    }
  })

test('disk tier: a removed folder is made again; a block larger than maxBytes is not kept', async () => {
  const path = await tempFolder()
  const tier = open(path, '512KiB')
  const { cid, bytes } = block(1)
  await tier.put(cid, bytes)
  await rm(path, { recursive: true })
  assert.equal(await tier.get(cid), undefined)
  await tier.put(cid, bytes)
  assert.ok(await tier.get(cid))
  const large = block(2, 1 << 20)
  await tier.put(large.cid, large.bytes)
  assert.equal(await tier.get(large.cid), undefined)
  assert.ok(await tier.get(cid))
})

test('disk tier: an outage names cause and remedy, and a probe finds it first', async () => {
  const path = join(await tempFolder(), 'file')
  await writeFile(path, '')
  const tier = open(path)
  const says = (error: unknown) =>
    isFailure(error, 'broken') && /ENOTDIR.*in the place of the folder/.test(error.message)
  await assert.rejects(tier.probe?.() ?? Promise.resolve(), says)
  await assert.rejects(tier.put(block(1).cid, block(1).bytes), says)
  const fine = open(await tempFolder())
  await fine.probe?.()
})

test('thousands of calls at once open few files, and end', async () => {
  // Their time is that of a busy machine: what counts here is how many there are.
  const tier = open(await tempFolder(), '8MiB', patientClock)
  const { cid, bytes } = block(1, 1000)
  await tier.put(cid, bytes)
  const open64 = async () => (await readdir('/proc/self/fd').catch(() => [])).length
  const before = await open64()
  const reads = Array.from({ length: 3000 }, () => tier.get(cid))
  let most = 0
  for (let turn = 0; turn < 10; turn++) most = Math.max(most, await open64())
  assert.ok((await Promise.all(reads)).every((read) => read?.byteLength === 1000))
  assert.ok(most - before <= 80, `${most - before} files open`)
})

test('kill -9 while writing leaves whole blocks and leftovers, and nothing that lies', async () => {
  const path = await tempFolder()
  const here = new URL('.', import.meta.url).href
  const writer = `
    const { disk } = await import('${here}../../backends/tiers/disk.ts')
    const { cidOf } = await import('${here}../../src/testing/tier.ts')
    const { createDataFolders } = await import('${here}../../src/data-folder/folders.ts')
    const { systemClock } = await import('${here}../../src/core/clock.ts')
    const tier = disk.create({ path: process.env.FOLDER, maxBytes: 128 << 20 }, { name: 'disk', userAgent: 'cidgate/test', data: '', folders: createDataFolders(), log() {}, clock: systemClock })
    const blocks = Array.from({ length: 48 }, (_, seed) => new Uint8Array(2 << 20).fill(seed))
    const wanted = blocks.map((bytes) => [cidOf(bytes), bytes])
    await tier.put(...wanted[0])
    console.log('writing')
    await Promise.all(wanted.map(([cid, bytes]) => tier.put(cid, bytes)))
    setInterval(() => {}, 1000)`
  const child = spawn(process.execPath, ['--input-type=module', '-e', writer], {
    env: { ...process.env, FOLDER: path },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  await once(child.stdout, 'data')
  await eventually('several files are begun', async () => (await filesIn(path)).length >= 4)
  child.kill('SIGKILL')
  await once(child, 'exit')
  const files = await filesIn(path)
  assert.ok(files.length >= 4)
  for (const file of files.filter((one) => !one.path.endsWith('.tmp'))) {
    const bytes = await readFile(file.path)
    const cid = cidOf(bytes)
    assert.ok(file.path.endsWith(blockKey(cid)) && proves(cid, bytes), `${file.path} is not whole`)
  }
  const tier = open(path, '64MiB')
  await tier.put(block(1).cid, block(1).bytes)
  assert.ok(await tier.get(block(1).cid))
})

test('a block that was written or read is at hand, whole and in part, until it is deleted', async () => {
  const path = await tempFolder()
  const tier = open(path)
  const { cid, bytes, key } = block(1)
  await tier.put(cid, bytes)
  await eventually('it is at hand', () => tier.atHand?.(cid) !== undefined, 20_000)
  assert.deepEqual(tier.atHand?.(cid)?.bytes, Buffer.from(bytes))
  assert.deepEqual([tier.holds?.(cid), tier.holds?.(block(2).cid)], [true, false])
  const part = tier.atHand?.(cid, { part: { from: 100, to: 300 } })
  assert.deepEqual([part?.bytes, part?.size], [Buffer.from(bytes.subarray(100, 300)), bytes.byteLength])
  const again = open(path)
  assert.equal(again.atHand?.(cid), undefined, 'what this process has not read is left to a thread')
  await again.get(cid)
  await eventually('it is at hand there, too', () => again.atHand?.(cid) !== undefined, 20_000)
  await truncate(fileOf(path, key), 10)
  assert.equal(again.atHand?.(cid), undefined, 'what is shorter than it was')
  await tier.delete(cid)
  assert.equal(tier.atHand?.(cid), undefined)
  assert.equal(tier.holds?.(cid), false)
})

/** A file that is known to be at hand, on a clock that moves with each look at it. */
async function atHand() {
  const path = await tempFolder()
  const file = join(path, 'file')
  await writeFile(file, 'content')
  const time = { now: 1_000_000, step: 0 }
  const files = createFilesAtHand(path, { ...systemClock, monotonic: () => (time.now += time.step) })
  files.note('key', 7, 0)
  const read = () => files.read('key', file)?.bytes.toString()
  await eventually('it is at hand', () => read() === 'content', 20_000)
  return { files, time, read, file }
}

test('after a read that took long files are left to threads for a while, and longer if that happens again', async () => {
  const { time, read } = await atHand()
  const slow = () => {
    time.step = 400
    const said = read()
    time.step = 0
    return said
  }
  const pausedFor = () => {
    const since = time.now
    while (read() === undefined) time.now += 50
    return time.now - since
  }
  assert.equal(slow(), 'content')
  assert.equal(read(), undefined)
  const first = pausedFor()
  assert.equal(slow(), 'content')
  assert.ok(pausedFor() > first)
  for (let count = 0; count < 20; count++) {
    slow()
    pausedFor()
  }
  assert.equal(slow(), 'content')
  assert.ok(pausedFor() <= 60_000)
})

test('whether a file is there is known at once, and neither said nor denied while the disk is in doubt', async () => {
  const { files, time, file } = await atHand()
  const said = () => [files.isThere(file), files.isThere(`${file}-other`)]
  assert.deepEqual(said(), [true, false])
  assert.equal(files.isThere(join(dirname(file), 'a'.repeat(300))), undefined, 'no such name can be')
  time.step = 400
  files.isThere(file)
  time.step = 0
  assert.deepEqual(said(), [undefined, undefined])
})

test('while a thread waits for the disk nothing is at hand', async () => {
  const { files, time, read } = await atHand()
  const ended = files.began()
  assert.equal(read(), 'content')
  time.now += 1000
  assert.equal(read(), undefined)
  ended()
  assert.equal(read(), 'content')
})

test('what was not read for long is no longer taken to be in the page cache', async () => {
  const { time, read, files, file } = await atHand()
  time.now += 250_000
  assert.equal(read(), 'content')
  time.now += 1_000_000
  files.note('other', 1, 0)
  assert.equal(files.read('key', file), undefined)
})

test('where files may lie on another machine, nothing is at hand', { skip: process.platform !== 'linux' }, async () => {
  const files = createFilesAtHand('/proc', systemClock)
  files.note('key', 1, 0)
  await new Promise((resolve) => setTimeout(resolve, 20))
  assert.equal(files.read('key', '/proc/self/stat'), undefined)
})

test('lent memory is used again when it was given back, and by one reader at a time', () => {
  const buffers = createBuffers(1 << 20)
  const one = buffers.lend(20_000)
  const other = buffers.lend(20_000)
  assert.notEqual(one.bytes.buffer, other.bytes.buffer)
  one.release()
  one.release()
  const [third, fourth] = [buffers.lend(30_000), buffers.lend(30_000)]
  assert.equal(third.bytes.buffer, one.bytes.buffer)
  assert.notEqual(fourth.bytes.buffer, one.bytes.buffer, 'given back twice is given back once')
  const large = Array.from({ length: 3 }, () => buffers.lend(1 << 20))
  for (const { release } of large) release()
  const kept = Array.from({ length: 3 }, () => buffers.lend(1 << 20)).filter(({ bytes }) =>
    large.some((before) => before.bytes.buffer === bytes.buffer),
  )
  assert.equal(kept.length, 1, 'no more is kept than may lie idle')
})
