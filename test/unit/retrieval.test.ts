// What a reader gets, whatever the upstreams do: sessions over scripted upstreams, an in-memory tier and a clock held in
// the hand.
import assert from 'node:assert/strict'
import { afterEach, test } from 'node:test'
import { setTimeout as sleep, setImmediate as turnOfTheLoop } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { importer } from 'ipfs-unixfs-importer'
import { fixedSize } from 'ipfs-unixfs-importer/chunker'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import type { LocalStore } from '../../backends/pinning/contract.ts'
import { type Block, blockKey } from '../../src/core/cid.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { RequestRecord } from '../../src/observe/requests.ts'
import { sliceMs } from '../../src/retrieval/loop-scheduler.ts'
import type { Retrieval } from '../../src/retrieval/retrieval.ts'
import type { Visit } from '../../src/retrieval/session.ts'
import { type Session, withGet } from '../../src/retrieval/session.ts'
import { createPinsTier, type TierHit, type TierStack } from '../../src/retrieval/tiers/tier-stack.ts'

import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'
import { addCbor } from '../support/fixtures.ts'
import { retrievalOver } from '../support/members.ts'
import { guarded, scriptedTier, stackOf } from '../support/scripted-tier.ts'
import { type ScriptedUpstream, scriptedUpstream } from '../support/scripted-upstream.ts'

const chunk = 1024
const leaves = 40

type File = { cid: CID; order: Block[]; blocks: Map<string, Uint8Array>; bytes: Uint8Array }

async function makeFile(seed: number): Promise<File> {
  const bytes = Uint8Array.from(
    { length: chunk * leaves },
    (_, index) => (index * 31 + (index >> 8) * seed + seed) & 255,
  )
  const blocks = new Map<string, Uint8Array>()
  const put = async (cid: CID, block: Uint8Array) => {
    blocks.set(blockKey(cid), block)
    return cid
  }
  let root: CID | undefined
  for await (const entry of importer([{ content: [bytes] as unknown as AsyncIterable<Uint8Array> }], { put } as never, {
    cidVersion: 1,
    rawLeaves: true,
    chunker: fixedSize({ chunkSize: chunk }),
  })) {
    root = entry.cid
  }
  assert.ok(root)
  const { linksOf } = await import('../../src/ipld/block-links.ts')
  const order = [root, ...linksOf({ cid: root, bytes: blocks.get(blockKey(root)) as Uint8Array })].map((cid) => ({
    cid,
    bytes: blocks.get(blockKey(cid)) as Uint8Array,
  }))
  return { cid: root, order, blocks, bytes }
}

const file = await makeFile(7)
const nobodys = CID.parse('bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e')

const open: Retrieval[] = []
afterEach(async () => {
  for (const retrieval of open.splice(0)) await retrieval.close()
})

function make(upstreams: ScriptedUpstream[], stackOf?: (clock: FakeClock) => TierStack) {
  const clock = createFakeClock()
  const own = stackOf?.(clock)
  const { retrieval, pool, stack, held } = retrievalOver(upstreams, clock, own && { stack: own })
  open.push(retrieval)
  const session = (
    more: { onlyIfCached?: boolean; noCache?: boolean; controller?: AbortController; visit?: Visit } = {},
  ) => {
    const controller = more.controller ?? new AbortController()
    const requestRecord = new RequestRecord()
    const one = retrieval.session({ signal: controller.signal, requestRecord, ...more })
    const get = async (...of: Parameters<typeof one.get>) => one.get(...of)
    return { requestRecord, controller, ...withGet(one, get), get }
  }
  return { clock, stack, held, pool, retrieval, session }
}

/** Reads the file as content does: block by block, saying where it stands. */
async function read(
  session: Session,
  { upTo = leaves, onBlock }: { upTo?: number; onBlock?: (n: number) => Promise<void> | void } = {},
) {
  const parts: Uint8Array[] = []
  try {
    await session.get(file.cid, { cid: file.cid, segments: [], scope: 'entity' })
    session.begun()
    for (const [index, { cid }] of file.order.slice(1, upTo + 1).entries()) {
      parts.push(
        await session.get(cid, { cid: file.cid, segments: [], scope: 'entity', range: { from: index * chunk } }),
      )
      await onBlock?.(index)
    }
    return Buffer.concat(parts)
  } finally {
    session.end()
  }
}

const failureOf = async (work: Promise<unknown>): Promise<Failure> => {
  const error: unknown = await work.then(
    () => assert.fail('it should have failed'),
    (reason: unknown) => reason,
  )
  assert.ok(isFailure(error), String(error))
  return error
}

test("time in an upstream's queue → part of the timeout", async () => {
  const silent = scriptedUpstream('one', file.blocks, { silent: true, dag: false })
  const { clock, session } = make([{ ...silent, traits: { ...silent.traits, connections: 1 } }])
  const [, first, second] = file.order
  assert.ok(first && second)
  const ahead = session()
  const gone = assert.rejects(ahead.get(first.cid))
  const beganAt = clock.monotonic()
  let tookMs = 0
  const queued = assert.rejects(session().get(second.cid)).then(() => {
    tookMs = clock.monotonic() - beganAt
  })
  await clock.advance(3000)
  assert.equal(silent.asked.blocks.length, 1)
  ahead.controller.abort(new Failure('cancelled', 'the client left', { source: 'client' }))
  await clock.advance(1)
  assert.equal(silent.asked.blocks.length, 2)
  for (let ms = 0; ms < 3000; ms += 100) await clock.advance(100)
  await Promise.all([gone, queued])
  assert.ok(tookMs >= 4900 && tookMs <= 5200, `${tookMs} ms`)
})

test('response begins while a block is awaited → block timeout', async () => {
  const { clock, session } = make([scriptedUpstream('one', file.blocks, { silent: true, dag: false })])
  const one = session()
  let isOver = false
  const next = assert.rejects(one.get((file.order[1] as { cid: CID }).cid)).then(() => {
    isOver = true
  })
  await clock.advance(1000)
  one.begun()
  for (let ms = 0; ms < 5000; ms += 100) await clock.advance(100)
  assert.equal(isOver, false)
  for (let ms = 0; ms < 16_000; ms += 100) await clock.advance(100)
  assert.equal(isOver, true)
  await next
})

test('response cut half way → continued from another upstream', async () => {
  const one = scriptedUpstream('one', file.blocks, { breakAfter: leaves / 2 })
  const two = scriptedUpstream('two', file.blocks)
  const { session } = make([one, two])
  const all = await Promise.all(Array.from({ length: 50 }, () => read(session())))
  for (const bytes of all) assert.ok(bytes.equals(file.bytes))
  assert.equal(two.asked.dags.length, 1)
  assert.equal(two.asked.dags[0]?.range?.from, (leaves / 2 - 1) * chunk)
  assert.deepEqual([one.asked.blocks.length, two.asked.blocks.length], [0, 0])
})

test('reader stops → upstream stops', async () => {
  const one = scriptedUpstream('one', file.blocks)
  const { session, clock } = make([one])
  const slow = session()
  await slow.get(file.cid, { cid: file.cid, segments: [], scope: 'entity' })
  await slow.get((file.order[1] as Block).cid, { cid: file.cid, segments: [], scope: 'entity', range: { from: 0 } })
  await clock.advance(1000)
  assert.ok(one.asked.sent <= 3, `${one.asked.sent} blocks were pulled`)
  slow.end()
})

test('first reader leaves → others get the same response', async () => {
  const one = scriptedUpstream('one', file.blocks)
  const { session } = make([one])
  const controller = new AbortController()
  const leader = read(session({ controller }), {
    onBlock: (index) => {
      if (index === leaves / 2) controller.abort(new Failure('cancelled', 'the client left', { source: 'client' }))
    },
  })
  const followers = Array.from({ length: 20 }, () => read(session()))
  assert.equal((await failureOf(leader)).kind, 'cancelled')
  for (const bytes of await Promise.all(followers)) assert.ok(bytes.equals(file.bytes))
  assert.equal(one.asked.dags.length, 1)
})

test('only reader leaves → upstream request aborted', async () => {
  const one = scriptedUpstream('one', file.blocks)
  const { session } = make([one])
  const { get, end } = session()
  await get(file.cid, { cid: file.cid, segments: [], scope: 'entity' })
  assert.equal(one.asked.letGo, 0)
  end()
  assert.equal(one.asked.letGo, 1)
  await read(session())
  assert.equal(one.asked.dags.length, 1 + 1)
})

test('session ends → blocks read ahead no longer requested', async () => {
  const one = scriptedUpstream('one', file.blocks, { dag: false })
  const signals: AbortSignal[] = []
  one.block = (_cid, signal) => new Promise(() => signals.push(signal))
  const { session, clock } = make([one])
  const { expect, end } = session()
  expect(
    file.order.slice(1, 5).map(({ cid }) => ({ cid, around: { cid, segments: [], scope: 'block' }, bytes: chunk })),
  )
  await clock.advance(10)
  assert.equal(signals.length, 4)
  end()
  assert.ok(signals.every(({ aborted }) => aborted))
})

test('lost leaf → one block refetched', async () => {
  const one = scriptedUpstream('one', file.blocks)
  const { session, held } = make([one])
  await read(session())
  const lostLeaf = file.order[5] as Block
  held.delete(blockKey(lostLeaf.cid))
  assert.ok((await read(session())).equals(file.bytes))
  assert.deepEqual(one.asked.blocks, [lostLeaf.cid.toString()])
  assert.equal(one.asked.dags.length, 1)
})

test('silent upstream → 404 at timeout, cached, found later', async () => {
  const one = scriptedUpstream('one', file.blocks, { silent: true })
  const { session, clock } = make([one])
  const waiting = failureOf(session().get(file.cid, { cid: file.cid, segments: [], scope: 'entity' }))
  await clock.advance(5000)
  assert.equal((await waiting).kind, 'timeout')
  assert.equal((await failureOf(session().get(file.cid))).kind, 'timeout')
  assert.equal(one.asked.dags.length, 1)
})

test('mass failure → spread over event-loop iterations', async () => {
  const { session, clock } = make([scriptedUpstream('one', new Map())])
  let turn = 0
  let isOver = false
  const next = (): void => {
    turn++
    if (!isOver) setImmediate(next)
  }
  setImmediate(next)
  const toldIn: number[] = []
  const told = () => {
    clock.spend(sliceMs)
    toldIn.push(turn)
  }
  await Promise.all(Array.from({ length: 50 }, () => session().get(nobodys).catch(told)))
  isOver = true
  const most = Math.max(
    ...Map.groupBy(toldIn, (turn) => turn)
      .values()
      .map((all) => all.length),
  )
  assert.ok(most <= 2, `${most} in one turn`)
})

test('archive → not-found for misses, never cached', async () => {
  const { session, retrieval } = make([])
  for (let count = 0; count < 2; count++) {
    const failure = await failureOf(session().get(file.cid))
    // What is remembered says when it is forgotten.
    assert.deepEqual([failure.kind, failure.retryAfterMs], ['not-found', undefined])
    assert.match(failure.message, /no upstreams configured/)
  }
  await retrieval.store(file.cid, (file.order[0] as Block).bytes, new AbortController().signal)
  assert.deepEqual(await session().get(file.cid), file.order[0]?.bytes)
})

test("archive: another request's outage → absence still known", async () => {
  const bucket = scriptedTier('bucket', { shared: true })
  const bucketStack = (clock: FakeClock) => stackOf([Object.assign(bucket, { clock })], { clock })
  const { session, clock } = make([], bucketStack)
  const get = bucket.get.bind(bucket)
  const answers = Promise.withResolvers<void>()
  bucket.get = async (cid, ...rest) => {
    if (blockKey(cid) === blockKey(file.cid)) throw new Failure('upstream-error', 'an outage', { source: 'tier' })
    await answers.promise
    return get(cid, ...rest)
  }
  const absent = failureOf(session().get(nobodys))
  await clock.advance(0)
  assert.equal((await failureOf(session().get(file.cid))).kind, 'unavailable')
  answers.resolve()
  assert.equal((await absent).kind, 'not-found')
})

test('unreadable pin → not reported absent', async () => {
  const pinned = new Map([[blockKey(file.cid), Uint8Array.of(1, 2, 3)]])
  const store: LocalStore = {
    get: async (cid) => pinned.get(blockKey(cid)),
    has: async (cid) => pinned.has(blockKey(cid)),
  }
  const bucketStack = (clock: FakeClock) => stackOf([createPinsTier('local', store, true)], { clock })
  for (const upstreams of [[scriptedUpstream('one', new Map())], []]) {
    const { session } = make(upstreams, bucketStack)
    // The second request meets the memory of the absence.
    for (let count = 0; count < 2; count++) {
      const failure = await failureOf(session().get(file.cid))
      assert.deepEqual([failure.kind, failure.source], ['unavailable', 'tier'])
      assert.match(failure.message, /damaged or cannot be read.*upload the same file again/)
    }
    assert.equal((await failureOf(session().get(nobodys))).kind, 'not-found')
  }
  const { session } = make([scriptedUpstream('one', file.blocks)], bucketStack)
  assert.deepEqual(await session().get(file.cid), file.order[0]?.bytes)
})

test('only-if-cached → no upstream', async () => {
  const one = scriptedUpstream('one', file.blocks)
  const { session } = make([one])
  const failure = await failureOf(session({ onlyIfCached: true }).get(file.cid))
  assert.equal(failure.facts['onlyIfCached'], true)
  assert.deepEqual([one.asked.blocks.length, one.asked.dags.length], [0, 0])
})

test('upstream without CAR → can start an entity', async () => {
  const plain = scriptedUpstream('plain', file.blocks, { dag: false })
  const { session } = make([scriptedUpstream('empty', new Map()), plain])
  assert.ok((await read(session())).equals(file.bytes))
})

test('404 below a path → root requested by itself', async () => {
  const rootOnly = new Map([[blockKey(file.cid), (file.order[0] as Block).bytes]])
  const one = scriptedUpstream('one', rootOnly, {})
  one.dag = async function* () {
    throw new Failure('not-found', 'no such path', { source: 'upstream' })
  }
  const { session } = make([one])
  const bytes = await session().get(file.cid, { cid: file.cid, segments: ['absent'], scope: 'entity' })
  assert.deepEqual(bytes, file.order[0]?.bytes)
})

test('single block → requested as block, not CAR', async () => {
  const one = scriptedUpstream('one', file.blocks)
  const { session } = make([one])
  assert.deepEqual(
    await session().get(file.cid, { cid: file.cid, segments: [], scope: 'block' }),
    (file.order[0] as Block).bytes,
  )
  assert.deepEqual([one.asked.blocks.length, one.asked.dags.length], [1, 0])
})

test('response without its root → block requested first', async () => {
  const blocks = new Map(file.blocks)
  const one = scriptedUpstream('one', blocks)
  one.dag = async function* () {}
  const { session } = make([one])
  const around = { cid: file.cid, segments: [], scope: 'entity' } as const
  assert.deepEqual(await session().get(file.cid, around), (file.order[0] as Block).bytes)
  const failure = await failureOf(session().get(nobodys, { ...around, cid: nobodys }))
  assert.deepEqual([failure.kind, failure.facts['sure']], ['not-found', true])
})

test('links and expected blocks → bounded memory', async () => {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const most = 30_000
  const blocks = new Map<string, Uint8Array>()
  const links = Array.from({ length: most }, (_, index) => {
    const digest = new Uint8Array(32)
    new DataView(digest.buffer).setUint32(0, index)
    return CID.createV1(0x55, createDigest(0x12, digest))
  })
  const root = addCbor(blocks, links)
  links.length = 0
  const { session } = make([scriptedUpstream('one', blocks)])
  const reading = session()
  collect()
  const before = process.memoryUsage().heapUsed
  await reading.get(root, { cid: root, segments: [], scope: 'entity' })
  collect()
  const each = (process.memoryUsage().heapUsed - before) / most
  assert.ok(each < 40, `${each.toFixed(0)} bytes a link`)
  reading.end()
})

test('identity CID → answered itself; unverifiable CID → refused', async () => {
  const { session } = make([])
  assert.deepEqual(await session().get(CID.parse('bafkqabtimvwgy3yk')), new TextEncoder().encode('hello\n'))
  const short = CID.decode(new Uint8Array([1, 0x55, 0x12, 1, 0xff]))
  assert.equal((await failureOf(session().get(short))).kind, 'malformed')
})

test('busy process → block on disk not reported absent', async () => {
  const { clock, stack, session } = make([scriptedUpstream('silent', new Map(), { silent: true })])
  const looking = Promise.withResolvers<TierHit | undefined>()
  const look = { found: looking.promise, overdue: Promise.resolve(), haveAnswered: () => true, leave() {} }
  stack.look = () => ({ ...look, here: new Promise(() => {}) })
  const wanted = session().get(file.cid)
  await clock.advance(7000)
  looking.resolve({ bytes: new Uint8Array(3), tier: 'disk' })
  assert.equal((await wanted).byteLength, 3)
  // A store elsewhere that has not answered is no reason to wait any longer.
  stack.look = () => ({ ...look, found: new Promise(() => {}), here: Promise.resolve() })
  const denied = assert.rejects(session().get(nobodys), (error) => isFailure(error, 'timeout'))
  await clock.advance(5000)
  await denied
})

test('time used up by the disk → rest read from disk', async () => {
  const { clock, stack, session } = make([scriptedUpstream('silent', new Map(), { silent: true })])
  const lookFor = (ms: number, hit: TierHit | undefined) => {
    const found = clock.sleep(ms).then(() => hit)
    const here = found.then(() => {})
    stack.look = () => ({ found, here, overdue: new Promise(() => {}), haveAnswered: () => true, leave() {} })
  }
  const own = session()
  const [first, second, third] = file.order
  assert.ok(first && second && third)
  const bytes = new Uint8Array(3)
  for (const [{ cid }, ms] of [
    [first, 4900],
    [second, 300],
    [third, 20],
  ] as const) {
    lookFor(ms, { bytes, tier: 'disk' })
    const wanted = own.get(cid)
    await clock.advance(ms - 1)
    // Who is out of time is told in a later turn of the loop.
    for (let turns = 0; turns < 5; turns++) await turnOfTheLoop()
    await clock.advance(1)
    assert.equal(await wanted, bytes)
  }
  lookFor(10, undefined)
  const denied = assert.rejects(own.get(nobodys), (error) => isFailure(error, 'overloaded'))
  await clock.advance(10)
  await denied
})

test('late but fastest store → prefetched, further with each wait', async () => {
  const { stack, session } = make([scriptedUpstream('silent', new Map(), { silent: true })])
  let asked = 0
  stack.look = (cid) => {
    asked++
    const bytes = file.blocks.get(blockKey(cid)) as Uint8Array
    const found = sleep(1).then(() => ({ bytes, tier: 's3' }))
    return { found, overdue: Promise.resolve(), here: Promise.resolve(), haveAnswered: () => true, leave() {} }
  }
  const [root, ...leaves] = file.order
  assert.ok(root)
  const reader = session()
  await reader.get(root.cid)
  const next = leaves.map(({ cid }) => ({
    cid,
    around: { cid, segments: [], scope: 'block' as const },
    bytes: 512 * 1024,
  }))
  for (const [index, { cid }] of leaves.slice(0, 6).entries()) {
    reader.expect(next.slice(index))
    await reader.get(cid)
  }
  assert.ok(asked > 20, `${asked} blocks`)
  reader.end()
})

test('denied block → never returned, no upstream asked', async () => {
  const one = scriptedUpstream('one', file.blocks)
  const [, leaf] = file.order
  assert.ok(leaf)
  const visit: Visit = (cid, rest) => {
    if (cid.equals(leaf.cid) && rest.length === 0) throw new Failure('denied', 'no', { source: 'ours' })
  }
  const { session } = make([one])
  const reader = session({ visit })
  assert.equal((await failureOf(reader.get(leaf.cid))).kind, 'denied')
  reader.expect([{ cid: leaf.cid, around: { cid: leaf.cid, segments: [], scope: 'block' }, bytes: chunk }])
  assert.deepEqual([one.asked.blocks, one.asked.dags], [[], []])
  // A path that leads through it to something else may be allowed, and then its block is needed to prove that path.
  reader.pass(leaf.cid, ['name'])
  assert.deepEqual(Buffer.from(await reader.get(leaf.cid)), Buffer.from(leaf.bytes))
  assert.throws(
    () => reader.pass(leaf.cid, []),
    (error) => isFailure(error, 'denied'),
  )
  reader.end()
})

test('traversal of cached blocks → yields by the clock', async () => {
  const { clock, held, session } = make([])
  for (const { cid, bytes } of file.order) held.set(blockKey(cid), bytes)
  let turns = 0
  let isOver = false
  const others = (): void => {
    turns++
    if (!isOver) setImmediate(others)
  }
  setImmediate(others)
  await read(session(), { onBlock: () => clock.spend(5) })
  isOver = true
  // Where no walk gives way it all happens before the first turn.
  assert.ok(turns >= (leaves * 5) / sliceMs / 2, `${turns} turns`)
})

test('store skipped but recovered, upstream lacks the block → found there', async () => {
  const store = scriptedTier('store', { shared: true })
  const [root] = file.order as [Block]
  store.held.set(blockKey(root.cid), root.bytes)
  const { clock, stack, session } = make([scriptedUpstream('one', new Map())], (clock) =>
    stackOf([guarded(store, { clock, log: silentLog })], { clock }),
  )
  store.isDown = true
  for (let count = 0; count < 3; count++) await stack.find(nobodys)
  store.isDown = false
  const { get, end } = session()
  let got: Uint8Array | undefined
  get(file.cid).then(
    (bytes) => (got = bytes),
    () => {},
  )
  await clock.advance(0)
  assert.deepEqual(got, root.bytes)
  end()
})

test('joined a lookup with a failed tier → not reported absent', async () => {
  const redis = scriptedTier('redis', { shared: true })
  const s3 = scriptedTier('s3', { shared: true })
  const { session, clock } = make([], (clock) => stackOf([redis, s3], { clock }))
  redis.isDown = true
  s3.isSilent = true
  const first = failureOf(session().get(file.cid))
  await clock.advance(0)
  assert.equal(s3.waiting, 1)
  const second = failureOf(session().get(file.cid))
  await clock.advance(0)
  s3.isSilent = false
  await s3.release()
  const kinds = [await first, await second].map(({ kind }) => kind)
  assert.deepEqual(kinds, ['unavailable', 'unavailable'])
})

test('late tier until the deadline → the failure that upstreams gave', async () => {
  const one = scriptedUpstream('one', file.blocks)
  const store: LocalStore = { get: () => new Promise(() => {}), has: () => new Promise(() => {}) }
  const { clock, retrieval } = make([one], (its) => stackOf([createPinsTier('local', store, true)], { clock: its }))
  const refused = new Failure('throttled', 'no more misses', { source: 'client' })
  const session = retrieval.session({
    signal: new AbortController().signal,
    requestRecord: new RequestRecord(),
    beforeMiss() {
      throw refused
    },
  })
  const got = failureOf(Promise.resolve(session.get(file.cid)))
  for (let count = 0; count < 12; count++) await clock.advance(1000)
  assert.equal((await got).kind, 'throttled')
  assert.deepEqual(one.asked.blocks, [])
  session.end()
})
