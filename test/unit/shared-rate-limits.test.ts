// Rate limits that several instances share, by a fake clock and counters in memory.
import assert from 'node:assert/strict'
import type { IncomingMessage } from 'node:http'
import { describe, test } from 'node:test'
import { createCounterSync } from '../../src/core/counting/counter-sync.ts'
import { createLimits, createSharedRateLimits } from '../../src/http/limits.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { createMemoryCounters } from '../support/memory-counters.ts'

const perClient = { perMinute: 600, burst: 20 }
const client = { socket: { remoteAddress: '192.0.2.7' } } as IncomingMessage

function make(instances: number) {
  const clock = createFakeClock()
  const counters = createMemoryCounters(clock)
  const { calls } = counters
  const events: string[] = []
  const all = Array.from({ length: instances }, () => {
    const counterSync = createCounterSync({ add: counters.add, clock, log: (_level, event) => events.push(event) })
    const shared = createSharedRateLimits({ counterSync, clock })
    const isStoreDown = () => counterSync.isStoreDown
    const limits = createLimits({ inFlight: 1e6, perClient: { ...perClient, misses: 60 }, shared, isStoreDown, clock })
    return { counterSync, limits, take: () => !limits.refuses(client) }
  })
  /** How much all of them let through in so many seconds, each asked twenty times a second. */
  async function hammer(seconds: number, asked = all): Promise<number> {
    let letIn = 0
    for (let step = 0; step < seconds * 20; step++) {
      for (const { take } of asked) if (take()) letIn++
      await clock.advance(50)
    }
    return letIn
  }
  return { clock, counters, calls, events, all, hammer }
}

describe('rate limits shared by instances', () => {
  test("two instances → little more than one client's rate", async () => {
    const one = await make(1).hammer(40)
    const two = await make(2).hammer(40)
    const three = await make(3).hammer(40)
    assert.ok(one >= 400 && one <= 430, String(one))
    assert.ok(two >= 360 && two <= 1.15 * one, `${two} by two, ${one} by one`)
    assert.ok(three >= 340 && three <= 1.25 * one, `${three} by three, ${one} by one`)
  })

  test('kinds are separate; no address leaves the instance', async () => {
    const { clock, all, calls } = make(1)
    const [{ limits, take }] = all as [(typeof all)[0]]
    assert.ok(take())
    assert.equal(limits.charge('misses', client), undefined)
    assert.equal(limits.charge('exports', client), undefined)
    await clock.advance(1000)
    assert.deepEqual(
      calls.map((told) => told.map(({ amount }) => amount)),
      [[1, 1]],
    )
    assert.equal(new Set(calls[0]?.map(({ key }) => key)).size, 2)
    assert.ok(!JSON.stringify(calls).includes('192.0.2'))
  })

  for (const fault of ['away', 'silent'] as const)
    test(`store ${fault} → each counts alone, logged once, no delay`, async () => {
      const { counters, events, hammer, all } = make(2)
      counters.fault = fault
      const alone = await hammer(20)
      assert.ok(alone >= 2 * 200 && alone <= 2 * 230, String(alone))
      assert.deepEqual(events, ['limits.store-down', 'limits.store-down'])
      assert.ok(all.every(({ limits }) => limits.isStoreDown))
      counters.fault = undefined
      const after = await hammer(20)
      assert.deepEqual(events.slice(2), ['limits.store-up', 'limits.store-up'])
      assert.ok(after >= 150, `${after} in 20 seconds`)
      assert.ok(all.every(({ limits }) => !limits.isStoreDown))
    })

  test('no requests → nothing sent, no timer', async () => {
    const { clock, calls, all } = make(1)
    all[0]?.take()
    await clock.advance(5000)
    assert.equal(calls.length, 1)
    assert.equal(clock.timers, 0)
  })

  test('very many clients → a thousand sent per second', async () => {
    const { clock, calls, all } = make(1)
    for (let count = 0; count < 2500; count++)
      all[0]?.limits.refuses({ socket: { remoteAddress: `10.0.${count >> 8}.${count & 255}` } } as IncomingMessage)
    await clock.advance(3000)
    assert.deepEqual(
      calls.map(({ length }) => length),
      [1000, 1000, 500],
    )
  })

  test('closed → nothing sent', async () => {
    const { clock, calls, all } = make(1)
    all[0]?.take()
    all[0]?.counterSync.close()
    await clock.advance(5000)
    assert.deepEqual([calls.length, clock.timers], [0, 0])
  })
})
