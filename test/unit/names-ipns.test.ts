// Records of keys: which are believed, which of several is the newest, and what is left of them on disk.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { CID } from 'multiformats/cid'
import { systemClock } from '../../src/core/clock.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createIpnsNames, type RecordSource } from '../../src/names/ipns.ts'
import {
  canonicalKey,
  createRecordStore,
  newest,
  provedRecord,
  type RecordStore,
  writeRecords,
} from '../../src/names/ipns-record.ts'
import { createSharedRecords } from '../../src/names/shared-records.ts'
import { RequestRecord } from '../../src/observe/requests.ts'
import type { Store } from '../../src/store/store.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { tempFolder } from '../support/gateway.ts'
import { createKey } from '../support/ipns.ts'
import { openStore } from '../support/stores.ts'

const signal = () => new AbortController().signal
const kindOf = (work: Promise<unknown>) =>
  work.then(
    () => 'ok',
    (error) => (isFailure(error) ? error.kind : String(error)),
  )

describe('IPNS record', () => {
  const key = createKey()

  test('signed by its key → accepted with its fields', async () => {
    const record = await provedRecord(key.cid, await key.record('/ipfs/bafkqaaa/a', { sequence: 7 }), Date.now())
    assert.deepEqual([record.value, record.sequence, record.ttlMs], ['/ipfs/bafkqaaa/a', 7n, 60_000])
  })

  test('order: higher sequence, then later end', async () => {
    const make = async (sequence: number, lifetimeMs: number) =>
      provedRecord(key.cid, await key.record('/ipfs/bafkqaaa', { sequence, lifetimeMs }), Date.now())
    const [one, two, longer] = [await make(1, 90_000), await make(2, 50_000), await make(2, 60_000)]
    assert.equal(newest([one, two]), two)
    assert.equal(newest([longer, two, one]), longer)
    assert.equal(newest([]), undefined)
  })

  test('one key in any spelling; content CIDs refused', () => {
    const rsa = CID.parse('QmcJM7PRfkSbcM5cf1QugM5R37TLRKyJGgBEhXjLTB8uA2')
    assert.equal(canonicalKey(rsa).code, 0x72)
    const blake = CID.parse('bafykbzacecbswktivsnhfqpknxaor4zkbynuvsgqx7yk5zqhbqgzqmwnbnqku')
    assert.throws(() => canonicalKey(blake), /is not an IPNS key/)
  })
})

describe('kept IPNS records', () => {
  let folder = ''
  let stores: Store[] = []
  beforeEach(async () => {
    folder = await tempFolder()
  })
  afterEach(async () => {
    for (const store of stores) await store.close()
    stores = []
    await rm(folder, { recursive: true, force: true })
  })
  function open(max = 10) {
    const store = openStore(folder)
    stores.push(store)
    const records = createRecordStore({ store, write: (some) => writeRecords(store, max, some), log: silentLog })
    return {
      ...records,
      async close() {
        await records.close()
        await store.close()
      },
    }
  }

  test('too many keys → oldest write dropped', async () => {
    const keys = Array.from({ length: 5 }, () => createKey().cid)
    const store = open(3)
    for (const key of keys.slice(0, 3)) store.write(key, Uint8Array.of(1))
    await store.close()
    const later = open(3)
    later.write(keys[0] as CID, Uint8Array.of(9))
    for (const key of keys.slice(3)) later.write(key, Uint8Array.of(2))
    await later.close()
    const last = open(3)
    const found = await Promise.all(keys.map((key) => last.read(key)))
    assert.deepEqual(
      found.map((bytes) => bytes?.[0]),
      [9, undefined, undefined, 2, 2],
    )
  })

  test('store fails → unknown, logged once, retried', async () => {
    const lines: string[] = []
    let isBroken = true
    const broken = async () => {
      if (isBroken) throw new Error('a bad disk')
      return []
    }
    const write = async () => void (await broken())
    const store = createRecordStore({ store: { read: broken }, write, log: (_level, event) => lines.push(event) })
    const key = createKey().cid
    await assert.rejects(store.read(key), /a bad disk/)
    store.write(key, Uint8Array.of(1))
    await store.close()
    assert.deepEqual(lines, ['names.store-failed'])
    isBroken = false
    assert.equal(await store.read(key), undefined)
  })
})

describe('resolving keys', () => {
  const emptyStore = (): RecordStore & { readonly written: Uint8Array[]; removed: number; bytes?: Uint8Array } => {
    const written: Uint8Array[] = []
    return {
      written,
      removed: 0,
      async read() {
        return this.bytes
      },
      write: (_key, bytes) => written.push(bytes),
      remove() {
        this.removed++
      },
      close: async () => {},
    }
  }
  const source = (name: string, record: RecordSource['record']): RecordSource & { lies: number } => ({
    name,
    record,
    lies: 0,
    invalid() {
      this.lies++
    },
  })
  const sends = (name: string, bytes: Uint8Array) => source(name, async () => bytes)
  const fails = (name: string, kind: Failure['kind']) =>
    source(name, async () => {
      throw new Failure(kind, 'no', { source: 'upstream' })
    })
  const hangs = (name: string) =>
    source(
      name,
      (_key, own) => new Promise((_resolve, reject) => own.addEventListener('abort', () => reject(own.reason))),
    )
  const make = (ready: readonly RecordSource[], store = emptyStore(), bounds = {}) => {
    const names = createIpnsNames({
      sources: () => ({ ready, skipped: [] }),
      store,
      shared: createSharedRecords({ shelves: [], clock: systemClock, log: silentLog }),
      deadlineMs: 5_000,
      ttl: { minMs: 5_000, maxMs: 3_600_000 },
      notFoundMs: 0,
      maxEntries: 10,
      clock: systemClock,
      ...bounds,
    })
    return {
      store,
      names,
      resolve: (key: CID, requestRecord = new RequestRecord()) =>
        names.resolve(key, { signal: signal(), requestRecord }),
    }
  }

  test('wrong bytes → reported; silent upstream → short grace period', async () => {
    const key = createKey()
    const good = await key.record('/ipfs/bafkqaaa')
    const liar = sends('liar', await createKey().record('/ipfs/bafkqaaa', { sequence: 99 }))
    const { resolve } = make([liar, hangs('silent'), sends('honest', good)])
    const requestRecord = new RequestRecord()
    const began = performance.now()
    assert.equal((await resolve(key.cid, requestRecord)).via, 'honest')
    assert.ok(performance.now() - began < 2_000)
    assert.equal(liar.lies, 1)
    const outcomes = Object.fromEntries(requestRecord.attempts.map(({ upstream, outcome }) => [upstream, outcome]))
    assert.deepEqual(outcomes, { liar: 'hash-mismatch', honest: 'record' })
  })

  const verdicts: [expected: Failure['kind'], ...kinds: Failure['kind'][]][] = [
    ['not-found', 'not-found', 'not-found'],
    ['not-found', 'upstream-error', 'not-found', 'timeout'],
    ['timeout', 'upstream-error', 'timeout'],
    ['unavailable', 'upstream-error', 'throttled'],
    ['not-found'],
  ]
  for (const [expected, ...kinds] of verdicts) {
    test(`all fail (${kinds.join(', ') || 'no upstream'}) → ${expected}`, async () => {
      const { resolve } = make(kinds.map((kind, index) => fails(String(index), kind)))
      assert.equal(await kindOf(resolve(createKey().cid)), expected)
    })
  }

  test('archive, store failed or hanging → absence unknown', async () => {
    const broken = { ...emptyStore(), read: () => Promise.reject(new Error('EIO')) }
    assert.equal(await kindOf(make([], broken).resolve(createKey().cid)), 'unavailable')

    const clock = createFakeClock()
    const shared = (read: () => Promise<undefined>) => {
      const records = { read, replace: async () => true }
      return createSharedRecords({ shelves: [{ name: 's3', records }], clock, log: silentLog })
    }
    const withTier = (read: () => Promise<undefined>) =>
      kindOf(make([], emptyStore(), { shared: shared(read), clock }).resolve(createKey().cid))
    assert.equal(await withTier(() => Promise.reject(new Error('503 SlowDown'))), 'unavailable')
    assert.equal(await withTier(async () => undefined), 'not-found')
    const hanging = withTier(() => new Promise(() => {}))
    await clock.advance(5_000)
    assert.equal(await hanging, 'unavailable')
  })

  test('TTL is clamped, never past the end', async () => {
    const key = createKey()
    for (const [ttlMs, lifetimeMs, expected] of [
      [0, 86_400_000, 5_000],
      [60_000, 86_400_000, 60_000],
      [86_400_000 * 365, 86_400_000, 3_600_000],
      [60_000, 20_000, 20_000],
    ] as const) {
      const { resolve } = make([sends('a', await key.record('/ipfs/bafkqaaa', { ttlMs, lifetimeMs }))])
      const { freshMs } = await resolve(key.cid)
      assert.ok(freshMs <= expected && freshMs > expected - 1_500, `${freshMs} of ${expected}`)
    }
  })
})
