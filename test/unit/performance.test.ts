// What is learned of how an upstream works, and who is asked first because of it.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Failure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createLoopScheduler } from '../../src/retrieval/loop-scheduler.ts'
import { UpstreamHealth } from '../../src/retrieval/upstreams/upstream-health.ts'
import { enter } from '../support/asked.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const kib = 1024
const mib = 1024 * kib
const minute = 60_000
const report = { usable: true, raw: true, car: false, findings: [] }

function make() {
  const clock = createFakeClock()
  const health = () => new UpstreamHealth({ name: 'one', clock, turns: createLoopScheduler(clock), log: silentLog })
  /** A whole file of 1 MiB: its first byte after `firstMs`, the rest at `rate` bytes a millisecond. */
  const serve = async (who: UpstreamHealth, firstMs: number, rate: number) => {
    const ask = await enter(clock, who, { kind: 'dag' })
    await clock.advance(firstMs)
    ask.brought(150, firstMs)
    for (let sent = 0; sent < mib; sent += 256 * kib) {
      const ms = (256 * kib) / rate
      await clock.advance(ms)
      ask.brought(256 * kib, ms)
    }
    ask.done()
  }
  /** The root at once, and then so little that another one is asked. */
  const drip = async (who: UpstreamHealth, rate: number) => {
    const ask = await enter(clock, who, { kind: 'dag' })
    await clock.advance(1)
    ask.brought(150, 1)
    for (let waited = 0; waited < 500; waited += 100) {
      await clock.advance(100)
      ask.brought(rate * 100, 100)
    }
    ask.letGo('behind')
  }
  return { clock, health, serve, drip }
}

const perMs = (bytesPerSecond: number) => bytesPerSecond / 1000

for (const [what, rate] of [
  ['a staller', 0],
  ['a dripper of 16 KiB/s', perMs(16 * kib)],
  ['a dripper of 256 KiB/s', perMs(256 * kib)],
  ['a dripper of 1 MiB/s', perMs(mib)],
] as const) {
  test(`${what} → ranks after an honest upstream of 60 ms`, async () => {
    const { health, serve, drip } = make()
    const [bad, honest] = [health(), health()]
    await drip(bad, rate)
    await serve(honest, 60, perMs(50 * mib))
    assert.ok(bad.load('dag') > 2 * honest.load('dag'), `${bad.load('dag')} and ${honest.load('dag')}`)
    assert.ok(bad.expectedMs('dag', 8 * mib) > 2 * honest.expectedMs('dag', 8 * mib))
  })
}

test('unknown upstream → one trial request at a time', async () => {
  const { clock, health, serve } = make()
  const one = health()
  assert.equal(one.isUntried('dag'), true)
  const ask = await enter(clock, one, { kind: 'dag', key: 'a' })
  assert.equal(one.isUntried('dag'), false)
  ask.letGo('enough')
  assert.equal(one.isUntried('dag'), false)
  assert.equal(one.isUntried('block'), true)
  await serve(one, 60, perMs(50 * mib))
  assert.equal(one.isUntried('dag'), false)
})

test('probe → speed estimate until the first request', async () => {
  const { health } = make()
  const [far, near] = [health(), health()]
  far.probed({ ...report, ms: 400 })
  near.probed({ ...report, ms: 20 })
  assert.ok(far.load('dag') > near.load('dag'))
})

test('unknown upstream → default estimate, then measured', async () => {
  const { health, serve } = make()
  const one = health()
  assert.equal(one.rate('dag'), undefined)
  assert.equal(one.typicalMs('dag'), undefined)
  assert.ok(Math.abs(one.expectedMs('dag', 2 * mib) - 1300) < 50)
  await serve(one, 40, perMs(10 * mib))
  assert.ok(Math.abs(one.expectedMs('dag', 2 * mib) - 240) < 20, `${one.expectedMs('dag', 2 * mib)}`)
  assert.equal(one.typicalMs('dag'), 40)
})

test('kinds of work are measured separately', async () => {
  const { health, drip } = make()
  const one = health()
  await drip(one, 0)
  assert.ok(one.load('dag') > 1000)
  assert.ok(one.load('block') < 1000)
})

test('stall mid-response outweighs a fast start', async () => {
  const { health, serve, clock } = make()
  const [bad, honest] = [health(), health()]
  await serve(honest, 60, perMs(50 * mib))
  for (let count = 0; count < 2; count++) {
    const ask = await enter(clock, bad, { kind: 'dag', key: 'a' })
    await clock.advance(1)
    ask.brought(150, 1)
    ask.failed(new Failure('timeout', 'stalled', { source: 'upstream' }))
    assert.ok(bad.load('dag') > honest.load('dag'))
  }
})

test('one silent question → still before one ten times as slow', async () => {
  const { clock, health, serve } = make()
  const [quick, slow] = [health(), health()]
  for (let count = 0; count < 4; count++) {
    await serve(quick, 40, perMs(50 * mib))
    await serve(slow, 400, perMs(50 * mib))
  }
  const ask = await enter(clock, quick, { kind: 'dag' })
  await clock.advance(1000)
  ask.letGo('enough')
  assert.ok(quick.load('dag') < slow.load('dag'), `${quick.load('dag')} and ${slow.load('dag')}`)
})

test('many questions without an answer → hedge delay stays bounded', async () => {
  const { clock, health, serve } = make()
  const one = health()
  for (let count = 0; count < 40; count++) {
    await serve(one, 40, perMs(50 * mib))
    if (count % 4 > 0) continue
    const ask = await enter(clock, one, { kind: 'dag' })
    await clock.advance(1000)
    ask.letGo('enough')
  }
  assert.equal(one.typicalMs('dag'), 160)
})

test('idle for long → tried again, and the trial counts', async () => {
  const { clock, health, drip, serve } = make()
  const one = health()
  await drip(one, 0)
  const before = one.load('dag')
  assert.equal(one.isUntried('dag'), false)
  await clock.advance(30 * minute)
  assert.equal(one.isUntried('dag'), true)
  await serve(one, 60, perMs(50 * mib))
  assert.ok(one.load('dag') < before / 10)
})

test('good probes shorten that time', async () => {
  const { health, drip } = make()
  const [one, other] = [health(), health()]
  await drip(one, 0)
  await drip(other, 0)
  for (let count = 0; count < 10; count++) one.probed({ ...report, ms: 5 })
  assert.ok(one.load('dag') < other.load('dag'))
})

test('silent to all → cost of the silence', async () => {
  const { clock, health, serve } = make()
  const one = health()
  await serve(one, 20, perMs(50 * mib))
  const early = await enter(clock, one, { kind: 'dag', key: 'a' })
  await clock.advance(10)
  const later = await enter(clock, one, { kind: 'dag', key: 'b' })
  await clock.advance(2000)
  assert.equal(one.silentMs, 2010)
  assert.ok(one.load('dag') >= 2010)
  assert.ok(one.expectedMs('dag', 1) >= 2010)
  later.brought(1000, 0)
  assert.equal(one.silentMs, 0, 'the early question is a long search: others are answered')
  early.letGo('enough')
})

test('slow client → no effect on upstreams', async () => {
  const { clock, health } = make()
  const one = health()
  const ask = await enter(clock, one, { kind: 'dag', key: 'a' })
  await clock.advance(10)
  ask.brought(150, 10)
  for (let count = 0; count < 8; count++) {
    await clock.advance(1000)
    ask.brought(128 * kib, 1)
  }
  ask.done()
  assert.ok((one.rate('dag') ?? 0) > perMs(100 * mib))
})
