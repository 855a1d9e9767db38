// Clients that several instances count together, on a clock held in the hand and a tally in memory.
import assert from 'node:assert/strict'
import type { IncomingMessage } from 'node:http'
import { describe, test } from 'node:test'
import type { Tally } from '../../backends/tallies/contract.ts'
import { createLimits } from '../../src/http/limits/limits.ts'
import { createTogether } from '../../src/http/limits/together.ts'
import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'

type Told = { readonly key: string; readonly amount: number }

function createMemoryTally(clock: FakeClock) {
  const counts = new Map<string, { total: number; until: number }>()
  const calls: (readonly Told[])[] = []
  const tally: Tally & { fault: 'away' | 'silent' | undefined } = {
    fault: undefined,
    async add(told, keptMs, signal) {
      calls.push(told)
      if (tally.fault === 'away') throw new Error('it is away')
      if (tally.fault === 'silent')
        return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      return told.map(({ key, amount }) => {
        const now = clock.monotonic()
        let count = counts.get(key)
        if (!count || count.until <= now) counts.set(key, (count = { total: 0, until: now + keptMs }))
        return (count.total += amount)
      })
    },
    async probe() {},
    async close() {},
  }
  return { tally, calls }
}

const perClient = { perMinute: 600, burst: 20 }
const client = { socket: { remoteAddress: '192.0.2.7' } } as IncomingMessage

function make(instances: number) {
  const clock = createFakeClock()
  const { tally, calls } = createMemoryTally(clock)
  const events: string[] = []
  const all = Array.from({ length: instances }, () => {
    const together = createTogether({ tally, clock, log: (_level, event) => events.push(event) })
    const limits = createLimits({ inFlight: 1e6, perClient: { ...perClient, misses: 60 }, together, clock })
    return { together, limits, take: () => !limits.refuses(client) }
  })
  /** How much all of them let through in so many seconds, asked a hundred times a second in turn. */
  async function hammer(seconds: number, asked = all): Promise<number> {
    let let_in = 0
    for (let step = 0; step < seconds * 100; step++) {
      for (const { take } of asked) if (take()) let_in++
      await clock.advance(10)
    }
    return let_in
  }
  return { clock, tally, calls, events, all, hammer }
}

describe('clients that instances count together', () => {
  test('two instances let one client have little more than one would', async () => {
    const one = await make(1).hammer(60)
    const two = await make(2).hammer(60)
    const three = await make(3).hammer(60)
    assert.ok(one >= 600 && one <= 640, String(one))
    assert.ok(two >= 550 && two <= 1.15 * one, `${two} by two, ${one} by one`)
    assert.ok(three >= 500 && three <= 1.25 * one, `${three} by three, ${one} by one`)
  })

  test('what one instance let through, another knows a second later', async () => {
    const { clock, all } = make(2)
    const [first, second] = all as [(typeof all)[0], (typeof all)[0]]
    for (let count = 0; count < 20; count++) assert.ok(first.take())
    assert.equal(first.take(), false)
    await clock.advance(1000)
    // It has heard nothing yet, and asks when it has something to tell.
    assert.ok(second.take())
    await clock.advance(1000)
    const left = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20].filter(() => second.take())
    assert.ok(left.length < 15, `${left.length} more`)
  })

  test('kinds of requests are counted apart, and no address goes out', async () => {
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
    test(`while the tally is ${fault} each counts alone, says so once, and nobody pays for that time later`, async () => {
      const { tally, events, hammer, all } = make(2)
      tally.fault = fault
      const alone = await hammer(20)
      assert.ok(alone >= 2 * 200 && alone <= 2 * 230, String(alone))
      assert.deepEqual(events, ['limits.alone', 'limits.alone'])
      assert.ok(all.every(({ limits }) => limits.isAlone))
      tally.fault = undefined
      const after = await hammer(20)
      assert.deepEqual(events.slice(2), ['limits.together', 'limits.together'])
      assert.ok(after >= 150, `${after} in 20 seconds`)
      assert.ok(all.every(({ limits }) => !limits.isAlone))
    })

  test('nobody asks: nothing is told, and no timer runs', async () => {
    const { clock, calls, all } = make(1)
    all[0]?.take()
    await clock.advance(5000)
    assert.equal(calls.length, 1)
    assert.equal(clock.timers, 0)
  })

  test('of very many clients a thousand are told in a second', async () => {
    const { clock, calls, all } = make(1)
    for (let count = 0; count < 2500; count++)
      all[0]?.limits.refuses({ socket: { remoteAddress: `10.0.${count >> 8}.${count & 255}` } } as IncomingMessage)
    await clock.advance(3000)
    assert.deepEqual(
      calls.map(({ length }) => length),
      [1000, 1000, 500],
    )
  })

  test('closed, it tells nothing any more', async () => {
    const { clock, calls, all } = make(1)
    all[0]?.take()
    all[0]?.together.close()
    await clock.advance(5000)
    assert.deepEqual([calls.length, clock.timers], [0, 0])
  })
})
