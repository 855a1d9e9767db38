// Places for uploads: no client has all of them, who waits gets in, and who brings little leaves for those who wait.
import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { isFailure } from '../../src/core/failure.ts'
import {
  createUploadAdmission,
  createUploadRate,
  type UploadAdmissionOptions,
  type UploadSlot,
} from '../../src/upload/admission.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const KiB = 1024

function stage(more: Partial<UploadAdmissionOptions> = {}) {
  const clock = createFakeClock()
  const closing = new AbortController()
  const admission = createUploadAdmission({
    clock,
    maxUploads: 8,
    maxPendingBytes: 1000,
    perClient: 'auto',
    minRate: KiB,
    closing: closing.signal,
    ...more,
  })
  const slots: UploadSlot[] = []
  /** Whoever comes in leaves when it is told to, as an upload does. */
  const enter = async (client: string): Promise<UploadSlot> => {
    const slot = await admission.enter(client)
    slots.push(slot)
    slot.signal.addEventListener('abort', () => queueMicrotask(slot.leave))
    slot.rate.turn(true)
    return slot
  }
  /** Each of them brings so many bytes a second, for so many seconds. */
  const bring = async (rates: ReadonlyMap<UploadSlot, number>, seconds: number) => {
    for (let tick = 0; tick < seconds * 4; tick++) {
      for (const [slot, rate] of rates) slot.rate.received(rate / 4)
      await clock.advance(250)
    }
  }
  const isIn = async (waiting: Promise<UploadSlot>): Promise<boolean> => {
    await clock.advance(0)
    return Promise.race([waiting.then(() => true), Promise.resolve().then(() => false)])
  }
  return { clock, closing, admission, slots, enter, bring, isIn }
}

const outcome = (work: Promise<unknown>) =>
  work.then(
    () => 'in',
    (error: unknown) => (isFailure(error) ? error.kind : String(error)),
  )

describe('upload slots', () => {
  it('one client → three quarters of the slots at most', async () => {
    const { admission, enter, clock } = stage({ minRate: 0 })
    for (let turn = 0; turn < 6; turn++) await enter('greedy')
    const more = outcome(enter('greedy'))
    for (const honest of ['one', 'two']) await enter(honest)
    assert.equal(admission.uploads, 8)
    await clock.advance(5000)
    assert.equal(await more, 'overloaded')
  })

  it('as many as configured', async () => {
    const { enter, clock } = stage({ perClient: 2, minRate: 0 })
    await enter('greedy')
    await enter('greedy')
    const third = outcome(enter('greedy'))
    await enter('other')
    await clock.advance(5000)
    assert.equal(await third, 'overloaded')
    const all = stage({ perClient: 8 })
    for (let turn = 0; turn < 8; turn++) await all.enter('greedy')
  })

  it('free slot → waiting client with fewest; waiting is bounded', async () => {
    const { admission, enter, slots, clock, isIn } = stage({ maxUploads: 4, perClient: 4, minRate: 0 })
    for (let turn = 0; turn < 4; turn++) await enter('greedy')
    const greedy = enter('greedy')
    const honest = enter('honest')
    assert.equal(admission.waiting, 2)
    slots[0]?.leave()
    assert.ok(await isIn(honest))
    assert.ok(!(await isIn(greedy)))
    slots[1]?.leave()
    assert.ok(await isIn(greedy))
    const late = outcome(enter('third'))
    await clock.advance(4900)
    assert.equal(admission.waiting, 1)
    await clock.advance(200)
    assert.equal(await late, 'overloaded')
    assert.deepEqual([admission.waiting, admission.uploads, clock.timers], [0, 4, 0])
  })

  it('queue is bounded, also per client', async () => {
    const { admission, enter } = stage({ maxUploads: 4, perClient: 4, minRate: 0 })
    for (let turn = 0; turn < 4; turn++) await enter('greedy')
    const outcomes = Array.from({ length: 14 }, () => outcome(enter('greedy')))
    assert.equal(admission.waiting, 12)
    for (const one of outcomes.slice(12)) assert.equal(await one, 'overloaded')
    for (const client of ['a', 'b', 'c', 'd']) void outcome(enter(client))
    assert.equal(admission.waiting, 16)
    assert.equal(await outcome(enter('another')), 'overloaded')
  })

  it('client leaves or gateway stops → leaves the queue', async () => {
    const { admission, enter, closing, clock } = stage({ maxUploads: 1 })
    await enter('one')
    const left = new AbortController()
    const leaving = outcome(admission.enter('two', left.signal))
    const staying = outcome(admission.enter('three'))
    left.abort(new Error('it left'))
    assert.equal(await leaving, 'Error: it left')
    closing.abort(new Error('it stops'))
    assert.equal(await staying, 'Error: it stops')
    assert.equal(await outcome(admission.enter('four')), 'Error: it stops')
    assert.deepEqual([admission.waiting, clock.timers], [0, 0])
  })
})

describe('slow upload', () => {
  it('keeps its slot until another waits', async () => {
    const { admission, enter, bring, slots, isIn } = stage()
    const rates = new Map<UploadSlot, number>()
    for (let turn = 0; turn < 6; turn++) rates.set(await enter('slow'), 2 * KiB)
    for (const client of ['one', 'two']) rates.set(await enter(client), 20 * KiB)
    await bring(rates, 60)
    assert.equal(admission.uploads, 8)
    const honest = enter('honest')
    assert.ok(await isIn(honest))
    const gone = slots.filter(({ signal }) => signal.aborted)
    assert.deepEqual(
      gone.map(({ client }) => client),
      ['slow'],
    )
    assert.match(String(gone[0]?.signal.reason), /less than 8192 bytes a second while 1 wait for a slot/)
    assert.equal(gone[0]?.signal.reason.kind, 'upload-too-slow')
  })

  it('more waiting → higher minimum rate; slowest ends first', async () => {
    const { enter, bring, slots, admission } = stage({ perClient: 8 })
    const rates = new Map<UploadSlot, number>()
    for (let turn = 0; turn < 5; turn++) rates.set(await enter('many'), 20 * KiB)
    for (const [client, rate] of [
      ['slow', 10],
      ['fast', 100],
      ['faster', 400],
    ] as const)
      rates.set(await enter(client), rate * KiB)
    await bring(rates, 5)
    const waiting = [enter('a')]
    await bring(rates, 1)
    assert.equal(slots.filter(({ signal }) => signal.aborted).length, 0, '8 KiB a second are enough for one')
    waiting.push(enter('b'), enter('c'))
    await bring(rates, 1)
    assert.deepEqual(
      slots.filter(({ signal }) => signal.aborted).map(({ client }) => client),
      ['many', 'many', 'slow'],
    )
    await Promise.all(waiting)
    assert.equal(admission.uploads, 8)
  })

  it('first seconds and paused time do not count', async () => {
    const { enter, bring, clock, slots } = stage({ maxUploads: 2, perClient: 2 })
    const [busy, young] = [await enter('one'), await enter('one')]
    await bring(
      new Map([
        [busy, 100 * KiB],
        [young, 100 * KiB],
      ]),
      3,
    )
    busy.rate.turn(false)
    young.rate.turn(false)
    await clock.advance(60_000)
    const late = outcome(enter('two'))
    await clock.advance(5000)
    assert.equal(await late, 'overloaded')
    assert.ok(slots.every(({ signal }) => !signal.aborted))
  })

  it('same client → its own upload is replaced', async () => {
    const { enter, bring, slots } = stage()
    const rates = new Map<UploadSlot, number>()
    for (let turn = 0; turn < 6; turn++) rates.set(await enter('home'), turn < 3 ? KiB : 50 * KiB)
    rates.set(await enter('elsewhere'), KiB / 2)
    await bring(rates, 5)
    await enter('home')
    assert.deepEqual(
      slots.filter(({ signal }) => signal.aborted).map(({ client }) => client),
      ['home'],
    )
  })
})

describe('upload bytes', () => {
  it('one client → three quarters; a single upload → all', async () => {
    const { admission, enter } = stage()
    const [one, two, other] = [await enter('greedy'), await enter('greedy'), await enter('other')]
    const [first, second, third] = [one, two, other].map((slot) => admission.count(slot))
    first?.add(400)
    second?.add(300)
    assert.throws(() => second?.add(100), /use all of upload\.maxPendingBytes/)
    second?.release()
    third?.add(200)
    assert.equal(admission.bytes, 600)
    first?.release()
    third?.add(700)
    assert.throws(() => third?.add(200), /use all of upload\.maxPendingBytes/)
    third?.release()
    assert.equal(admission.bytes, 0)
  })
})

describe('upload rate', () => {
  it('measured over the last seconds', async () => {
    const clock = createFakeClock()
    const rate = createUploadRate(clock)
    rate.turn(true)
    rate.received(1_000_000)
    await clock.advance(1000)
    assert.equal(rate.bytesPerSecond, 1_000_000)
    for (let second = 0; second < 10; second++) {
      rate.received(1000)
      await clock.advance(1000)
    }
    assert.ok(rate.bytesPerSecond <= 1500, `${rate.bytesPerSecond}`)
    await clock.advance(100_000)
    assert.ok(rate.bytesPerSecond < 50)
    assert.equal(rate.ms, 111_000)
  })
})
