import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Failure, type FailureKind } from '../../src/failure.ts'
import { silentLog } from '../../src/observe/log.ts'
import { createStanding } from '../../src/retrieval/standing.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const minute = 60_000

function make(limits: { perMinute?: number; perCidPerMinute?: number } = {}) {
  const clock = createFakeClock()
  const standing = createStanding({ name: 'one', clock, log: silentLog, ...limits })
  const fail = (kind: FailureKind, retryAfterMs?: number) =>
    standing.ask('block', 'a').failed(new Failure(kind, kind, { source: 'upstream', retryAfterMs }))
  const win = () => {
    const ask = standing.ask('block', 'a')
    ask.brought(1, 0)
    ask.done()
  }
  return { clock, standing, fail, win, state: (key = 'a') => standing.state(key).state }
}

test('throttling is a cool-down of the full length asked for, 900 s included', async () => {
  const { clock, fail, state } = make()
  fail('throttled', 900_000)
  await clock.advance(899_000)
  assert.equal(state(), 'cooling-down')
  await clock.advance(1_001)
  assert.equal(state(), 'ready')
})

test('throttling is no failure: it adds nothing to the load', () => {
  const { standing, fail, win } = make()
  win()
  const before = standing.load('block')
  fail('throttled', 1000)
  assert.ok(Math.abs(standing.load('block') - before) < 1)
})

test('five failures in a row are a rest of 30 s, the next of 60 s; a win in between forgives', async () => {
  const { clock, fail, win, state } = make()
  for (let count = 0; count < 4; count++) fail('broken')
  win()
  for (let count = 0; count < 4; count++) fail('timeout')
  assert.equal(state(), 'ready')
  fail('broken')
  assert.equal(state(), 'resting')
  await clock.advance(30_001)
  assert.equal(state(), 'ready')
  for (let count = 0; count < 5; count++) fail('broken')
  await clock.advance(30_001)
  assert.equal(state(), 'resting')
  await clock.advance(30_001)
  assert.equal(state(), 'ready')
})

test('false bytes once are a quarantine, longer each time', async () => {
  const { clock, fail, state } = make()
  fail('false-bytes')
  await clock.advance(9 * minute)
  assert.equal(state(), 'quarantined')
  await clock.advance(minute + 1)
  assert.equal(state(), 'ready')
  fail('false-bytes')
  await clock.advance(19 * minute)
  assert.equal(state(), 'quarantined')
})

test('a client that left is held against nobody', () => {
  const { standing, fail } = make()
  const before = standing.load('block')
  for (let count = 0; count < 10; count++) fail('cancelled')
  assert.equal(standing.load('block'), before)
  assert.equal(standing.state('a').state, 'ready')
})

test('losing by being slow costs rank, and time gives it back', async () => {
  const { clock, standing, win } = make()
  win()
  const before = standing.load('block')
  const slow = standing.ask('block', 'a')
  await clock.advance(800)
  slow.letGo('enough')
  const after = standing.load('block')
  assert.ok(after > before * 10)
  await clock.advance(30 * minute)
  assert.ok(standing.load('block') < after)
})

test('one that never has anything ranks behind one that does', async () => {
  const has = make()
  const hasNot = make()
  for (let count = 0; count < 30; count++) {
    const [one, other] = [has.standing.ask('block', 'a'), hasNot.standing.ask('block', 'a')]
    await Promise.all([has.clock.advance(50), hasNot.clock.advance(50)])
    one.brought(1, 0)
    one.done()
    other.failed(new Failure('not-found', 'not here', { source: 'upstream' }))
  }
  assert.ok(hasNot.standing.load('block') > has.standing.load('block'))
})

test('its budget per minute and per CID is kept', async () => {
  const { clock, standing, state } = make({ perCidPerMinute: 4, perMinute: 400 })
  standing.ask('block', 'a').done()
  assert.equal(state('a'), 'over-budget')
  assert.equal(state('b'), 'ready')
  await clock.advance(15_000)
  assert.equal(state('a'), 'ready')
})

test('a resting one may be tried once a second when there is nobody else, and looking uses nothing up', async () => {
  const { clock, standing, fail } = make()
  for (let count = 0; count < 5; count++) fail('broken')
  assert.equal(standing.mayTryAnyway, true)
  assert.equal(standing.mayTryAnyway, true)
  standing.ask('block', 'a')
  assert.equal(standing.mayTryAnyway, false)
  await clock.advance(1001)
  assert.equal(standing.mayTryAnyway, true)
})

test('a probe decides about usable, and ends a rest', () => {
  const { standing, fail, state } = make()
  const report = { raw: true, car: true, findings: [], ms: 3 }
  standing.probed({ ...report, usable: false })
  assert.equal(state(), 'unusable')
  standing.probed({ ...report, usable: true })
  assert.equal(state(), 'ready')
  for (let count = 0; count < 5; count++) fail('broken')
  standing.probed({ ...report, usable: true })
  assert.equal(state(), 'ready')
})
