// The store of a random history, which outlives every gateway: one in the hand of the test, of this gateway alone or shared, or a
// stand-in of S3 or Redis that a gateway reaches over its own connection, and that refuses, fails, falls silent and comes back.
import type { Tier } from '../../../backends/tiers/contract.ts'
import { startRedisServer } from '../../support/redis-server.ts'
import { startS3Server } from '../../support/s3-server.ts'
import { scriptedTier } from '../../support/scripted-tier.ts'
import { port } from '../matrix/doors.ts'
import type { Held } from './content.ts'

export type StoreKind = 'own' | 'shared' | 's3' | 'redis'
export type StoreState = 'well' | 'refuses' | 'fails' | 'is silent'

/** What a gateway reaches the store by; `cut` ends that at once, as the end of its process does. */
export type Way = {
  readonly tiers: readonly Tier[]
  readonly entries: readonly Record<string, unknown>[]
  cut(): Promise<void>
}

export type ModelStore = {
  /** Over connections, which a gateway that cannot reach it makes anew in its own time. */
  readonly isRemote: boolean
  readonly held: Held
  become(state: StoreState): Promise<void>
  /** Each block has other bytes; once more changes nothing. */
  rot(): void
  /** `isDirect`: for a process, whose end cuts its connections. */
  way(isDirect?: boolean): Promise<Way>
  close(): Promise<void>
}

/** What a gateway writes to see whether the store is well is no block: spoilt, the store would be out for a while. */
const isOfProbe = (key: string): boolean => key.startsWith(`${prefix}probe-`)

// The same each time: rotten twice is not well again.
const rotten = (bytes: Uint8Array): Buffer => Buffer.from(bytes).fill(0, bytes.byteLength >> 1)

/** Longer than any turn of a machine that is busy: a store that is well is never late. */
const timeout = '10s'
const prefix = 'b/'

export const startStore = (kind: StoreKind): Promise<ModelStore> => {
  if (kind === 's3') return s3Store()
  if (kind === 'redis') return redisStore()
  return scriptedStore(kind === 'shared')
}

async function scriptedStore(shared: boolean): Promise<ModelStore> {
  const store = scriptedTier('store', { shared })
  return {
    isRemote: false,
    held: (key) => store.held.get(key),
    async become(state) {
      store.isDown = state !== 'well'
    },
    rot() {
      for (const [key, bytes] of store.held) store.held.set(key, rotten(bytes))
    },
    async way() {
      let isDead = false
      return {
        tiers: [whileAlive(store, () => isDead)],
        entries: [],
        async cut() {
          isDead = true
        },
      }
    },
    async close() {},
  }
}

async function s3Store(): Promise<ModelStore> {
  const server = await startS3Server()
  const { bucket, accessKeyId, secretAccessKey, objects } = server
  const tier = { use: 's3', bucket, accessKeyId, secretAccessKey, forcePathStyle: true, prefix, timeout }
  return {
    isRemote: true,
    held: (key) => objects.get(prefix + key),
    async become(state) {
      server.faults = state === 'fails' ? { slowDown: true } : {}
      await breakServer(server, state)
    },
    rot() {
      for (const [key, bytes] of objects) if (!isOfProbe(key)) objects.set(key, rotten(bytes))
    },
    way: (isDirect) => wayTo(server.endpoint, (endpoint) => ({ ...tier, endpoint }), isDirect),
    close: () => server.stop(),
  }
}

async function redisStore(): Promise<ModelStore> {
  const server = await startRedisServer()
  const { values } = server
  return {
    isRemote: true,
    held: (key) => values.get(prefix + key)?.value,
    async become(state) {
      server.faults = state === 'fails' ? { error: 'LOADING Redis is loading the dataset in memory' } : {}
      await breakServer(server, state)
    },
    rot() {
      for (const [key, held] of values) if (!isOfProbe(key)) values.set(key, { ...held, value: rotten(held.value) })
    },
    way: (isDirect) =>
      wayTo(server.url, (url) => ({ use: 'redis', url: url.replace(/^http/, 'redis'), prefix, timeout }), isDirect),
    close: () => server.stop(),
  }
}

async function breakServer(
  server: Awaited<ReturnType<typeof startS3Server>> | Awaited<ReturnType<typeof startRedisServer>>,
  state: StoreState,
): Promise<void> {
  if (state === 'refuses') await server.refuse()
  else await server.heal()
  if (state === 'is silent') server.silence()
}

async function wayTo(url: string, entryAt: (url: string) => Record<string, unknown>, isDirect = false): Promise<Way> {
  if (isDirect) return { tiers: [], entries: [entryAt(url)], cut: async () => {} }
  const door = await port(url)
  return { tiers: [], entries: [entryAt(door.url)], cut: () => door.close() }
}

/** The same, until the gateway that uses it is dead: then each call fails, and nothing is changed. */
export function whileAlive<Part extends object>(part: Part, isDead: () => boolean): Part {
  return new Proxy(part, {
    get(target, key) {
      const value: unknown = Reflect.get(target, key)
      if (typeof value !== 'function') return value
      return (...given: unknown[]) => {
        if (isDead()) throw new Error('this gateway was killed')
        return Reflect.apply(value, target, given)
      }
    },
  })
}
