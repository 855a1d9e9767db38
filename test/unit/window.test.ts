// How many questions an upstream bears at once, and who gets the places.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ConcurrencyWindow } from '../../src/retrieval/upstreams/estimates.ts'
import { createFakeClock } from '../support/fake-clock.ts'

function make(most = 32) {
  const clock = createFakeClock()
  const window = new ConcurrencyWindow(most)
  /** Rounds of as many questions as the window bears, each answered after what `ms` says for its number. */
  const rounds = async (count: number, ms: (index: number, size: number) => number) => {
    for (let round = 0; round < count; round++) {
      const { size } = window
      const at = clock.monotonic()
      const answers = Array.from({ length: size }, (_, index) => ms(index, size))
      await clock.advance(Math.max(...answers))
      for (const answer of answers) window.answered(answer, at + answer, true)
    }
  }
  return { clock, window, rounds }
}

test('busy and successful → grows to its limit', async () => {
  const { window, rounds } = make(32)
  await rounds(3, () => 60)
  assert.equal(window.size, 32)
})

test('not full → does not grow', async () => {
  const { window, clock } = make(64)
  const before = window.size
  for (let count = 0; count < 50; count++) window.answered(60, clock.monotonic(), false)
  assert.equal(window.size, before)
})

/** An upstream that works at so many at once, for 300 ms each, and is asked as much as the window allows. */
async function crowd(atOnce: number) {
  const { window, clock } = make(64)
  const asked: number[] = []
  for (let turn = 0; turn < 100; turn++) {
    while (asked.length < window.size) asked.push(clock.monotonic())
    await clock.advance(300)
    for (const at of asked.splice(0, atOnce)) window.answered(clock.monotonic() - at, clock.monotonic(), true)
  }
  return { window, isCrowded: window.isCrowded(clock.monotonic()) }
}

test('serial upstream → small window, reported crowded', async () => {
  const { window, isCrowded } = await crowd(1)
  assert.ok(window.size <= 8, `${window.size}`)
  assert.equal(isCrowded, true)
})

test('upstream with eight slots → kept busy, hardly more', async () => {
  const { window } = await crowd(8)
  assert.ok(window.size >= 8 && window.size <= 32, `${window.size}`)
})

test('cached and searching requests mixed → not crowded', async () => {
  const { clock, window, rounds } = make(32)
  await rounds(12, (index) => (index % 3 === 0 ? 20 : 2000))
  assert.equal(window.size, 32)
  assert.equal(window.isCrowded(clock.monotonic()), false)
})

test('uniformly slow upstream → not crowded', async () => {
  const { window, rounds } = make(32)
  await rounds(12, () => 3000)
  assert.equal(window.size, 32)
})

test('failures → halved once for all running requests', async () => {
  const { clock, window, rounds } = make(32)
  await rounds(3, () => 60)
  const at = clock.monotonic()
  await clock.advance(100)
  for (let count = 0; count < 32; count++) window.failed(at, clock.monotonic())
  assert.equal(window.size, 16)
})

test('after an outage → small, recovers quickly', async () => {
  const { clock, window, rounds } = make(32)
  await rounds(3, () => 60)
  window.close(clock.monotonic())
  assert.equal(window.size, 4)
  await rounds(3, () => 60)
  assert.equal(window.size, 32)
})
