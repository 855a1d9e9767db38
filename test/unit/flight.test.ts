// One block for all who want it: who is asked when, and who decides a race.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Upstream, UpstreamAnswer } from '../../backends/upstreams/contract.ts'
import { isFailure } from '../../src/core/failure.ts'
import { Flight, type FlightDeps } from '../../src/retrieval/flight/flight.ts'
import { createPool } from '../../src/retrieval/upstreams/pool.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addBlock, noise } from '../support/fixtures.ts'
import { membersOf } from '../support/members.ts'

const blocks = new Map<string, Uint8Array>()
const cid = addBlock(blocks, 0x55, noise(100, 1))
const [bytes] = [...blocks.values()] as [Uint8Array]
const anybody = { client: '', hasBegun: false }

type Script = { readonly afterMs?: number }

/** A flight over scripted upstreams; each answers so long after it was asked, or never. */
function fly(
  scripts: Record<string, Script>,
  {
    hasHedges = true,
    isSearch = false,
    ...more
  }: Partial<FlightDeps> & { hasHedges?: boolean; isSearch?: boolean } = {},
) {
  const clock = createFakeClock()
  const began = clock.monotonic()
  const askedAt: Record<string, number> = {}
  const stopped: string[] = []
  const upstreams = Object.entries(scripts).map(([name, { afterMs }]) => ({
    name,
    traits: { dag: false, canBlock: () => true },
    ask(_cid: unknown, answer: UpstreamAnswer) {
      askedAt[name] = clock.monotonic() - began
      const stop = afterMs === undefined ? () => {} : clock.after(afterMs, () => answer.came({ cid, bytes }))
      return {
        stop() {
          stop()
          stopped.push(name)
        },
      }
    },
  })) as unknown as Upstream[]
  const made = createPool({ members: membersOf(upstreams, clock), hedge: 100, clock, timeoutMs: 4000 })
  const pool = hasHedges ? made : { ...made, mayHedge: () => false }
  const told: { bytes?: Uint8Array; upstream?: string; error?: unknown }[] = []
  const readerOf = () => ({
    settle: (bytes: Uint8Array, upstream: string) => void told.push({ bytes, upstream }),
    fail: (error: unknown) => void told.push({ error }),
    passed() {},
  })
  const want = { cid, segments: [], scope: 'block' } as const
  const flight = new Flight('block', want, { pool, clock, keep() {}, ...more }, { ...anybody, isSearch })
  const join = () => {
    const reader = readerOf()
    flight.join(cid, undefined, reader)
    return () => flight.leave(reader)
  }
  const leave = join()
  return { clock, flight, join, leave, askedAt, stopped, told }
}

test('fast upstream → asked alone', async () => {
  const { clock, askedAt, told } = fly({ one: { afterMs: 80 }, two: { afterMs: 1 } })
  await clock.advance(500)
  assert.equal(told[0]?.upstream, 'one')
  assert.deepEqual(askedAt, { one: 0 })
})

test('late upstream → hedged, loser stopped', async () => {
  const { clock, askedAt, stopped, told, flight } = fly({ one: {}, two: { afterMs: 30 }, three: {} })
  await clock.advance(500)
  assert.equal(told[0]?.upstream, 'two')
  assert.deepEqual(askedAt, { one: 0, two: 100 })
  assert.deepEqual(stopped, ['one'])
  assert.deepEqual(
    flight.attempts.list().map(({ outcome }) => outcome),
    ['lost', 'won'],
  )
})

test('busy process, late upstream → hedged', async () => {
  const { clock, askedAt } = fly({ one: {}, two: { afterMs: 30 } })
  await clock.jump(150)
  await clock.advance(1)
  assert.deepEqual(Object.keys(askedAt), ['one', 'two'])
})

test('search, late upstream → no hedge of readers taken', async () => {
  const { clock, join, askedAt } = fly({ one: {}, two: {}, three: {} }, { isSearch: true })
  await clock.advance(1900)
  assert.deepEqual(askedAt, { one: 0 })
  await clock.advance(200)
  assert.deepEqual(askedAt, { one: 0, two: 2000 })
  join()
  await clock.advance(200)
  assert.ok('three' in askedAt)
})

test('hedge budget spent, long silence → next upstream asked', async () => {
  const { clock, askedAt, told } = fly({ one: {}, two: { afterMs: 30 } }, { hasHedges: false })
  await clock.advance(1900)
  assert.deepEqual(askedAt, { one: 0 })
  await clock.advance(600)
  assert.equal(told[0]?.upstream, 'two')
})

test('last reader leaves → requests stop', async () => {
  const { clock, join, leave, stopped, told } = fly({ one: {}, two: {} })
  const leaveToo = join()
  await clock.advance(150)
  leave()
  assert.deepEqual(stopped, [])
  leaveToo()
  assert.deepEqual(stopped, ['one', 'two'])
  await clock.advance(5000)
  assert.equal(clock.timers, 0)
  assert.ok(told.every(({ error }) => isFailure(error, 'cancelled')))
})

test('race without a verdict → read hangs (p-any)', async () => {
  const judge = (() => Object.assign(new Promise(() => {}), { cancel() {} })) as unknown as NonNullable<
    FlightDeps['judge']
  >
  const alone = fly({ one: { afterMs: 5 }, two: {} }, { judge })
  await alone.clock.advance(50)
  assert.equal(alone.told.length, 1)
  const raced = fly({ one: { afterMs: 150 }, two: { afterMs: 5 } }, { judge })
  await raced.clock.advance(1000)
  assert.equal(raced.told.length, 0)
})

test('third request joins the race', async () => {
  const { clock, told, stopped } = fly({ one: {}, two: {}, three: { afterMs: 5 } })
  await clock.advance(500)
  assert.equal(told[0]?.upstream, 'three')
  assert.deepEqual(stopped.sort(), ['one', 'two'])
})
