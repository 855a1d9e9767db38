// How many questions an upstream bears at once, and who gets the places.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createWindow } from '../../src/retrieval/upstreams/record.ts'
import { createFakeClock } from '../support/fake-clock.ts'

function make(most = 32) {
  const clock = createFakeClock()
  const window = createWindow(most, clock)
  /** Rounds of as many questions as the window bears, each answered after what `ms` says for its number. */
  const rounds = async (count: number, ms: (index: number, size: number) => number) => {
    for (let round = 0; round < count; round++) {
      const { size } = window
      const at = clock.monotonic()
      const answers = Array.from({ length: size }, (_, index) => ms(index, size))
      await clock.advance(Math.max(...answers))
      for (const answer of answers) window.answered(answer, at, true)
    }
  }
  return { clock, window, rounds }
}

test('it grows to its bound while answers come and it is full', async () => {
  const { window, rounds } = make(32)
  await rounds(3, () => 60)
  assert.equal(window.size, 32)
})

test('it does not grow while it is not full', async () => {
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
    for (const at of asked.splice(0, atOnce)) window.answered(clock.monotonic() - at, at, true)
  }
  return window
}

test('an upstream that does one thing at a time gets few, and is said to be crowded', async () => {
  const window = await crowd(1)
  assert.ok(window.size <= 8, `${window.size}`)
  assert.equal(window.isCrowded, true)
})

test('an upstream that handles eight at once is kept busy, and little more', async () => {
  const window = await crowd(8)
  assert.ok(window.size >= 8 && window.size <= 32, `${window.size}`)
})

test('a gateway that has some at once and searches for others is not crowded', async () => {
  const { window, rounds } = make(32)
  await rounds(12, (index) => (index % 3 === 0 ? 20 : 2000))
  assert.equal(window.size, 32)
  assert.equal(window.isCrowded, false)
})

test('an upstream that is slow by nature is not crowded', async () => {
  const { window, rounds } = make(32)
  await rounds(12, () => 3000)
  assert.equal(window.size, 32)
})

test('failures halve it, once for all that were under way', async () => {
  const { clock, window, rounds } = make(32)
  await rounds(3, () => 60)
  const at = clock.monotonic()
  await clock.advance(100)
  for (let count = 0; count < 32; count++) window.failed(at)
  assert.equal(window.size, 16)
})

test('after an outage it begins with one, and is back at once when answers come', async () => {
  const { window, rounds } = make(32)
  await rounds(3, () => 60)
  window.close()
  assert.equal(window.size, 1)
  await rounds(6, () => 60)
  assert.equal(window.size, 32)
})

test('a good look opens it a little at once', async () => {
  const { window } = make(32)
  window.close()
  window.open()
  assert.equal(window.size, 8)
})
