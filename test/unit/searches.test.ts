// The search behind a 404: how long it goes on, how often it looks, and what ends it.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Failure, type FailureKind } from '../../src/core/failure.ts'
import type { Log } from '../../src/core/log.ts'
import type { Flight, FlightReader } from '../../src/retrieval/flight/flight.ts'
import { createNegativeCache, createSearches, isAbsence } from '../../src/retrieval/negative-cache.ts'
import { Attempts } from '../../src/retrieval/upstreams/attempts.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addBlock, text } from '../support/fixtures.ts'

const second = 1000
const cid = addBlock(new Map(), 0x55, text('what is looked for'))
const failure = (kind: FailureKind) => new Failure(kind, kind, { source: 'upstream' })

function make({ keepLookingMs = 60 * second } = {}) {
  const clock = createFakeClock()
  const negativeCache = createNegativeCache({ initialTtlMs: 5 * second, maxTtlMs: 60 * second, clock })
  const logged: string[] = []
  const log: Log = (_level, event) => logged.push(event)
  /** Flights in the order in which they began; each ends when the test says so. */
  const rounds: { readonly end: (error?: unknown) => void; readonly isFollowed: boolean }[] = []
  const round = (): Flight => {
    const readers = new Set<FlightReader>()
    const one = {
      end(error?: unknown) {
        for (const reader of readers)
          if (readers.delete(reader)) error === undefined ? reader.settle(new Uint8Array(), 'one') : reader.fail(error)
      },
      get isFollowed() {
        return readers.size > 0
      },
    }
    rounds.push(one)
    const flight: Pick<Flight, 'attempts' | 'join' | 'leave'> = {
      attempts: new Attempts(clock, 4_000),
      join: (_cid, _around, reader) => void readers.add(reader),
      leave: (reader) => void readers.delete(reader),
    }
    return flight as Flight
  }
  const searches = createSearches({ durationMs: keepLookingMs, negativeCache, clock, log, flight: round })
  const missed = () => negativeCache.remember(cid, '', failure('not-found'), [])
  const begin = (running?: Flight) => searches.begin(cid, undefined, 'one', running)
  return { clock, negativeCache, searches, rounds, round, missed, begin, logged }
}

test('one round per cache period until the search ends', async () => {
  const { clock, searches, rounds, missed, begin } = make({ keepLookingMs: 60 * second })
  missed()
  begin()
  for (let step = 0; step < 100; step++) {
    await clock.advance(second)
    for (const one of rounds) one.end(failure('not-found'))
  }
  // An absence that nobody is sure of is looked for every five seconds; each look that ends takes up to a step of this test.
  assert.ok(rounds.length >= 8 && rounds.length <= 12, `${rounds.length} rounds`)
  assert.equal(searches.size, 0)
})

test('found → search ends, negative cache entry dropped', async () => {
  const { clock, negativeCache, searches, rounds, missed, begin, logged } = make()
  missed()
  begin()
  await clock.advance(5 * second)
  rounds[0]?.end()
  await clock.advance(10 * second)
  assert.deepEqual([rounds.length, searches.size, negativeCache.find(cid, '')], [1, 0, undefined])
  assert.deepEqual(logged, ['search.found'])
})

test('one search per CID; other rounds stop', async () => {
  const { negativeCache, searches, rounds, round, missed, begin } = make()
  missed()
  begin()
  begin(round())
  assert.equal(searches.size, 1)
  assert.equal(rounds[0]?.isFollowed, false)
  negativeCache.remember(cid, 'other', failure('timeout'), [])
  searches.begin(cid, { cid, segments: ['other'], scope: 'block' }, 'one')
  assert.equal(searches.size, 2)
})

test('hundreds of absent CIDs of one client → others still searched', async () => {
  const { negativeCache, searches, rounds, round } = make()
  let made = 0
  const search = async (client: string): Promise<boolean> => {
    const absent = addBlock(new Map(), 0x55, text(`${client} ${made++}`))
    negativeCache.remember(absent, '', failure('not-found'), [])
    searches.begin(absent, undefined, client, round())
    return rounds.at(-1)?.isFollowed === true
  }
  const followed = () => rounds.filter(({ isFollowed }) => isFollowed).length
  let had = 0
  while (await search('greedy')) had++
  assert.deepEqual([had, searches.size], [256, 256])
  assert.ok(await search('modest'))
  assert.deepEqual([searches.size, followed(), rounds[255]?.isFollowed, rounds[0]?.isFollowed], [256, 256, false, true])
  assert.equal(await search('greedy'), false)
  for (let count = 1; count < 128; count++) assert.ok(await search('modest'), `${count}`)
  assert.equal(await search('modest'), false, 'each has half of the room')
  searches.close()
  assert.equal(searches.size, 0)
})

test('round out of client time → first of the search', async () => {
  const { clock, searches, rounds, round, missed, begin } = make()
  missed()
  begin(round())
  await clock.advance(4 * second)
  assert.deepEqual([rounds.length, rounds[0]?.isFollowed], [1, true])
  rounds[0]?.end()
  await clock.advance(0)
  assert.equal(searches.size, 0)
})

test('endless round → replaced after 30 s, ends with its search', async () => {
  const { clock, searches, rounds, round, missed, begin } = make()
  missed()
  begin(round())
  await clock.advance(29 * second)
  assert.equal(rounds[0]?.isFollowed, true)
  await clock.advance(8 * second)
  assert.deepEqual([rounds[0]?.isFollowed, rounds.length, searches.size], [false, 2, 1])
  await clock.advance(30 * second)
  assert.deepEqual([rounds[1]?.isFollowed, rounds.length, searches.size], [false, 2, 0])
})

test('upload → its search ends', async () => {
  const { clock, negativeCache, searches, rounds, missed, begin } = make()
  missed()
  begin()
  negativeCache.forget(cid)
  await clock.advance(10 * second)
  assert.deepEqual([rounds.length, searches.size], [0, 0])
})

test('during a search → negative cache answers', async () => {
  const { clock, negativeCache, round, missed, begin } = make()
  missed()
  begin(round())
  await clock.advance(20 * second)
  assert.ok(negativeCache.find(cid, ''))
})

test('backgroundSearch 0 → no background search', () => {
  const { searches, rounds, round, missed, begin } = make({ keepLookingMs: 0 })
  missed()
  begin(round())
  assert.deepEqual([searches.size, rounds[0]?.isFollowed], [0, false])
})

test('running round, nothing remembered → no further round', async () => {
  const { clock, searches, rounds, round, begin } = make()
  begin(round())
  await clock.advance(29 * second)
  assert.equal(rounds[0]?.isFollowed, true)
  await clock.advance(2 * second)
  assert.deepEqual([rounds[0]?.isFollowed, rounds.length, searches.size], [false, 1, 0])
})

test('close → all end silently', async () => {
  const { clock, searches, round, missed, begin, logged } = make()
  missed()
  begin(round())
  searches.close()
  assert.deepEqual([searches.size, logged, clock.timers], [0, [], 0])
})

test('overloaded and unavailable → not absence', () => {
  const kinds: FailureKind[] = ['not-found', 'timeout', 'overloaded', 'unavailable', 'upstream-error']
  assert.deepEqual(
    kinds.map((kind) => isAbsence(failure(kind))),
    [true, true, false, false, false],
  )
})
