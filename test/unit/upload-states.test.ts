// The states of an upload: every happening in every state, the way of the client's answer, and the figure in docs/uploads.md.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, it } from 'node:test'
import { memoryUpload } from '../../src/testing/upload.ts'
import { createDelivery, type Delivery } from '../../src/upload/confirm/delivery.ts'
import {
  firstState,
  type Happening,
  meanings,
  next,
  type PinState,
  transitions,
} from '../../src/upload/confirm/states.ts'
import type { JournalEntry } from '../../src/upload/spool/journal.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const happenings: readonly Happening[] = [
  ...(['enough', 'ready', 'written', 'failed', 'undone'] as const),
  ...(['settled', 'dropped', 'replaced', 'stopped'] as const),
]
const states = Object.keys(transitions) as PinState[]
const rows = states.flatMap((from) => happenings.map((what) => ({ from, what, to: transitions[from][what] })))

/** Every way from the first states on, to wherever nothing happens any more. */
function waysFrom(from: PinState, gone: readonly PinState[] = []): PinState[][] {
  const further = rows.filter((row) => row.from === from && row.to && row.to !== from && !gone.includes(row.to))
  if (further.length === 0) return [[...gone, from]]
  return further.flatMap(({ to }) => waysFrom(to as PinState, [...gone, from]))
}

describe('the states of an upload', () => {
  for (const { from, what, to } of rows)
    it(`${from}, ${what}: ${to ?? 'impossible'}`, () => {
      if (to) assert.equal(next(from, what), to)
      else assert.throws(() => next(from, what), new RegExp(`an upload that is ${from} cannot be ${what}`))
    })

  it('are all reached, and all lead to an end where nothing happens any more', () => {
    const ways = [firstState(false, true), firstState(true, true), firstState(true, false)].flatMap((one) =>
      waysFrom(one),
    )
    assert.deepEqual([...new Set(ways.flat())].sort(), [...states].sort())
    for (const way of ways) {
      const end = meanings[way.at(-1) as PinState]
      assert.ok(end.isOver && !end.isAwaited && end.journal, way.join())
    }
  })

  it('never lead from what a client was told to what is undone', () => {
    for (const told of ['repeating', 'accepted'] as const)
      for (const way of waysFrom(told)) assert.ok(!way.includes('undoing') && !way.includes('undone'), way.join())
  })

  it('say that it counts before a client is told, and keep no record of what is undone', () => {
    for (const { from, what, to } of rows) if (what === 'written' && to) assert.ok(meanings[from].counts)
    assert.deepEqual(
      states.filter((state) => meanings[state].journal === 'record'),
      ['settled'],
    )
  })

  it('are drawn in docs/uploads.md as they are', () => {
    const text = readFileSync(new URL('../../docs/uploads.md', import.meta.url), 'utf8')
    const [, figure = ''] = /```mermaid\nstateDiagram-v2\n([^`]*)```/.exec(text) ?? []
    const drawn = [...figure.matchAll(/^ *(\w+) --> (\w+): (\w+)$/gm)].map(
      ([, from, to, what]) => `${from} ${what} ${to}`,
    )
    const real = rows.flatMap(({ from, what, to }) => (to ? [`${from} ${what} ${to}`] : []))
    // Any of them may be stopped; the figure says so in words.
    const isDrawn = (one: string) => !/ stopped /.test(one)
    assert.deepEqual(drawn.sort(), real.filter(isDrawn).sort())
    const begun = [...figure.matchAll(/^ *\[\*\] --> (\w+)/gm)].map(([, state]) => state)
    assert.deepEqual(begun, [firstState(false, true), firstState(true, true), firstState(true, false)])
  })
})

describe('a delivery', () => {
  async function begin(accepted = false, confirm: (one: Delivery) => Promise<void> = async () => {}) {
    const upload = await memoryUpload(Buffer.from('hello'))
    const written: JournalEntry[] = []
    const clock = createFakeClock()
    const entry: JournalEntry = {
      ...{ id: 'one', cid: upload.cid.toV1().toString(), profile: upload.profile, bytes: 5, carBytes: 99 },
      ...{ at: '', accepted, providers: {} },
    }
    const journal = { write: async (one: JournalEntry) => void written.push(one) }
    const delivery = createDelivery({ upload, entry, isAsked: true, confirm, journal, clock, log: () => {} })
    return { delivery, written, clock }
  }

  it('is written to the journal as accepted when it is, and not at all once it is over', async () => {
    const { delivery, written } = await begin()
    await delivery.write()
    delivery.happened('enough')
    await delivery.enough
    delivery.happened('ready')
    await delivery.write()
    delivery.happened('written')
    delivery.happened('settled')
    await delivery.write()
    assert.deepEqual(
      written.map(({ accepted }) => accepted),
      [false, true],
    )
    assert.throws(() => delivery.happened('settled'), /settled cannot be settled/)
  })

  it('asks no provider once it is over', async () => {
    const { delivery, clock } = await begin(true)
    let asked = 0
    delivery.later('one', 1000, () => asked++)
    delivery.happened('written')
    delivery.later('one', 2000, () => asked++)
    delivery.happened('replaced')
    await clock.advance(5000)
    assert.deepEqual([asked, clock.timers], [0, 0])
  })

  it('tells those it came with that it failed', async () => {
    const { delivery } = await begin(false, () => Promise.reject(new Error('no')))
    await assert.rejects(delivery.confirmed, /no/)
    await assert.rejects(delivery.enough, /no/)
  })
})
