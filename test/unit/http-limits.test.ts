// How much may be asked at once, and how much is held to look into documents: on a clock held in the hand.
import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { describe, test } from 'node:test'
import { CID } from 'multiformats/cid'
import { isFailure } from '../../src/core/failure.ts'
import { createJsonRule } from '../../src/http/content/json-rule.ts'
import { createForwarded } from '../../src/http/hosts/forwarded.ts'
import { clientOf, createLimits } from '../../src/http/limits.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const request = (remoteAddress: string) => ({ socket: { remoteAddress } }) as IncomingMessage
const response = () => new EventEmitter() as unknown as ServerResponse

describe('requests in flight', () => {
  test('one more than there is room for is turned away, and comes in when another has gone', () => {
    const limits = createLimits({ inFlight: 2, perClient: 'none', clock: createFakeClock() })
    const first = response()
    assert.equal(limits.enter(request('a'), first), undefined)
    assert.equal(limits.enter(request('a'), response()), undefined)
    const refused = limits.enter(request('b'), response())
    assert.deepEqual([refused?.kind, refused?.retryAfterMs, limits.inFlight, limits.shed], ['overloaded', 1000, 2, 1])
    first.emit('close')
    assert.equal(limits.enter(request('b'), response()), undefined)
  })
})

describe('requests of one client', () => {
  test('a client has a burst, then its rate, and costs no other client', async () => {
    const clock = createFakeClock()
    const limits = createLimits({ inFlight: 100, perClient: { perMinute: 60, burst: 3 }, clock })
    for (let count = 0; count < 3; count++) assert.equal(limits.enter(request('1.2.3.4'), response()), undefined)
    const refused = limits.enter(request('1.2.3.4'), response())
    assert.deepEqual([refused?.kind, refused?.retryAfterMs], ['throttled', 1000])
    assert.equal(limits.inFlight, 3)
    assert.equal(limits.enter(request('1.2.3.5'), response()), undefined)
    await clock.advance(1000)
    assert.equal(limits.enter(request('1.2.3.4'), response()), undefined)
    assert.equal(limits.refuses(request('1.2.3.4')), true)
  })
  const rows: [address: string, key: string][] = [
    ['1.2.3.4', '1.2.3.4'],
    ['::ffff:1.2.3.4', '1.2.3.4'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2'],
    ['2001:db8:1:2::9', '2001:db8:1:2'],
    ['2001:db8::9', '2001:db8:0:0'],
    ['fe80::1%eth0', 'fe80:0:0:0'],
    ['::1', '0:0:0:0'],
  ]
  for (const [address, key] of rows) test(`${address} is ${key}`, () => assert.equal(clientOf(address), key))
})

describe('the address of a client', () => {
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
  ]
  for (const [from, said, address] of rows)
    test(`${from} that says ${said} is ${address}`, () => {
      const headers = said === undefined ? {} : { 'x-forwarded-for': said }
      assert.equal(addressOf({ headers, socket: { remoteAddress: from } } as unknown as IncomingMessage), address)
    })

  test('is what its requests are counted by', () => {
    const limits = createLimits({
      inFlight: 9,
      perClient: { perMinute: 1, burst: 1 },
      addressOf,
      clock: createFakeClock(),
    })
    const from = (client: string) =>
      ({ headers: { 'x-forwarded-for': client }, socket: { remoteAddress: '127.0.0.1' } }) as unknown as IncomingMessage
    assert.equal(limits.enter(from('9.9.9.9'), response()), undefined)
    assert.equal(limits.enter(from('8.8.8.8'), response()), undefined)
    assert.equal(limits.enter(from('6.6.6.6, 9.9.9.9'), response())?.kind, 'throttled')
  })
})

describe('documents that are looked into', () => {
  const cid = (digit: string) => CID.parse(`bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5${digit}`)
  const signal = new AbortController().signal

  test('judged once', () => {
    const rule = createJsonRule({ heldBytes: 10, clock: createFakeClock() })
    assert.equal(rule.known(cid('e')), undefined)
    assert.equal(rule.judge(cid('e'), Buffer.from('[1]')), true)
    assert.equal(rule.known(cid('e')), true)
    assert.equal(rule.judge(cid('a'), Buffer.from('[1')), false)
    assert.equal(rule.known(cid('a')), false)
  })

  test('JSON room: first come, first served within the limit; a larger file goes alone', async () => {
    const rule = createJsonRule({ heldBytes: 10, clock: createFakeClock() })
    const entered: number[] = []
    const enter = async (bytes: number) => {
      const leave = await rule.room(bytes, signal)
      entered.push(bytes)
      return leave
    }
    const six = await enter(6)
    const twenty = enter(20)
    const three = enter(3)
    await Promise.resolve()
    assert.deepEqual(entered, [6])
    six()
    six() // twice is once
    const leaveTwenty = await twenty
    assert.deepEqual(entered, [6, 20])
    leaveTwenty()
    ;(await three)()
    assert.deepEqual(entered, [6, 20, 3])
  })

  test('JSON room: a request that leaves or times out blocks no other and leaves no timer', async () => {
    const clock = createFakeClock()
    const rule = createJsonRule({ heldBytes: 10, clock })
    const leave = await rule.room(8, signal)
    const leaver = new AbortController()
    const gone = assert.rejects(rule.room(9, leaver.signal), /left/)
    const small = rule.room(2, signal)
    leaver.abort(new Error('left'))
    await gone
    ;(await small)()
    const late = assert.rejects(rule.room(9, signal), (error) => isFailure(error, 'overloaded'))
    await clock.advance(5000)
    await late
    leave()
    ;(await rule.room(10, signal))()
    assert.equal(clock.timers, 0)
  })
})
