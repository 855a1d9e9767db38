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

test('one start for many callers', () => {
  const { join, signals } = make()
  assert.deepEqual([join().work, join().work, join('b').work], [1, 1, 2])
  assert.equal(signals.length, 2)
})

test('the first to come may leave: the others fly on', () => {
  const { join, signals } = make()
  const leader = join()
  const follower = join()
  leader.leave()
  leader.leave()
  assert.equal(signals[0]?.aborted, false)
  follower.leave()
  assert.equal(signals[0]?.aborted, true)
})

test('after an abort the next caller starts anew', () => {
  const { join } = make()
  join().leave()
  assert.equal(join().work, 2)
})

test('work that is to be kept is not aborted by the last to leave', () => {
  const { join, signals } = make()
  join().leave({ keep: true })
  assert.equal(signals[0]?.aborted, false)
  assert.equal(join().work, 1)
})

test('what has landed is not joined; landing twice does not end the next one', () => {
  const { flights, join } = make()
  const first = join()
  flights.land('a', first.work)
  const second = join()
  assert.equal(second.work, 2)
  flights.land('a', first.work)
  assert.equal(join().work, 2)
})

test('work that is over is not aborted by the last to leave', () => {
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
