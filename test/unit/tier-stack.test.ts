// The stack and its fillers: what is found where, what is filled from what, and in which order things reach a slow tier.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import * as dagCbor from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import type { Tier } from '../../backends/tiers/contract.ts'
import { blockKey } from '../../src/core/cid.ts'
import { silentLog } from '../../src/core/log.ts'
import { belowIn, findPlaces, purge } from '../../src/retrieval/tiers/dag-in-tiers.ts'

import { createPinsTier } from '../../src/retrieval/tiers/tier-stack.ts'
import { WriteBehind } from '../../src/retrieval/tiers/write-behind.ts'
import { bytesOf, cidOf } from '../../src/testing/tier.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { guarded, type ScriptedTier, scriptedTier, stackOf } from '../support/scripted-tier.ts'

const bytes = bytesOf(100)
const cid = cidOf(bytes)
const key = blockKey(cid)
const log = silentLog
const block = (seed: number, length = 100) => {
  const content = bytesOf(length, seed)
  return { cid: cidOf(content), bytes: content, key: blockKey(cidOf(content)) }
}
const settle = async () => {
  for (let turn = 0; turn < 5; turn++) await setImmediate()
}

function make() {
  const clock = createFakeClock()
  const memory = scriptedTier('memory', { persistent: false, trusted: true })
  const disk = scriptedTier('disk')
  const bucket = scriptedTier('bucket', { shared: true })
  const stack = stackOf([memory, disk, bucket], { clock, log })
  return { clock, memory, disk, bucket, stack }
}
const gets = ({ calls }: ScriptedTier) => calls.filter((call) => call.startsWith('get')).length
const holders = (...tiers: ScriptedTier[]) => tiers.filter(({ held }) => held.has(key)).map(({ name }) => name)

test('new block → in memory at once, slow tiers soon', async () => {
  const { memory, disk, bucket, stack } = make()
  disk.isSilent = bucket.isSilent = true
  await stack.put(cid, bytes)
  assert.deepEqual(holders(memory, disk, bucket), ['memory'])
  disk.isSilent = bucket.isSilent = false
  await disk.release()
  await bucket.release()
  await settle()
  assert.deepEqual(holders(memory, disk, bucket), ['memory', 'disk', 'bucket'])
})

test('large leaf → disk only, or memory if the disk refuses', async () => {
  const { memory, disk, bucket, stack, clock } = make()
  const large = (seed: number) => block(seed, 256 * 1024)
  const [one, other, third] = [large(1), large(2), large(3)]
  disk.isSilent = true
  await stack.put(one.cid, one.bytes)
  assert.equal((await stack.find(one.cid))?.bytes, one.bytes, 'it can be read while it waits')
  disk.isSilent = false
  await disk.release()
  await settle()
  assert.deepEqual(
    [memory, disk, bucket].map(({ held }) => held.has(one.key)),
    [false, true, true],
  )
  disk.isDown = true
  await stack.put(other.cid, other.bytes)
  await clock.advance(1000)
  await settle()
  assert.ok(memory.held.has(other.key), 'what the disk refused is in memory')
  disk.isDown = false
  disk.isSilent = true
  await stack.put(third.cid, third.bytes)
  await clock.advance(1000)
  assert.equal(disk.waiting, 1)
  const deleted = stack.delete(third.cid).catch(() => {})
  disk.isDown = true
  await disk.release()
  await deleted
  await settle()
  assert.ok(!memory.held.has(third.key), 'what was deleted meanwhile is not')
})

test('large leaf, no local disk → memory', async () => {
  const memory = scriptedTier('memory', { persistent: false, trusted: true })
  const bucket = scriptedTier('bucket', { shared: true })
  const clock = createFakeClock()
  const { cid, bytes, key } = block(1, 1024 * 1024)
  await stackOf([memory, bucket], { clock, log }).put(cid, bytes)
  assert.ok(memory.held.has(key))
  const [inMemory, disk] = [scriptedTier('memory', { persistent: false, trusted: true }), scriptedTier('disk')]
  disk.isSilent = true
  const full = stackOf([inMemory, disk], { clock, log, maxBytes: 0 })
  const put = full.put(cid, bytes)
  await clock.advance(500)
  await put
  assert.ok(inMemory.held.has(key), 'there was no room for it to wait')
})

test('block that owns its memory → not copied; view → copied', async () => {
  const { disk, stack } = make()
  const whole = new Uint8Array(bytes)
  const part = new Uint8Array(bytes.byteLength + 1).subarray(1)
  part.set(bytes)
  for (const [given, isKept] of [
    [whole, true],
    [part, false],
  ] as const) {
    await stack.put(cid, given)
    await settle()
    const held = disk.held.get(key)
    assert.deepEqual(held, given)
    assert.equal(held === given, isKept)
    await stack.delete(cid)
  }
})

test('hit → first tier in order, fills those before it', async () => {
  for (const [from, filled] of [
    ['bucket', ['memory', 'disk', 'bucket']],
    ['disk', ['memory', 'disk']],
    ['memory', ['memory']],
  ] as const) {
    const { memory, disk, bucket, stack } = make()
    const tiers = { memory, disk, bucket }
    tiers[from].held.set(key, bytes)
    assert.equal((await stack.find(cid))?.tier, from)
    await settle()
    assert.deepEqual(holders(memory, disk, bucket), filled, from)
  }
})

test('outage of slow tiers → read does not fail', async () => {
  const { disk, bucket, stack } = make()
  disk.isDown = true
  bucket.held.set(key, bytes)
  assert.equal((await stack.find(cid))?.tier, 'bucket')
  bucket.isDown = true
  assert.equal(await stack.find(block(1).cid), undefined)
  assert.equal(await stack.has(block(1).cid), false)
  assert.deepEqual(
    stack.stats().map(({ tier, hits, misses, outages: out }) => [tier, hits, misses, out]),
    [
      ['memory', 0, 3, 0],
      ['disk', 0, 0, 3],
      ['bucket', 1, 0, 2],
    ],
  )
})

test('two hundred readers of one block → one lookup', async () => {
  const { disk, stack } = make()
  disk.held.set(key, bytes)
  disk.isSilent = true
  const wants = Array.from({ length: 200 }, () => stack.find(cid))
  await settle()
  disk.isSilent = false
  await disk.release()
  for (const found of await Promise.all(wants)) assert.equal(found?.tier, 'disk')
  assert.equal(disk.calls.filter((call) => call.startsWith('get')).length, 1)
})

test('shared lookup → survives its first reader, stops with all', async () => {
  const { disk, stack } = make()
  disk.held.set(key, bytes)
  disk.isSilent = true
  const first = new AbortController()
  const leaving = assert.rejects(stack.find(cid, first.signal), /left/)
  const staying = stack.find(cid)
  await settle()
  first.abort(new Error('left'))
  await leaving
  disk.isSilent = false
  await disk.release()
  assert.equal((await staying)?.tier, 'disk')

  disk.isSilent = true
  const last = new AbortController()
  const gone = assert.rejects(stack.find(block(2).cid, last.signal), /left/)
  await settle()
  assert.equal(disk.waiting, 1)
  last.abort(new Error('left'))
  await gone
  await settle()
  assert.equal(disk.waiting, 0)
})

test('delete during a fill or lookup → stays deleted', async () => {
  const { memory, disk, bucket, stack } = make()
  disk.isSilent = true
  await stack.put(cid, bytes)
  await settle()
  assert.equal(disk.waiting, 1, 'the fill is under way')
  disk.isSilent = false // from here on the disk answers at once: a delete that does not wait would be first
  const deleted = stack.delete(cid)
  await settle()
  await disk.release()
  await deleted
  await settle()
  assert.deepEqual(holders(memory, disk, bucket), [])

  bucket.held.set(key, bytes)
  bucket.isSilent = true
  const look = stack.find(cid)
  await settle()
  const again = stack.delete(cid)
  bucket.isSilent = false
  await bucket.release()
  await look
  await again
  await settle()
  assert.deepEqual(holders(memory, disk, bucket), [])
})

test('delete fails in one tier → reported, done in others', async () => {
  const { memory, disk, bucket, stack } = make()
  for (const tier of [memory, disk, bucket]) tier.held.set(key, bytes)
  disk.isDown = true
  await assert.rejects(stack.delete(cid), /disk is down/)
  assert.deepEqual(holders(memory, disk, bucket), ['disk'])
})

test('store → skips caches after a tier that never evicts', async () => {
  const memory = scriptedTier('memory', { persistent: false, trusted: true })
  const before = scriptedTier('before')
  const pins = scriptedTier('pins', { trusted: true, keeps: true, readOnly: true })
  const disk = scriptedTier('disk')
  const bucket = scriptedTier('bucket', { shared: true })
  const stack = stackOf([memory, before, pins, disk, bucket], { clock: createFakeClock(), log })
  await stack.store(cid, bytes)
  await settle()
  assert.deepEqual(holders(memory, before, disk, bucket), ['memory', 'before', 'bucket'])
})

test('store → waits for the shared tier, names a failed one', async () => {
  const { memory, disk, bucket, stack } = make()
  assert.deepEqual(await stack.store(cid, bytes), { failed: [] })
  assert.ok(bucket.held.has(key) && memory.held.has(key))
  bucket.isDown = true
  const other = block(3)
  const { failed } = await stack.store(other.cid, other.bytes)
  assert.deepEqual(
    failed.map(({ tier, failure }) => [tier, failure.kind]),
    [['bucket', 'upstream-error']],
  )
  await settle()
  assert.ok(memory.held.has(other.key) && disk.held.has(other.key))
  assert.deepEqual(
    stack.stats().map(({ outages }) => outages),
    [0, 0, 1],
  )
})

test('close → queue written, silent tier given up', async () => {
  const { clock, disk, bucket, stack } = make()
  const blocks = Array.from({ length: 30 }, (_, seed) => block(seed))
  bucket.isSilent = true
  for (const one of blocks) await stack.put(one.cid, one.bytes)
  const closed = Promise.all([stack.close(), stack.close()])
  await clock.advance(5000)
  await closed
  assert.equal(disk.held.size, 30)
  assert.equal(bucket.held.size, 0)
  assert.equal(bucket.waiting, 0, 'a write is still under way')
  assert.ok(disk.calls.includes('close') && bucket.calls.includes('close'))
})

const fill = (tier: Tier, options: Partial<ConstructorParameters<typeof WriteBehind>[0]> = {}) => {
  const clock = createFakeClock()
  return { clock, queue: new WriteBehind({ tier, clock, maxBytes: 1000, ...options }) }
}
/** Eight are being written, and ten wait. */
const fullOf = async (queue: WriteBehind) => {
  for (let seed = 0; seed < 18; seed++) await queue.put(block(seed).cid, block(seed).bytes)
}

test('full write-behind queue, stuck tier → blocks dropped when overdue', async () => {
  const tier = scriptedTier('disk')
  tier.isSilent = true
  const clock = createFakeClock()
  const { queue } = fill(guarded(tier, { clock, log }), { clock })
  await fullOf(queue)
  assert.equal(tier.waiting, 8)
  assert.deepEqual(queue.stats, { written: 0, dropped: 0, failed: 0, queued: 18, queuedBytes: 1000 })
  const one = queue.put(block(20).cid, block(20).bytes)
  await clock.advance(499)
  assert.equal(queue.stats.dropped, 0)
  await clock.advance(1)
  await one
  for (let seed = 21; seed < 30; seed++) assert.equal(queue.put(block(seed).cid, block(seed).bytes), undefined)
  assert.equal(queue.stats.dropped, 10)
  tier.isSilent = false
  await tier.release()
  await settle()
  queue.put(block(30).cid, block(30).bytes)
  await settle()
  assert.deepEqual(queue.stats, { written: 19, dropped: 10, failed: 0, queued: 0, queuedBytes: 0 })
  assert.equal(clock.timers, 0)
})

test('full write-behind queue that moves → the block waits for capacity', async () => {
  const tier = scriptedTier('disk')
  tier.isSilent = true
  const { queue } = fill(tier)
  await fullOf(queue)
  const waits = queue.put(block(20).cid, block(20).bytes)
  await tier.release()
  await waits
  assert.ok(queue.waiting(block(20).key))
  assert.equal(queue.stats.dropped, 0)
})

test('full queue of a shared tier → dropped at once', async () => {
  const tier = scriptedTier('bucket', { shared: true })
  tier.isSilent = true
  const { queue } = fill(tier)
  await fullOf(queue)
  assert.equal(queue.put(block(20).cid, block(20).bytes), undefined)
  assert.deepEqual(queue.stats, { written: 0, dropped: 1, failed: 0, queued: 18, queuedBytes: 1000 })
})

test('tier that accepts many blocks → one call for the queue', async () => {
  const tier = scriptedTier('disk')
  const batches: number[] = []
  const slow = Promise.withResolvers<void>()
  const { clock, queue } = fill(
    {
      ...tier,
      async putAll(blocks) {
        batches.push(blocks.length)
        for (const { cid, bytes } of blocks) tier.held.set(blockKey(cid), bytes)
      },
      put: () => slow.promise,
    },
    { maxBytes: 100_000 },
  )
  for (let seed = 0; seed < 30; seed++) queue.put(block(seed).cid, block(seed).bytes)
  assert.ok(queue.waiting(block(29).key), 'readable while it waits')
  const deleted = queue.delete(block(5).cid)
  slow.resolve()
  await deleted
  queue.put(block(30).cid, block(30).bytes)
  await clock.advance(50)
  await settle()
  assert.deepEqual(batches, [29])
  assert.ok(!tier.held.has(block(5).key))
})

test('upload of a block being written → joins that write', async () => {
  const clock = createFakeClock()
  const bucket = scriptedTier('bucket', { shared: true })
  const { queue } = fill(guarded(bucket, { clock, log }), { clock })
  bucket.isSilent = true
  await queue.put(cid, bytes)
  await clock.advance(100)
  let toldAt = 0
  const began = clock.monotonic()
  const write = queue.write(cid, bytes)
  void write.late.promise.then(() => (toldAt = clock.monotonic()))
  await clock.advance(400)
  assert.equal(toldAt - began, 400)
  await bucket.release()
  await write.done
  assert.equal(bucket.calls.length, 1)
})

test('upload while corrupt bytes are removed → written after the removal', async () => {
  const clock = createFakeClock()
  const bucket = scriptedTier('bucket', { shared: true })
  const stack = stackOf([guarded(bucket, { clock, log })], { clock, log })
  bucket.held.set(key, bytesOf(50, 9))
  const removed = Promise.withResolvers<void>()
  const remove = bucket.delete
  // A request on its way arrives, although its caller gave up.
  bucket.delete = (...call) => removed.promise.then(() => remove(...call))
  const read = stack.get(cid)
  await clock.advance(20)
  const stored = stack.store(cid, bytes)
  await clock.advance(20)
  assert.ok(!bucket.calls.some((call) => call.startsWith('put')))
  removed.resolve()
  assert.deepEqual(await stored, { failed: [] })
  await read
  assert.deepEqual(bucket.held.get(key), bytes)
  await stack.close()
})

test('hanging writes of uploads → end when the breaker opens', async () => {
  const clock = createFakeClock()
  const bucket = Object.assign(scriptedTier('bucket', { shared: true }), { concurrency: { reads: 8, writes: 8 } })
  const { queue } = fill(guarded(bucket, { clock, log }), { clock })
  bucket.isSilent = true
  const writes = Array.from({ length: 50 }, (_, seed) =>
    queue.write(block(seed).cid, block(seed).bytes).done.catch(() => {}),
  )
  await clock.advance(500)
  assert.equal(bucket.waiting, 8)
  assert.equal(queue.stats.queued, 8)
  await bucket.release()
  await Promise.all(writes)
})

describe('DAG below a CID', () => {
  const leaves = [1, 2].map((seed) => bytesOf(50, seed))
  const inner = dagCbor.encode(leaves.map(cidOf))
  const innerCid = CID.createV1(dagCbor.code, cidOf(inner).multihash)
  const top = dagCbor.encode([innerCid])
  const topCid = CID.createV1(dagCbor.code, cidOf(top).multihash)
  const all = [top, inner, ...leaves]

  function make() {
    const clock = createFakeClock()
    const bucket = Object.assign(scriptedTier('bucket', { shared: true }), { clock })
    for (const one of all) bucket.held.set(blockKey(cidOf(one)), one)
    const stack = stackOf([scriptedTier('memory', { persistent: false }), guarded(bucket, { clock, log: silentLog })], {
      clock,
    })
    const below = async (signal = new AbortController().signal, most?: number) => {
      const walk = belowIn(stack, topCid, signal, most)
      let isOver = false
      walk.then(
        () => (isOver = true),
        () => (isOver = true),
      )
      for (let turn = 0; turn < 500 && !isOver; turn++) await clock.advance(100)
      return walk
    }
    return { bucket, stack, below }
  }

  test("slow store → found beyond a reader's wait", async () => {
    const { bucket, below } = make()
    bucket.slowMs = 900
    const { cids, failures } = await below()
    assert.deepEqual(failures, [])
    assert.deepEqual(new Set(cids.map(blockKey)), new Set(all.map((one) => blockKey(cidOf(one)))))
  })

  test('store does not answer → unknown', async () => {
    const { bucket, below } = make()
    bucket.isSilent = true
    const { cids, failures } = await below()
    assert.deepEqual(cids, [], 'what leads to it stays until it was read')
    assert.match(failures.join(), /not known: tier bucket/)
    bucket.isSilent = false
    bucket.held.clear()
    assert.deepEqual((await below()).failures, [], 'what no tier has is not a failure')
  })

  test('partly read → reported with "more"', async () => {
    const { bucket, below } = make()
    const most = await below(undefined, 3)
    assert.equal(most.cids.length, 1, 'a leaf, but none of the two that lead to the other leaf')
    assert.match(most.failures.join(), /more than 3 blocks/)
    assert.deepEqual((await below(undefined, 4)).failures, [])
    bucket.isSilent = true
    const late = await below(AbortSignal.abort(new Error('its time is over')))
    assert.match(late.failures.join(), /not read to its end: its time is over/)
    const leaving = new AbortController()
    const other = make()
    other.bucket.isSilent = true
    const walk = other.below(leaving.signal)
    await settle()
    leaving.abort(new Error('its time is over'))
    assert.deepEqual((await walk).cids, [])
  })

  test('too many blocks for one purge → repeated takedowns complete it', async () => {
    const memory = scriptedTier('memory', { persistent: false })
    const stack = stackOf([memory])
    let count = 0
    const make = async (depth: number): Promise<CID> => {
      const bytes =
        depth === 0 ? bytesOf(40, count) : dagCbor.encode(await Promise.all([1, 2, 3, 4].map(() => make(depth - 1))))
      count++
      const cid = depth === 0 ? cidOf(bytes) : CID.createV1(dagCbor.code, cidOf(bytes).multihash)
      await stack.put(cid, bytes)
      return cid
    }
    const root = await make(4)
    const { signal } = new AbortController()
    let walks = 1
    for (; ; walks++) {
      const { cids, failures } = await belowIn(stack, root, signal, 300)
      assert.deepEqual((await purge(stack, cids, { signal })).failures, [])
      if (failures.length === 0) break
      assert.match(failures.join(), /more than 300 blocks: repeat/)
      assert.ok(walks < 10 && (await stack.has(root)))
    }
    assert.ok(walks > 1)
    assert.equal(memory.held.size, 0)
  })

  test('needed by another local pin → stays, shared tiers too', async () => {
    const { bucket } = make()
    const [needed] = leaves as [Uint8Array]
    const held = new Map([[blockKey(cidOf(needed)), needed]])
    const store = { get: async (cid: CID) => held.get(blockKey(cid)), has: async (cid: CID) => held.has(blockKey(cid)) }
    const stack = stackOf([createPinsTier('local', store, true), bucket])
    const { signal } = new AbortController()
    const cids = [topCid, innerCid, ...leaves.map(cidOf)]
    assert.deepEqual(await purge(stack, cids, { signal }), { purged: 3, kept: 1, failures: [] })
    assert.deepEqual([...bucket.held.keys()], [...held.keys()])
    assert.deepEqual(await purge(stack, cids, { signal, isAll: true }), { purged: 4, kept: 0, failures: [] })
    assert.equal(bucket.held.size, 0)
    await stack.put(cidOf(needed), needed)
    store.has = () => Promise.reject(new Error('the disk of the pins is away'))
    const unknown = await purge(stack, cids, { signal })
    assert.equal(unknown.purged, 0)
    assert.match(unknown.failures.join(), /the disk of the pins is away/)
  })

  test('thousands of equal links → few rounds', async () => {
    const memory = scriptedTier('memory', { persistent: false })
    const stack = stackOf([memory])
    const leaf = cidOf(bytesOf(10))
    const empty = CID.parse('bafkqaaa')
    const many = dagCbor.encode([...Array(2000).fill(leaf), ...Array(2000).fill(empty)])
    const root = CID.createV1(dagCbor.code, cidOf(many).multihash)
    await stack.put(root, many)
    let rounds = 0
    // Each round asks it.
    const signal = Object.defineProperty(new AbortController().signal, 'aborted', { get: () => ++rounds < 0 })
    const { cids, failures } = await belowIn(stack, root, signal)
    assert.deepEqual([cids.map(String), failures], [[root, leaf].map(String), []])
    assert.ok(rounds < 20, `${rounds} rounds`)
    rounds = 0
    const { blocks, isCut } = await findPlaces([memory], [root], { signal, maxBlocks: 2 })
    assert.deepEqual([blocks.map(({ cid }) => cid), isCut], [[root, leaf].map(String), false])
    assert.ok(rounds < 20, `${rounds} rounds`)
    assert.equal((await findPlaces([memory], [root], { signal, maxBlocks: 1 })).isCut, true)
  })

  test('more links than one traversal may follow → root kept', async () => {
    const stack = stackOf([scriptedTier('memory', { persistent: false })])
    const many = dagCbor.encode(Array.from({ length: 500 }, (_, index) => cidOf(bytesOf(10, index))))
    const root = CID.createV1(dagCbor.code, cidOf(many).multihash)
    await stack.put(root, many)
    const { cids, failures } = await belowIn(stack, root, new AbortController().signal, 100)
    assert.equal(cids.length, 99, 'the root leads to the rest')
    assert.match(failures.join(), /more than 100 blocks: repeat/)
  })

  test('blocks below a CID → read concurrently', async () => {
    const { bucket, stack } = make()
    const boxes = Array.from({ length: 16 }, (_, seed) => dagCbor.encode([seed]))
    for (const box of boxes) bucket.held.set(blockKey(cidOf(box)), box)
    const many = dagCbor.encode(boxes.map((box) => CID.createV1(dagCbor.code, cidOf(box).multihash)))
    bucket.held.set(blockKey(cidOf(many)), many)
    const root = CID.createV1(dagCbor.code, cidOf(many).multihash)
    await stack.put(root, many)
    bucket.isSilent = true
    const leaving = new AbortController()
    const walk = belowIn(stack, root, leaving.signal)
    for (let turn = 0; turn < 1000 && gets(bucket) < 16; turn++) await setImmediate()
    assert.equal(gets(bucket), 16)
    leaving.abort(new Error('enough'))
    await walk
  })

  test('purge that may be incomplete → says so', async () => {
    const { bucket, stack } = make()
    bucket.isSilent = true
    const leaving = new AbortController()
    const work = purge(stack, [topCid], { signal: leaving.signal })
    leaving.abort(new Error('its time is over'))
    assert.match((await work).failures.join(), /not all of it was deleted: its time is over/)
  })
})
