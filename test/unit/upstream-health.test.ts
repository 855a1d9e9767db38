// What an upstream did, and what it is out for: no more than that, and no longer than need be.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Failure, type FailureKind } from '../../src/core/failure.ts'
import type { Log } from '../../src/core/log.ts'
import { createLoopScheduler } from '../../src/retrieval/loop-scheduler.ts'
import { UpstreamHealth, type UpstreamHealthOptions } from '../../src/retrieval/upstreams/upstream-health.ts'
import { enter as enterAt } from '../support/asked.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const second = 1000
const minute = 60 * second
const failure = (kind: FailureKind, retryAfterMs?: number) =>
  new Failure(kind, kind, { source: 'upstream', retryAfterMs })
const report = { raw: true, car: true, findings: [], ms: 3 }

function make(options: Partial<UpstreamHealthOptions> = {}) {
  const clock = createFakeClock()
  const logged: string[] = []
  const log: Log = (_level, event) => logged.push(event)
  const health = new UpstreamHealth({
    name: 'one',
    clock,
    turns: createLoopScheduler(clock),
    log,
    ...options,
  })
  const enter = (key = 'a', signal = new AbortController().signal) => enterAt(clock, health, { key, signal })
  const fail = async (kind: FailureKind, retryAfterMs?: number) => (await enter()).failed(failure(kind, retryAfterMs))
  const win = async () => {
    const ask = await enter()
    ask.brought(1, 0)
    ask.done()
  }
  /** It fails at so many moments, one after another. */
  const failAt = async (moments: number, kind: FailureKind = 'upstream-error') => {
    for (let count = 0; count < moments; count++) {
      await fail(kind)
      await clock.advance(10)
    }
  }
  return { clock, health, enter, fail, failAt, win, logged, state: (key = 'a') => health.state(key).state }
}

test('429 → rate-limited for all of Retry-After, even 900 s', async () => {
  const { clock, fail, state } = make()
  await fail('throttled', 900_000)
  await clock.advance(899_000)
  assert.equal(state(), 'rate-limited')
  await clock.advance(1_001)
  assert.equal(state(), 'ready')
})

test('absurd Retry-After → capped at an hour', async () => {
  const { clock, fail, state } = make()
  await fail('throttled', 10 ** 15)
  await clock.advance(60 * minute + 1)
  assert.equal(state(), 'ready')
})

test('429 → no failure, no added load', async () => {
  const { health, fail, win, clock } = make()
  await win()
  const before = health.load('block')
  await fail('throttled', 1000)
  await clock.advance(1001)
  assert.ok(Math.abs(health.load('block') - before) < 1)
})

test('64 simultaneous failures count once; earlier requests add nothing', async () => {
  const { clock, enter, state, health } = make({ connections: 64 })
  for (let count = 0; count < 64; count++) {
    const first = await enter()
    first.brought(1, 0)
    first.done()
  }
  const asks = await Promise.all(Array.from({ length: 8 }, () => enter()))
  await clock.advance(5 * second)
  for (const ask of asks) ask.failed(failure('upstream-error'))
  assert.equal(state(), 'ready')
  assert.equal(health.counts.failed, 8)
})

test('three failures → unhealthy, logged once', async () => {
  const { clock, failAt, win, state, logged } = make()
  await failAt(2)
  await win()
  await failAt(2)
  assert.equal(state(), 'ready')
  await failAt(1)
  assert.equal(state(), 'unhealthy')
  // Nobody looks at it here: it is tried now and then.
  for (let count = 0; count < 5; count++) {
    await clock.advance(minute)
    await failAt(1)
  }
  assert.deepEqual(
    logged.filter((event) => event === 'upstream.unhealthy'),
    ['upstream.unhealthy'],
  )
})

test('outage of half a minute → brief; of minutes → not', async () => {
  const { clock, failAt, health } = make()
  await failAt(3)
  const isBrief = async (minutes: number) => {
    for (const end = clock.monotonic() + minutes * minute; clock.monotonic() < end; ) {
      await clock.advance(health.state('a').untilMs ?? 0)
      await failAt(1)
    }
    return health.isOutBriefly
  }
  assert.equal(await isBrief(0.25), true)
  assert.equal(await isBrief(3), false)
})

test('requests begun before → do not extend the backoff', async () => {
  const { clock, enter, failAt, state } = make()
  const before = [await enter()]
  await failAt(3)
  await clock.advance(500)
  for (const ask of before) ask.failed(failure('upstream-error'))
  await clock.advance(600)
  assert.equal(state(), 'ready')
})

test('one success → healthy', async () => {
  const { clock, enter, failAt, win, state, logged } = make()
  const early = await enter()
  await failAt(3)
  assert.equal(state(), 'unhealthy')
  await clock.advance(1)
  early.brought(1, 0)
  early.done()
  assert.equal(state(), 'ready')
  await clock.advance(10 * second)
  await win()
  assert.deepEqual(logged, ['upstream.unhealthy', 'upstream.recovered'])
})

test('flapping → logged once', async () => {
  const { clock, failAt, win, logged } = make()
  for (let count = 0; count < 20; count++) {
    await failAt(3)
    await clock.advance(second)
    await win()
  }
  assert.deepEqual(logged, ['upstream.unhealthy'])
})

test('good probe → healthy; next failure → unhealthy again', async () => {
  const { clock, health, fail, failAt, state } = make()
  await failAt(3)
  health.probed({ ...report, usable: true })
  assert.equal(state(), 'ready')
  await clock.advance(10)
  await fail('upstream-error')
  assert.equal(state(), 'unhealthy')
})

test('repeated failures → longer backoff, up to a minute', async () => {
  const { clock, failAt, state, health } = make()
  await failAt(3)
  const lengths: number[] = []
  for (let count = 0; count < 9; count++) {
    const { untilMs } = health.state('a')
    lengths.push(Math.round((untilMs ?? 0) / second))
    await clock.advance(untilMs ?? 0)
    assert.equal(state(), 'ready')
    await failAt(1)
  }
  assert.deepEqual(lengths, [1, 2, 4, 8, 16, 32, 60, 60, 60])
})

test('timeout → counts only if another has the block', async () => {
  const { clock, enter, state, health, win } = make()
  await win()
  const before = health.load('block')
  for (let count = 0; count < 20; count++) {
    const ask = await enter(`absent ${count}`)
    await clock.advance(5 * second)
    assert.ok(ask.failed(failure('timeout')))
  }
  assert.equal(state(), 'ready')
  assert.ok(health.load('block') <= before + 1)

  for (let count = 0; count < 3; count++) {
    const ask = await enter(`there ${count}`)
    await clock.advance(5 * second)
    ask.failed(failure('timeout'))?.()
  }
  assert.equal(state(), 'unhealthy')
})

test('timeouts without any response → probe', async () => {
  const { clock, enter, health } = make()
  let wanted = 0
  health.onProbeWanted(() => wanted++)
  const ask = await enter()
  await clock.advance(5 * second)
  ask.failed(failure('timeout'))
  assert.equal(wanted, 1)
})

test('wrong bytes → quarantine, longer each time, once per moment', async () => {
  const { clock, enter, fail, state } = make()
  const asks = await Promise.all([enter(), enter(), enter()])
  for (const ask of asks) ask.failed(failure('hash-mismatch'))
  await clock.advance(4 * second)
  assert.equal(state('b'), 'quarantined')
  await clock.advance(second + 1)
  assert.equal(state('b'), 'ready')
  await fail('hash-mismatch')
  await clock.advance(9 * second)
  assert.equal(state('b'), 'quarantined')
})

test('quarantine up to an hour; ten honest minutes reset it', async () => {
  const { clock, health, fail, state } = make()
  const out = async () => {
    await fail('hash-mismatch')
    const { untilMs = 0 } = health.state('b')
    await clock.advance(untilMs + 1)
    return Math.round(untilMs / second)
  }
  const all: number[] = []
  for (let count = 0; count < 12; count++) all.push(await out())
  assert.deepEqual(all, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600])
  await clock.advance(11 * minute)
  assert.equal(state(), 'ready')
  assert.equal(await out(), 5)
})

test('local resource shortage → no upstream blamed', async () => {
  const { health, failAt, logged } = make()
  const before = health.load('block')
  await failAt(10, 'overloaded')
  assert.equal(health.load('block'), before)
  assert.equal(health.state('a').state, 'ready')
  assert.deepEqual(logged, [])
})

test('client left → no upstream blamed', async () => {
  const { health, fail } = make()
  const before = health.load('block')
  for (let count = 0; count < 10; count++) await fail('cancelled')
  assert.equal(health.load('block'), before)
  assert.equal(health.state('a').state, 'ready')
})

test('slow loser → lower rank, until tried again', async () => {
  const { clock, health, enter, win } = make()
  await win()
  const before = health.load('block')
  const slow = await enter()
  await clock.advance(800)
  slow.letGo('enough')
  const after = health.load('block')
  assert.ok(after > before + 700)
  await clock.advance(30 * minute)
  assert.equal(health.isUntried('block'), true)
})

test('always misses → ranks after one with the blocks', async () => {
  const has = make()
  const hasNot = make()
  for (let count = 0; count < 30; count++) {
    const [one, other] = [await has.enter(), await hasNot.enter()]
    await Promise.all([has.clock.advance(50), hasNot.clock.advance(50)])
    one.brought(1, 0)
    one.done()
    other.failed(failure('not-found'))?.()
  }
  assert.ok(hasNot.health.load('block') > has.health.load('block'))
})

test('block nowhere → hit rate unchanged', async () => {
  const { clock, enter, win, health } = make()
  await win()
  const before = health.load('block')
  for (let count = 0; count < 30; count++) {
    const ask = await enter(`absent ${count}`)
    await clock.advance(50)
    ask.failed(failure('not-found'))
  }
  assert.ok(health.load('block') <= before + 1)
})

test('budget per CID used up → asked elsewhere, refused', async () => {
  const { enter, state } = make({ perCidPerMinute: 1 })
  await enter('a')
  assert.equal(state('a'), 'budget-exhausted')
  assert.equal(state('b'), 'ready')
  await assert.rejects(enter('a'), { kind: 'overloaded' })
})

test('no probes → unhealthy upstream tried once a second', async () => {
  const { clock, enter, failAt } = make()
  await failAt(3)
  await clock.advance(second)
  await failAt(1)
  await assert.rejects(enter(), { kind: 'unavailable' })
  await clock.advance(second)
  const ask = await enter()
  ask.letGo('enough')
  await assert.rejects(enter(), { kind: 'unavailable' })
})

test('unhealthy with a budget → never asked beyond it', async () => {
  const { clock, health, enter, failAt } = make({ perMinute: 5 })
  await failAt(3)
  for (let tried = 0; tried < 30; tried++) {
    await clock.advance(1001)
    await enter().then(
      (ask) => ask.failed(failure('upstream-error')),
      () => {},
    )
  }
  assert.equal(health.counts.asked, 5)
})

test('probe decides compatibility; incompatible → no retry time', () => {
  const { health, state } = make()
  health.probed({ ...report, usable: false })
  assert.equal(state(), 'incompatible')
  assert.equal(health.state('a').untilMs, undefined)
  health.probed({ ...report, usable: true })
  assert.equal(state(), 'ready')
})

test('recent verified bytes outweigh a failed probe', async () => {
  const { clock, health, win, fail, state } = make()
  await win()
  await fail('upstream-error')
  health.probed({ ...report, usable: false, findings: ['no empty block'] })
  assert.equal(state(), 'ready')
  await clock.advance(11 * minute)
  health.probed({ ...report, usable: false })
  assert.equal(state(), 'incompatible')
})

test('probe timed out, clients served meanwhile → ready', async () => {
  const { clock, health, win, state } = make()
  const beganAt = clock.monotonic()
  await clock.advance(second)
  await win()
  health.unreachable(failure('timeout'), beganAt)
  assert.equal(state(), 'ready')
  await clock.advance(second)
  health.unreachable(failure('timeout'), clock.monotonic())
  assert.equal(state(), 'unhealthy')
})

test('removed listener → not called, others are', async () => {
  const { health, failAt } = make()
  const looks = { old: 0, refused: 0 }
  health.onProbeWanted(() => looks.old++)
  const forget = health.onProbeWanted(() => looks.refused++)
  forget()
  await failAt(3)
  assert.ok(looks.old > 0)
  assert.equal(looks.refused, 0)
})
