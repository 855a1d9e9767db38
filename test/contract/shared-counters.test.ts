// One suite for every kind of counters: additions of several instances all count, a count ends by itself, and an outage is never a number.
import assert from 'node:assert/strict'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { SharedCounters } from '../../backends/counters/contract.ts'
import { counterKinds } from '../../backends/counters/index.ts'
import { systemClock } from '../../src/core/clock.ts'
import { isFailure } from '../../src/core/failure.ts'
import { type RedisServer, startRedisServer } from '../support/redis-server.ts'

type Bed = { readonly settings: object; readonly server: RedisServer; readonly keys: () => Iterable<string> }

const beds: Readonly<Record<string, () => Promise<Bed>>> = {
  async redis() {
    const server = await startRedisServer()
    server.faults.password = 'secret'
    return { settings: { url: server.url.replace('//', '//user:secret@') }, server, keys: () => server.values.keys() }
  },
}

test('every kind has a test bed', () => assert.deepEqual(Object.keys(beds), Object.keys(counterKinds)))

for (const [use, makeBed] of Object.entries(beds))
  describe(`counters ${use}`, () => {
    let bed: Bed
    let all: SharedCounters[]
    beforeEach(async () => {
      bed = await makeBed()
      all = [open(), open()]
      for (const counters of all) await connected(counters)
    })
    afterEach(async () => {
      for (const one of all) await one.close()
      await bed.server.stop()
    })
    const open = (): SharedCounters => {
      const kind = counterKinds[use]
      assert.ok(kind)
      return kind.create(kind.options.parse(bed.settings), { userAgent: 'cidgate/test', clock: systemClock })
    }
    const signal = () => new AbortController().signal
    /** A busy machine takes longer than the moment that a call waits for the first connection. */
    async function connected(counters: SharedCounters): Promise<void> {
      const began = Date.now()
      for (;;) {
        const error = await counters.probe(signal()).catch((error: unknown) => error)
        if (error === undefined) return
        if (Date.now() - began > 20_000) throw error
        await sleep(20)
      }
    }
    const one = (key: string, amount: number, keptMs = 60_000) => [{ key, amount, keptMs }]

    test('increments of two instances → one count; other keys separate', async () => {
      const [first, second] = all as [SharedCounters, SharedCounters]
      assert.deepEqual(await first.add(one('a', 3), signal()), [3])
      assert.deepEqual(await second.add([...one('a', 2), ...one('b', 7)], signal()), [5, 7])
      assert.deepEqual(await first.add(one('a', 1), signal()), [6])
    })

    test('100 concurrent increments → none lost', async () => {
      const [first, second] = all as [SharedCounters, SharedCounters]
      const adding = Array.from({ length: 100 }, (_, at) => (at % 2 ? first : second).add(one('a', 1), signal()))
      const totals = (await Promise.all(adding)).flat()
      assert.equal(new Set(totals).size, 100)
      assert.equal(Math.max(...totals), 100)
    })

    test('count expires at its time despite increments, then restarts', async () => {
      const [first] = all as [SharedCounters]
      const began = Date.now()
      assert.deepEqual(await first.add(one('a', 1, 200), signal()), [1])
      let last = 1
      while (Date.now() - began < 5000) {
        const [total = 0] = await first.add(one('a', 1, 200), signal())
        if (total <= last) break
        last = total
        await sleep(20)
      }
      assert.ok(Date.now() - began < 5000, 'it never ended')
    })

    test('empty list → succeeds', async () => {
      assert.deepEqual(await all[0]?.add([], signal()), [])
    })

    test('server down → fails at once without secrets; back → counts', async () => {
      const [first] = all as [SharedCounters]
      await first.add(one('a', 1), signal())
      await bed.server.refuse()
      await assert.rejects(first.add(one('a', 1), signal()), (error) => {
        assert.ok(isFailure(error, 'upstream-error'))
        assert.match(error.message, /^limits\.sharedStore: /)
        return !error.message.includes('secret')
      })
      await assert.rejects(first.probe(signal()))
      await bed.server.heal()
      await connected(first)
      assert.equal((await first.add(one('a', 1), signal())).length, 1)
    })

    test('silent server → call ends with its signal', async () => {
      const [first] = all as [SharedCounters]
      await first.add(one('a', 1), signal())
      bed.server.silence()
      const own = new AbortController()
      const adding = first.add(one('a', 1), own.signal)
      own.abort(new Error('enough'))
      await assert.rejects(adding, /enough/)
    })

    test('close is idempotent, also before first use', async () => {
      all.push(open())
      for (const counters of all) {
        await counters.close()
        await counters.close()
      }
      await assert.rejects(async () => all[0]?.add(one('a', 1), signal()))
    })
  })
