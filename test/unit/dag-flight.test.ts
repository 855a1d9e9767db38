// The flight of a DAG by itself: the pace, who waits, what is read ahead, and what an answer may waste.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import * as dagCbor from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import { blockKey, isProvable, proves } from '../../src/core/cid.ts'
import { readCar } from '../../src/core/wire/car-stream.ts'
import { carSection } from '../../src/ipld/car.ts'
import { DagBlocks } from '../../src/retrieval/flight/dag-blocks.ts'
import { Flight, type FlightReader } from '../../src/retrieval/flight/flight.ts'
import { Pace, Stopwatch } from '../../src/retrieval/flight/pace.ts'
import { ReadAhead, ReadAheadBudget } from '../../src/retrieval/read-ahead.ts'
import type { DagWant, Expected } from '../../src/retrieval/session.ts'
import { createPool } from '../../src/retrieval/upstreams/pool.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addBlock, addNode, type BlockMap } from '../support/fixtures.ts'
import { membersOf } from '../support/members.ts'
import { type ScriptedUpstream, scriptedUpstream } from '../support/scripted-upstream.ts'

const mib = 1024 * 1024
const raw = 0x55

function leaves(count: number, bytes = 10): { blocks: BlockMap; cids: CID[] } {
  const blocks: BlockMap = new Map()
  const cids = Array.from({ length: count }, (_, index) => {
    const block = new Uint8Array(bytes)
    new DataView(block.buffer).setUint32(0, index + 1)
    return addBlock(blocks, raw, block)
  })
  return { blocks, cids }
}
const around = (cid: CID): DagWant => ({ cid, segments: [], scope: 'entity' })

/** A flight over one upstream, or several, and what became of a block that is waited for. */
function flightOf(
  want: DagWant,
  upstreams: readonly ScriptedUpstream[],
  keep: (cid: CID) => void | Promise<void> = () => {},
) {
  const clock = createFakeClock()
  const pool = createPool({ members: membersOf(upstreams, clock), hedge: 'auto', clock, timeoutMs: 4000 })
  const flight = new Flight('dag', want, { pool, clock, keep })
  flight.follow()
  const wait = (cid: CID, place: DagWant = want): Promise<string | Uint8Array> =>
    new Promise((resolve, reject) => {
      const reader: FlightReader = {
        settle: resolve,
        passed: () => resolve('not here'),
        fail: reject,
      }
      flight.join(cid, place, reader)
    })
  return { clock, flight, wait }
}

describe('pace of an upstream', () => {
  const quick = (bytes: number) => 60 + bytes / (50 * 1024)

  test('trickle → slow only if another takes half the time', async () => {
    const clock = createFakeClock()
    const watch = new Stopwatch(clock, true)
    const pace = new Pace(watch)
    watch.run()
    for (let count = 0; count < 8; count++) {
      await clock.advance(50)
      pace.came(4096)
    }
    assert.equal(pace.isSlow(quick), true)
    assert.equal(pace.isSlow(undefined), false)
    assert.equal(
      pace.isSlow(() => 60_000),
      false,
    )
  })
  test('readers waiting → time counts; busy process → hardly', async () => {
    const clock = createFakeClock()
    const watch = new Stopwatch(clock, true)
    const pace = new Pace(watch)
    await clock.advance(1000)
    assert.equal(pace.silentMs(), 0)
    watch.run()
    await clock.advance(100)
    assert.equal(Math.round(pace.silentMs()), 100)
    await clock.jump(1000)
    assert.ok(pace.silentMs() < 250)
    pace.came(mib)
    assert.equal(pace.silentMs(), 0)
  })
})

test('late block → requested singly', async () => {
  const { blocks, cids } = leaves(301)
  const root = addNode(blocks, { Data: new Uint8Array(), Links: cids.map((Hash) => ({ Name: '', Hash, Tsize: 1 })) })
  const missing = cids[0] as CID
  const one = scriptedUpstream('one', blocks)
  const { dag } = one
  one.dag = async function* (want, signal) {
    for await (const block of dag(want, signal)) if (!block.cid.equals(missing)) yield block
  }
  const { wait } = flightOf(around(root), [one])
  assert.ok((await wait(root)) instanceof Uint8Array)
  assert.equal(await wait(missing), 'not here')
  assert.ok(one.asked.sent < 300)
})

test('block in no tier yet → goes to every reader', async () => {
  const { blocks, cids } = leaves(1)
  const cid = cids[0] as CID
  const [came, kept] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const keep = (): Promise<void> => {
    came.resolve()
    return kept.promise
  }
  const { flight, wait } = flightOf(around(cid), [scriptedUpstream('one', blocks)], keep)
  const first = wait(cid)
  await came.promise
  assert.ok(flight.expects(cid))
  const second = wait(cid)
  kept.resolve()
  assert.deepEqual(await second, await first)
  assert.equal(await wait(cid), 'not here')
})

test('links of a large node → noted in slices', async () => {
  const { blocks, cids } = leaves(20_000)
  const root = addNode(blocks, { Data: new Uint8Array(), Links: cids.map((Hash) => ({ Name: '', Hash, Tsize: 1 })) })
  let turns = 0
  const yieldIfDue = (): Promise<void> => {
    turns++
    return nextTurn()
  }
  const noted = new DagBlocks(root, yieldIfDue)
  noted.add({ cid: root, bytes: blocks.get(blockKey(root)) as Uint8Array })
  assert.ok(!noted.isExpected(cids.at(-1) as CID))
  await noted.reading
  assert.equal(noted.reading, undefined)
  assert.ok(turns >= 2)
  assert.ok(cids.every((cid) => noted.isExpected(cid)))
})

describe('read-ahead', () => {
  function make(roomBytes = 64 * mib, check: (cid: CID) => void = () => {}) {
    const clock = createFakeClock()
    const asked: string[] = []
    const answers = new Map<string, PromiseWithResolvers<Uint8Array>>()
    const budget = new ReadAheadBudget(roomBytes)
    const open = () =>
      new ReadAhead({
        clock,
        budget,
        check,
        fetch(cid) {
          asked.push(blockKey(cid))
          const answer = Promise.withResolvers<Uint8Array>()
          answers.set(blockKey(cid), answer)
          return answer.promise
        },
      })
    return { clock, asked, answers, open }
  }
  const expected = (cids: readonly CID[], bytes = mib): Expected[] =>
    cids.map((cid) => ({ cid, around: around(cid), bytes }))

  test('inline, known or identity links → not requested', () => {
    const { cids } = leaves(3)
    const [first, second, third] = cids as [CID, CID, CID]
    const { asked, open } = make()
    let lookedAt = 0
    function* next(): Generator<Expected> {
      const inline = CID.parse('bafkqaaa')
      const many = Array.from({ length: 1000 }, (_, at) => (at % 2 ? inline : first))
      for (const cid of [first, inline, second, ...many, third]) {
        lookedAt++
        yield { cid, around: around(cid), bytes: 1 }
      }
    }
    open().expect(next())
    assert.deepEqual(asked, [blockKey(first), blockKey(second)])
    assert.ok(lookedAt < 100, `${lookedAt} were looked at`)
  })

  test('reader waits → reads further ahead, up to a bound', () => {
    const { cids } = leaves(100)
    const { asked, open } = make()
    const ahead = open()
    let most = 0
    for (const [index, cid] of cids.entries()) {
      ahead.expect(expected(cids.slice(index)))
      assert.ok(ahead.take(cid), `block ${index} was asked for ahead`)
      most = Math.max(most, asked.length - index)
    }
    assert.ok(most > 8 && most <= 17, `${most} blocks ahead`)
    ahead.end()
  })
  test('many small blocks → each prefetched, few links examined', async () => {
    const { cids } = leaves(400)
    const { clock, asked, answers, open } = make(64 * mib)
    const ahead = open()
    let looks = 0
    const counted = function* (from: number) {
      for (const one of expected(cids.slice(from), 1000)) {
        looks++
        yield one
      }
    }
    for (const [index, cid] of cids.entries()) {
      ahead.expect(counted(index))
      for (const { resolve } of answers.values()) resolve(new Uint8Array(1))
      await clock.advance(0)
      assert.ok(ahead.take(cid), `block ${index} was asked for ahead`)
      if (index < 300) assert.ok(asked.length - index > 40, `${asked.length - index} ahead at block ${index}`)
    }
    assert.ok(looks < 400 * 8, `${looks} looks`)
    ahead.end()
  })
  test('unforeseen small block → read-ahead starts anew', () => {
    const { cids } = leaves(120)
    const { asked, open } = make(64 * mib)
    const ahead = open()
    ahead.expect(expected(cids.slice(20), 1000))
    assert.equal(ahead.take(cids[0] as CID), undefined)
    ahead.expect(expected([...cids.slice(1, 20), ...cids.slice(20)], 1000))
    assert.ok(asked.includes(blockKey(cids[1] as CID)))
    ahead.end()
  })
  test('reader stops → keeps one block; skipped ones requested again', async () => {
    const { cids } = leaves(20)
    const { clock, answers, open } = make()
    const ahead = open()
    for (const [index, cid] of cids.slice(0, 8).entries()) {
      ahead.expect(expected(cids.slice(index)))
      assert.ok(ahead.take(cid) !== undefined)
    }
    ahead.expect(expected(cids.slice(8)))
    for (const { resolve } of answers.values()) resolve(new Uint8Array(1))
    await clock.advance(3000)
    const here = cids.slice(8).filter((cid) => ahead.take(cid) !== undefined)
    assert.equal(here.length, 1)
    ahead.end()
  })
  test('many readers → one shared limit, each with its next block', () => {
    const { cids } = leaves(40)
    const { open, asked } = make(4 * mib)
    const all = Array.from({ length: 10 }, open)
    for (let round = 0; round < 4; round++)
      for (const one of all) {
        one.expect(expected(cids.slice(round)))
        assert.ok(one.take(cids[round] as CID))
      }
    assert.ok(asked.length <= 10 * 4 + 4, `${asked.length} blocks`)
    for (const one of all) one.end()
  })
  test('failed prefetch → block requested again, without an error', async () => {
    const { cids } = leaves(2)
    const { clock, answers, open } = make()
    const ahead = open()
    ahead.expect(expected(cids, 10))
    answers.get(blockKey(cids[1] as CID))?.reject(new Error('it broke'))
    await clock.advance(1)
    assert.equal(ahead.take(cids[1] as CID), undefined)
    ahead.end()
  })
  test('denied by CID or path → not prefetched', () => {
    const { cids } = leaves(2)
    const denied = () => {
      throw new Error('denied')
    }
    const byPath = make()
    byPath.open().expect(expected(cids, 10).map((one, index) => (index === 1 ? { ...one, visit: denied } : one)))
    assert.deepEqual(byPath.asked, [blockKey(cids[0] as CID)])
    const byCid = make(undefined, (cid) => (cid === cids[1] ? denied() : undefined))
    byCid.open().expect(expected(cids, 10))
    assert.deepEqual(byCid.asked, [blockKey(cids[0] as CID)])
  })
})

describe('waste in a response', () => {
  const identity = CID.parse('bafkqaaa')
  const one = leaves(1)
  const root = one.cids[0] as CID
  function over(dag: () => AsyncGenerator<{ cid: CID; bytes: Uint8Array }>, blocks = one.blocks, cid = root) {
    const upstream = scriptedUpstream('one', blocks)
    upstream.dag = dag
    return { upstream, ...flightOf(around(cid), [upstream]) }
  }

  test('endless identity blocks → root requested by itself', async () => {
    assert.ok(isProvable(identity))
    const { upstream, wait } = over(async function* () {
      for (;;) yield { cid: identity, bytes: new Uint8Array() }
    })
    assert.ok((await wait(root)) instanceof Uint8Array)
    assert.equal(upstream.asked.blocks.length, 1)
  })
  test('one block again and again → response broken', async () => {
    const { blocks, cids } = leaves(1)
    const node = addNode(blocks, { Data: new Uint8Array(), Links: [{ Name: '', Hash: cids[0] as CID, Tsize: 1 }] })
    const { flight, wait } = over(
      async function* () {
        for (;;) yield { cid: node, bytes: blocks.get(blockKey(node)) as Uint8Array }
      },
      blocks,
      node,
    )
    assert.ok((await wait(node)) instanceof Uint8Array)
    assert.equal(await wait(cids[0] as CID), 'not here')
    assert.match(String(flight.attempts.failures[0]), /the same blocks/)
  })
  test('CAR cut anywhere → read; whole chunks freed once copied', async () => {
    const { cids, blocks } = leaves(3, 700)
    const head = dagCbor.encode({ version: 1, roots: cids.slice(0, 1) })
    const car = Buffer.concat([
      Uint8Array.of(head.byteLength, ...head),
      ...cids.flatMap((cid) => [...carSection({ cid, bytes: blocks.get(blockKey(cid)) as Uint8Array })]),
    ])
    for (const size of [1, 7, 64, 500, car.byteLength]) {
      const chunks: Uint8Array[] = []
      for (let at = 0; at < car.byteLength; at += size) chunks.push(new Uint8Array(car.subarray(at, at + size)))
      const shared = new Uint8Array([...car, 0]).subarray(0, car.byteLength)
      for (const sent of [chunks, [shared]]) {
        const found: string[] = []
        const source = (async function* () {
          yield* sent
        })()
        for await (const { cid, bytes } of readCar(source, { ownsChunks: true })) {
          assert.ok(proves(cid, bytes))
          assert.equal(bytes.byteLength, bytes.buffer.byteLength)
          found.push(blockKey(cid))
        }
        assert.deepEqual(found, cids.map(blockKey))
      }
      assert.ok(chunks.every(({ byteLength }) => byteLength === 0))
      assert.equal(shared.byteLength, car.byteLength)
    }
  })
  test('endless padding → response broken', async () => {
    const head = dagCbor.encode({ version: 1, roots: [identity] })
    const chunks = async function* () {
      yield Uint8Array.of(head.byteLength, ...head)
      for (;;) yield new Uint8Array(1024)
    }
    await assert.rejects(readCar(chunks()).next(), /padded without end/)
  })
  const some = leaves(5000)
  for (const isRootFirst of [false, true])
    test(`unwanted blocks ${isRootFirst ? 'after the root' : 'alone'} → given up, bounded`, async () => {
      const { blocks } = some
      const lacking = leaves(5001).cids.at(-1) as CID
      const node = addNode(blocks, { Data: new Uint8Array(), Links: [{ Name: '', Hash: lacking, Tsize: 1 }] })
      let sent = 0
      const { upstream, wait } = over(
        async function* () {
          for (const cid of isRootFirst ? [node, ...some.cids] : some.cids) {
            sent++
            yield { cid, bytes: blocks.get(blockKey(cid)) as Uint8Array }
          }
        },
        blocks,
        node,
      )
      assert.ok((await wait(node)) instanceof Uint8Array)
      if (isRootFirst) assert.equal(await wait(lacking), 'not here')
      // Without it in front, it is asked for by itself.
      assert.equal(upstream.asked.blocks.length, isRootFirst ? 0 : 1)
      assert.ok(sent > 4000 && sent < 4100, `${sent} blocks`)
    })
})
