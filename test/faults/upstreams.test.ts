// Fault: upstreams that are silent, lie, die and come back. A client always gets the right bytes or an error that says so, in time,
// and healthy upstreams are not asked for more than is needed.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  addDirectory,
  addFile,
  type BlockMap,
  distinctFiles,
  type Fixtures,
  fixtures,
  noise,
} from '../support/fixtures.ts'
import {
  fetchAll,
  inParallel,
  percentile,
  type StartOptions,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts'
import { patientClock } from '../support/shifted-clock.ts'
import { type Fault, type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
const running: { close(): Promise<void> }[] = []
const keep = <T extends { close(): Promise<void> }>(one: T): T => {
  running.push(one)
  return one
}
before(async () => {
  all = await fixtures()
})
after(async () => {
  for (const one of running.reverse()) await one.close()
})

const upstream = async (blocks: BlockMap, fault?: ProgrammableUpstream['fault'], delayMs = 0) => {
  const one = keep(await startUpstream({ blocks, delayMs }))
  one.fault = fault
  return one
}
const gateway = async (
  upstreams: Record<string, ProgrammableUpstream>,
  config: Record<string, unknown> = {},
  clock?: StartOptions['clock'],
): Promise<TestGateway> =>
  keep(
    await startGateway({
      upstreams: Object.entries(upstreams).map(([name, { url }]) => ({ name, url })),
      config,
      ...(clock && { clock }),
    }),
  )

/** CIDGATE_TEST_FILES=1000 is the promise as it is written. */
const most = Number(process.env['CIDGATE_TEST_FILES'] ?? 120)
/** A machine that is busy with other tests holds up all that are under way at once; what is promised away took five seconds. */
const busyMs = 1000

describe('one healthy upstream, one silent, one with wrong bytes', () => {
  test("hundreds of files → right bytes at the healthy one's cost", async () => {
    const blocks: BlockMap = new Map()
    const files = await distinctFiles(blocks, most, 2000)
    const healthy = await upstream(blocks, undefined, 30)
    const silent = await upstream(blocks, { kind: 'silent' })
    const liar = await upstream(blocks, { kind: 'wrongBytes', block: 0 })
    const alone = await gateway({ healthy })
    const all3 = await gateway({ silent, liar, healthy })

    const run = (at: TestGateway) => inParallel(files, 16, ({ cid }) => fetchAll(`${at.url}/ipfs/${cid}`))
    const base = await run(alone)
    const askedAlone = healthy.asked.length
    const answers = await run(all3)
    for (const [index, { status, body }] of answers.entries()) {
      assert.equal(status, 200)
      assert.ok(body.equals(files[index]?.bytes as Uint8Array), `file ${index}`)
    }
    const [p99, p99Alone] = [
      percentile(
        // The first ones at once find out who is silent: with 1,000 files they are beyond the 99th percentile.
        answers.slice(32).map(({ ms }) => ms),
        0.99,
      ),
      percentile(
        base.map(({ ms }) => ms),
        0.99,
      ),
    ]
    assert.ok(p99 < p99Alone * 3 + busyMs, `p99 ${p99.toFixed(0)} ms, alone ${p99Alone.toFixed(0)} ms`)
    const asked = healthy.asked.length - askedAlone
    assert.ok(asked <= most * 1.1, `the healthy one was asked ${asked} times`)
    assert.ok(liar.asked.length <= 32, `the liar was asked ${liar.asked.length} times`)
    assert.ok(all3.log.some(({ event, facts }) => event === 'upstream.quarantined' && facts['upstream'] === 'liar'))
  })
})

// The full size of the promise, 200 clients for 50 MiB, is 10 GiB through one process: CIDGATE_TEST_MIB=50 runs it.
const mib = Number(process.env['CIDGATE_TEST_MIB'] ?? 0.5)

describe(`200 clients, one cold file of ${mib} MiB`, () => {
  const most = 200
  const size = mib * 1024 * 1024
  const cache = { cache: { tiers: [{ use: 'memory', maxBytes: '128MiB' }] } }
  const read = (at: TestGateway, path: string, bytes: Uint8Array) =>
    inParallel(Array.from({ length: most }), most, async () => {
      const answer = await fetchAll(`${at.url}${path}`)
      assert.equal(answer.status, 200)
      assert.ok(answer.body.equals(bytes))
    })

  test('one upstream response serves all clients', async () => {
    const blocks: BlockMap = new Map()
    const { cid, bytes } = await addFile(blocks, noise(size, 11), 'v0', 64 * 1024)
    const one = await upstream(blocks)
    const two = await upstream(blocks)
    const at = await gateway({ one, two }, cache, patientClock)
    await read(at, `/ipfs/${cid}`, bytes)
    assert.ok(one.asked.length + two.asked.length <= 2, `${one.asked.length} + ${two.asked.length} requests`)
  })

  test('upstream dies half way → only the rest is refetched', async () => {
    const blocks: BlockMap = new Map()
    const { cid, bytes } = await addFile(blocks, noise(size, 12), 'v0', 64 * 1024)
    const one = await upstream(blocks, { kind: 'cut', after: size / 2 })
    const two = await upstream(blocks, { kind: 'slowFirstByte', ms: 20 })
    const at = await gateway({ one, two }, cache, patientClock)
    await read(at, `/ipfs/${cid}`, bytes)
    assert.ok(one.asked.length + two.asked.length <= 3, `${one.asked.length} + ${two.asked.length} requests`)
    assert.ok(two.sentBytes < size * 0.7, `${two.sentBytes} bytes came from the other`)
  })
})

describe('failure after the first byte', () => {
  for (const fault of [
    { kind: 'cut', after: 1_500_000 },
    { kind: 'skipBlock', block: 2 },
    { kind: 'wrongBytes', block: 2 },
  ] as const) {
    test(`${Object.values(fault).join(' ')} → connection reset, never a clean end`, async () => {
      const blocks = new Map(all.blocks)
      const one = await upstream(blocks, (request) =>
        request.url.includes('format=car') ? fault : { kind: 'notFound' },
      )
      const at = await gateway({ one }, { retrieval: { blockTimeout: '500ms' } })
      await assert.rejects(fetchAll(`${at.url}/ipfs/${all.files.chunkedV1.cid}`), /aborted|cut|hang up|ECONNRESET/)
    })
  }
})

describe('rate-limiting upstream', () => {
  const once = async (blocks: BlockMap, retryAfter?: string) => {
    let isFirst = true
    const one = await upstream(blocks)
    one.fault = () => {
      const fault: Fault | undefined = isFirst
        ? { kind: 'throttle', ...(retryAfter !== undefined && { retryAfter }) }
        : undefined
      isFirst = false
      return fault
    }
    return one
  }

  test('one 429 each without Retry-After → no read is 404', async () => {
    const [one, two] = [await once(all.blocks), await once(all.blocks)]
    const at = await gateway({ one, two })
    for (const { cid } of Object.values(all.files)) {
      const { status, body } = await fetchAll(`${at.url}/ipfs/${cid}`)
      assert.equal(status, 200, body.toString())
    }
  })

  test('429 everywhere without Retry-After → one request a second, true 404', async () => {
    const fault: Fault = { kind: 'throttle' }
    const [one, two] = [await upstream(all.blocks, fault), await upstream(all.blocks, fault)]
    const at = await gateway({ one, two }, { retrieval: { timeout: '2s' } })
    const url = `${at.url}/ipfs/${all.files.hello.cid}`
    const beganAt = performance.now()
    const retries = new Set<unknown>()
    // The guess is 16 s by then.
    while (performance.now() - beganAt < 8000) {
      const { status, headers } = await fetchAll(url)
      if (status === 404) retries.add(headers['retry-after'])
      await sleep(50)
    }
    const seconds = (performance.now() - beganAt) / 1000
    for (const { asked } of [one, two]) {
      assert.ok(asked.length <= seconds + 2, `asked ${asked.length} times in ${seconds} s`)
      assert.ok(asked.length >= seconds / 3, `asked ${asked.length} times in ${seconds} s`)
    }
    assert.deepEqual([...retries], ['1'])
    one.fault = two.fault = undefined
    const backAt = performance.now()
    while ((await fetchAll(url)).status !== 200) await sleep(50)
    assert.ok(performance.now() - backAt < 3000, `back after ${performance.now() - backAt} ms`)
  })

  test('holder rate-limited, another says 404 → not stored or cached', async () => {
    const holder = await upstream(all.blocks, { kind: 'throttle', retryAfter: '2' })
    const empty = await upstream(new Map())
    const at = await gateway({ holder, empty }, { retrieval: { negativeCache: { initialTtl: '30s', maxTtl: '60s' } } })
    const url = `${at.url}/ipfs/${all.files.hello.cid}`
    const answers = [await fetchAll(url), await fetchAll(url)]
    for (const { status, headers } of answers) {
      assert.equal(status, 404)
      assert.equal(headers['cache-control'], 'no-store')
      assert.ok(Number(headers['retry-after']) <= 2, `retry-after ${headers['retry-after']}`)
    }
    holder.fault = undefined
    await sleep(2100)
    assert.equal((await fetchAll(url)).status, 200)
  })

  test('Retry-After: 900 → no more requests, others serve', async () => {
    const busy = await upstream(all.blocks, { kind: 'throttle', retryAfter: '900' })
    const free = await upstream(all.blocks)
    const at = await gateway({ busy, free })
    for (const { cid } of Object.values(all.files)) assert.equal((await fetchAll(`${at.url}/ipfs/${cid}`)).status, 200)
    assert.ok(busy.asked.length <= 1, `${busy.asked.length} requests`)
  })
})

test('upstream recovers after 1 s → 200 within 2 s', async () => {
  const blocks: BlockMap = new Map()
  const files = await distinctFiles(blocks, 100, 2000)
  const one = await upstream(blocks)
  const at = await gateway({ one }, { retrieval: { probeEvery: '10m' } })
  assert.equal((await fetchAll(`${at.url}/ipfs/${files[0]?.cid}`)).status, 200)
  one.fault = { kind: 'status', status: 500 }
  await inParallel(files.slice(1, 50), 49, ({ cid }) => fetchAll(`${at.url}/ipfs/${cid}`))
  await new Promise((resolve) => setTimeout(resolve, 1000)) // the length of the outage
  one.fault = undefined
  await new Promise((resolve) => setTimeout(resolve, 2000)) // the time it has to come back
  const answers = await inParallel(files.slice(50), 50, ({ cid }) => fetchAll(`${at.url}/ipfs/${cid}`))
  assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([200]))
})

test('two upstreams without CAR, the best falls silent → asked for no more', async () => {
  const blocks: BlockMap = new Map()
  const paths: string[] = []
  for (let index = 0; index < 40; index++)
    paths.push(`/ipfs/${await addDirectory(blocks, { a: noise(2000, index + 1000) })}/a`)
  const upstreams = await Promise.all([0, 1].map(() => upstream(blocks, { kind: 'noCar', status: 406 })))
  const [one, other] = upstreams as [ProgrammableUpstream, ProgrammableUpstream]
  const at = await gateway({ one, other }, { retrieval: { probeEvery: '10m' } })
  const readAll = async (some: readonly string[]) => {
    for (const path of some) assert.equal((await fetchAll(at.url + path)).status, 200)
  }
  await readAll(paths.slice(0, 10))
  const best = one.asked.length > other.asked.length ? one : other
  const before = best.asked.length
  best.fault = { kind: 'silent' }
  await readAll(paths.slice(10))
  assert.ok(best.asked.length - before <= 10, `${best.asked.length - before} requests in 30 reads`)
})

// Most of it is waiting.
describe('upstreams without content, or with intermittent responses', { concurrency: true }, () => {
  describe('CID that no upstream has', () => {
    test('404 at the timeout, cached 404, 200 once available', async () => {
      const blocks: BlockMap = new Map()
      const later: BlockMap = new Map()
      const { cid, bytes } = await addFile(later, noise(700_000, 13))
      const empty = await upstream(blocks)
      const silent = await upstream(new Map(), { kind: 'silent' })
      const at = await gateway(
        { empty, silent },
        { retrieval: { timeout: '1s', backgroundSearch: '20s', negativeCache: { initialTtl: '500ms', maxTtl: '2s' } } },
      )
      const first = await fetchAll(`${at.url}/ipfs/${cid}`)
      assert.equal(first.status, 404)
      assert.ok(first.ms < 5000, `${first.ms} ms`)
      assert.match(String(first.headers['cache-control']), /no-store|max-age=\d$/)
      assert.ok(Number(first.headers['retry-after']) >= 1)
      const { attempts } = JSON.parse(first.body.toString()) as { attempts: { upstream: string; outcome: string }[] }
      assert.deepEqual(new Set(attempts.map((attempt) => attempt.upstream)), new Set(['empty', 'silent']))

      const repeats = await inParallel(Array.from({ length: 50 }), 1, () => fetchAll(`${at.url}/ipfs/${cid}`))
      assert.ok(repeats.every(({ status }) => status === 404))
      const usual = percentile(
        repeats.map(({ ms }) => ms),
        0.5,
      )
      assert.ok(usual < 500, `${usual} ms`)
      const asked = empty.asked.length

      for (const [key, block] of later) blocks.set(key, block)
      const until = Date.now() + 10_000
      for (;;) {
        const answer = await fetchAll(`${at.url}/ipfs/${cid}`)
        assert.ok(answer.ms < 900, `a request was slow: ${answer.ms} ms`)
        if (answer.status === 200) {
          assert.ok(answer.body.equals(bytes))
          assert.match(String(answer.headers['cache-status']), /hit/)
          break
        }
        assert.ok(Date.now() < until, 'it was never found')
        await new Promise((resolve) => setTimeout(resolve, 20))
      }
      assert.ok(empty.asked.length - asked <= 4, `asked ${empty.asked.length - asked} times meanwhile`)
    })

    test('concurrent requests for an absent block → each 404', async () => {
      const silent = await upstream(new Map(), { kind: 'silent' })
      const { cid } = await addFile(new Map(), noise(1000, 14))
      for (const keepLooking of ['20s', 0]) {
        const at = await gateway({ silent }, { retrieval: { timeout: '400ms', backgroundSearch: keepLooking } })
        const answers = await Promise.all([1, 2, 3].map(() => fetchAll(`${at.url}/ipfs/${cid}`)))
        assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([404]))
        // What is left of the flight ends with the gateway; an unhandled rejection would end this process.
        await at.close()
      }
    })

    test('no upstream available → response says so, not cached', async () => {
      const dead = await upstream(all.blocks, { kind: 'refuse' })
      const at = await gateway({ dead }, { retrieval: { timeout: '1s' } })
      const url = `${at.url}/ipfs/${all.files.hello.cid}`
      // Twice at once, and then after it was tried again.
      for (let count = 0; count < 3; count++) {
        const answer = await fetchAll(url)
        assert.equal(answer.headers['cache-control'], 'no-store')
        if (answer.status === 503) continue // a starved machine had no time to try it again
        assert.equal(answer.status, 404)
        assert.ok(Number(answer.headers['retry-after']) >= 1)
        assert.match(answer.body.toString(), /"attempts":\[\{"upstream":"dead"/)
        assert.match(answer.body.toString(), /no upstream could be asked/)
      }
      dead.fault = undefined
      // One that rests is tried once a second when there is no other.
      let status = 404
      for (const until = Date.now() + 20_000; status !== 200 && Date.now() < until; await sleep(20))
        status = (await fetchAll(url)).status
      assert.equal(status, 200)
    })
  })

  describe('only upstream', () => {
    const isLook = (url: string) => url.includes('bafkqaaa')
    type Odd = (request: { readonly url: string; readonly count: number }) => Fault | undefined
    const odd: [what: string, odd: Odd, least: number][] = [
      ['throttles each fifth question and says 0 seconds', ({ count }) => throttled(count % 5 === 0, '0'), 24],
      ['throttles each tenth question for a second', ({ count }) => throttled(count % 10 === 0, '1'), 24],
      ['says 500 to every look', ({ url }) => (isLook(url) ? { kind: 'status', status: 500 } : undefined), 24],
      ['knows nothing of what a look asks for', ({ url }) => (isLook(url) ? { kind: 'notFound' } : undefined), 20],
      [
        'says 501 to every CAR',
        ({ url }) => (url.includes('format=car') ? { kind: 'status', status: 501 } : undefined),
        24,
      ],
    ]
    const throttled = (is: boolean, retryAfter: string): Fault | undefined =>
      is ? { kind: 'throttle', retryAfter } : undefined

    for (const [what, fault, least] of odd)
      test(`${what} → its files are served`, async () => {
        const blocks: BlockMap = new Map()
        const files = [...(await distinctFiles(blocks, 20, 2000)), ...(await distinctFiles(blocks, 4, 2_500_000))]
        let count = 0
        const only = await upstream(blocks, ({ url }) => fault({ url, count: isLook(url) ? count : ++count }))
        const at = await gateway({ only })
        const answers = await inParallel(files, 4, ({ cid }) => fetchAll(`${at.url}/ipfs/${cid}`))
        const had = answers.filter(({ status }) => status === 200).length
        assert.ok(had >= least, `${had} of ${files.length}: ${answers.map(({ status }) => status).join(' ')}`)
        await at.close()
      })
  })
})
