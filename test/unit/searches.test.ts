// The search behind a 404: how long it goes on, how often it looks, and what ends it.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Failure, type FailureKind } from '../../src/core/failure.ts'
import type { Log } from '../../src/core/log.ts'
import { createNegativeCache, createSearches, isAbsence, type SearchRound } from '../../src/retrieval/negative-cache.ts'
import { Attempts } from '../../src/retrieval/upstreams/attempts.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addBlock, text } from '../support/fixtures.ts'

const second = 1000
const cid = addBlock(new Map(), 0x55, text('what is looked for'))
const failure = (kind: FailureKind) => new Failure(kind, kind, { source: 'upstream' })

function make({ keepLookingMs = 60 * second } = {}) {
  const clock = createFakeClock()
  const notFound = createNegativeCache({ initialTtlMs: 5 * second, maxTtlMs: 60 * second, clock, random: () => 0 })
  const logged: string[] = []
  const log: Log = (_level, event) => logged.push(event)
  const searches = createSearches({ durationMs: keepLookingMs, negativeCache: notFound, clock, log })
  /** Rounds in the order in which they began; each ends when the test says so. */
  const rounds: { at: number; end: (error?: unknown) => void; isStopped: boolean }[] = []
  const began = clock.monotonic()
  const round = (): SearchRound => {
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const one = {
      at: clock.monotonic() - began,
      end: (error?: unknown) => (error === undefined ? resolve() : reject(error)),
      isStopped: false,
    }
    rounds.push(one)
    return { done: promise, attempts: new Attempts(clock, 4_000), stop: () => void (one.isStopped = true) }
  }
  const missed = () => notFound.remember(cid, '', failure('not-found'), [])
  const settle = () => clock.advance(0)
  return { clock, notFound, searches, rounds, round, missed, logged, settle }
}

test('one round per cache period until the search ends', async () => {
  const { clock, searches, rounds, round, missed } = make({ keepLookingMs: 60 * second })
  missed()
  searches.begin(cid, '', round, { client: 'one' })
  for (let step = 0; step < 100; step++) {
    await clock.advance(second)
    for (const one of rounds) one.end(failure('not-found'))
  }
  // An absence that nobody is sure of is looked for every five seconds; each look that ends takes up to a step of this test.
  assert.ok(rounds.length >= 8 && rounds.length <= 12, `${rounds.length} rounds`)
  assert.equal(searches.size, 0)
})

test('found → search ends, negative cache entry dropped', async () => {
  const { clock, notFound, searches, rounds, round, missed, logged } = make()
  missed()
  searches.begin(cid, '', round, { client: 'one' })
  await clock.advance(5 * second)
  rounds[0]?.end()
  await clock.advance(10 * second)
  assert.deepEqual([rounds.length, searches.size, notFound.find(cid, '')], [1, 0, undefined])
  assert.deepEqual(logged, ['search.found'])
})

test('one search per CID; other rounds stop', async () => {
  const { searches, rounds, round, missed } = make()
  missed()
  searches.begin(cid, '', round, { client: 'one' })
  searches.begin(cid, '', round, { client: 'one', running: round() })
  assert.equal(searches.size, 1)
  assert.equal(rounds[0]?.isStopped, true)
  searches.begin(cid, 'other', round, { client: 'one' })
  assert.equal(searches.size, 2)
})

test('hundreds of absent CIDs of one client → others still searched', async () => {
  const { searches, rounds, round, notFound, settle } = make()
  let made = 0
  const search = async (client: string): Promise<boolean> => {
    const absent = addBlock(new Map(), 0x55, text(`${client} ${made++}`))
    notFound.remember(absent, '', failure('not-found'), [])
    searches.begin(absent, '', round, { client, running: round() })
    await settle()
    return rounds.at(-1)?.isStopped === false
  }
  const stopped = () => rounds.filter(({ isStopped }) => isStopped).length
  let had = 0
  while (await search('greedy')) had++
  assert.deepEqual([had, searches.size], [256, 256])
  assert.ok(await search('modest'))
  assert.deepEqual([searches.size, stopped(), rounds[255]?.isStopped, rounds[0]?.isStopped], [256, 2, true, false])
  assert.equal(await search('greedy'), false)
  for (let count = 1; count < 128; count++) assert.ok(await search('modest'), `${count}`)
  assert.equal(await search('modest'), false, 'each has half of the room')
  searches.close()
  await settle()
  assert.equal(searches.size, 0)
})

test('round out of client time → first of the search', async () => {
  const { clock, searches, rounds, round, missed } = make()
  missed()
  searches.begin(cid, '', round, { client: 'one', running: round() })
  await clock.advance(4 * second)
  assert.deepEqual([rounds.length, rounds[0]?.isStopped], [1, false])
  rounds[0]?.end()
  await clock.advance(0)
  assert.equal(searches.size, 0)
})

test('endless round → replaced after 30 s, ends with its search', async () => {
  const { clock, searches, rounds, round, missed } = make()
  missed()
  searches.begin(cid, '', round, { client: 'one', running: round() })
  await clock.advance(29 * second)
  assert.equal(rounds[0]?.isStopped, false)
  await clock.advance(8 * second)
  assert.deepEqual([rounds[0]?.isStopped, rounds.length, searches.size], [true, 2, 1])
  await clock.advance(30 * second)
  assert.deepEqual([rounds[1]?.isStopped, rounds.length, searches.size], [true, 2, 0])
})

test('upload → its search ends', async () => {
  const { clock, notFound, searches, rounds, round, missed } = make()
  missed()
  searches.begin(cid, '', round, { client: 'one' })
  notFound.forget(cid)
  await clock.advance(10 * second)
  assert.deepEqual([rounds.length, searches.size], [0, 0])
})

test('during a search → negative cache answers', async () => {
  const { clock, notFound, searches, round, missed } = make()
  missed()
  searches.begin(cid, '', round, { client: 'one', running: round() })
  await clock.advance(20 * second)
  assert.ok(notFound.find(cid, ''))
})

test('backgroundSearch 0 → no background search', () => {
  const { searches, rounds, round, missed } = make({ keepLookingMs: 0 })
  missed()
  searches.begin(cid, '', round, { client: 'one', running: round() })
  assert.deepEqual([searches.size, rounds[0]?.isStopped], [0, true])
})

test('running round, nothing remembered → no further round', async () => {
  const { clock, searches, rounds, round } = make()
  searches.begin(cid, '', round, { client: 'one', running: round() })
  await clock.advance(29 * second)
  assert.equal(rounds[0]?.isStopped, false)
  await clock.advance(2 * second)
  assert.deepEqual([rounds[0]?.isStopped, rounds.length, searches.size], [true, 1, 0])
})

test('close → all end silently', async () => {
  const { clock, searches, round, missed, logged, settle } = make()
  missed()
  searches.begin(cid, '', round, { client: 'one', running: round() })
  searches.close()
  await settle()
  assert.deepEqual([searches.size, logged, clock.timers], [0, [], 0])
})

test('overloaded and unavailable → not absence', () => {
  const kinds: FailureKind[] = ['not-found', 'timeout', 'overloaded', 'unavailable', 'upstream-error']
  assert.deepEqual(
    kinds.map((kind) => isAbsence(failure(kind))),
    [true, true, false, false, false],
  )
})
