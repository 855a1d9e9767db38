// Lookups in the slow tiers: which tier is asked when, how long a reader waits, and what an upload waits for.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../src/core/cid.ts'
import { isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { bytesOf, cidOf } from '../../src/testing/tier.ts'
import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'
import { guarded, type ScriptedTier, scriptedTier, stackOf } from '../support/scripted-tier.ts'

const bytes = bytesOf(100)
const cid = cidOf(bytes)
const key = blockKey(cid)
const log = silentLog
const block = (seed: number, length = 100) => {
  const content = bytesOf(length, seed)
  return { cid: cidOf(content), bytes: content, key: blockKey(cidOf(content)) }
}

function make() {
  const clock = createFakeClock()
  const named = (name: string, shared: boolean) => Object.assign(scriptedTier(name, { shared }), { clock })
  const memory = scriptedTier('memory', { persistent: false, trusted: true })
  const [disk, redis, bucket] = [named('disk', false), named('redis', true), named('bucket', true)]
  const guards = [disk, redis, bucket].map((tier) => guarded(tier, { clock, log }))
  const stack = stackOf([memory, ...guards], { clock, log })
  return { clock, memory, disk, redis, bucket, guards, stack }
}

function lookIn(stack: ReturnType<typeof make>['stack'], of: CID) {
  const look = stack.look(of)
  assert.ok(look)
  return look
}

/** How long somebody waits who does so while it is worth it, and what he has then. */
async function waited(clock: FakeClock, stack: ReturnType<typeof make>['stack'], of = cid) {
  const began = clock.monotonic()
  const look = lookIn(stack, of)
  let end: { readonly tier: string | undefined; readonly ms: number } | undefined
  look.found.then(
    (found) => {
      end ??= { tier: found?.tier ?? 'none', ms: clock.monotonic() - began }
    },
    () => {}, // left
  )
  void look.overdue.then(() => {
    end ??= { tier: undefined, ms: clock.monotonic() - began }
  })
  await clock.advance(0)
  for (let turn = 0; turn < 5000 && !end; turn++) await clock.advance(1)
  look.leave()
  assert.ok(end, 'it never ended')
  return end
}

const gets = (tier: ScriptedTier): number => tier.calls.filter((call) => call.startsWith('get')).length

test('block in memory or the write queue → no tier lookup', async () => {
  const { memory, disk, redis, bucket, stack, clock } = make()
  for (const tier of [disk, redis, bucket]) tier.held.set(key, bytes)
  assert.equal(stack.near(cid), undefined)
  assert.deepEqual([disk, redis, bucket].map(gets), [0, 0, 0])
  memory.held.set(key, bytes)
  assert.equal(stack.near(cid)?.tier, 'memory')
  const other = block(1)
  for (const tier of [disk, redis, bucket]) tier.isSilent = true
  await stack.put(other.cid, other.bytes)
  memory.held.delete(other.key)
  assert.equal(stack.near(other.cid)?.tier, 'disk')
  await clock.advance(0)
})

test('nearest tier asked first, next ones only on a miss', async () => {
  const { clock, disk, redis, bucket, stack } = make()
  for (const tier of [disk, redis, bucket]) tier.held.set(key, bytes)
  assert.deepEqual(await waited(clock, stack), { tier: 'disk', ms: 0 })
  assert.deepEqual([disk, redis, bucket].map(gets), [1, 0, 0])
  disk.held.clear()
  redis.held.clear()
  const other = block(1)
  bucket.held.set(other.key, other.bytes)
  assert.deepEqual(await waited(clock, stack, other.cid), { tier: 'bucket', ms: 0 })
  assert.deepEqual(await waited(clock, stack, block(2).cid), { tier: 'none', ms: 0 })
})

test('disk that lacks a block → S3 first, disk before absence', async () => {
  const clock = createFakeClock()
  const [own, bucket] = [scriptedTier('disk'), scriptedTier('bucket', { shared: true })]
  const disk = Object.assign(own, { clock, slowMs: 40, hasNow: () => false })
  const tiers = [disk, Object.assign(bucket, { clock })].map((tier) => guarded(tier, { clock, log }))
  const stack = stackOf(tiers, { clock, log })
  bucket.held.set(key, bytes)
  assert.deepEqual(await waited(clock, stack), { tier: 'bucket', ms: 0 })
  assert.deepEqual([disk, bucket].map(gets), [0, 1])
  const other = block(1)
  disk.held.set(other.key, other.bytes) // put there by hand
  assert.deepEqual(await waited(clock, stack, other.cid), { tier: 'disk', ms: 40 })
})

test('one hung store → hides no other, nor its own queue', async () => {
  const { clock, disk, redis, bucket, stack } = make()
  redis.isSilent = true
  bucket.held.set(key, bytes)
  assert.deepEqual(await waited(clock, stack), { tier: 'bucket', ms: 25 })
  bucket.isSilent = true
  disk.held.set(block(1).key, block(1).bytes)
  assert.deepEqual(await waited(clock, stack, block(1).cid), { tier: 'disk', ms: 0 })
  // The disk takes longer than it is waited for, and is still the one that has it.
  disk.isSilent = true
  disk.held.set(block(2).key, block(2).bytes)
  const look = lookIn(stack, block(2).cid)
  await clock.advance(600)
  await look.overdue
  await disk.release()
  assert.equal((await look.found)?.tier, 'disk')
})

test('hung tiers → short waits, for half a second', async () => {
  const { clock, redis, bucket, stack } = make()
  redis.isSilent = bucket.isSilent = true
  for (let turn = 0; turn < 3; turn++) assert.deepEqual(await waited(clock, stack), { tier: undefined, ms: 50 })
  await clock.advance(500)
  // From now on they are not asked, so that there is an answer at once.
  assert.deepEqual(await waited(clock, stack), { tier: 'none', ms: 0 })
})

test('no upstreams → lookup completes as a miss', async () => {
  const { clock, bucket, stack } = make()
  bucket.isSilent = true
  const look = lookIn(stack, cid)
  await clock.advance(999)
  let found: unknown = 'open'
  void look.found.then((end) => (found = end))
  await clock.advance(0)
  assert.equal(found, 'open')
  await clock.advance(1)
  assert.equal(found, undefined)
  assert.equal(look.haveAnswered(), false)
})

test('hit on the disk → not taken for a local miss', async () => {
  const { clock, disk, stack } = make()
  disk.held.set(key, bytes)
  disk.slowMs = 100
  const look = lookIn(stack, cid)
  const last = Promise.race([look.found, look.here.then(() => undefined)])
  await clock.advance(100)
  assert.equal((await last)?.tier, 'disk')
  look.leave()
})

test('hung local pins → takedown fails in time', async () => {
  const clock = createFakeClock()
  const pins = scriptedTier('pins', { readOnly: true })
  pins.isSilent = true
  const asked = stackOf([pins], { clock }).isPinned(cid, new AbortController().signal)
  const refused = assert.rejects(asked, (error) => isFailure(error, 'timeout'))
  await clock.advance(1000)
  await refused
})

test('busy process → disk not skipped', async () => {
  const { clock, disk, bucket, guards, stack } = make()
  disk.isSilent = true
  const many = Array.from({ length: 500 }, (_, seed) => block(seed))
  for (const one of many) disk.held.set(one.key, one.bytes)
  const looks = many.map((one) => lookIn(stack, one.cid))
  for (let time = 0; time < 3; time++) await clock.jump(150)
  assert.equal(guards[0]?.isDown, false)
  assert.equal(gets(bucket), 0, 'a moment of ours sends nobody to S3')
  await disk.release()
  for (const look of looks) assert.equal((await look.found)?.tier, 'disk')
})

test('hung store → two uploads wait 500 ms, then none', async () => {
  const { clock, redis, bucket, stack } = make()
  bucket.isSilent = true
  const took: number[] = []
  for (let seed = 0; seed < 20; seed++) {
    const one = block(seed)
    const began = clock.monotonic()
    const stored = stack.store(one.cid, one.bytes)
    let isOver = false
    void stored.then(() => {
      isOver = true
    })
    await clock.advance(0)
    while (!isOver) await clock.advance(1)
    took.push(clock.monotonic() - began)
    assert.deepEqual(
      (await stored).failed.map(({ tier }) => tier),
      ['bucket'],
    )
    assert.ok(redis.held.has(one.key))
  }
  assert.deepEqual(took, [500, 500, ...Array(18).fill(0)])
})

test('blocks of one upload → wait together; late write continues', async () => {
  const { clock, bucket, stack } = make()
  bucket.isSilent = true
  const began = clock.monotonic()
  const stored = Promise.all([1, 2, 3, 4].map((seed) => stack.store(block(seed).cid, block(seed).bytes)))
  await clock.advance(500)
  for (const { failed } of await stored) assert.equal(failed[0]?.failure.kind, 'timeout')
  assert.equal(clock.monotonic() - began, 500)
  await bucket.release()
  await clock.advance(0)
  assert.equal(bucket.held.size, 4)
  // It answers quickly again: soon it is waited for.
  bucket.isSilent = false
  for (let seed = 5; seed < 15; seed++) await stack.store(block(seed).cid, block(seed).bytes)
  assert.deepEqual(await stack.store(block(15).cid, block(15).bytes), { failed: [] })
})

test('slow store that answers → stored before the acknowledgement', async () => {
  const { clock, bucket, stack } = make()
  bucket.slowMs = 100
  for (let seed = 0; seed < 5; seed++) {
    const stored = stack.store(block(seed).cid, block(seed).bytes)
    await clock.advance(100)
    assert.deepEqual(await stored, { failed: [] })
  }
})

test('lookup → reports local misses before remote stores answer', async () => {
  const { clock, disk, bucket, stack } = make()
  disk.isSilent = bucket.isSilent = true
  const look = lookIn(stack, cid)
  let isHereOver = false
  void look.here.then(() => {
    isHereOver = true
  })
  await clock.advance(600)
  assert.equal(isHereOver, false)
  await disk.release()
  await clock.advance(0)
  assert.equal(isHereOver, true)
  look.leave()
})
