// A guarded tier: patience, circuit breaker and trials by a fake clock; and verification of what a tier returns.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import type { Tier } from '../../backends/tiers/contract.ts'
import { blockKey } from '../../src/core/cid.ts'
import { partOf } from '../../src/core/disk/peeked.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import type { GuardedTier, GuardOptions } from '../../src/retrieval/tiers/guarded-tier.ts'
import { bytesOf, cidOf } from '../../src/testing/tier.ts'
import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'
import { guarded, scriptedTier } from '../support/scripted-tier.ts'

const bytes = bytesOf(100)
const cid = cidOf(bytes)

function make({ shared = true, concurrency }: { readonly shared?: boolean } & Pick<Tier, 'concurrency'> = {}) {
  const clock = createFakeClock()
  const tier = Object.assign(scriptedTier('far', { shared }), { clock, ...(concurrency && { concurrency }) })
  const events: string[] = []
  const log: GuardOptions['log'] = (level, event, facts) => events.push(`${level} ${event} ${facts?.['what']}`)
  return { clock, tier, events, guard: guarded(tier, { clock, log }) }
}

/** How a call ends, or when its caller is told to ask others too, and after how long. */
async function timed(
  clock: FakeClock,
  call: (overdue: () => void) => Promise<unknown>,
  waitsOn = false,
): Promise<string> {
  const began = clock.monotonic()
  let end: string | undefined
  const settle = (kind: string) => (end ??= `${kind} ${clock.monotonic() - began}`)
  call(() => void (waitsOn || settle('overdue'))).then(
    (value) => settle(value === undefined ? 'miss' : 'hit'),
    (error: unknown) => settle(isFailure(error) ? error.kind : 'error'),
  )
  for (let turn = 0; turn < 2000 && !end; turn++) await clock.advance(1)
  assert.ok(end, 'it never ended')
  return end
}
const read = (clock: FakeClock, guard: GuardedTier, waitsOn = false) =>
  timed(clock, (overdue) => guard.get(cid, undefined, { onSoftTimeout: overdue }), waitsOn)

async function openBreaker({ tier, guard }: Pick<ReturnType<typeof make>, 'tier' | 'guard'>): Promise<void> {
  tier.isDown = true
  for (let turn = 0; turn < 3; turn++) await assert.rejects(guard.get(cid))
  tier.isDown = false
}

test('quick tier falls silent → 25 ms waits, skipped within 500', async () => {
  const { clock, tier, guard, events } = make()
  tier.held.set(blockKey(cid), bytes)
  for (let turn = 0; turn < 5; turn++) assert.ok(await guard.get(cid))
  tier.isSilent = true
  for (let turn = 0; turn < 20; turn++) assert.equal(await read(clock, guard), 'overdue 25')
  assert.equal(tier.waiting, 20, 'the calls go on')
  await clock.advance(50)
  assert.ok(guard.isDown)
  for (let turn = 0; turn < 10; turn++) assert.equal(await read(clock, guard), 'unavailable 0')
  assert.deepEqual(events, ['warn tier.circuit-open reads'])
})

test('distant tier that answers → waited for twice its median', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  tier.slowMs = 80
  assert.equal(await read(clock, guard), 'overdue 25')
  await clock.advance(55)
  tier.slowMs = 150
  assert.equal(await read(clock, guard), 'hit 150')
})

test('slow tier → asked in parallel, never skipped', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  tier.slowMs = 350
  assert.equal(await read(clock, guard), 'overdue 25')
  await clock.advance(400)
  for (let turn = 0; turn < 20; turn++) {
    assert.equal(await read(clock, guard), 'overdue 0')
    await clock.advance(400)
  }
  assert.ok(!guard.isDown)
})

for (const { typicalMs, end } of [
  { typicalMs: 20, end: 'overdue 25' },
  { typicalMs: 80, end: 'overdue 0' },
])
  test(`tier of ${typicalMs} ms, mostly misses → ${end}; hit → waited for`, async () => {
    const { clock, tier, guard } = make()
    tier.slowMs = typicalMs
    for (let turn = 0; turn < 8; turn++) await read(clock, guard, true)
    tier.slowMs += 6
    assert.equal(await read(clock, guard), end)
    tier.held.set(blockKey(cid), bytes)
    await read(clock, guard, true)
    assert.match(await read(clock, guard), /^hit/)
  })

test('burst of calls to a silent tier → all released together', async () => {
  const { clock, tier, guard } = make()
  tier.isSilent = true
  for (const end of await Promise.all(Array.from({ length: 300 }, () => read(clock, guard))))
    assert.equal(end, 'overdue 25')
})

test('any outage length → tier used within seconds of recovery', async () => {
  const { clock, tier, guard, events } = make()
  await guard.put(cid, bytes)
  tier.isDown = true
  for (let second = 0; second < 60; second++) {
    await guard.get(cid).catch(() => {})
    await clock.advance(1000)
  }
  tier.isDown = false
  const asked = tier.calls.length
  assert.equal(await read(clock, guard), 'unavailable 0', 'no caller waits for the trial')
  await clock.advance(1)
  assert.equal(await read(clock, guard), 'hit 0')
  assert.equal(tier.calls.length, asked + 2)
  assert.deepEqual(events, ['warn tier.circuit-open reads', 'info tier.circuit-closed reads'])
})

test('trials of a silent tier → one at a time, cancelled', async () => {
  const at = make()
  const { clock, tier, guard } = at
  await openBreaker(at)
  tier.isSilent = true
  await clock.advance(1000)
  for (let turn = 0; turn < 5; turn++) assert.equal(await read(clock, guard), 'unavailable 0')
  assert.equal(tier.waiting, 1)
  await clock.advance(1000)
  assert.equal(tier.waiting, 0)
})

test('late success closes the breaker', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  const slow = [guard.get(cid), guard.get(cid), guard.get(cid)]
  await clock.advance(499)
  assert.ok(!guard.isDown)
  await clock.advance(1)
  assert.ok(guard.isDown)
  await tier.release()
  await Promise.all(slow)
  assert.ok(!guard.isDown)
})

test('local tier → skipped for silence, not for slowness or errors', async () => {
  const { clock, tier, guard } = make({ shared: false })
  tier.isDown = true
  for (let turn = 0; turn < 10; turn++) await assert.rejects(guard.get(cid), { kind: 'upstream-error' })
  assert.ok(!guard.isDown)
  tier.isDown = false
  tier.isSilent = true
  for (let turn = 0; turn < 3; turn++) guard.get(cid).catch(() => {})
  await clock.advance(900)
  assert.ok(!guard.isDown)
  await clock.advance(100)
  assert.ok(guard.isDown)
})

test('local tier gives up by its own clock → skipped', async () => {
  const { clock, tier, guard } = make({ shared: false })
  tier.get = async () => {
    await clock.sleep(900)
    throw new Failure('timeout', 'the disk did not answer', { source: 'tier' })
  }
  for (let turn = 0; turn < 3; turn++) guard.get(cid).catch(() => {})
  await clock.advance(900)
  assert.ok(guard.isDown)
})

test('time in our queue → not charged; silence empties the queue', async () => {
  const { clock, tier, guard } = make({ concurrency: { reads: 3, writes: 1 } })
  tier.isSilent = true
  let told = 0
  const ends = Array.from({ length: 10 }, () =>
    guard.get(cid, undefined, { onSoftTimeout: () => told++ }).then(() => {}, String),
  )
  await clock.advance(499)
  assert.deepEqual([told, tier.waiting], [3, 3])
  assert.ok(!guard.isDown)
  await clock.advance(1)
  assert.equal(told, 10)
  assert.ok(guard.isDown)
  for (const end of await Promise.all(ends.slice(3))) assert.match(String(end), /is skipped/)
  assert.equal(tier.waiting, 3)
})

test('call that cannot be aborted → keeps its slot', async () => {
  const { clock, tier, guard } = make({ shared: false, concurrency: { reads: 1, writes: 1 } })
  const ended = Promise.withResolvers<undefined>()
  let asked = 0
  tier.get = () => {
    asked++
    return ended.promise
  }
  const late = assert.rejects(guard.get(cid), { kind: 'timeout' })
  await clock.advance(1000)
  await late
  const next = guard.get(cid)
  await clock.advance(100)
  assert.equal(asked, 1)
  ended.resolve(undefined)
  await next
  assert.equal(asked, 2)
})

test('time to open a tier → not charged to its calls', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  const opening = Promise.withResolvers<void>()
  let isOpen = false
  tier.open = () => (isOpen ? undefined : opening.promise)
  const reads = Array.from({ length: 5 }, () => guard.get(cid))
  await clock.advance(5000)
  assert.deepEqual([tier.calls.length, guard.isDown], [0, false])
  isOpen = true
  opening.resolve()
  for (const one of reads) assert.ok(await one)
})

test('tier that does not open → a bounded number of calls waits', async () => {
  const { tier, guard } = make({ concurrency: { reads: 1, writes: 1 } })
  Object.assign(tier, { open: () => new Promise(() => {}) })
  const refused: unknown[] = []
  for (let count = 0; count < 10_000; count++) guard.get(cid).catch((error: unknown) => refused.push(error))
  await turn()
  assert.equal(refused.length, 10_000 - 8192 - 1)
  assert.ok(refused.every((error) => isFailure(error, 'overloaded')))
})

test('no other source → waits for the timeout, even when skipped', async () => {
  const at = make()
  const { clock, tier, guard } = at
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  clock.after(900, () => void tier.release())
  assert.equal(await read(clock, guard, true), 'hit 900')
  tier.isSilent = false
  await openBreaker(at)
  assert.deepEqual(await guard.get(cid, undefined, { ignoresBreaker: true }), bytes)
  assert.ok(!guard.isDown, 'an answer closes the breaker')
})

test('stalled process → tier not blamed', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  const reads = [guard.get(cid), guard.get(cid), guard.get(cid)]
  await clock.jump(2000)
  assert.ok(!guard.isDown)
  await tier.release()
  for (const one of reads) assert.ok(await one)
})

test('process stalls repeatedly → silent tier still given up', async () => {
  const { clock, tier, guard } = make({ shared: false })
  await guard.get(cid)
  tier.isSilent = true
  let isOver = false
  guard.get(cid).catch(() => (isOver = true))
  for (let turn = 0; turn < 30 && !isOver; turn++) await clock.jump(300)
  assert.ok(isOver)
  assert.equal(clock.timers, 0)
})

test('client leaves → call stopped, nothing counted', async () => {
  const { clock, tier, guard } = make()
  tier.isSilent = true
  for (let turn = 0; turn < 10; turn++) {
    const controller = new AbortController()
    const left = assert.rejects(guard.get(cid, controller.signal), /left/)
    await clock.advance(1)
    controller.abort(new Error('left'))
    await left
  }
  await clock.advance(1)
  assert.equal(tier.waiting, 0)
  assert.ok(!guard.isDown)
  assert.equal(clock.timers, 0)
})

test('hedged reads abandoned → slow tier still measured and used', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  tier.slowMs = 200
  const leaving = new AbortController()
  const overdue = () => leaving.abort(new Error('another source has it'))
  const left = assert.rejects(guard.get(cid, leaving.signal, { onSoftTimeout: overdue }), /another source/)
  await clock.advance(200)
  await left
  assert.equal(await read(clock, guard), 'hit 200')
})

test('hung writes → two wait 500 ms, then skipped; reads continue', async () => {
  const { clock, tier, guard } = make()
  const write = () => timed(clock, (overdue) => guard.put(cid, bytes, undefined, { onSoftTimeout: overdue }))
  tier.isSilent = true
  for (const ms of [500, 500, 0]) assert.equal(await write(), `overdue ${ms}`)
  await clock.advance(500)
  assert.equal(await write(), 'unavailable 0')
  tier.isSilent = false
  assert.equal(await read(clock, guard), 'miss 0')
})

test('tier throws synchronously → a failure, no timer left', async () => {
  const { clock, tier, guard } = make()
  Object.assign(tier, {
    get: () => {
      throw new TypeError('a bug of the store')
    },
  })
  await assert.rejects(guard.get(cid), TypeError)
  assert.equal(clock.timers, 0)
})

test('failed probe → skipped before a caller waits for it', async () => {
  const { clock, tier } = make()
  const dead = { ...tier, probe: () => Promise.reject(new Error('nobody there')) }
  const guard = guarded(dead, { clock, log: silentLog })
  await assert.rejects(guard.probe?.() ?? Promise.resolve())
  assert.equal(await read(clock, guard), 'unavailable 0')
})

test('wrong bytes → a miss, deleted and counted', async () => {
  const tier = scriptedTier('bucket')
  const honest = guarded(tier)
  tier.held.set(blockKey(cid), bytes)
  assert.equal(await honest.get(cid), bytes)
  for (const [what, wrong] of [
    ['one bit', Uint8Array.from(bytes, (byte, index) => (index === 50 ? byte ^ 1 : byte))],
    ['cut short', bytes.subarray(0, 99)],
    ['empty', new Uint8Array(0)],
    ['other bytes', bytesOf(100, 1)],
    ['too much', new Uint8Array(3 << 20)],
  ] as const) {
    tier.held.set(blockKey(cid), wrong)
    assert.equal(await honest.get(cid), undefined, what)
    assert.equal(tier.held.size, 0, `${what} is still there`)
  }
  assert.equal(honest.corrupt, 5)
})

test('wrong bytes, failed delete → a miss; outage stays outage', async () => {
  const tier = scriptedTier('bucket')
  tier.held.set(blockKey(cid), bytesOf(3))
  const honest = guarded({ ...tier, delete: () => Promise.reject(new Error('denied')) })
  assert.equal(await honest.get(cid), undefined)
  tier.isDown = true
  await assert.rejects(honest.get(cid), (error) => isFailure(error, 'upstream-error'))
})

test('write during a read of wrong bytes → not undone', async () => {
  const tier = scriptedTier('bucket')
  const honest = guarded(tier)
  const wrong = bytesOf(3)
  const stored = Promise.withResolvers<void>()
  tier.put = () => stored.promise.then(() => void tier.held.set(blockKey(cid), bytes))
  const remove = tier.delete
  tier.delete = async (of) => {
    stored.resolve()
    await turn()
    await remove(of)
  }
  tier.held.set(blockKey(cid), wrong)
  const reading = honest.get(cid)
  const writing = honest.writeBehind?.write(cid, bytes).done
  assert.equal(await reading, undefined)
  stored.resolve()
  await writing
  assert.equal(await honest.get(cid), bytes)
})

test('corrupt block, silent recheck → miss; later write not deleted', async () => {
  const { clock, tier, guard: honest } = make()
  tier.held.set(blockKey(cid), bytesOf(3))
  const { get } = tier
  tier.get = (of, signal) => {
    tier.isSilent = tier.calls.length > 0
    return get(of, signal)
  }
  assert.equal(await timed(clock, () => honest.get(cid)), 'miss 25')
  tier.isSilent = false
  await honest.writeBehind?.write(cid, bytes).done
  await tier.release()
  await clock.advance(1000)
  assert.equal(tier.held.get(blockKey(cid)), bytes)
})

test('flipped byte in the page cache → not returned, then deleted', async () => {
  const large = bytesOf(200_000, 9)
  const of = cidOf(large)
  const tier = scriptedTier('bucket')
  let asked: unknown[] = []
  const honest = guarded({
    ...tier,
    peek(_cid, options) {
      asked.push(options?.part)
      const held = tier.held.get(blockKey(of))
      return held && { ...partOf(held, options?.part), size: held.byteLength }
    },
  })
  const flipped = (at: number) => Uint8Array.from(large, (byte, index) => (index === at ? byte ^ 1 : byte))
  const hold = (bytes: Uint8Array) => tier.held.set(blockKey(of), bytes)
  const part = { from: 70_000, to: 71_000 }
  const read = () => honest.peek?.(of, { part })?.bytes
  hold(flipped(199_999))
  assert.equal(read(), undefined, 'nothing is known of its chunks yet: all of it has to be right')
  hold(large)
  assert.deepEqual(honest.peek?.(of)?.bytes, large)
  assert.deepEqual(read(), large.subarray(70_000, 71_000))
  asked = []
  assert.deepEqual(read(), large.subarray(70_000, 71_000))
  assert.deepEqual(asked, [{ from: 65_536, to: 81_920 }], 'no more is read than its chunks')
  assert.deepEqual(honest.peek?.(of, { part: { from: 199_000, to: 200_000 } })?.bytes, large.subarray(199_000))
  for (const at of [70_500, 65_536, 81_919]) {
    hold(flipped(at))
    assert.equal(read(), undefined, `byte ${at}`)
    assert.equal(honest.peek?.(of), undefined)
    hold(large)
    assert.ok(read())
  }
  hold(large.subarray(0, 80_000))
  assert.equal(read(), undefined, 'cut short')
  hold(flipped(70_500))
  assert.equal(await honest.get(of), undefined)
  assert.equal(tier.held.size, 0)
})
