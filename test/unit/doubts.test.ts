import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDoubts } from '../../src/retrieval/upstreams/record.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const keptMs = 1000

function make() {
  const clock = createFakeClock()
  return { clock, doubts: createDoubts(clock, keptMs) }
}

test('doubt expires, and restarts when added again', async () => {
  const { clock, doubts } = make()
  doubts.add('a')
  await clock.advance(600)
  assert.equal(doubts.leftMs('a'), 400)
  doubts.add('a')
  await clock.advance(999)
  assert.equal(doubts.has('a'), true)
  await clock.advance(1)
  assert.equal(doubts.has('a'), false)
  assert.equal(doubts.leftMs('a'), 0)
})

test('success removes the doubt', () => {
  const { doubts } = make()
  doubts.add('a')
  doubts.delete('a')
  assert.equal(doubts.has('a'), false)
})

test('above the limit → only the oldest is dropped', () => {
  const { doubts } = make()
  for (let count = 0; count <= 10_000; count++) doubts.add(String(count))
  assert.equal(doubts.has('0'), false)
  assert.equal(doubts.has('1'), true)
  assert.equal(doubts.size, 10_000)
})

test('expired doubts are removed by the next addition', async () => {
  const { clock, doubts } = make()
  for (let count = 0; count < 5000; count++) doubts.add(String(count))
  await clock.advance(keptMs)
  doubts.add('new')
  assert.equal(doubts.size, 1)
})
