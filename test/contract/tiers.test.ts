// Every tier, bare, guarded, proved and stacked, on the suite; and the suite on tiers that break one promise each.
import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import type { CID } from 'multiformats/cid'
import type { Records, Tier, TierContext } from '../../backends/tiers/contract.ts'
import { disk } from '../../backends/tiers/disk.ts'
import { keyv } from '../../backends/tiers/keyv.ts'
import { createKeyvTier } from '../../backends/tiers/keyv-tier.ts'
import { memory } from '../../backends/tiers/memory.ts'
import { redis } from '../../backends/tiers/redis.ts'
import { s3 } from '../../backends/tiers/s3.ts'
import { blockKey } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import {
  bytesOf,
  cidOf,
  isRunFor,
  type TierUnderTest as Store,
  tierCases,
  tierContract,
} from '../../src/testing/tier.ts'
import { startRedisServer } from '../support/redis-server.ts'
import { type S3Faults, startS3Server } from '../support/s3-server.ts'
import { guarded, stackOf } from '../support/scripted-tier.ts'

const clock = systemClock
const log = silentLog
const context = (name: string, data = ''): TierContext => ({
  ...{ name, userAgent: 'cidgate/test', data, log, clock },
})
const nothing = async () => {}

async function makeDisk(): Promise<Store> {
  const data = await mkdtemp(join(tmpdir(), 'cidgate-disk-'))
  const make = () => disk.create(disk.options.parse({ maxBytes: '64MiB' }), context('disk', data))
  const folder = join(data, 'cache')
  return {
    tier: make(),
    stop: () => rm(data, { recursive: true, force: true }),
    reopen: async () => make(),
    outage: {
      // A file where the folder should be: every call fails, also for root.
      async begin() {
        await rename(folder, join(data, 'aside'))
        await writeFile(folder, '')
      },
      async end() {
        await rm(folder)
        await rename(join(data, 'aside'), folder)
      },
    },
  }
}

async function makeS3(of: Case, faults: S3Faults = {}): Promise<Store> {
  const server = await startS3Server()
  server.faults = faults
  const { bucket, endpoint, accessKeyId, secretAccessKey } = server
  const options = s3.options.parse({ bucket, endpoint, accessKeyId, secretAccessKey, timeout: timeoutFor(of) })
  const make = () => s3.create(options, context('s3'))
  return {
    tier: make(),
    stop: () => server.stop(),
    reopen: async () => make(),
    outage: { begin: () => server.refuse(), end: () => server.heal() },
    silence: () => server.silence(),
    compares: true,
  }
}

type Case = { readonly name: string }

/** Where the store answers, it has all the time that a busy machine may need. */
const timeoutFor = ({ name }: Case): string => (name.includes('silence') ? '2s' : '20s')
const makeRedisTier = (url: string, of: Case): Tier =>
  redis.create(redis.options.parse({ url, timeout: timeoutFor(of) }), context('redis'))

async function makeRedis(of: Case): Promise<Store> {
  const server = await startRedisServer()
  const make = () => makeRedisTier(server.url, of)
  return {
    tier: make(),
    stop: () => server.stop(),
    reopen: async () => make(),
    outage: { begin: () => server.refuse(), end: () => server.heal() },
    silence: () => server.silence(),
    compares: true,
    forgets: true,
  }
}

const mapOptions = {
  name: 'map',
  traits: { persistent: true, shared: true, trusted: false },
  log,
  prefix: 'block:',
  timeoutMs: 100,
  explain: (cause: unknown) => new Failure('upstream-error', 'the map failed', { source: 'tier', cause }),
}
const mapTier = (store: Map<string, unknown>, binary: boolean): Tier =>
  createKeyvTier({ ...mapOptions, clock, open: async () => store, binary })

const makeMap = (binary: boolean) => async (): Promise<Store> => {
  const store = new Map<string, unknown>()
  return { tier: mapTier(store, binary), stop: nothing, reopen: async () => mapTier(store, binary) }
}

const makeMemory = async (): Promise<Store> => ({
  tier: memory.create(memory.options.parse({}), context('memory')),
  stop: nothing,
})

const wrap =
  (make: (of: Case) => Promise<Store>, over: (tier: Tier) => Tier) =>
  async (of: Case): Promise<Store> => {
    const { reopen, ...store } = await make(of)
    return { ...store, tier: over(store.tier), ...(reopen && { reopen: async () => over(await reopen()) }) }
  }
// Calls take long on a busy machine, which must not open the breaker: each is answered, late or not.
const guard = (tier: Tier): Tier => guarded(tier)

// Most of it is waiting for stores that are silent.
describe('every tier', { concurrency: 4 }, () => {
  tierContract('memory', makeMemory)
  tierContract('disk', makeDisk)
  tierContract('redis without scripts', async (of) => {
    const server = await startRedisServer()
    server.faults = { noScripts: true }
    const tier = guard(makeRedisTier(server.url, of))
    return { tier, stop: () => server.stop(), silence: () => server.silence() }
  })
  for (const conditional of ['not-implemented', 'ignored'] as const)
    tierContract(`s3 with conditional writes ${conditional}`, async (of) => {
      const { compares: _, ...store } = await makeS3(of, { conditional })
      return { ...store, tier: guard(store.tier) }
    })
  tierContract('keyv, bytes as they are', makeMap(true))
  tierContract('keyv, base64', makeMap(false))
  tierContract('guarded disk', wrap(makeDisk, guard))
  tierContract('guarded redis', wrap(makeRedis, guard))
  tierContract('guarded s3', wrap(makeS3, guard))
  tierContract('a stack of memory and disk', async () => {
    const { outage: _, ...store } = await makeDisk()
    const stack = (tier: Tier) => stackOf([memory.create({ maxBytes: 8 << 20 }, context('memory')), tier])
    return { ...store, tier: stack(store.tier), reopen: async () => stack((await store.reopen?.()) ?? store.tier) }
  })
  tierContract('a stack of redis and s3, without memory', async (of) => {
    const [near, far] = [await makeRedis(of), await makeS3(of)]
    const stack = (one: Tier, other: Tier) => stackOf([one, other])
    return {
      tier: stack(near.tier, far.tier),
      reopen: async () => stack((await near.reopen?.()) ?? near.tier, (await far.reopen?.()) ?? far.tier),
      stop: async () => {
        await near.stop()
        await far.stop()
      },
    }
  })
})

test('adapter is loaded from the configured package', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-adapter-'))
  try {
    await mkdir(join(folder, 'adapter'))
    const file = join(folder, 'adapter', 'index.mjs')
    await writeFile(
      file,
      `export default class extends Map {
        constructor(uri, options) { super(); if (uri !== 'store://here' || options.pool !== 2) throw new Error('arguments') }
      }`,
    )
    const options = keyv.options.parse({ module: file, uri: 'store://here', options: { pool: 2 } })
    const tier = keyv.create(options, context('adapter'))
    const bytes = bytesOf(1000)
    await tier.put(cidOf(bytes), bytes)
    assert.deepEqual(Buffer.from((await tier.get(cidOf(bytes))) ?? []), Buffer.from(bytes))
    await tier.close()
    const missing = keyv.create(keyv.options.parse({ module: '@nobody/has-this' }), context('missing'))
    await assert.rejects(missing.get(cidOf(bytes)), /npm install @nobody\/has-this/)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

/** A map as a tier: right, but for what a variant breaks. */
function plainTier(
  change: (tier: Tier, held: Map<string, Uint8Array>, state: { isDown: boolean }) => Partial<Tier>,
): Store {
  const held = new Map<string, Uint8Array>()
  const state = { isDown: false }
  const down = () => new Failure('upstream-error', 'the plain store is down; bring it back', { source: 'tier' })
  const check = (signal?: AbortSignal) => {
    signal?.throwIfAborted()
    if (state.isDown) throw down()
  }
  const right: Tier = {
    name: 'plain',
    traits: { persistent: false, shared: false, trusted: true },
    async get(cid, signal) {
      check(signal)
      return held.get(blockKey(cid))
    },
    async put(cid, bytes, signal) {
      check(signal)
      held.set(blockKey(cid), new Uint8Array(bytes))
    },
    async has(cid, signal) {
      check(signal)
      return held.has(blockKey(cid))
    },
    async delete(cid, signal) {
      check(signal)
      held.delete(blockKey(cid))
    },
    close: nothing,
  }
  return {
    tier: { ...right, ...change(right, held, state) },
    stop: nothing,
    outage: {
      begin: async () => {
        state.isDown = true
      },
      end: async () => {
        state.isDown = false
      },
    },
  }
}

/** `looks`: whether it looks at what is there before it writes. */
function plainRecords(looks: () => boolean): Records {
  const held = new Map<string, Uint8Array>()
  return {
    async read(key) {
      const bytes = held.get(key)
      return bytes && { bytes }
    },
    async replace(key, bytes, { expected }) {
      if (looks() && held.get(key) !== expected?.bytes) return false
      await Promise.resolve()
      held.set(key, bytes)
      return true
    },
  }
}

async function failing(make: () => Store): Promise<string[]> {
  const runs = tierCases.map(async (one) => {
    const store = make()
    if (isRunFor(one, store)) await one.run(store)
  })
  const results = await Promise.allSettled(runs)
  return tierCases.filter((_, index) => results[index]?.status === 'rejected').map(({ name }) => name)
}

const bad: readonly { readonly what: string; readonly caught: RegExp; readonly make: () => Store }[] = [
  {
    what: 'answers a miss when it could not look',
    caught: /outage/,
    make: () => plainTier((tier) => ({ get: async (cid, signal) => tier.get(cid, signal).catch(() => undefined) })),
  },
  {
    what: 'keeps the buffer of its caller',
    caught: /reuses its buffer/,
    make: () => plainTier((_, held) => ({ put: async (cid, bytes) => void held.set(blockKey(cid), bytes) })),
  },
  {
    what: 'takes an empty block for none',
    caught: /^0 bytes/,
    make: () =>
      plainTier((tier) => ({
        async get(cid, signal) {
          const bytes = await tier.get(cid, signal)
          return bytes?.byteLength ? bytes : undefined
        },
      })),
  },
  {
    what: 'keeps text',
    caught: /^1024 bytes/,
    make: () =>
      plainTier((tier) => ({
        put: (cid: CID, bytes: Uint8Array) => tier.put(cid, Buffer.from(Buffer.from(bytes).toString('utf8'))),
      })),
  },
  {
    what: 'keys by the CID as it was spelled',
    caught: /another CID/,
    make: () =>
      plainTier((_, held) => ({
        put: async (cid, bytes) => void held.set(cid.toString(), new Uint8Array(bytes)),
        get: async (cid) => held.get(cid.toString()),
        has: async (cid) => held.has(cid.toString()),
      })),
  },
  {
    what: 'overwrites a record that another writer changed since',
    caught: /changed by another writer/,
    make: () => plainTier(() => ({ records: plainRecords(() => false) })),
  },
  {
    what: 'compares a record, and writes a moment later',
    caught: /writers of a record/,
    make: () => ({ ...plainTier(() => ({ records: plainRecords(() => true) })), compares: true }),
  },
  { what: 'does not delete', caught: /deleted block → gone/, make: () => plainTier(() => ({ delete: nothing })) },
  {
    what: 'does not look at the signal',
    caught: /^aborted signal/,
    make: () => plainTier((tier) => ({ get: (cid) => tier.get(cid), has: (cid) => tier.has(cid) })),
  },
  {
    what: 'fails on the second close',
    caught: /closed twice/,
    make: () => {
      let closed = false
      return plainTier(() => ({
        async close() {
          if (closed) throw new Error('closed')
          closed = true
        },
      }))
    },
  },
]

test('suite passes a correct tier', async () => {
  assert.deepEqual(await failing(() => plainTier(() => ({}))), [])
})

for (const { what, caught, make } of bad) {
  test(`suite catches a tier that ${what}`, async () => {
    const red = await failing(make)
    assert.ok(
      red.some((name) => caught.test(name)),
      `went red: ${red.join('; ') || 'nothing'}`,
    )
  })
}

test('adapter that hides errors → configured to report outages', async () => {
  const adapter = `export default class {
    opts = {}
    throwOnErrors = false
    on() {}
    async set() {}
    async delete() {}
    async clear() {}
    async get() {
      if (this.throwOnErrors) throw new Error('Socket closed unexpectedly')
    }
  }`
  const module = `data:text/javascript,${encodeURIComponent(adapter)}`
  const tier = keyv.create(keyv.options.parse({ module }), context('keyv'))
  await assert.rejects(tier.get(cidOf(bytesOf(10))), (error) => isFailure(error, 'upstream-error'))
  await tier.close()
})

test("health check does not delete another instance's probe object", async () => {
  const deleted = Promise.withResolvers<void>()
  const values = new Map<string, unknown>()
  let reads = 0
  const store = Object.assign(new Map<string, unknown>(), {
    set: (key: string, value: unknown) => values.set(key, value),
    get: async (key: string) => {
      if (reads++ === 0) await deleted.promise
      return values.get(key)
    },
    delete: (key: string) => {
      deleted.resolve()
      return values.delete(key)
    },
  })
  const open = async () => store as unknown as Map<string, unknown>
  const instances = [1, 2].map(() => createKeyvTier({ ...mapOptions, clock, open, binary: true }))
  await Promise.all(instances.map((one) => one.probe?.()))
})
