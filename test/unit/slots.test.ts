// The slots at one upstream, and the queue for them: who goes first, who is let go, and what a client is told then.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { createLoopTurns, type LoopTurns, sliceMs } from '../../src/retrieval/turns/loop-turns.ts'
import type { Rank } from '../../src/retrieval/upstreams/fair-queue.ts'
import { createSlots, type Slot } from '../../src/retrieval/upstreams/slots.ts'
import { createWindow } from '../../src/retrieval/upstreams/window.ts'
import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'

const patienceMs = 4_000
type Wish = { readonly rank?: Rank; readonly client?: string; readonly signal?: AbortSignal }

function make({
  most = 4,
  lateMs = 250,
  clock = createFakeClock(),
  turns = createLoopTurns(clock),
}: {
  most?: number
  lateMs?: number
  clock?: FakeClock
  turns?: LoopTurns
} = {}) {
  const state = { waitMs: 0, taken: 0, stuck: 0 }
  const slots = createSlots({
    name: 'one',
    most,
    window: createWindow(most, clock),
    clock,
    turns,
    waitMs: () => state.waitMs,
    lateMs: () => lateMs,
    tooLate: (ms) => new Failure('overloaded', 'no slot in time', { source: 'ours', retryAfterMs: ms }),
    onTaken: () => state.taken++,
    onStuck: () => state.stuck++,
  })
  const entered: string[] = []
  let newest: Slot | undefined
  const take = (
    who: string,
    { rank = 'first', client = '', signal = new AbortController().signal }: Wish = {},
  ): Promise<Slot> => {
    const taking = slots.take({ rank, client }, clock.monotonic() + patienceMs, signal)
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
  return { clock, slots, state, entered, take, fill, latest: () => newest }
}

const settled = (promise: Promise<unknown>): Promise<string> =>
  Promise.race([
    promise.then(
      () => 'entered',
      (error: unknown) => (isFailure(error) ? error.kind : String(error)),
    ),
    new Promise<string>((resolve) => setImmediate(() => resolve('waits'))),
  ])

describe('the queue', () => {
  test('no more are asked at once than there are slots, and the next goes as one leaves', async () => {
    const { slots, take, fill } = make({ most: 2 })
    const [one] = await fill(2)
    const third = take('third')
    assert.equal(await settled(third), 'waits')
    assert.deepEqual([slots.taken, slots.queued], [2, 1])
    one?.leave()
    assert.equal(await settled(third), 'entered')
  })

  test('readers go before searches, each in the order in which they came', async () => {
    const { clock, take, fill, entered } = make({ most: 2, lateMs: 60_000 })
    const first = await fill(2)
    entered.length = 0
    const waiting = [take('search', { rank: 'search' }), take('reader 1'), take('reader 2')]
    for (const slot of first) slot.leave()
    await clock.advance(0)
    for (const slot of await Promise.all(waiting.slice(1))) slot.leave()
    await clock.advance(0)
    assert.deepEqual(entered, ['reader 1', 'reader 2', 'search'])
  })

  test('begun files go first, and one of four slots goes to the others', async () => {
    const { clock, take, entered, latest } = make({ most: 1, lateMs: 60_000 })
    let slot = await take('now')
    entered.length = 0
    for (let count = 0; count < 6; count++) take('begun', { rank: 'begun' }).catch(() => {})
    take('first').catch(() => {})
    take('again', { rank: 'again' }).catch(() => {})
    const order: string[] = []
    for (let turn = 0; turn < 8; turn++) {
      slot.leave()
      await clock.advance(0)
      order.push(...entered.splice(0))
      slot = latest() as Slot
    }
    assert.deepEqual(order, ['begun', 'begun', 'begun', 'first', 'begun', 'begun', 'begun', 'again'])
  })

  test('clients take turns: a single want of one does not wait behind five hundred of another', async () => {
    const { clock, take, entered, latest } = make({ most: 1, lateMs: 60_000 })
    const slot = await take('now', { client: 'many' })
    entered.length = 0
    for (let count = 0; count < 500; count++) take('many', { client: 'many' }).catch(() => {})
    take('single', { client: 'single' }).catch(() => {})
    slot.leave()
    await clock.advance(0)
    latest()?.leave()
    await clock.advance(0)
    assert.deepEqual(entered, ['many', 'single'])
  })

  test('a wait that would end too late is given up, with a time to retry', async () => {
    const { clock, take, fill } = make({ most: 1 })
    await fill(1)
    const late = take('late')
    const refused = assert.rejects(late, (error) => isFailure(error, 'overloaded') && (error.retryAfterMs ?? 0) > 0)
    await clock.advance(patienceMs)
    await refused
  })

  test('a caller that leaves the queue takes no slot', async () => {
    const { slots, take, fill } = make({ most: 1 })
    const [one] = await fill(1)
    const controller = new AbortController()
    const gone = take('gone', { signal: controller.signal })
    const stays = take('stays')
    controller.abort(new Failure('cancelled', 'the client left', { source: 'client' }))
    assert.equal(await settled(gone), 'cancelled')
    one?.leave()
    assert.equal(await settled(stays), 'entered')
    assert.equal(slots.taken, 1)
  })

  test('a flush turns away callers that came before its moment, and no others', async () => {
    const { clock, slots, take, fill } = make({ most: 1 })
    await fill(1)
    const before = take('before')
    const turnedAt = clock.monotonic()
    await clock.advance(1)
    const after = take('after')
    slots.flush(turnedAt, () => new Failure('unavailable', 'it is out', { source: 'upstream' }))
    await clock.advance(1)
    assert.deepEqual([await settled(before), await settled(after)], ['unavailable', 'waits'])
  })

  test('callers whom several upstreams turn away in one moment learn of it in many turns of the loop, and go on in each for one short time', async () => {
    const clock = createFakeClock()
    const turns = createLoopTurns(clock)
    const upstreams = Array.from({ length: 4 }, () => make({ most: 1, clock, turns }))
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
    for (const { slots } of upstreams)
      slots.flush(clock.monotonic(), () => new Failure('unavailable', 'it is out', { source: 'upstream' }))
    await Promise.all(all)
    isOver = true
    const most = Math.max(
      ...Map.groupBy(told, (one) => one)
        .values()
        .map(({ length }) => length),
    )
    assert.ok(most <= 2, `${most} in one turn`)
  })

  test('an empty budget holds all callers; when it refills, all that fit go', async () => {
    const { clock, state, take } = make({ most: 4 })
    state.waitMs = 500
    const both = [take('one'), take('two')]
    await clock.advance(400)
    assert.deepEqual(await Promise.all(both.map(settled)), ['waits', 'waits'])
    state.waitMs = 0
    await clock.advance(100)
    assert.deepEqual(await Promise.all(both.map(settled)), ['entered', 'entered'])
    assert.equal(state.taken, 2)
  })
})

describe('searches', () => {
  test('get a share of the slots while readers come, and most of them otherwise', async () => {
    const { slots, take } = make({ most: 16 })
    for (let count = 0; count < 20; count++) take('search', { rank: 'search' }).catch(() => {})
    assert.equal(slots.taken, 12)
    assert.equal(await settled(take('reader')), 'entered')
  })

  test('a question that others overtake becomes a search, and frees its slot', async () => {
    const { clock, slots, take, fill } = make({ most: 20 })
    await fill(16)
    const waits = take('reader')
    await clock.advance(300)
    assert.equal(await settled(waits), 'waits')
    slots.alive(clock.monotonic(), 2)
    assert.equal(await settled(waits), 'entered')
    assert.equal(slots.taken, 17)
  })

  test('without any answer meanwhile the upstream is probed, and no question becomes a search', async () => {
    const { clock, state, take, fill } = make({ most: 2 })
    await fill(2)
    const waits = take('reader')
    await clock.advance(1_000)
    assert.equal(await settled(waits), 'waits')
    assert.ok(state.stuck > 0)
  })

  test('what an upstream was asked before it went out is not in the way when it is back', async () => {
    const { slots, take, fill } = make({ most: 20 })
    await fill(16)
    const waits = take('reader')
    assert.equal(await settled(waits), 'waits')
    slots.setAside()
    slots.look()
    assert.equal(await settled(waits), 'entered')
  })

  for (const [lateMs, ms] of [
    [250, 1000],
    [400, 1600],
    [900, 2000],
  ] as const)
    test(`a search that others overtook is let go for a reader after ${ms} ms, where answers are late after ${lateMs}`, async () => {
      const { clock, take, slots } = make({ most: 4, lateMs })
      const searches = await Promise.all([1, 2, 3].map(() => take('search', { rank: 'search' })))
      await take('reader')
      await clock.advance(1)
      slots.alive(clock.monotonic(), 2)
      const reader = take('reader')
      await clock.advance(ms - 100)
      assert.ok(searches.every(({ letGo }) => !letGo.isStopped))
      await clock.advance(200)
      const [first] = searches.filter(({ letGo }) => letGo.isStopped)
      assert.ok(isFailure(first?.letGo.signal.reason, 'timeout'))
      first.leave()
      assert.equal(await settled(reader), 'entered')
    })

  const letGo = [
    { what: 'answered others meanwhile: it had its time', answers: 2, isOut: false, kind: 'timeout' },
    { what: 'answered one other: it is no absence', answers: 1, isOut: false, kind: 'overloaded' },
    { what: 'was out meanwhile: it is no absence', answers: 2, isOut: true, kind: 'overloaded' },
  ] as const
  for (const { what, answers, isOut, kind } of letGo) {
    test(`a search is let go for a reader after two seconds, and the upstream ${what}`, async () => {
      const { clock, take, slots } = make({ most: 4 })
      const searches = await Promise.all([1, 2, 3].map(() => take('search', { rank: 'search' })))
      const fourth = await take('reader')
      const reader = take('reader')
      await clock.advance(1_900)
      assert.ok(searches.every(({ letGo }) => !letGo.isStopped))
      if (isOut) slots.setAside()
      slots.alive(clock.monotonic(), answers)
      await clock.advance(200)
      const gone = searches.filter(({ letGo }) => letGo.isStopped)
      assert.ok(gone.length > 0)
      for (const { signal } of gone.map(({ letGo }) => letGo)) {
        assert.ok(isFailure(signal.reason, kind))
        if (kind === 'overloaded') assert.ok((signal.reason.retryAfterMs ?? 0) >= 1_000)
      }
      assert.equal(fourth.letGo.isStopped, false)
      assert.equal(await settled(reader), 'entered')
    })
  }
})
