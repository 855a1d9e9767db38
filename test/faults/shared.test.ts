// Fault: every upstream is down, and a second instance shares only a bucket or a Redis with the first. It serves what the first one
// read, unchanged. A store that is down is no outage.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, metricsOf, startGateway, type TestGateway } from '../support/gateway.ts'
import { type RedisServer, startRedisServer } from '../support/redis-server.ts'
import { type S3Server, startS3Server } from '../support/s3-server.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
})
after(() => upstream.close())

type Store = {
  readonly tier: Record<string, unknown>
  /** Changes one byte of everything that is kept. */
  spoil(): void
  slow(ms: number): void
  close(): Promise<void>
}

const flip = (bytes: Buffer): Buffer => Buffer.from(bytes.map((byte, index) => (index === 0 ? byte ^ 1 : byte)))

const stores: Record<string, () => Promise<Store>> = {
  async S3() {
    const server: S3Server = await startS3Server()
    const { bucket, endpoint, accessKeyId, secretAccessKey, objects } = server
    return {
      tier: { use: 's3', bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true, prefix: 'b/' },
      spoil: () => {
        for (const [key, bytes] of objects) objects.set(key, flip(bytes))
      },
      slow: (slowMs) => {
        server.faults = { slowMs }
      },
      close: () => server.stop(),
    }
  },
  async Redis() {
    const server: RedisServer = await startRedisServer()
    return {
      tier: { use: 'redis', url: server.url },
      spoil: () => {
        for (const [key, { value }] of server.values) server.values.set(key, { value: flip(value) })
      },
      slow: (slowMs) => {
        server.faults = { slowMs }
      },
      close: () => server.stop(),
    }
  },
}

/** Where the store answers, it has all the time that a busy machine may need. */
const start = (store: Store): Promise<TestGateway> =>
  startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: {
      retrieval: { timeout: '30s' },
      cache: {
        responses: { maxBytes: 0 },
        writeQueueBytes: '128MiB',
        tiers: [
          { use: 'memory', maxBytes: '8MiB' },
          { ...store.tier, timeout: '10s' },
        ],
      },
    },
  })

/** Until nothing waits to be written: closing would give a slow machine five seconds for it. */
async function written(at: TestGateway): Promise<void> {
  const isWaiting = async () => /^cidgate_tier_write_queue_blocks\S* [1-9]/m.test(await metricsOf(at.gateway))
  while (await isWaiting()) await sleep(20)
}

const paths = () => [
  ...Object.values(all.files).map(({ cid, bytes }) => ({ path: `/ipfs/${cid}`, bytes })),
  { path: `/ipfs/${all.directory}/sub/big.bin`, bytes: all.names['sub/big.bin'] },
]

for (const [name, make] of Object.entries(stores)) {
  describe(name, () => {
    test('upstreams down → blocks of another instance, slow store waited for', async () => {
      const store = await make()
      const { chunkedV0, hello } = all.files
      const first = await start(store)
      for (const { path, bytes } of paths()) assert.ok((await fetchAll(`${first.url}${path}`)).body.equals(bytes), path)
      await written(first)
      await first.close()
      upstream.fault = { kind: 'refuse' }
      const second = await start(store)
      const reads = async (path: string, bytes: Uint8Array) => {
        const answer = await fetchAll(`${second.url}${path}`)
        assert.equal(answer.status, 200, `${path}: ${answer.body.toString(undefined, 0, 200)}`)
        assert.ok(answer.body.equals(bytes), path)
      }
      try {
        for (let turn = 0; turn < 3; turn++) await reads(`/ipfs/${hello.cid}`, hello.bytes)
        store.slow(180)
        await reads(`/ipfs/${chunkedV0.cid}`, chunkedV0.bytes)
        store.slow(0)
        for (const { path, bytes } of paths()) await reads(path, bytes)
      } finally {
        upstream.fault = undefined
        await second.close()
      }
      store.spoil()
      const third = await start(store)
      try {
        assert.ok((await fetchAll(`${third.url}/ipfs/${chunkedV0.cid}`)).body.equals(chunkedV0.bytes))
        assert.ok(third.log.some(({ event }) => event === 'tier.corrupt'))
      } finally {
        await third.close()
        await store.close()
      }
    })
  })
}
