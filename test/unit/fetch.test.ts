// The parts of a flight by themselves: the pace, who waits, what is read ahead, and what an answer may waste.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import * as dagCbor from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import { blockKey, isProvable, proves } from '../../src/core/block.ts'
import { readCar } from '../../src/core/wire/car-stream.ts'
import { carSection } from '../../src/ipld/car.ts'
import { createDagBlocks } from '../../src/retrieval/fetch/dag/blocks.ts'
import { flyForDag } from '../../src/retrieval/fetch/dag.ts'
import { isSlow, leastStallMs, stallAfterMs } from '../../src/retrieval/fetch/hedging.ts'
import { createProgress } from '../../src/retrieval/fetch/progress.ts'
import { createReaders } from '../../src/retrieval/fetch/readers.ts'
import { openSource } from '../../src/retrieval/fetch/source.ts'
import { createReadAhead, createRoom } from '../../src/retrieval/read-ahead.ts'
import type { DagWant, Expected } from '../../src/retrieval/session.ts'
import { Attempts } from '../../src/retrieval/upstreams/attempts.ts'
import { createPool } from '../../src/retrieval/upstreams/pool.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addBlock, addNode, type BlockMap } from '../support/fixtures.ts'
import { membersOf } from '../support/members.ts'
import { scriptedUpstream } from '../support/scripted-upstream.ts'

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

describe('pace of a response', () => {
  const quick = (bytes: number) => 60 + bytes / (50 * 1024)

  test('stalled upstream → hedged soon, however fast it was before', () => {
    assert.equal(stallAfterMs({ usualMs: 1, rate: 50_000, blockBytes: mib }, quick), leastStallMs)
    assert.ok(stallAfterMs({ usualMs: 5000, rate: 1, blockBytes: mib }, quick) <= 400)
  })
  test('no faster upstream → hedged later', () => {
    const slow = () => 10_000
    const seen = { usualMs: 80, rate: 3000, blockBytes: 256 * 1024 }
    assert.ok(stallAfterMs(seen, slow) > stallAfterMs(seen, quick))
  })
  test('trickle → slow only if another takes half the time', () => {
    assert.equal(isSlow({ usualMs: 20, rate: 256, blockBytes: 4096 }, quick), true)
    assert.equal(isSlow({ usualMs: 20, rate: 256, blockBytes: 4096 }, undefined), false)
    assert.equal(isSlow({ usualMs: 20, rate: 40_000, blockBytes: mib }, quick), false)
  })
  test('time counts while readers wait, not while the process stalls', async () => {
    const clock = createFakeClock()
    const progress = createProgress(clock)
    await clock.advance(1000)
    assert.equal(progress.silentMs(0), 0)
    progress.setWaiting(true)
    await clock.advance(100)
    assert.equal(Math.round(progress.silentMs(0)), 100)
    await clock.jump(1000)
    assert.ok(progress.silentMs(0) < 250)
    progress.came(mib)
    assert.equal(progress.silentMs(0), 0)
  })
})

describe('readers of a response', () => {
  test('get their own block only', async () => {
    const { cids } = leaves(2)
    const [one, other] = cids as [CID, CID]
    const readers = createReaders(() => {})
    const waiting = readers.wait(one, around(one), new AbortController().signal)
    const left = new AbortController()
    const leaving = readers.wait(other, around(other), left.signal)
    left.abort(new Error('gone'))
    await assert.rejects(leaving, /gone/)
    readers.arrived(one, { bytes: new Uint8Array(10), upstream: 'a' })
    assert.deepEqual(await waiting, { bytes: new Uint8Array(10), upstream: 'a' })
    assert.equal(readers.size, 0)
  })
  test('block does not come in time → requested by itself', async () => {
    const { cids } = leaves(301)
    const [missing, ...others] = cids as [CID, ...CID[]]
    const readers = createReaders(() => {})
    const waiting = readers.wait(missing, around(missing), new AbortController().signal)
    for (const cid of others) readers.arrived(cid, { bytes: new Uint8Array(10), upstream: 'a' })
    assert.equal(await waiting, 'not-here')
  })
})

test('block that arrived, in no tier yet → shared', async () => {
  const { blocks, cids } = leaves(1)
  const cid = cids[0] as CID
  const clock = createFakeClock()
  const pool = createPool({
    members: membersOf([scriptedUpstream('one', blocks)], clock),
    hedge: 'auto',
    clock,
    patienceMs: 4000,
  })
  const { signal } = new AbortController()
  const [came, kept] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const keep = (): Promise<void> => {
    came.resolve()
    return kept.promise
  }
  const flight = flyForDag(around(cid), signal, { pool, clock, keep, onOver: () => {} })
  const first = flight.wait(cid, around(cid), signal)
  await came.promise
  assert.ok(flight.expects(cid))
  const second = flight.wait(cid, around(cid), signal)
  kept.resolve()
  assert.deepEqual(await second, await first)
  assert.equal(await flight.wait(cid, around(cid), signal), 'went-by')
})

test('links of a large node → noted in slices', async () => {
  const { blocks, cids } = leaves(20_000)
  const root = addNode(blocks, { Data: new Uint8Array(), Links: cids.map((Hash) => ({ Name: '', Hash, Tsize: 1 })) })
  let turns = 0
  const giveWay = (): Promise<void> => {
    turns++
    return nextTurn()
  }
  const noted = createDagBlocks(giveWay)
  noted.add({ cid: root, bytes: blocks.get(blockKey(root)) as Uint8Array })
  assert.ok(!noted.isExpected(cids.at(-1) as CID))
  await noted.reading
  assert.equal(noted.reading, undefined)
  assert.ok(turns >= 2)
  assert.ok(cids.every((cid) => noted.isExpected(cid)))
})

describe('prefetching', () => {
  function make(roomBytes = 64 * mib, check: (cid: CID) => void = () => {}) {
    const clock = createFakeClock()
    const asked: string[] = []
    const answers = new Map<string, PromiseWithResolvers<Uint8Array>>()
    const room = createRoom(roomBytes)
    const open = () =>
      createReadAhead({
        clock,
        room,
        check,
        isHeld: () => false,
        fetchHeld: () => assert.fail('no tier has anything'),
        fetch(cid) {
          asked.push(blockKey(cid))
          const answer = Promise.withResolvers<Uint8Array>()
          answers.set(blockKey(cid), answer)
          return answer.promise
        },
      })
    return { clock, asked, answers, room, open }
  }
  const expected = (cids: readonly CID[], bytes = mib): Expected[] =>
    cids.map((cid) => ({ cid, around: around(cid), bytes }))

  test('identity CIDs and known blocks → not requested', () => {
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

  test('reader waits more → prefetches further, up to a limit', () => {
    const { cids } = leaves(100)
    const { asked, open } = make()
    const ahead = open()
    let most = 0
    for (const [index, cid] of cids.entries()) {
      ahead.expect(expected(cids.slice(index)))
      assert.ok(ahead.take(cid), `block ${index} was asked for ahead`)
      most = Math.max(most, asked.length - index)
    }
    assert.ok(most > 4 && most <= 9, `${most} blocks ahead`)
    ahead.end()
  })
  test('many small blocks → prefetched without rescanning each time', async () => {
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
  test('unexpected small block → rescans', () => {
    const { cids } = leaves(120)
    const { asked, open } = make(64 * mib)
    const ahead = open()
    ahead.expect(expected(cids.slice(20), 1000))
    assert.equal(ahead.take(cids[0] as CID), undefined)
    ahead.expect(expected([...cids.slice(1, 20), ...cids.slice(20)], 1000))
    assert.ok(asked.includes(blockKey(cids[1] as CID)))
    ahead.end()
  })
  test('reader stops → one block kept; skipped ones refetched', async () => {
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
  test('many readers share one budget, each has its next block', () => {
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
  test('failed prefetch → requested again without error', async () => {
    const { cids } = leaves(2)
    const { clock, answers, open } = make()
    const ahead = open()
    ahead.expect(expected(cids, 10))
    answers.get(blockKey(cids[1] as CID))?.reject(new Error('it broke'))
    await clock.advance(1)
    assert.equal(ahead.take(cids[1] as CID), undefined)
    ahead.end()
  })
  test('tiers are prefetched in bulk, upstreams in order', async () => {
    const { cids } = leaves(40)
    const { clock, room } = make()
    const held: string[] = []
    const fetched: string[] = []
    const missing = new Set(cids.slice(30).map(blockKey))
    const ahead = createReadAhead({
      clock,
      room,
      check() {},
      isHeld: () => true,
      async fetchHeld(cid) {
        held.push(blockKey(cid))
        if (missing.has(blockKey(cid))) throw new Error('no tier has it')
        return new Uint8Array(1)
      },
      async fetch(cid) {
        fetched.push(blockKey(cid))
        return new Uint8Array(2)
      },
    })
    const mostAtOnce = 24
    const turns = async (count: number) => {
      for (let turn = 0; turn < count; turn++) await nextTurn()
    }
    ahead.expect(expected(cids))
    assert.ok(held.length + fetched.length < mostAtOnce, 'a few in each turn')
    await turns(5)
    assert.equal(held.length + fetched.length, mostAtOnce)
    assert.equal(fetched.length, 1)
    const lengths: (number | undefined)[] = []
    for (const [index, cid] of cids.entries()) {
      ahead.expect(expected(cids.slice(index)))
      await turns(2)
      lengths.push((await ahead.take(cid))?.byteLength)
    }
    assert.deepEqual(lengths.slice(1, 24), Array(23).fill(1))
    // Whoever comes to one that no tier has gets it from elsewhere, or asks for it himself.
    for (const length of lengths.slice(30)) assert.ok(length === 2 || length === undefined)
    assert.ok(fetched.length <= 20, `${fetched.length} asked for elsewhere`)
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

describe('waste limits of a response', () => {
  const identity = CID.parse('bafkqaaa')
  function source(dag: () => AsyncGenerator<{ cid: CID; bytes: Uint8Array }>, isExpected: (cid: CID) => boolean) {
    const clock = createFakeClock()
    const upstream = scriptedUpstream('one', leaves(1).blocks)
    upstream.dag = dag
    const pool = createPool({ members: membersOf([upstream], clock), hedge: 'auto', clock })
    const [member] = pool.members
    assert.ok(member)
    const { cids } = leaves(1)
    return openSource({
      member,
      part: around(cids[0] as CID),
      attempts: new Attempts(clock),
      isExpected: ({ cid }) => isExpected(cid),
      signal: new AbortController().signal,
    })
  }

  test('endless empty identity blocks → root requested by itself', async () => {
    assert.ok(isProvable(identity))
    const endless = source(
      async function* () {
        for (;;) yield { cid: identity, bytes: new Uint8Array() }
      },
      () => true,
    )
    assert.deepEqual((await endless.next())?.cid, leaves(1).cids[0])
  })
  test('same block repeatedly → broken', async () => {
    const { cids, blocks } = leaves(1)
    const [cid] = cids as [CID]
    const endless = source(
      async function* () {
        for (;;) yield { cid, bytes: blocks.get(blockKey(cid)) as Uint8Array }
      },
      () => true,
    )
    assert.ok(await endless.next())
    await assert.rejects(endless.next(), /the same blocks/)
  })
  test('CAR in any chunks → parsed; exclusive chunks freed at once', async () => {
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
  test('endless padding → broken', async () => {
    const head = dagCbor.encode({ version: 1, roots: [identity] })
    const chunks = async function* () {
      yield Uint8Array.of(head.byteLength, ...head)
      for (;;) yield new Uint8Array(1024)
    }
    await assert.rejects(readCar(chunks()).next(), /padded without end/)
  })
  const some = leaves(5000)
  for (const isRootFirst of [false, true])
    test(`tiny unwanted blocks ${isRootFirst ? 'after the root' : 'alone'} → abandoned after thousands`, async () => {
      const [root] = some.cids
      let sent = 0
      const foreign = source(
        async function* () {
          for (const cid of isRootFirst ? some.cids : some.cids.slice(1)) {
            sent++
            yield { cid, bytes: some.blocks.get(blockKey(cid)) as Uint8Array }
          }
        },
        (cid) => cid === root,
      )
      // Without it in front, it is asked for by itself.
      assert.deepEqual((await foreign.next())?.cid, root)
      if (isRootFirst) await assert.rejects(foreign.next(), /were not asked for/)
      else assert.equal(await foreign.next(), undefined)
      assert.ok(sent < 4100, `${sent} blocks`)
    })
})
