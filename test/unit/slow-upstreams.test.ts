// Upstreams that stall, drip or know single blocks only, by a fake clock: test/faults/race.test.ts
// measures the same over sockets.
import assert from 'node:assert/strict'
import { afterEach, describe, test } from 'node:test'
import type { CID } from 'multiformats/cid'
import { readFile } from '../../src/content/file.ts'
import { parsePath, resolve } from '../../src/content/resolve.ts'
import { Failure } from '../../src/core/failure.ts'
import { RequestRecord } from '../../src/observe/requests.ts'
import type { Retrieval } from '../../src/retrieval/retrieval.ts'
import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'
import { addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { retrievalOver } from '../support/members.ts'
import { type ScriptedUpstream, scriptedUpstream } from '../support/scripted-upstream.ts'

const kib = 1024
const mib = 1024 * kib
const tripMs = 60
const leafBytes = 4 * kib

/**
 * `stallAfter`: silent after so many bytes of an answer. `pace`: so many bytes a second. `part`: of an answer that begins in the
 * middle of a file.
 */
type Ways = {
  stallAfter?: number
  pace?: number
  delayMs?: number
  dag?: boolean
  sendsAll?: boolean
  part?: 'stalls' | 'stalls once' | 'lies' | 'breaks'
}
type TimedUpstream = ScriptedUpstream & { readonly questions: number; readonly sent: number }

const open: Retrieval[] = []
afterEach(async () => {
  for (const retrieval of open.splice(0)) await retrieval.close()
})

function timed(name: string, blocks: BlockMap, clock: FakeClock, ways: Ways = {}): TimedUpstream {
  const plain = scriptedUpstream(name, blocks, { dag: ways.dag ?? true, sendsAll: ways.sendsAll ?? false })
  let questions = 0
  let sentBytes = 0
  let stalls = 0

  /** Resolves when so many bytes more would have come. */
  async function wait(sent: number, bytes: number, signal: AbortSignal): Promise<void> {
    const { stallAfter = Number.POSITIVE_INFINITY, pace } = ways
    if (sent + bytes > stallAfter) await clock.sleep(Number.POSITIVE_INFINITY, signal)
    if (pace) await clock.sleep((bytes / pace) * 1000, signal)
  }
  async function begin(signal: AbortSignal): Promise<void> {
    questions++
    await clock.sleep(ways.delayMs ?? 0, signal)
  }

  return {
    ...plain,
    get questions() {
      return questions
    },
    get sent() {
      return sentBytes
    },
    async block(cid, signal) {
      await begin(signal)
      const bytes = await plain.block(cid, signal)
      await wait(0, bytes.byteLength, signal)
      sentBytes += bytes.byteLength
      return bytes
    },
    async *dag(want, signal) {
      await begin(signal)
      let sent = 0
      for await (const block of plain.dag(want, signal)) {
        await wait(sent, block.bytes.byteLength, signal)
        sent += block.bytes.byteLength
        sentBytes += block.bytes.byteLength
        const isBad = (want.range?.from ?? 0) > 0 && sent > mib
        if (isBad && (ways.part === 'stalls' || (ways.part === 'stalls once' && stalls++ === 0)))
          await clock.sleep(Number.POSITIVE_INFINITY, signal)
        if (isBad && ways.part === 'breaks') throw new Failure('upstream-error', 'it was cut', { source: 'upstream' })
        yield isBad && ways.part === 'lies' ? { ...block, bytes: new Uint8Array(block.bytes.byteLength) } : block
      }
    },
  }
}

function make(blocks: BlockMap, all: Readonly<Record<string, Ways>>) {
  const clock = createFakeClock()
  const upstreams = Object.entries(all).map(([name, ways]) => timed(name, blocks, clock, ways))
  const { retrieval } = retrievalOver(upstreams, clock)
  open.push(retrieval)

  async function readOnce(cid: CID): Promise<{ bytes: number; ms: number; gapMs: number }> {
    const began = clock.monotonic()
    const session = retrieval.session({ signal: new AbortController().signal, requestRecord: new RequestRecord() })
    let [bytes, gapMs, last] = [0, 0, 0]
    try {
      const { entity } = await resolve(session, parsePath(cid.toString()))
      for await (const piece of readFile(session, entity)) {
        const now = clock.monotonic()
        if (bytes === 0) session.begun()
        else gapMs = Math.max(gapMs, now - last)
        last = now
        bytes += piece.byteLength
      }
      return { bytes, ms: clock.monotonic() - began, gapMs }
    } finally {
      session.end()
    }
  }
  async function read(cid: CID, readers = 1) {
    let isOver = false
    const reading = Promise.all(Array.from({ length: readers }, () => readOnce(cid))).finally(() => {
      isOver = true
    })
    reading.catch(() => {})
    for (let steps = 0; !isOver && steps < 3000; steps++) await clock.advance(10)
    return reading
  }
  const asked = () => upstreams.reduce((sum, { questions }) => sum + questions, 0)
  const sent = () => upstreams.map((one) => one.sent)
  return { clock, upstreams, read, asked, sent }
}

const file = async (blocks: BlockMap, bytes: number, seed: number, leaf = leafBytes): Promise<CID> =>
  (await addFile(blocks, noise(bytes, seed), 'v1', leaf)).cid

describe('honest upstream, one that stalls, one that drips', () => {
  const ways = {
    staller: { stallAfter: 500 },
    dripper: { pace: kib },
    honest: { delayMs: tripMs },
  }
  const names = ['staller', 'dripper', 'honest'] as const
  const orders = names.flatMap((one) => names.flatMap((two) => names.flatMap((three) => [[one, two, three]])))
  for (const order of orders.filter((one) => new Set(one).size === 3))
    test(`${order.join(', ')} → faulty one avoided from the second file`, async () => {
      const blocks: BlockMap = new Map()
      const { read, asked } = make(blocks, Object.fromEntries(order.map((name) => [name, ways[name as 'honest']])))
      const most = 60
      await read(await file(blocks, 4 * leafBytes, 1))
      const before = asked()
      const times: number[] = []
      for (let seed = 2; seed <= most; seed++) {
        const [one] = await read(await file(blocks, 4 * leafBytes, seed))
        assert.equal(one?.bytes, 4 * leafBytes)
        times.push(one.ms)
      }
      const each = (asked() - before) / (most - 1)
      assert.ok(each <= 1.15, `${each} questions for each file`)
      assert.ok(Math.max(...times) <= 3 * tripMs, `${Math.max(...times)} ms`)
    })
})

describe('200 readers of one file', () => {
  for (const share of [0.01, 0.05, 0.5, 0.95])
    test(`source stalls at ${100 * share} % → one more response serves all`, async () => {
      const blocks: BlockMap = new Map()
      const size = 10 * 16 * kib
      const { read, asked } = make(blocks, { bad: { stallAfter: size * share }, honest: { delayMs: tripMs } })
      const readAll = async (seed: number, readers: number) => {
        const before = asked()
        const answers = await read(await file(blocks, size, seed, 16 * kib), readers)
        assert.ok(answers.every(({ bytes }) => bytes === size))
        return { questions: asked() - before, gapMs: Math.max(...answers.map(({ gapMs }) => gapMs)) }
      }
      const { questions, gapMs } = await readAll(1, 200)
      assert.ok(questions <= 3, `${questions} questions`)
      assert.ok(gapMs <= 500, `${gapMs} ms`)
      assert.deepEqual(await readAll(2, 1), { questions: 1, gapMs: 0 })
    })
})

test('CAR stalls, other upstream has single blocks → no long gap', async () => {
  const blocks: BlockMap = new Map()
  const size = 4 * mib
  const { read } = make(blocks, { bad: { stallAfter: mib }, raw: { delayMs: tripMs, dag: false } })
  const [one] = await read(await file(blocks, size, 1, 256 * kib))
  assert.equal(one?.bytes, size)
  assert.ok(one.gapMs <= 600, `${one.gapMs} ms`)
})

test('32 MiB of single blocks, 60 ms away → 40 MB/s', async () => {
  const blocks: BlockMap = new Map()
  const size = 32 * mib
  const { cid } = await addFile(blocks, noise(size, 1), 'v0')
  const { read } = make(blocks, { raw: { delayMs: tripMs, dag: false } })
  const [one] = await read(cid)
  assert.equal(one?.bytes, size)
  assert.ok(size / one.ms / 1000 >= 40, `${(size / one.ms / 1000).toFixed()} MB/s`)
})

describe('24 MiB from upstreams of 4 MB a second', () => {
  const size = 24 * mib
  const pace = 4e6
  async function readFrom(ways: Readonly<Record<string, Ways>>, leaf = 256 * kib, bytes = size) {
    const blocks: BlockMap = new Map()
    const { read, asked, sent } = make(blocks, ways)
    const [one] = await read(await file(blocks, bytes, 1, leaf))
    assert.equal(one?.bytes, bytes)
    const all = sent()
    const twice = all.reduce((sum, some) => sum + some, 0) / bytes - 1
    return { ms: one.ms, gapMs: one.gapMs, asked: asked(), sent: all, twice }
  }
  let one: ReturnType<typeof readFrom> | undefined
  const alone = () => (one ??= readFrom({ one: { pace } }))

  test('one upstream → one question', async () => {
    assert.equal((await alone()).asked, 1)
  })
  test('file of 1 MiB → one question', async () => {
    assert.equal((await readFrom({ one: { pace }, two: { pace } }, 256 * kib, mib)).asked, 1)
  })
  for (const [what, delayMs, leaf] of [
    ['at once', 0, 256 * kib],
    ['60 ms away', tripMs, 256 * kib],
    ['60 ms away, leaves of 1 MiB', tripMs, mib],
  ] as const)
    test(`two, ${what} → two thirds of the time, few duplicates`, async () => {
      const { ms, twice, sent } = await readFrom({ one: { pace, delayMs }, two: { pace, delayMs } }, leaf)
      const share = ms / (await alone()).ms
      assert.ok(share <= (leaf === mib ? 0.67 : 0.6), `${share} of the time of one`)
      assert.ok(twice < 0.05, `${twice} came twice`)
      for (const bytes of sent) assert.ok(bytes > size / 3, `${bytes} bytes`)
    })
  test('three → less than half the time', async () => {
    const { ms } = await readFrom({ one: { pace }, two: { pace }, three: { pace } })
    assert.ok(ms / (await alone()).ms < 0.5)
  })
  test('slower second upstream → smaller share, file still sooner', async () => {
    const { ms, sent, twice } = await readFrom({ quick: { pace }, slow: { pace: 1.5e6 } })
    assert.ok(ms / (await alone()).ms < 0.8)
    assert.ok((sent[1] ?? 0) > size / 8 && (sent[1] ?? 0) < size / 2.5, `${sent}`)
    assert.ok(twice < 0.05, `${twice} came twice`)
  })
  test('two fast upstreams → one request', async () => {
    assert.equal((await readFrom({ one: { pace: 1e8 }, two: { pace: 1e8 } })).asked, 1)
  })
  test('upstream stalls once in its part → sends other parts', async () => {
    const { ms, sent } = await readFrom({ one: { pace }, two: { pace, part: 'stalls once' } })
    assert.ok(ms / (await alone()).ms < 0.8)
    assert.ok((sent[1] ?? 0) > size / 4, `${sent}`)
  })
  const bad: Record<string, Ways> = {
    'stalls in its part': { part: 'stalls' },
    'lies in its part': { part: 'lies' },
    'breaks off in its part': { part: 'breaks' },
    'sends all for a part': { sendsAll: true },
    'sends single blocks alone': { dag: false },
  }
  for (const [what, ways] of Object.entries(bad))
    test(`one ${what} → no later than the other by itself`, async () => {
      const { ms, gapMs, twice } = await readFrom({ good: { pace }, bad: { pace, ...ways } })
      assert.ok(ms <= (await alone()).ms * 1.05, `${ms} ms`)
      assert.ok(gapMs <= 600, `${gapMs} ms`)
      assert.ok(twice < 0.05, `${twice} came twice`)
    })
})
