// Fault: names on several instances that share only a bucket or a Redis. A second one, with an empty disk and no upstream, resolves
// what the first one proved, and only that. The newest record stays, and a store that is silent holds up no name.
import assert from 'node:assert/strict'
import { afterEach, before, beforeEach, describe, test } from 'node:test'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { type Fetched, fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { createKey, type TestKey } from '../support/ipns.ts'
import { startRedisServer } from '../support/redis-server.ts'
import { startS3Server } from '../support/s3-server.ts'
import { createShiftedClock } from '../support/shifted-clock.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { takesLess } from '../support/work.ts'

const hour = 3_600_000

type Store = {
  readonly tier: Record<string, unknown>
  /** The record of this key, as it lies in the store. */
  read(key: TestKey): Uint8Array | undefined
  write(key: TestKey, bytes: Uint8Array): void
  silence(): void
  refuse(): Promise<void>
  heal(): Promise<void>
  stop(): Promise<void>
}

const stores: Readonly<Record<string, () => Promise<Store>>> = {
  async S3() {
    const server = await startS3Server()
    const { bucket, endpoint, accessKeyId, secretAccessKey, objects } = server
    const at = ({ name }: TestKey) => `b/ipns/${name}`
    return {
      tier: { use: 's3', bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true, prefix: 'b/' },
      read: (key) => objects.get(at(key)),
      write: (key, bytes) => void objects.set(at(key), Buffer.from(bytes)),
      silence: () => server.silence(),
      refuse: () => server.refuse(),
      heal: () => server.heal(),
      stop: () => server.stop(),
    }
  },
  async Redis() {
    const server = await startRedisServer()
    const at = ({ name }: TestKey) => `cidgate:block:ipns/${name}`
    return {
      tier: { use: 'redis', url: server.url },
      read: (key) => server.values.get(at(key))?.value,
      write: (key, bytes) => void server.values.set(at(key), { value: Buffer.from(bytes) }),
      silence: () => server.silence(),
      refuse: () => server.refuse(),
      heal: () => server.heal(),
      stop: () => server.stop(),
    }
  },
}

let all: Fixtures
before(async () => {
  all = await fixtures()
})

// Most of it is waiting for a store that is silent.
describe('IPNS records shared by instances over', { concurrency: true }, () => {
  for (const [what, make] of Object.entries(stores)) {
    describe(what, { concurrency: 1 }, () => {
      let store: Store
      let upstream: ProgrammableUpstream
      let key: TestKey
      let clock: ReturnType<typeof createShiftedClock>
      let gateways: TestGateway[]
      beforeEach(async () => {
        store = await make()
        upstream = await startUpstream({ blocks: all.blocks })
        key = createKey()
        clock = createShiftedClock()
        gateways = []
      })
      afterEach(async () => {
        for (const gateway of gateways) await gateway.close()
        await upstream.close()
        await store.stop()
      })

      /** With a disk of its own, and an upstream, or none. */
      async function start(hasUpstream: boolean, timeout = '10s'): Promise<TestGateway> {
        const gateway = await startGateway({
          upstreams: hasUpstream ? [{ name: 'one', url: upstream.url, firstByteTimeout: '2s', bodyTimeout: '2s' }] : [],
          clock,
          config: {
            cache: {
              tiers: [
                { use: 'memory', maxBytes: '8MiB' },
                { ...store.tier, timeout },
              ],
            },
          },
        })
        gateways.push(gateway)
        return gateway
      }
      const get = (
        at: TestGateway,
        path = `/ipns/${key.name}`,
        headers: Record<string, string> = {},
      ): Promise<Fetched> => fetchAll(`${at.url}${path}`, headers)
      const hello = (facts = {}) => key.record(`/ipfs/${all.files.hello.cid}`, { sequence: 1, ttlMs: 60_000, ...facts })
      const json = (facts = {}) => key.record(`/ipfs/${all.files.json.cid}`, { sequence: 2, ttlMs: 60_000, ...facts })
      const isHello = ({ headers }: Fetched) => headers.etag === `"${all.files.hello.cid}"`
      const isJson = ({ headers }: Fetched) => headers.etag === `"${all.files.json.cid}"`
      const holds = (bytes: Uint8Array) => {
        const held = store.read(key)
        return held !== undefined && Buffer.compare(held, bytes) === 0
      }
      async function until(check: () => boolean): Promise<void> {
        for (let tries = 0; !check(); tries++) {
          assert.ok(tries < 1000, 'never')
          await new Promise((resolve) => setTimeout(resolve, 10))
        }
      }

      test("empty disk, no upstream → resolves another instance's record", async () => {
        const record = await hello()
        upstream.records.set(key.name, record)
        assert.ok(isHello(await get(await start(true))))
        await until(() => holds(record))
        const second = await start(false)
        const cached = await get(second, undefined, { 'cache-control': 'only-if-cached' })
        assert.deepEqual([cached.status, isHello(cached)], [200, true])
        assert.ok(isHello(await get(second)))
        const asRecord = await get(second, `/ipns/${key.name}?format=ipns-record`)
        assert.equal(Buffer.compare(asRecord.body, record), 0)
        assert.equal((await get(second, `/ipns/${createKey().name}`)).status, 404)
        const unknown = await get(second, `/ipns/${createKey().name}`, { 'cache-control': 'only-if-cached' })
        assert.equal(unknown.status, 412)
      })

      test('newest record wins; older ones never overwrite it', async () => {
        // A busy machine makes a store late, and a name waits for no late one.
        const getsNewest = async (tries = 3): Promise<TestGateway> => {
          const gateway = await start(true)
          if (isJson(await get(gateway))) return gateway
          assert.ok(tries > 0, 'an older record')
          return getsNewest(tries - 1)
        }
        const [older, newer] = [await hello(), await json()]
        store.write(key, newer)
        upstream.records.set(key.name, older)
        await getsNewest()
        store.write(key, older)
        upstream.records.set(key.name, newer)
        await getsNewest()
        await until(() => holds(newer))
        upstream.records.set(key.name, older)
        const third = await getsNewest()
        await third.gateway.close()
        assert.ok(holds(newer))
      })

      test('silent store → no name delayed or lost', async () => {
        const names = await Promise.all(
          Array.from({ length: 8 }, async () => {
            const one = createKey()
            upstream.records.set(one.name, await one.record(`/ipfs/${all.files.hello.cid}`))
            return one.name
          }),
        )
        const first = await start(true, '1s')
        assert.ok(isHello(await get(first, `/ipfs/${all.files.hello.cid}`)))
        store.silence()
        const took: number[] = []
        for (const name of names) {
          const answer = await get(first, `/ipns/${name}`)
          assert.ok(isHello(answer))
          took.push(answer.ms)
        }
        // Where it is waited for as an upstream is, two names take 400 ms.
        assert.ok(took.filter((ms) => ms > 390).length <= 1, took.join(', '))
        // No upstream has these: a request waits for the store until it is skipped.
        const late: number[] = []
        for (let count = 0; count < 6; count++) late.push((await get(first, `/ipns/${createKey().name}`)).ms)
        assert.ok(Math.min(...late.slice(3)) < 300, late.join(', '))
      })

      test('recovered store → gets missing records', async () => {
        const record = await hello({ ttlMs: 1000 })
        upstream.records.set(key.name, record)
        const first = await start(true, '1s')
        await store.refuse()
        assert.ok(isHello(await get(first)))
        await store.heal()
        for (let tries = 0; !holds(record); tries++) {
          assert.ok(tries < 100, 'never')
          clock.shift(60_000)
          assert.ok(isHello(await get(first)))
          await new Promise((resolve) => setTimeout(resolve, 50))
        }
      })

      // The rules of records are the same over every store.
      if (what !== 'S3') return

      test('forged record in the store → never served, overwritten', async () => {
        const record = await hello()
        store.write(key, Buffer.from(record.map((byte, index) => (index === 40 ? byte ^ 1 : byte))))
        assert.equal((await get(await start(false))).status, 404)
        const first = await start(true)
        upstream.records.set(key.name, record)
        assert.ok(isHello(await get(first)))
        await until(() => holds(record))
        assert.ok(isHello(await get(await start(false))))
      })

      test('record served until its validity ends', async () => {
        // The content is there, and no upstream has a record.
        store.write(key, await hello({ lifetimeMs: 2 * hour }))
        const second = await start(true)
        assert.ok(isHello(await get(second)))
        clock.shift(2 * hour)
        assert.equal((await get(second)).status, 404)
        assert.equal((await get(await start(true))).status, 404)
      })

      test('expired record still blocks older ones', async () => {
        store.write(key, await json({ lifetimeMs: hour }))
        upstream.records.set(key.name, await hello({ lifetimeMs: 24 * hour }))
        clock.shift(hour)
        assert.equal((await get(await start(true))).status, 404)
      })

      test('silent upstreams → a stored name is one second late', async () => {
        store.write(key, await hello())
        upstream.fault = ({ url }) => (url.startsWith('/ipns/') ? { kind: 'silent' } : undefined)
        await takesLess(1_900, async () => {
          const answer = await get(await start(true))
          assert.ok(isHello(answer))
          return answer.ms
        })
      })
    })
  }
})
