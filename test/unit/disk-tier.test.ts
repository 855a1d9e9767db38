// The disk tier on a real folder: its bound, what it drops, and what it makes of a folder that others write to.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import {
  mkdir,
  mkdtemp,
  open as openFile,
  readdir,
  readFile,
  rm,
  stat,
  symlink,
  truncate,
  utimes,
  writeFile,
} from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Tier } from '../../backends/tiers/contract.ts'
import { disk } from '../../backends/tiers/disk.ts'
import { createSegments } from '../../backends/tiers/disk-segments.ts'
import { systemClock } from '../../src/core/clock.ts'
import { type AtOnce, createAtOnce } from '../../src/core/disk/at-once.ts'
import { createBuffers } from '../../src/core/disk/buffers.ts'
import { isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { bytesOf, cidOf, eventually } from '../../src/testing/tier.ts'
import { createShiftedClock, patientClock } from '../support/shifted-clock.ts'

const folders: string[] = []
const tiers: Tier[] = []
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
  const tier = disk.create(options, { name: 'disk', userAgent: 'cidgate/test', data: path, log: silentLog, clock })
  tiers.push(tier)
  return tier
}

const block = (seed: number, length = 64 * 1024) => {
  const bytes = bytesOf(length, seed)
  // The seed alone repeats after 256: the length of the pattern does not matter, the first bytes make it another block.
  new DataView(bytes.buffer).setUint32(0, seed)
  return { bytes, cid: cidOf(bytes) }
}

const putAll = async (tier: Tier, seeds: readonly number[]): Promise<void> => {
  for (const seed of seeds) await tier.put(block(seed).cid, block(seed).bytes)
}
const range = (from: number, to: number): number[] => Array.from({ length: to - from }, (_, index) => from + index)
const same = (one: Uint8Array | undefined, other: Uint8Array): boolean =>
  one !== undefined && Buffer.compare(one, other) === 0

/** The bytes of all files; one that is dropped meanwhile is left out. */
async function bytesIn(path: string): Promise<number> {
  const sizes = (await readdir(path)).map((name) =>
    stat(join(path, name)).then(
      ({ size }) => size,
      () => 0,
    ),
  )
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0)
}
const contentOf = async (path: string): Promise<Buffer> =>
  Buffer.concat(await Promise.all((await readdir(path)).sort().map((name) => readFile(join(path, name)))))

test('many concurrent writers → never above maxBytes, nearly full', async () => {
  const path = await tempFolder()
  const tier = open(path)
  let most = 0
  for (let round = 0; round < 7; round++) {
    await Promise.all(range(round * 32, round * 32 + 32).map((seed) => tier.put(block(seed).cid, block(seed).bytes)))
    most = Math.max(most, await bytesIn(path))
  }
  assert.ok(most <= 8 << 20, `${most} bytes`)
  assert.ok((await bytesIn(path)) >= (8 << 20) * 0.7)
})

test('tiny blocks → within maxBytes', async () => {
  const path = await tempFolder()
  const tier = open(path, '64KiB')
  for (let seed = 0; seed < 1000; seed++) await tier.put(block(seed, 10).cid, block(seed, 10).bytes)
  const bytes = await bytesIn(path)
  assert.ok(bytes <= 64 << 10 && bytes > (64 << 10) * 0.7, `${bytes} bytes`)
  assert.ok(await tier.get(block(999, 10).cid))
})

test('full → oldest evicted first, recently read ones stay', async () => {
  const path = await tempFolder()
  const tier = open(path, '4MiB')
  await putAll(tier, range(0, 20))
  const read = block(0)
  for (let seed = 20; seed < 200; seed += 10) {
    await putAll(tier, range(seed, seed + 10))
    assert.ok(same(await tier.get(read.cid), read.bytes), `gone after ${seed}`)
  }
  assert.equal(await tier.has(block(1).cid), false)
  assert.ok(await tier.has(block(199).cid))
})

/** The share of hits among requests with Zipf 0.9, with a block of a crawler after each. */
async function hitRatio(tiers: readonly Tier[], requests: number): Promise<number> {
  const files = 1000
  const length = 2000
  const weights = range(1, files + 1).map((rank) => rank ** -0.9)
  const sum = weights.reduce((one, other) => one + other)
  let seed = 1
  const random = () => (seed = (seed * 1664525 + 1013904223) % 2 ** 32) / 2 ** 32
  const draw = () => {
    let at = random() * sum
    return weights.findIndex((weight) => (at -= weight) < 0)
  }
  let hits = 0
  for (let request = 0; request < requests; request++) {
    const tier = tiers[request % tiers.length] as Tier
    const { cid, bytes } = block(draw(), length)
    const isHit = (await tier.get(cid)) !== undefined
    if (!isHit) await tier.put(cid, bytes)
    if (isHit && request > requests / 2) hits++
    const crawled = block(files + request, length)
    await tier.put(crawled.cid, crawled.bytes)
  }
  return (2 * hits) / requests
}

// In a tier for 125 of 1,000 files. A queue that spares what was read has 0.43.
for (const processes of [1, 2])
  test(`crawler and ${processes} process(es) → most read blocks stay`, async () => {
    const path = await tempFolder()
    const ratio = await hitRatio(
      range(0, processes).map(() => open(path, '256KiB')),
      2000,
    )
    assert.ok(ratio > 0.5, `${ratio} of requests`)
  })

test('everything was read → oldest evicted all the same', async () => {
  const path = await tempFolder()
  const tier = open(path, '2MiB')
  for (const seed of range(0, 100)) {
    await putAll(tier, [seed])
    await tier.get(block(seed).cid)
  }
  assert.ok((await bytesIn(path)) <= 2 << 20)
  assert.ok(await tier.has(block(99).cid))
})

test('lower maxBytes → enforced from start', async () => {
  const path = await tempFolder()
  const before = open(path, '8MiB')
  await putAll(before, range(0, 100))
  await before.close()
  const after = open(path, '2MiB')
  assert.equal(await after.has(block(0).cid), true)
  await eventually('it is within its bytes', async () => (await bytesIn(path)) <= 2 << 20)
  await putAll(after, [200])
  assert.ok(await after.get(block(200).cid))
})

test('another process writes → readable at once, never reported absent', async () => {
  const path = await tempFolder()
  const [one, other] = [open(path), open(path, '9MiB')]
  await putAll(one, [1])
  await putAll(other, [2])
  await eventually('the folder is settled', () => one.hasNow?.(block(3).cid) === false)
  for (const seed of range(10, 60)) {
    const { cid, bytes } = block(seed, 2000)
    await other.put(cid, bytes)
    assert.equal(one.hasNow?.(cid), true)
    assert.ok(same(one.peek?.(cid)?.bytes ?? (await one.get(cid)), bytes))
    await one.delete(cid)
    assert.equal(await other.get(cid), undefined)
  }
  // New segments, and segments that go.
  for (const seed of range(100, 400)) await (seed % 2 ? one : other).put(block(seed).cid, block(seed).bytes)
  for (const seed of range(370, 400)) {
    assert.ok(same(await one.get(block(seed).cid), block(seed).bytes), String(seed))
    assert.ok(same(await other.get(block(seed).cid), block(seed).bytes), String(seed))
  }
  await eventually(
    'both know what is gone',
    () => one.hasNow?.(block(100).cid) === false && other.hasNow?.(block(101).cid) === false,
  )
  assert.ok((await bytesIn(path)) <= 9 << 20)
})

test('deleted block → gone in every process, also after restart', async () => {
  const path = await tempFolder()
  const secret = randomBytes(3000)
  const cid = cidOf(secret)
  const [one, other] = [open(path), open(path)]
  await putAll(one, [1])
  await Promise.all([one.put(cid, secret), other.put(cid, secret)])
  await putAll(one, [2])
  assert.ok(await other.get(cid))
  await one.delete(cid)
  const left = await contentOf(path)
  assert.equal(left.includes(secret), false)
  assert.equal(left.includes(Buffer.from(cid.multihash.digest)), false)
  assert.equal(await other.get(cid), undefined)
  const again = open(path)
  assert.equal(await again.has(cid), false)
  for (const seed of [1, 2]) assert.ok(same(await again.get(block(seed).cid), block(seed).bytes))
  await again.put(cid, secret)
  assert.ok(same(await other.get(cid), secret))
})

test('file truncated anywhere → true bytes or miss, continues', async () => {
  const path = await tempFolder()
  const before = open(path)
  const blocks = range(0, 20).map((seed) => block(seed, 100 + seed))
  for (const { cid, bytes } of blocks) await before.put(cid, bytes)
  await before.close()
  const files = await Promise.all(
    (await readdir(path)).map(async (name) => ({ name, bytes: await readFile(join(path, name)) })),
  )
  for (const { name, bytes } of files)
    for (let length = 0; length < bytes.byteLength; length += name.endsWith('.keys') ? 7 : 97) {
      for (const file of files) await writeFile(join(path, file.name), file.bytes)
      await truncate(join(path, name), length)
      const tier = open(path)
      for (const { cid, bytes } of blocks) {
        const read = await tier.get(cid)
        assert.ok(read === undefined || same(read, bytes))
      }
      await tier.put(block(50).cid, block(50).bytes)
      assert.ok(await tier.get(block(50).cid))
      await tier.delete(block(50).cid)
      await tier.close()
      for (const one of await readdir(path)) if (!files.some((file) => file.name === one)) await rm(join(path, one))
    }
})

for (const [what, place] of [
  ['a folder', (file) => mkdir(join(file, 'a'), { recursive: true })],
  ['a link to a device', (file) => symlink('/dev/zero', file)],
  ['noise', (file) => writeFile(file, randomBytes(100_000))],
  ['an empty file', (file) => writeFile(file, '')],
] satisfies [string, (file: string) => Promise<unknown>][])
  for (const kind of ['data', 'keys'])
    test(`${what} in place of ${kind} → misses`, async () => {
      const path = await tempFolder()
      const before = open(path)
      await putAll(before, [1, 2])
      await before.close()
      await mkdir(join(path, 'lost+found'))
      await writeFile(join(path, 'README'), 'not ours')
      const name = (await readdir(path)).find((one) => one.endsWith(`.${kind}`)) ?? ''
      await rm(join(path, name))
      await place(join(path, name))
      const tier = open(path)
      const read = await tier.get(block(1).cid)
      assert.ok(read === undefined || !same(read, block(1).bytes))
      await tier.delete(block(1).cid)
      await putAll(tier, [1])
      assert.ok(same(await tier.get(block(1).cid), block(1).bytes))
      assert.equal(await readFile(join(path, 'README'), 'utf8'), 'not ours')
    })

test('block behind a head of 64 bytes, as written before → miss', async () => {
  const path = await tempFolder()
  const { cid, bytes } = block(1)
  const before = open(path)
  await before.put(cid, bytes)
  await before.close()
  const data = join(path, (await readdir(path)).find((name) => name.endsWith('.data')) as string)
  const head = Buffer.alloc(64)
  head.write('cgd1')
  head.writeUInt32LE(bytes.byteLength, 4)
  await writeFile(data, Buffer.concat([head, bytes]))
  assert.ok((await open(path).get(cid)) === undefined)
})

test('killed while dropping a segment → remainder removed', async () => {
  const path = await tempFolder()
  const before = open(path)
  await putAll(before, [1])
  await before.close()
  const files = await readdir(path)
  await rm(join(path, files.find((name) => name.endsWith('.data')) ?? ''))
  assert.equal(await open(path).get(block(1).cid), undefined)
  assert.deepEqual(await readdir(path), [])
})

test("another process's dropped segment → its file is closed once", async () => {
  const path = await tempFolder()
  // Every look at the folder takes a thread.
  const atOnce: AtOnce = { may: () => false, run: (_began, read) => read(), began: () => () => {}, readByThread() {} }
  const make = () => createSegments({ path, isAlone: false, maxBytes: 4 << 20, clock: systemClock, atOnce })
  const [other, own] = [make(), make()]
  await other.put([block(0)])
  await other.close()
  const [first = ''] = await readdir(path)
  const past = new Date(1_700_000_000_000)
  for (let seed = 1; existsSync(join(path, first)); seed++) {
    // The folder seems unchanged, as to a look that began before the segment was dropped.
    await utimes(path, past, past)
    await own.put([block(seed)])
    await sleep(5)
  }
  await utimes(path, past, past)
  const files = await Promise.all(range(0, 12).map(() => openFile(path)))
  await own.has(block(0).cid)
  await sleep(50)
  for (const file of files) await file.stat()
  for (const file of files) await file.close()
  await own.close()
})

test('removed folder → recreated; oversized block → not stored', async () => {
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

test('outage → cause and hint, found by a probe', async () => {
  const path = join(await tempFolder(), 'file')
  await writeFile(path, '')
  const tier = open(path)
  const says = (error: unknown) => isFailure(error, 'upstream-error') && /(ENOTDIR|EEXIST).*; /.test(error.message)
  await assert.rejects(tier.probe?.() ?? Promise.resolve(), says)
  await assert.rejects(tier.put(block(1).cid, block(1).bytes), /ENOTDIR.*in the place of the folder/)
  const fine = open(await tempFolder())
  await fine.probe?.()
})

test('thousands of concurrent calls → few open files', async () => {
  // Their time is that of a busy machine: what counts here is how many there are.
  const tier = open(await tempFolder(), '8MiB', patientClock)
  const { cid, bytes } = block(1, 1000)
  await tier.put(cid, bytes)
  const opened = async () => (await readdir('/proc/self/fd').catch(() => [])).length
  const before = await opened()
  const reads = Array.from({ length: 3000 }, () => tier.get(cid))
  let most = 0
  for (let turn = 0; turn < 10; turn++) most = Math.max(most, await opened())
  assert.ok((await Promise.all(reads)).every((read) => read?.byteLength === 1000))
  assert.ok(most - before <= 8, `${most - before} files open`)
})

test('written or read → readable synchronously until deleted', async () => {
  const path = await tempFolder()
  const clock = createShiftedClock()
  const tier = open(path, '8MiB', clock)
  const { cid, bytes } = block(1)
  await tier.put(cid, bytes)
  await eventually('it is at hand', () => tier.peek?.(cid) !== undefined, 20_000)
  assert.deepEqual(tier.peek?.(cid)?.bytes, Buffer.from(bytes))
  await eventually('known at once', () => tier.hasNow?.(block(2).cid) === false)
  assert.deepEqual([tier.hasNow?.(cid), tier.hasNow?.(block(2).cid)], [true, false])
  const part = tier.peek?.(cid, { part: { from: 100, to: 300 } })
  assert.deepEqual([part?.bytes, part?.size], [Buffer.from(bytes.subarray(100, 300)), bytes.byteLength])
  const again = open(path)
  assert.equal(again.peek?.(cid), undefined, 'what nobody has read since the start is left to a thread')
  await again.get(cid)
  await eventually('it is at hand there, too', () => again.peek?.(cid) !== undefined, 20_000)
  await tier.delete(cid)
  assert.equal(tier.peek?.(cid), undefined)
  assert.equal(tier.hasNow?.(cid), false)
})

test('a million blocks → little memory, ready quickly', async () => {
  const path = await tempFolder()
  const [segments, each] = [8, 125_000]
  for (let segment = 0; segment < segments; segment++) {
    const lines = new Uint32Array(randomBytes(each * 16).buffer.slice(0))
    for (let at = 0; at < each; at++) {
      lines[at * 4 + 2] = at * 17
      lines[at * 4 + 3] = 1000
    }
    const name = `0000000${segment}-00000000`
    await writeFile(join(path, `${name}.keys`), lines)
    await writeFile(join(path, `${name}.data`), '')
    await truncate(join(path, `${name}.data`), each * 17 * 64)
  }
  const before = process.memoryUsage().arrayBuffers
  const tier = open(path, '10GiB', patientClock)
  assert.equal(await tier.has(block(1).cid), false)
  assert.equal(tier.usage?.().blocks, segments * each)
  const used = process.memoryUsage().arrayBuffers - before
  assert.ok(used < 60 << 20, `${used} bytes`)
})

/** Of a folder on a disk of this machine, on a clock that moves with each look at it. */
async function atOnceIn() {
  const time = { now: 1_000_000, step: 0 }
  const clock = { ...systemClock, monotonic: () => (time.now += time.step) }
  const atOnce = createAtOnce(await tempFolder(), clock)
  const may = () => atOnce.may(time.now)
  await eventually('it may', may, 20_000)
  return { atOnce, time, may }
}

test('slow read → synchronous reads pause, longer each time', async () => {
  const { atOnce, time, may } = await atOnceIn()
  const slow = () => {
    time.step = 400
    atOnce.run(time.now, () => {})
    time.step = 0
  }
  const pausedFor = () => {
    const since = time.now
    while (!may()) time.now += 50
    return time.now - since
  }
  slow()
  assert.equal(may(), false)
  const first = pausedFor()
  slow()
  assert.ok(pausedFor() > first)
  for (let count = 0; count < 20; count++) {
    slow()
    pausedFor()
  }
  slow()
  assert.ok(pausedFor() <= 60_000)
})

test('thread waits for the disk → no synchronous reads', async () => {
  const { atOnce, time, may } = await atOnceIn()
  const ended = atOnce.began()
  assert.equal(may(), true)
  time.now += 1000
  assert.equal(may(), false)
  ended()
  assert.equal(may(), true)
})

test('files on a remote file system → no synchronous reads', { skip: process.platform !== 'linux' }, async () => {
  const atOnce = createAtOnce('/proc', systemClock)
  atOnce.may(0)
  await new Promise((resolve) => setTimeout(resolve, 20))
  assert.equal(atOnce.may(0), false)
})

test('threads that reach no disk → synchronous reads, until one comes from the disk', async () => {
  let [fromDisk, now] = [0, 0]
  const clock = { ...systemClock, monotonic: () => now }
  const atOnce = createAtOnce(await tempFolder(), clock, () => fromDisk)
  await eventually('recent ones are read at once', () => atOnce.may(now), 20_000)
  const may = () => atOnce.may(now, false)
  const byThreads = (count: number, bytes = 0) => {
    for (let left = count; left > 0 && !may(); left--) {
      fromDisk += bytes
      atOnce.readByThread(now)
    }
  }
  const readNow = (ms: number, bytes: number) =>
    atOnce.run(now, () => {
      now += ms
      fromDisk += bytes
    })
  byThreads(1000, 4096)
  assert.equal(may(), false)
  byThreads(64)
  assert.equal(may(), true)
  readNow(5, 0)
  assert.equal(may(), true, 'this process had no CPU meanwhile')
  readNow(5, 4096)
  assert.equal(may(), false)
  assert.equal(atOnce.may(now), true, 'those that it read lately are not in doubt')
  byThreads(33)
  assert.equal(may(), false, 'it takes more of them now')
  byThreads(128)
  assert.equal(may(), true)
})

test('reads after a restart → soon at once', { skip: !existsSync('/proc/self/io') }, async () => {
  const path = await tempFolder()
  const seeds = range(0, 100)
  const { cid, bytes } = block(100)
  await putAll(open(path), [...seeds, 100])
  const other = open(path)
  const isAtOnce = async () => {
    for (const seed of seeds) assert.ok(same(await other.get(block(seed).cid), block(seed).bytes))
    return same(other.peek?.(cid)?.bytes, bytes)
  }
  await eventually('it is at hand, although it was not read before', isAtOnce, 20_000)
})

test('not read for long → not assumed in the page cache', async () => {
  const path = await tempFolder()
  const clock = createShiftedClock()
  const tier = open(path, '8MiB', clock)
  const { cid, bytes } = block(1)
  await tier.put(cid, bytes)
  await eventually('it is at hand', () => tier.peek?.(cid) !== undefined, 20_000)
  clock.shift(1_000_000)
  assert.equal(tier.peek?.(cid), undefined)
  assert.ok(same(await tier.get(cid), bytes))
})

test('released buffer → reused, by one reader at a time', () => {
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
