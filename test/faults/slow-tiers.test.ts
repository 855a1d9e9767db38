// Fault: a tier that is slow, hangs, drips or fails late. Readers and uploads do not feel it, and it is used for what it is worth.
// Times are generous, for a busy machine; the calls to a tier, and how many at once, are exact.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { eventually } from '../../src/testing/tier.ts'
import { addFile, type BlockMap, distinctFiles, type FileFixture, noise } from '../support/fixtures.ts'
import { fetchAll, inParallel, type LogLine, metricsOf, startGateway, type TestGateway } from '../support/gateway.ts'
import { type S3Server, startS3Server } from '../support/s3-server.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const mib = 1024 * 1024
const storeTimeoutMs = 3000
// What a request may take on a busy machine; far below the time that the store is given.
const soonMs = 1500

const blocks: BlockMap = new Map()
let small: FileFixture[]
let large: FileFixture
let largeBlocks: number
let upstream: ProgrammableUpstream
before(async () => {
  large = await addFile(blocks, noise(5 * mib), 'v0', 64 * 1024)
  largeBlocks = blocks.size
  small = await distinctFiles(blocks, 60, 1000)
  upstream = await startUpstream({ blocks, delayMs: 10 })
})
after(() => upstream.close())

type With = { readonly at: TestGateway; readonly store: S3Server }

const start = (store: S3Server | undefined, config: Record<string, unknown> = {}): Promise<TestGateway> =>
  startGateway({
    upstreams: [{ name: 'near', url: upstream.url }],
    config: {
      ...config,
      cache: {
        responses: { maxBytes: 0 },
        tiers: [
          { use: 'memory', maxBytes: '64MiB' },
          { use: 'disk', maxBytes: '1GiB' },
          ...(store ? [tierOf(store)] : []),
        ],
      },
    },
  })

const tierOf = ({ bucket, endpoint, accessKeyId, secretAccessKey }: S3Server): Record<string, unknown> => ({
  ...{ use: 's3', bucket, endpoint, accessKeyId, secretAccessKey },
  forcePathStyle: true,
  prefix: 'b/',
  timeout: `${storeTimeoutMs}ms`,
})

/** `prepare` before the gateway starts. */
async function withStore(prepare: (store: S3Server) => void, work: (given: With) => Promise<void>): Promise<void> {
  const store = await startS3Server()
  prepare(store)
  const at = await start(store)
  try {
    await work({ at, store })
  } finally {
    // In this order, or closing would wait for what is still to be written.
    await store.stop()
    await at.close()
  }
}

const isPassedOver = ({ event, facts }: LogLine): boolean => event === 'tier.circuit-open' && facts['what'] === 'reads'

const asked = (store: S3Server, method: string): number => store.asked.get(method) ?? 0

async function read(at: TestGateway, { cid, bytes }: FileFixture): Promise<number> {
  const answer = await fetchAll(`${at.url}/ipfs/${cid}`)
  assert.equal(answer.status, 200, answer.body.toString(undefined, 0, 300))
  assert.ok(answer.body.equals(bytes))
  return answer.ms
}

async function add(at: TestGateway, content: string): Promise<number> {
  const form = new FormData()
  form.set('data', content)
  const began = performance.now()
  const answer = await fetch(`${at.url}/add`, { method: 'POST', body: form })
  assert.equal(answer.status, 200, await answer.text())
  return performance.now() - began
}

const ways: readonly { readonly what: string; make(store: S3Server): void }[] = [
  { what: 'hangs', make: (store) => store.silence() },
  { what: 'fails late', make: (store) => void (store.faults = { failsAfterMs: 2000 }) },
  { what: 'refuses', make: (store) => void store.refuse() },
]

/** None waits for the store, and it is soon not asked any more. */
async function readsPassItOver({ at, store }: With): Promise<void> {
  const took: number[] = []
  for (const file of small.slice(0, 10)) took.push(await read(at, file))
  await eventually('it is passed over', () => at.log.some(isPassedOver))
  const before = asked(store, 'GET')
  for (const file of small.slice(10, 20)) took.push(await read(at, file))
  assert.ok(Math.max(...took) < soonMs, took.map(Math.round).join(' '))
  // A trial, which the client may make twice, and on a slow machine another one. Each file would be one.
  assert.ok(asked(store, 'GET') - before <= 7, `${asked(store, 'GET') - before} reads`)
}

for (const { what, make } of ways)
  describe(`S3 that ${what}`, () => {
    test('from the start → upstream serves, store soon skipped', () => withStore(make, readsPassItOver))

    test('after a good start → uploads undelayed, reads soon skip it', () =>
      withStore(
        () => {},
        async ({ at, store }) => {
          await add(at, 'before')
          assert.ok(store.objects.size > 0, 'a healthy store has it before it is acknowledged')
          for (const file of small.slice(40, 50)) await read(at, file)
          await eventually('they are in the store', () => store.objects.size >= 11)
          make(store)
          const before = asked(store, 'PUT')
          const took: number[] = []
          for (let turn = 0; turn < 10; turn++) took.push(await add(at, `${what} ${turn}`))
          assert.ok(Math.max(...took) < soonMs, took.map(Math.round).join(' '))
          assert.ok(asked(store, 'PUT') - before <= 40, `${asked(store, 'PUT') - before} writes`)
          await readsPassItOver({ at, store })
        },
      ))
  })

test('dripping S3 → upstream serves, store soon skipped', () =>
  withStore(
    () => {},
    async ({ at, store }) => {
      const some = small.slice(0, 20)
      for (const file of some) await read(at, file)
      await eventually('they are in the store', () => store.objects.size >= some.length)
      store.faults = { drips: { bytes: 1, everyMs: 100 } }
      const other = await start(store)
      try {
        const took: number[] = []
        for (const file of some) took.push(await read(other, file))
        assert.ok(Math.max(...took) < soonMs, took.map(Math.round).join(' '))
        const usual = took.slice(5).sort((a, b) => a - b)[7] ?? 0
        assert.ok(usual < soonMs / 3, took.map(Math.round).join(' '))
      } finally {
        await other.close()
      }
    },
  ))

test('hanging store, many blocks → one wait per upload', () =>
  withStore(
    () => {},
    async ({ at, store }) => {
      await add(at, 'before')
      store.silence()
      const took = await add(at, Buffer.from(noise(6 * mib, 9)).toString('base64'))
      const alone = await start(undefined)
      const without = await add(alone, Buffer.from(noise(6 * mib, 10)).toString('base64'))
      await alone.close()
      assert.ok(took < 3 * without + soonMs, `${took} ms, ${without} ms without it`)
    },
  ))

describe('file of 80 blocks, S3 of 100 ms', () => {
  test('cold file → few S3 reads, all stored, next gateway served', async () => {
    const store = await startS3Server()
    store.faults = { slowMs: 100 }
    const first = await start(store)
    await read(first, large)
    assert.ok(asked(store, 'GET') <= 6, `${asked(store, 'GET')} reads`)
    await eventually('all of it is in the store', () => store.objects.size >= largeBlocks, 20_000)
    await first.close()
    upstream.fault = { kind: 'refuse' }
    const second = await start(store)
    try {
      // One after another they are more than eight seconds.
      const took = await read(second, large)
      assert.ok(took < 5000, `${took} ms`)
      assert.ok(store.maxAtOnce >= 16, `${store.maxAtOnce} at once`)
      assert.ok(asked(store, 'GET') <= largeBlocks + 10, `${asked(store, 'GET')} reads of ${largeBlocks} blocks`)
    } finally {
      upstream.fault = undefined
      await second.close()
      await store.stop()
    }
  })

  test('S3 hangs → file served, all blocks stored after recovery', () =>
    withStore(
      (store) => store.silence(),
      async ({ at, store }) => {
        const took = await read(at, large)
        assert.ok(took < 4000, `${took} ms`)
        assert.ok(asked(store, 'GET') <= 12, `${asked(store, 'GET')} reads`)
        await store.heal()
        await eventually('what was read meanwhile is brought to it', () => store.objects.size >= largeBlocks, 40_000)
        assert.match(await metricsOf(at.gateway), /^cidgate_tier_writes_total\{tier="s3",outcome="dropped"\} 0$/m)
      },
    ))
})

test('recovered S3 → read again within seconds', () =>
  withStore(
    () => {},
    async ({ at, store }) => {
      for (const file of small.slice(0, 4)) await read(at, file)
      store.silence()
      for (const file of small.slice(4, 10)) await read(at, file)
      await store.heal()
      const before = asked(store, 'GET')
      const rest = small.slice(10)
      await eventually(
        'reads go there',
        async () => {
          const next = rest.shift()
          if (next) await read(at, next)
          await new Promise((resolve) => setTimeout(resolve, 100))
          return asked(store, 'GET') > before + 3
        },
        15_000,
      )
    },
  ))

test('burst of misses, silent upstream → disk not skipped', async () => {
  const at = await startGateway({
    upstreams: [{ name: 'near', url: upstream.url }],
    config: {
      retrieval: { timeout: '2s' },
      cache: {
        responses: { maxBytes: 0 },
        tiers: [
          { use: 'memory', maxBytes: '64KiB' },
          { use: 'disk', maxBytes: '1GiB' },
        ],
      },
    },
  })
  try {
    for (const file of small) await read(at, file)
    await eventually('they are on the disk', async () =>
      /^cidgate_tier_writes_total\{tier="disk",outcome="written"\} 60$/m.test(await metricsOf(at.gateway)),
    )
    upstream.fault = { kind: 'silent' }
    // As many as the sockets of a client of these tests.
    const absent = await distinctFiles(new Map(), 250, 64)
    const misses = inParallel(absent, 250, ({ cid }) => fetchAll(`${at.url}/ipfs/${cid}`).then(({ status }) => status))
    const hits = inParallel(small, 20, (file) => read(at, file))
    await hits
    for (const file of small) await read(at, file)
    assert.deepEqual(
      at.log.filter(({ event }) => event === 'tier.circuit-open'),
      [],
    )
    upstream.fault = undefined
    for (const status of await misses) assert.ok(status === 404 || status === 503, `${status}`)
  } finally {
    upstream.fault = undefined
    await at.close()
  }
})
