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
import { RequestRecord } from '../../src/observe/request-record.ts'
import type { Store } from '../../src/store/store.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { tempFolder } from '../support/gateway.ts'
import { createKey } from '../support/ipns.ts'
import { createShiftedClock } from '../support/shifted-clock.ts'
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

  test('wrong key, changed, truncated → false; expired → not-found', async () => {
    const good = await key.record('/ipfs/bafkqaaa')
    const proved = (bytes: Uint8Array, now = Date.now()) => kindOf(provedRecord(key.cid, bytes, now))
    assert.equal(await proved(await createKey().record('/ipfs/bafkqaaa')), 'hash-mismatch')
    for (let at = 0; at < good.byteLength; at += 3) {
      const changed = Uint8Array.from(good)
      changed[at] = (changed[at] as number) ^ 1
      // The signature of the first version is nobody's business: the second one covers all that is read.
      const kind = await proved(changed)
      if (kind !== 'ok') assert.equal(kind, 'hash-mismatch', `byte ${at}`)
      else assert.equal((await provedRecord(key.cid, changed, Date.now())).value, '/ipfs/bafkqaaa')
    }
    assert.equal(await proved(good.subarray(0, 40)), 'hash-mismatch')
    assert.equal(await proved(new Uint8Array()), 'hash-mismatch')
    assert.equal(await proved(new Uint8Array(10 * 1024 + 1)), 'hash-mismatch')
    assert.equal(await proved(good, Date.now() + 86_400_000), 'not-found')
    assert.equal(await proved(await key.record('/ipfs/bafkqaaa', { lifetimeMs: -1000 })), 'not-found')
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

  test('last write of a key → readable at once, after restarts', async () => {
    const [one, other] = [createKey().cid, createKey().cid]
    const store = open()
    assert.equal(await store.read(one), undefined)
    store.write(one, Uint8Array.of(1))
    store.write(one, Uint8Array.of(2))
    store.write(other, Uint8Array.of(3))
    assert.deepEqual([...((await store.read(one)) ?? [])], [2])
    await store.close()
    const later = open()
    assert.deepEqual([...((await later.read(one)) ?? [])], [2])
    later.remove(one)
    assert.equal(await later.read(one), undefined)
    await later.close()
    const last = open()
    assert.equal(await last.read(one), undefined)
    assert.deepEqual([...((await last.read(other)) ?? [])], [3])
  })

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

  test('several records → newest', async () => {
    const key = createKey()
    const [old, young] = [
      await key.record('/ipfs/bafkqaaa/old', { sequence: 1 }),
      await key.record('/ipfs/bafkqaaa/young', { sequence: 2 }),
    ]
    const { resolve, store } = make([sends('a', old), sends('b', young), fails('c', 'not-found')])
    const { value, via } = await resolve(key.cid)
    assert.deepEqual([value.value, via], ['/ipfs/bafkqaaa/young', 'b'])
    assert.deepEqual(store.written, [young])
  })

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

  test('older record never replaces a known one', async () => {
    const key = createKey()
    const store = emptyStore()
    store.bytes = await key.record('/ipfs/bafkqaaa/young', { sequence: 5 })
    const { resolve } = make([sends('a', await key.record('/ipfs/bafkqaaa/old', { sequence: 4 }))], store)
    const requestRecord = new RequestRecord()
    assert.equal((await resolve(key.cid, requestRecord)).value.value, '/ipfs/bafkqaaa/young')
    assert.deepEqual(store.written, [])
    assert.equal(requestRecord.attempts[0]?.outcome, 'older')
  })

  test('stored records → verified when read, expired ones kept', async () => {
    const key = createKey()
    for (const [bytes, removed] of [
      [await createKey().record('/ipfs/bafkqaaa'), 1],
      [await key.record('/ipfs/bafkqaaa', { lifetimeMs: -1 }), 0],
      [Uint8Array.of(1, 2, 3), 1],
    ] as const) {
      const store = emptyStore()
      store.bytes = bytes
      assert.equal(await kindOf(make([fails('a', 'upstream-error')], store).resolve(key.cid)), 'unavailable')
      assert.equal(store.removed, removed)
    }
  })

  test('expired record still blocks older ones, memory and store', async () => {
    const key = createKey()
    const [old, ended, again, next] = [
      await key.record('/ipfs/bafkqaaa/old', { sequence: 3 }),
      await key.record('/ipfs/bafkqaaa/ended', { sequence: 5, lifetimeMs: 3_000 }),
      await key.record('/ipfs/bafkqaaa/ended', { sequence: 5 }),
      await key.record('/ipfs/bafkqaaa/next', { sequence: 6 }),
    ]
    const clock = createShiftedClock()
    let sent = ended
    const serve = source('a', async () => sent)
    const running = make([serve], emptyStore(), { clock })
    assert.equal((await running.resolve(key.cid)).value.value, '/ipfs/bafkqaaa/ended')
    clock.shift(3_000)
    sent = old
    const requestRecord = new RequestRecord()
    const refused = await running.resolve(key.cid, requestRecord).catch((error: unknown) => error)
    assert.ok(isFailure(refused, 'not-found'))
    assert.match(refused.message, /older than one seen before/)
    assert.equal(requestRecord.attempts[0]?.outcome, 'older')

    const store = emptyStore()
    store.bytes = ended
    const later = make([serve, fails('b', 'upstream-error')], store, { clock })
    assert.equal(await kindOf(later.resolve(key.cid)), 'not-found')
    store.bytes = old
    assert.equal(await kindOf(later.resolve(key.cid)), 'not-found', 'the folder fell behind')
    for (const newer of [again, next]) {
      sent = newer
      clock.shift(60_000)
      assert.deepEqual((await later.resolve(key.cid)).value.bytes, newer)
    }
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

  test('every upstream sends wrong records → hash-mismatch', async () => {
    assert.equal(await kindOf(make([sends('liar', Uint8Array.of(1))]).resolve(createKey().cid)), 'hash-mismatch')
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
