// How much may be asked at once, and how much is held to look into documents: on a clock held in the hand.
import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { describe, test } from 'node:test'
import { createLimits, type Limits, minConcurrency } from '../../src/http/limits.ts'
import { clientOf, createForwarded } from '../../src/http/wire/request.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const request = (remoteAddress: string) => ({ socket: { remoteAddress } }) as IncomingMessage
const response = () => new EventEmitter() as unknown as ServerResponse

describe('concurrent requests', () => {
  test('library refusals are separate error objects', () => {
    const limits = createLimits({ inFlight: 1, perClient: 'none', clock: createFakeClock() })
    limits.hold()
    const refused = () => {
      try {
        limits.hold()
      } catch (error) {
        return error as Error
      }
      return assert.fail('it was let in')
    }
    const said = limits.enter(request('a'), response())?.message
    const own = refused()
    assert.equal(own.message, said)
    own.message = 'written over'
    assert.equal(refused().message, said)
    assert.equal(limits.enter(request('a'), response())?.message, said)
  })
})

describe('late event loop', () => {
  const enter = (limits: Limits, inMemory = false) => {
    const one = response()
    return limits.enter(request('a'), one, () => inMemory) === undefined ? one : undefined
  }
  const busy = async () => {
    const clock = createFakeClock()
    const limits = createLimits({ inFlight: 1000, loopDelay: 100, perClient: 'none', clock })
    const open = Array.from({ length: 500 }, () => enter(limits))
    /** Turns of the loop that take so long. */
    const turns = async (count: number, ms: number) => {
      for (let turn = 0; turn < count; turn++) await clock.jump(ms)
    }
    return { clock, limits, open, turns }
  }

  test('lower limit, except for cached content; one delay is ignored', async () => {
    const { limits, turns } = await busy()
    await turns(1, 5000)
    await turns(5, 50)
    assert.ok(enter(limits))
    await turns(20, 200)
    assert.equal(enter(limits), undefined)
    assert.deepEqual([limits.shed, limits.concurrency], [1, minConcurrency])
    assert.ok(enter(limits, true))
    const why = (inMemory: boolean) => limits.enter(request('a'), response(), () => inMemory)?.message
    assert.match(String(why(false)), new RegExp(`the limit is ${minConcurrency} concurrent requests`))
    while (enter(limits, true));
    for (const inMemory of [true, false]) assert.match(String(why(inMemory)), /too many requests in progress \(1000\)/)
  })

  test('in time again → limit grows stepwise, timer stops', async () => {
    const { clock, limits, open, turns } = await busy()
    await turns(20, 200)
    for (const one of open) one?.emit('close')
    assert.equal(limits.concurrency, minConcurrency)
    const seen: number[] = []
    for (let step = 0; step < 8; step++) {
      await clock.advance(1000)
      seen.push(limits.concurrency)
    }
    assert.deepEqual(
      seen,
      seen.toSorted((one, other) => one - other),
    )
    assert.ok((seen[0] as number) < 500)
    assert.deepEqual([seen.at(-1), clock.timers], [1000, 0])
  })

  test('requests over → no timer left', async () => {
    const { clock, open } = await busy()
    assert.equal(clock.timers, 1)
    for (const one of open) one?.emit('close')
    await clock.advance(1000)
    assert.equal(clock.timers, 0)
  })

  test('minimum limit holds at any delay', async () => {
    const clock = createFakeClock()
    const limits = createLimits({ inFlight: 1000, loopDelay: 100, perClient: 'none', clock })
    for (let count = 0; count < minConcurrency - 1; count++) assert.ok(enter(limits))
    for (let turn = 0; turn < 20; turn++) await clock.jump(1000)
    assert.ok(enter(limits))
  })
})

describe('rate limit per client', () => {
  const rows: [address: string, key: string][] = [
    ['1.2.3.4', '1.2.3.4'],
    ['::ffff:1.2.3.4', '1.2.3.4'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2'],
    ['2001:db8:1:2::9', '2001:db8:1:2'],
    ['2001:db8::9', '2001:db8:0:0'],
    ['fe80::1%eth0', 'fe80:0:0:0'],
    ['::1', '0:0:0:0'],
  ]
  for (const [address, key] of rows) test(`${address} → ${key}`, () => assert.equal(clientOf(address), key))
})

describe('client address', () => {
  const { addressOf } = createForwarded(['127.0.0.1', '10.0.0.0/8'])
  const rows: [from: string, said: string | undefined, address: string][] = [
    ['1.2.3.4', undefined, '1.2.3.4'],
    ['1.2.3.4', '9.9.9.9', '1.2.3.4'],
    ['127.0.0.1', undefined, '127.0.0.1'],
    ['127.0.0.1', '9.9.9.9', '9.9.9.9'],
    ['::ffff:127.0.0.1', '9.9.9.9', '9.9.9.9'],
    // What the client wrote itself stands before what a proxy of ours added.
    ['127.0.0.1', '6.6.6.6, 9.9.9.9', '9.9.9.9'],
    ['127.0.0.1', '6.6.6.6, 9.9.9.9, 10.1.2.3', '9.9.9.9'],
    ['10.1.1.1', '2001:db8::9', '2001:db8::9'],
    ['127.0.0.1', '9.9.9.9, nonsense', '127.0.0.1'],
    ['127.0.0.1', '5.5.5.5:8080', '5.5.5.5'],
    ['127.0.0.1', '[2001:db8::1]:80', '2001:db8::1'],
    ['127.0.0.1', '10.1.2.3', '127.0.0.1'],
    ['127.0.0.1', '::ffff:10.1.2.3', '127.0.0.1'],
    ['::ffff:9.9.9.9', undefined, '9.9.9.9'],
    ['127.0.0.1', '2001:0DB8:0::0009%eth0', '2001:db8::9'],
    ['127.0.0.1', '::ffff:1:909:909', '::ffff:1:909:909'],
  ]
  for (const [from, said, address] of rows)
    test(`${from} with ${said} → ${address}`, () => {
      const headers = said === undefined ? {} : { 'x-forwarded-for': said }
      assert.equal(addressOf({ headers, socket: { remoteAddress: from } } as unknown as IncomingMessage), address)
    })
})
