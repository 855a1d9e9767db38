// The slots at one upstream, and the line before them: who goes first, who is let go, and what a client is told then.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createLoopScheduler, type LoopScheduler, sliceMs } from '../../src/retrieval/loop-scheduler.ts'
import { UpstreamHealth } from '../../src/retrieval/upstreams/upstream-health.ts'
import { type Asked, enter, type Wish } from '../support/asked.ts'
import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'

const timeoutMs = 4_000
const over = new Failure('cancelled', 'it is over', { source: 'ours' })

async function make({
  most = 4,
  clock = createFakeClock(),
  turns = createLoopScheduler(clock),
}: {
  most?: number
  clock?: FakeClock
  turns?: LoopScheduler
} = {}) {
  const health = new UpstreamHealth({ name: 'one', clock, turns, log: silentLog, connections: most })
  // Quick answers: what takes longer than 250 ms is late.
  const first = await enter(clock, health)
  await clock.advance(10)
  first.brought(1, 0)
  first.done()
  const entered: string[] = []
  let newest: Asked | undefined
  const take = (who: string, wish: Wish = {}): Promise<Asked> => {
    const taking = enter(clock, health, { ...wish, key: who })
    taking.then(
      (slot) => {
        entered.push(who)
        newest = slot
      },
      () => {},
    )
    return taking
  }
  const fill = (count: number) => Promise.all(Array.from({ length: count }, () => take('first')))
  /** It answers a look, and with that two questions. */
  const alive = () => health.probed({ usable: true, raw: true, car: true, findings: [], ms: 0 })
  return { clock, health, entered, take, fill, alive, latest: () => newest }
}

const settled = (promise: Promise<unknown>): Promise<string> =>
  Promise.race([
    promise.then(
      () => 'entered',
      (error: unknown) => (isFailure(error) ? error.kind : String(error)),
    ),
    new Promise<string>((resolve) => setImmediate(() => resolve('waits'))),
  ])

describe('request queue', () => {
  test('more requests than slots → next starts when one ends', async () => {
    const { health, take, fill } = await make({ most: 2 })
    const [one] = await fill(2)
    const third = take('third')
    assert.equal(await settled(third), 'waits')
    assert.equal(health.pending, 2)
    one?.failed(over)
    assert.equal(await settled(third), 'entered')
  })

  test('readers before searches, each in order', async () => {
    const { clock, take, fill, entered } = await make({ most: 2 })
    const first = await fill(2)
    entered.length = 0
    const waiting = [take('search', { rank: 'search' }), take('reader 1'), take('reader 2')]
    for (const slot of first) slot.failed(over)
    await clock.advance(0)
    for (const slot of await Promise.all(waiting.slice(1))) slot.failed(over)
    await clock.advance(0)
    assert.deepEqual(entered, ['reader 1', 'reader 2', 'search'])
  })

  test('begun files first; one of four slots for others', async () => {
    const { clock, take, entered, latest } = await make({ most: 1 })
    let slot = await take('now')
    entered.length = 0
    for (let count = 0; count < 6; count++) take('begun', { rank: 'begun' }).catch(() => {})
    take('first').catch(() => {})
    take('second').catch(() => {})
    const order: string[] = []
    for (let turn = 0; turn < 8; turn++) {
      slot.failed(over)
      await clock.advance(0)
      order.push(...entered.splice(0))
      slot = latest() as Asked
    }
    assert.deepEqual(order, ['begun', 'begun', 'begun', 'first', 'begun', 'begun', 'begun', 'second'])
  })

  test('clients are served round-robin', async () => {
    const { clock, take, entered, latest } = await make({ most: 1 })
    const slot = await take('now', { client: 'many' })
    entered.length = 0
    for (let count = 0; count < 500; count++) take('many', { client: 'many' }).catch(() => {})
    take('single', { client: 'single' }).catch(() => {})
    slot.failed(over)
    await clock.advance(0)
    latest()?.failed(over)
    await clock.advance(0)
    assert.deepEqual(entered, ['many', 'single'])
  })

  test('wait would end too late → refused with Retry-After', async () => {
    const { clock, take, fill } = await make({ most: 1 })
    await fill(1)
    const late = take('late')
    const refused = assert.rejects(late, (error) => isFailure(error, 'overloaded') && (error.retryAfterMs ?? 0) > 0)
    await clock.advance(timeoutMs)
    await refused
  })

  test('time spent before the queue → refused that much sooner', async () => {
    const { clock, take, fill } = await make({ most: 1 })
    await fill(1)
    const late = take('late', { waitedMs: timeoutMs - 1000 })
    const refused = assert.rejects(late, (error) => isFailure(error, 'overloaded'))
    await clock.advance(1000)
    assert.equal(await settled(late), 'overloaded')
    await refused
  })

  test('caller leaves the queue → no slot used', async () => {
    const { health, take, fill } = await make({ most: 1 })
    const [one] = await fill(1)
    const controller = new AbortController()
    const gone = take('gone', { signal: controller.signal })
    const stays = take('stays')
    controller.abort(new Failure('cancelled', 'the client left', { source: 'client' }))
    assert.equal(await settled(gone), 'cancelled')
    one?.failed(over)
    assert.equal(await settled(stays), 'entered')
    assert.equal(health.pending, 1)
  })

  test('mass rejection → spread over event-loop iterations', async () => {
    const clock = createFakeClock()
    const turns = createLoopScheduler(clock)
    const upstreams = await Promise.all([1, 2, 3, 4].map(() => make({ most: 1, clock, turns })))
    for (const { fill } of upstreams) await fill(1)
    let turn = 0
    let isOver = false
    const nextTurn = () => {
      turn++
      if (!isOver) setImmediate(nextTurn)
    }
    nextTurn()
    const told: number[] = []
    const all = upstreams.flatMap(({ take }) =>
      Array.from({ length: 25 }, () =>
        take('before').catch(() => {
          told.push(turn)
          // What it does then.
          clock.spend(sliceMs / 2)
        }),
      ),
    )
    // It throttles a question that was no block.
    const throttled = new Failure('throttled', 'later', { source: 'upstream', retryAfterMs: 60_000 })
    for (const { health } of upstreams) health.throttled(throttled)
    await Promise.all(all)
    isOver = true
    const most = Math.max(
      ...Map.groupBy(told, (one) => one)
        .values()
        .map(({ length }) => length),
    )
    assert.ok(most <= 2, `${most} in one turn`)
  })
})

describe('searches', () => {
  test('no readers → most of the slots; a reader enters', async () => {
    const { health, take } = await make({ most: 16 })
    for (let count = 0; count < 20; count++) take('search', { rank: 'search' }).catch(() => {})
    assert.equal(health.pending, 14)
    assert.equal(await settled(take('reader')), 'entered')
  })

  test('overtaken request → becomes a search, frees its slot', async () => {
    const { clock, health, alive, take, fill } = await make({ most: 20 })
    await fill(16)
    const waits = take('reader')
    await clock.advance(300)
    assert.equal(await settled(waits), 'waits')
    alive()
    assert.equal(await settled(waits), 'entered')
    assert.equal(health.pending, 17)
  })

  test('no responses at all → probe, no search', async () => {
    const { clock, health, take, fill } = await make({ most: 2 })
    let probes = 0
    health.onProbeWanted(() => probes++)
    await fill(2)
    const waits = take('reader')
    await clock.advance(1_000)
    assert.equal(await settled(waits), 'waits')
    assert.ok(probes > 0)
  })

  for (const [what, isAlive, kind] of [
    ['answered others meanwhile: it had its time', true, 'timeout'],
    ['answered no other: it is no absence', false, 'overloaded'],
  ] as const)
    test(`search yields to a reader, upstream ${what}`, async () => {
      const { clock, take, alive } = await await make({ most: 4 })
      const searches = await Promise.all([1, 2, 3].map(() => take('search', { rank: 'search' })))
      const fourth = await take('reader')
      await clock.advance(1)
      if (isAlive) alive()
      const reader = take('reader')
      await clock.advance(900)
      assert.ok(searches.every(({ evicted }) => evicted() === undefined))
      await clock.advance(1300)
      const [gone] = searches.filter(({ evicted }) => evicted() !== undefined)
      assert.ok(isFailure(gone?.evicted(), kind))
      assert.equal(fourth.evicted(), undefined)
      assert.equal(await settled(reader), 'entered')
    })
})
