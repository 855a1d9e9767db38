// A tier that is dead, slow or full must not be felt by those who ask it. And one whose bytes are false is not believed.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { blockKey } from '../../src/block.ts'
import { isFailure } from '../../src/failure.ts'
import { silentLog } from '../../src/observe/log.ts'
import { type GuardOptions, guarded } from '../../src/retrieval/guarded-tier.ts'
import { proved } from '../../src/retrieval/proved-tier.ts'
import { bytesOf, cidOf } from '../contract/tier.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { scriptedTier } from '../support/scripted-tier.ts'

const bytes = bytesOf(100)
const cid = cidOf(bytes)

function make(options: Partial<GuardOptions> = {}) {
  const clock = createFakeClock()
  const tier = scriptedTier('far')
  const events: string[] = []
  const log: GuardOptions['log'] = (level, event, facts) => events.push(`${level} ${event} ${facts?.['what']}`)
  return { clock, tier, events, guard: guarded(tier, { clock, log, deadlineMs: 1000, ...options }) }
}

/** How a read ends, and after how long. */
async function timed(clock: ReturnType<typeof createFakeClock>, work: Promise<unknown>) {
  const began = clock.monotonic()
  let end: { kind: string; ms: number } | undefined
  work.then(
    (value) => (end = { kind: value === undefined ? 'miss' : 'hit', ms: clock.monotonic() - began }),
    (error: unknown) => (end = { kind: isFailure(error) ? error.kind : 'other', ms: clock.monotonic() - began }),
  )
  for (let turn = 0; turn < 2000 && !end; turn++) await clock.advance(1)
  assert.ok(end, 'it never ended')
  return end
}

test('one that was quick and falls silent costs three readers 100 ms, and then nothing', async () => {
  const { clock, tier, guard, events } = make()
  await guard.put(cid, bytes)
  assert.ok(await guard.get(cid))
  tier.isSilent = true
  for (let turn = 0; turn < 3; turn++)
    assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'timeout', ms: 100 })
  assert.ok(guard.isDown)
  for (let turn = 0; turn < 10; turn++)
    assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'unavailable', ms: 0 })
  assert.deepEqual(events, ['warn tier.passed-over reads'])
})

test('it comes back by itself, by a trial that nobody waits for', async () => {
  const { clock, tier, guard, events } = make()
  await guard.put(cid, bytes)
  tier.isDown = true
  for (let turn = 0; turn < 3; turn++) await assert.rejects(guard.get(cid))
  const asked = tier.calls.length
  await assert.rejects(guard.get(cid), (error) => isFailure(error, 'unavailable'))
  assert.equal(tier.calls.length, asked)
  tier.isDown = false
  await clock.advance(1000)
  assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'unavailable', ms: 0 })
  await clock.advance(1)
  assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'hit', ms: 0 })
  assert.deepEqual(events, ['warn tier.passed-over reads', 'info tier.back reads'])
})

test('a trial into silence costs nobody anything either, and there is one at a time', async () => {
  const { clock, tier, guard } = make()
  tier.isDown = true
  for (let turn = 0; turn < 3; turn++) await assert.rejects(guard.get(cid))
  tier.isDown = false
  tier.isSilent = true
  await clock.advance(1000)
  for (let turn = 0; turn < 5; turn++)
    assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'unavailable', ms: 0 })
  assert.equal(tier.waiting, 1)
  await clock.advance(1000)
  assert.equal(tier.waiting, 0, 'the trial is aborted at the deadline')
})

test('a tier that is far but answers is waited for: it has all its time at first, and what it needs later', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  tier.isSilent = true
  clock.after(300, () => void tier.release())
  assert.equal((await timed(clock, guard.get(cid))).kind, 'hit')
  assert.ok(guard.patienceMs >= 900, `patience ${guard.patienceMs}`)
  tier.isSilent = false
  for (let turn = 0; turn < 300; turn++) await guard.get(cid)
  assert.equal(guard.patienceMs, 100)
})

test('three slow answers that do come close the breaker again, and make it patient', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  const slow = [guard.get(cid), guard.get(cid), guard.get(cid)]
  for (const one of slow) one.catch(() => {})
  await clock.advance(101)
  assert.ok(guard.isDown)
  await clock.advance(199)
  await tier.release()
  await clock.advance(1)
  assert.ok(!guard.isDown)
  assert.ok(guard.patienceMs > 800)
})

test('who has nobody else to ask waits until the deadline', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  clock.after(900, () => void tier.release())
  assert.deepEqual(await timed(clock, guard.get(cid, undefined, 'whole')), { kind: 'hit', ms: 900 })
})

test('who could ask nobody else asks a tier that is passed over, and its answer is no trial', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  tier.isDown = true
  for (let turn = 0; turn < 3; turn++) await assert.rejects(guard.get(cid))
  tier.isDown = false
  assert.deepEqual(await timed(clock, guard.get(cid, undefined, 'whole')), { kind: 'unavailable', ms: 0 })
  assert.deepEqual(await timed(clock, guard.get(cid, undefined, 'beyond')), { kind: 'hit', ms: 0 })
  assert.ok(guard.isDown)
})

test('a timer of ours that rings late is not held against the tier', async () => {
  const { clock, tier, guard } = make()
  tier.held.set(blockKey(cid), bytes)
  await guard.get(cid)
  tier.isSilent = true
  const reads = [guard.get(cid), guard.get(cid), guard.get(cid)]
  await clock.jump(400)
  assert.ok(!guard.isDown)
  await tier.release()
  for (const read of reads) assert.ok(await read)
})

test('a client that leaves is nobody’s fault, and stops the call', async () => {
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
  assert.equal(guard.failures, 0)
  assert.equal(clock.timers, 0, 'no clock is left running')
})

test('who leaves a silent write after the deadline says something about the tier, and its trial is not waited for long', async () => {
  const { clock, tier, guard } = make()
  tier.isSilent = true
  for (const [waits, times] of [
    [999, 5],
    [1000, 3],
  ] as const)
    for (let time = 0; time < times; time++) {
      const leaving = new AbortController()
      const work = guard.put(cid, bytes, leaving.signal)
      await clock.advance(waits)
      leaving.abort(new Error('left'))
      await assert.rejects(work, /left/)
    }
  assert.deepEqual(await timed(clock, guard.put(cid, bytes)), { kind: 'unavailable', ms: 0 })
  await clock.advance(1000)
  assert.deepEqual(await timed(clock, guard.put(cid, bytes)), { kind: 'unavailable', ms: 1000 })
})

test('a disk that is full still reads', async () => {
  const { tier, guard } = make()
  await guard.put(cid, bytes)
  tier.isDown = true
  for (let turn = 0; turn < 5; turn++) await assert.rejects(guard.put(cid, bytes))
  await assert.rejects(guard.put(cid, bytes), (error) => isFailure(error, 'unavailable'))
  tier.isDown = false
  assert.ok(await guard.get(cid))
})

test('a probe that fails makes it passed over before anybody has waited for it', async () => {
  const { clock, tier } = make()
  const dead = { ...tier, probe: () => Promise.reject(new Error('nobody there')) }
  const guard = guarded(dead, { clock, log: silentLog })
  await assert.rejects(guard.probe?.() ?? Promise.resolve())
  assert.deepEqual(await timed(clock, guard.get(cid)), { kind: 'unavailable', ms: 0 })
})

test('false bytes are a miss, deleted and counted; true ones pass as they are', async () => {
  const tier = scriptedTier('bucket')
  const seen: string[] = []
  const honest = proved(tier, { log: silentLog, onCorrupt: (name, of) => seen.push(`${name} ${of}`) })
  assert.equal(honest.traits.trusted, true)
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
  assert.deepEqual(new Set(seen), new Set([`bucket ${cid}`]))
})

test('false bytes are a miss although they cannot be deleted, and an outage stays an outage', async () => {
  const tier = scriptedTier('bucket')
  tier.held.set(blockKey(cid), bytesOf(3))
  const honest = proved({ ...tier, delete: () => Promise.reject(new Error('denied')) }, { log: silentLog })
  assert.equal(await honest.get(cid), undefined)
  tier.isDown = true
  await assert.rejects(honest.get(cid), (error) => isFailure(error, 'broken'))
})
