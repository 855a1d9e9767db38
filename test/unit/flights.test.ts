import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createFlights } from '../../src/core/flights.ts'

const make = () => {
  const signals: AbortSignal[] = []
  const flights = createFlights<number>()
  const join = (key = 'a') =>
    flights.join(key, (signal) => {
      signals.push(signal)
      return signals.length
    })
  return { flights, join, signals }
}

test('`keep` → not aborted by the last caller', () => {
  const { join, signals } = make()
  join().leave({ keep: true })
  assert.equal(signals[0]?.aborted, false)
  assert.equal(join().work, 1)
})

test('landed flight is not joined; landing twice is harmless', () => {
  const { flights, join } = make()
  const first = join()
  flights.land('a', first.work)
  const second = join()
  assert.equal(second.work, 2)
  flights.land('a', first.work)
  assert.equal(join().work, 2)
})

test('finished work → not aborted by the last caller', () => {
  const { flights, join, signals } = make()
  const over = join()
  flights.land('a', over.work, true)
  over.leave()
  assert.equal(signals[0]?.aborted, false)
  const going = join('b')
  flights.land('b', going.work)
  going.leave()
  assert.equal(signals[1]?.aborted, true)
})
