// The breaker by its clock: when it opens, who is let through, and when it closes again.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Breaker, createBreaker } from '../../src/retrieval/tiers/breaker.ts'
import { createFakeClock } from '../support/fake-clock.ts'

function make() {
  const clock = createFakeClock()
  const changes: string[] = []
  const breaker = createBreaker({ clock, failures: 3, onChange: (state) => changes.push(state) })
  return { clock, breaker, changes }
}

function fail(breaker: Breaker, times = 1): void {
  for (let turn = 0; turn < times; turn++) breaker.enter()?.failed()
}

test('opens after three failures in a row, and a success in between starts the count anew', () => {
  const { breaker, changes } = make()
  fail(breaker, 2)
  breaker.enter()?.succeeded()
  fail(breaker, 2)
  assert.equal(breaker.state, 'closed')
  fail(breaker)
  assert.equal(breaker.state, 'open')
  assert.equal(breaker.enter(), undefined)
  assert.deepEqual(changes, ['open'])
})

test('lets a single trial through after each pause: 1 s, doubling to 30 s', async () => {
  const { breaker, clock } = make()
  fail(breaker, 3)
  for (const pauseMs of [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]) {
    assert.equal(breaker.retryAfterMs, pauseMs)
    await clock.advance(pauseMs - 1)
    assert.equal(breaker.enter(), undefined, `before ${pauseMs} ms`)
    await clock.advance(1)
    const trial = breaker.enter()
    assert.ok(trial, `after ${pauseMs} ms`)
    assert.equal(breaker.state, 'trying')
    assert.equal(breaker.enter(), undefined, 'a second trial')
    trial.failed()
  }
})

test('a trial that goes well closes it, and the next pause is the first one again', async () => {
  const { breaker, clock, changes } = make()
  fail(breaker, 3)
  await clock.advance(1000)
  fail(breaker)
  await clock.advance(2000)
  breaker.enter()?.succeeded()
  assert.equal(breaker.state, 'closed')
  fail(breaker, 3)
  assert.equal(breaker.retryAfterMs, 1000)
  assert.deepEqual(changes, ['open', 'closed', 'open'])
})

test('a trial whose caller left makes way for another', async () => {
  const { breaker, clock } = make()
  fail(breaker, 3)
  await clock.advance(1000)
  breaker.enter()?.cancelled()
  assert.ok(breaker.enter())
})

test('a call counts once; calls in progress when it opened do not lengthen the pause', async () => {
  const { breaker, clock } = make()
  const slow = breaker.enter()
  slow?.failed()
  slow?.failed()
  slow?.failed()
  assert.equal(breaker.state, 'closed')
  const late = breaker.enter()
  fail(breaker, 2)
  assert.equal(breaker.state, 'open')
  late?.failed()
  assert.equal(breaker.retryAfterMs, 1000)
  await clock.advance(1000)
  assert.ok(breaker.enter())
})

test('an answer that comes late is an answer: it closes', () => {
  const { breaker } = make()
  const slow = breaker.enter()
  slow?.failed()
  fail(breaker, 2)
  assert.equal(breaker.state, 'open')
  slow?.succeeded()
  assert.equal(breaker.state, 'closed')
})
