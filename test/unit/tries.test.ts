// Who is asked a second time for one thing: one that was out for a moment, and is well again while the client has time.
import assert from 'node:assert/strict'
import { afterEach, describe, test } from 'node:test'
import { Failure, type FailureKind, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { Flight, type FlightReader } from '../../src/retrieval/flight/flight.ts'
import { Attempts, type Wanting } from '../../src/retrieval/upstreams/attempts.ts'
import { createPool } from '../../src/retrieval/upstreams/pool.ts'
import { startProbes } from '../../src/retrieval/upstreams/probes.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addBlock, type BlockMap, noise } from '../support/fixtures.ts'
import { membersOf } from '../support/members.ts'
import { scriptedUpstream } from '../support/scripted-upstream.ts'

const blocks: BlockMap = new Map()
const cid = addBlock(blocks, 0x55, noise(100, 1))
const otherCid = addBlock(blocks, 0x55, noise(100, 2))
const second = 1000
const failure = (kind: FailureKind) => new Failure(kind, kind, { source: 'upstream' })
const stops: (() => void)[] = []
afterEach(() => {
  for (const stop of stops.splice(0)) stop()
})

/**
 * Upstreams by name, with one connection each; those that are `ill` fail at everything, those that are `torn` at content, and those
 * that are `mute` do not answer one question.
 */
function make(...names: string[]) {
  const clock = createFakeClock()
  const ill = new Set<string>()
  const absent = new Set<string>()
  const torn = new Set<string>()
  const mute = new Set<string>()
  const asked: string[] = []
  let probes = 0
  const upstreams = names.map((name) => {
    const one = scriptedUpstream(name, blocks)
    const guard = () => {
      if (ill.has(name)) throw failure('upstream-error')
    }
    const look = async () => {
      asked.push(name)
      guard()
      if (torn.has(name)) throw failure('upstream-error')
      if (absent.has(name)) throw failure('not-found')
      if (mute.delete(name)) await new Promise(() => {})
    }
    return {
      ...one,
      traits: { ...one.traits, connections: 1 },
      async block(...args: Parameters<typeof one.block>) {
        await look()
        return one.block(...args)
      },
      async *dag(...args: Parameters<typeof one.dag>) {
        await look()
        yield* one.dag(...args)
      },
      async probe(signal: AbortSignal) {
        probes++
        guard()
        return one.probe(signal)
      },
    }
  })
  const pool = createPool({
    members: membersOf(upstreams, clock),
    hedge: 'auto',
    clock,
    timeoutMs: 4 * second,
  })
  stops.push(startProbes({ pool, everyMs: 0, clock, log: silentLog }).close)
  const deps = { pool, clock, keep: () => {} }
  const kinds = {
    block: (signal = new AbortController().signal, of = want, asker: Wanting = anybody) =>
      brought(new Flight('block', of, deps, asker), signal, of.cid),
    answer: (signal = new AbortController().signal) => brought(new Flight('dag', want, deps, anybody), signal),
  }
  return { clock, ill, absent, torn, mute, asked, pool, kinds, probes: () => probes }
}

const anybody = { client: '', hasBegun: false }
const want = { cid, segments: [], scope: 'entity' } as const

function brought(flight: Flight, signal: AbortSignal, wanted = cid): Promise<{ bytes: Uint8Array; upstream: string }> {
  return new Promise((resolve, reject) => {
    flight.follow()
    const reader: FlightReader = {
      settle: (bytes, upstream) => resolve({ bytes, upstream }),
      passed: () => reject(new Error('it does not come from here')),
      fail: reject,
    }
    flight.join(wanted, { ...want, cid: wanted }, reader)
    signal.addEventListener('abort', () => {
      flight.leave(reader)
      flight.unfollow()
      reject(signal.reason)
    })
  })
}

for (const kind of ['block', 'answer'] as const) {
  describe(`a ${kind}`, () => {
    test('only upstream recovers after a second → asked again', async () => {
      const { clock, ill, kinds } = make('one')
      ill.add('one')
      const found = kinds[kind]()
      await clock.advance(second)
      ill.delete('one')
      await clock.advance(1.5 * second)
      assert.equal((await found).upstream, 'one')
    })

    test('outage seen by a request → ends 500 ms after recovery', async () => {
      const { clock, ill, kinds } = make('one')
      ill.add('one')
      let isFound = false
      const found = kinds[kind]().then(() => {
        isFound = true
      })
      await clock.advance(2.25 * second)
      ill.delete('one')
      await clock.advance(second / 2)
      assert.ok(isFound)
      await found
    })

    test('upstream stays unhealthy → bounded attempts', async () => {
      const { clock, ill, asked, kinds } = make('one')
      ill.add('one')
      const refused = assert.rejects(kinds[kind](), (error) => isFailure(error, 'unavailable'))
      await clock.advance(5 * second)
      await refused
      assert.ok(asked.length <= 4, `${asked.length} times`)
    })

    test('content breaks off each time, probes succeed → three attempts', async () => {
      const { clock, torn, asked, kinds } = make('one')
      torn.add('one')
      const refused = assert.rejects(kinds[kind](), (error) => isFailure(error, 'unavailable'))
      await clock.advance(5 * second)
      await refused
      assert.equal(asked.length, 3)
    })

    test('long outage → not waited for', async () => {
      const { clock, ill, kinds } = make('one')
      ill.add('one')
      for (let count = 0; count < 6; count++) {
        kinds[kind]().catch(() => {})
        await clock.advance(4 * second)
      }
      const refused = assert.rejects(kinds[kind](), (error) => isFailure(error, 'unavailable'))
      // It may have been looked at just now: the next look is 250 ms later.
      await clock.advance(251)
      await refused
    })

    test('404 from one upstream → no wait for an unhealthy one', async () => {
      const { clock, ill, absent, kinds } = make('one', 'two')
      ill.add('one')
      absent.add('two')
      const refused = assert.rejects(kinds[kind](), (error) => isFailure(error, 'not-found'))
      await clock.advance(10)
      await refused
    })

    test('client leaves → wait ends', async () => {
      const { clock, ill, kinds } = make('one')
      ill.add('one')
      const controller = new AbortController()
      const left = assert.rejects(kinds[kind](controller.signal))
      await clock.advance(300)
      controller.abort(failure('cancelled'))
      await clock.advance(1)
      await left
    })
  })
}

test('search evicted for a reader → repeated in time', async () => {
  const { clock, mute, kinds } = make('one')
  mute.add('one')
  const searched = kinds.block(undefined, want, { ...anybody, isSearch: true })
  const other = kinds.block(undefined, { ...want, cid: otherCid })
  await clock.advance(3 * second)
  assert.deepEqual([(await other).upstream, (await searched).upstream], ['one', 'one'])
})

test('unhealthy → probed often at first, then less', async () => {
  const { clock, ill, pool, kinds, probes } = make('one')
  const health = pool.members[0]?.health
  assert.ok(health)
  ill.add('one')
  kinds.block().catch(() => {})
  await clock.advance(2 * second)
  assert.ok(probes() >= 4, `${probes()} probes`)
  await clock.advance(118 * second)
  const before = probes()
  await clock.advance(30 * second)
  const later = probes() - before
  assert.ok(later >= 2 && later < 6, `${later} probes`)
  ill.delete('one')
  await clock.advance(20 * second)
  assert.equal(health.state('').state, 'ready')
})

describe('retry of an upstream', () => {
  const hopes: [kind: FailureKind, isHope: boolean][] = [
    ['unavailable', true],
    ['upstream-error', true],
    ['timeout', true],
    ['overloaded', true],
    ['throttled', true],
    ['refused', false],
    ['hash-mismatch', false],
    ['not-found', false],
  ]
  for (const [kind, isHope] of hopes) {
    test(`${kind}: ${isHope ? 'yes' : 'no'}`, () => {
      const { clock, pool } = make('one')
      const [member] = pool.members
      assert.ok(member)
      const attempts = new Attempts(clock, second)
      attempts.spend(member, failure(kind))
      assert.equal(attempts.mayWait(attempts.spentMs(member) ?? 0), isHope)
    })
  }

  test('answers others while searching → no', () => {
    const { clock, pool } = make('one')
    const [member] = pool.members
    assert.ok(member)
    const attempts = new Attempts(clock, second)
    attempts.spend(member, new Failure('timeout', 'it searches', { source: 'upstream', facts: { isSearching: true } }))
    assert.equal(attempts.spentMs(member), Number.POSITIVE_INFINITY)
  })
})
