// The gate: so much at once, in order, and never more because somebody stopped waiting.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { createSemaphore } from '../../src/core/semaphore.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const full = () => new Failure('overloaded', 'full', { source: 'ours' })
const settle = () => new Promise<void>((resolve) => setImmediate(resolve))

describe('semaphore', () => {
  test('admits up to the limit, others first come, first served', async () => {
    const gate = createSemaphore({ max: 2, maxQueued: 9, full })
    const entered: number[] = []
    const leaves = [0, 1, 2, 3].map((index) =>
      gate.enter(undefined).then((leave) => {
        entered.push(index)
        return leave
      }),
    )
    await settle()
    assert.deepEqual(entered, [0, 1])
    const leave = await leaves[1]
    leave?.()
    leave?.() // counts once
    await settle()
    assert.deepEqual(entered, [0, 1, 2])
  })

  test('queue full or waited too long → refused', async () => {
    const clock = createFakeClock()
    const gate = createSemaphore({ max: 1, maxQueued: 1, full, queueTimeout: { ms: 100, clock } })
    const leave = await gate.enter(undefined)
    const waits = assert.rejects(gate.enter(undefined), (error) => isFailure(error, 'overloaded'))
    await assert.rejects(gate.enter(undefined), (error) => isFailure(error, 'overloaded'))
    await clock.advance(100)
    await waits
    leave()
    ;(await gate.enter(undefined))()
  })

  test('caller leaves the queue → next ones move up', async () => {
    const gate = createSemaphore({ max: 1, maxQueued: 2, full })
    const leave = await gate.enter(undefined)
    const gone = new AbortController()
    const left = assert.rejects(gate.enter(gone.signal), /gone/)
    const behind = gate.enter(undefined)
    gone.abort(new Error('gone'))
    await left
    leave()
    ;(await behind)()
  })

  test('abandoned work keeps its slot until it ends', async () => {
    const gate = createSemaphore({ max: 1, maxQueued: 1, full })
    const gone = new AbortController()
    const work = Promise.withResolvers<void>()
    const run = gate.run(() => work.promise, gone.signal)
    await settle()
    gone.abort(new Error('gone'))
    let isIn = false
    const next = gate.enter(undefined).then(() => {
      isIn = true
    })
    await settle()
    assert.equal(isIn, false)
    work.resolve()
    await run
    await next
  })
})
