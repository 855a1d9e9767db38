// The contract suite of tiers, for node:test and as single cases: the suite itself is tested on
// tiers that each break one promise. A case that needs a failing store runs if the harness can make
// it fail.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { describe, it } from 'node:test'
import { CID } from 'multiformats/cid'
import * as Digest from 'multiformats/hashes/digest'
import type { Records, Tier } from '../../backends/tiers/contract.ts'
import { blockKey } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'

/** A tier under test, and the test's control of its store. */
export type TierUnderTest = {
  readonly tier: Tier
  stop(): Promise<void>
  /** Opens another tier on the same store, as after a restart. */
  readonly reopen?: () => Promise<Tier>
  /** Takes the store down and brings it back. */
  readonly outage?: { begin(): Promise<void>; end(): Promise<void> }
  /** Makes the store accept calls without responding. */
  readonly silence?: () => void
  /** True if the store compares and writes a record atomically. */
  readonly compares?: boolean
  /** True if the store itself deletes expired records. */
  readonly forgets?: boolean
}

export type TierCase = {
  readonly name: string
  readonly needs?: 'reopen' | 'outage' | 'silence' | 'compares' | 'forgets'
  /** Runs only for tiers that keep records. */
  readonly isOfRecords?: boolean
  run(store: TierUnderTest): Promise<void>
}

const sha256 = 0x12
const hour = 3_600_000
export const cidOf = (bytes: Uint8Array, codec = 0x55): CID =>
  CID.createV1(codec, Digest.create(sha256, createHash('sha256').update(bytes).digest()))

/** Distinct, reproducible bytes with every value in them, mostly invalid UTF-8. */
export function bytesOf(length: number, seed = 0): Uint8Array {
  const bytes = new Uint8Array(length)
  for (let index = 0; index < length; index++) bytes[index] = index * 167 + (index >> 8) * 59 + seed * 101 + 13
  return bytes
}

const same = (one: Uint8Array | undefined, other: Uint8Array): boolean =>
  one !== undefined && Buffer.compare(one, other) === 0
const calls = (tier: Tier, cid: CID, bytes: Uint8Array) => [
  { name: 'get', call: (signal?: AbortSignal) => tier.get(cid, signal) },
  { name: 'has', call: (signal?: AbortSignal) => tier.has(cid, signal) },
  { name: 'put', call: (signal?: AbortSignal) => tier.put(cid, bytes, signal) },
  { name: 'delete', call: (signal?: AbortSignal) => tier.delete(cid, signal) },
]

/** Waits for the condition, at most three seconds. */
export async function eventually(
  what: string,
  check: () => Promise<boolean> | boolean,
  withinMs = 3000,
): Promise<void> {
  const until = performance.now() + withinMs
  while (!(await check())) {
    assert.ok(performance.now() < until, `never: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

export const tierCases: readonly TierCase[] = [
  {
    name: 'absent block → undefined; deleting it succeeds',
    async run({ tier }) {
      const cid = cidOf(bytesOf(40, 1))
      assert.equal(await tier.get(cid), undefined)
      assert.equal(await tier.has(cid), false)
      await tier.delete(cid)
    },
  },
  ...[0, 1, 1024, 2 * 1024 * 1024].map((length) => ({
    name: `${length} bytes come back as they were`,
    async run({ tier }: TierUnderTest) {
      const bytes = bytesOf(length, 2)
      const cid = cidOf(bytes)
      await tier.put(cid, bytes)
      assert.ok(same(await tier.get(cid), bytes))
      assert.equal(await tier.has(cid), true)
    },
  })),
  {
    name: 'put again → unchanged',
    async run({ tier }) {
      const bytes = bytesOf(100, 3)
      for (let turn = 0; turn < 3; turn++) await tier.put(cidOf(bytes), bytes)
      assert.ok(same(await tier.get(cidOf(bytes)), bytes))
    },
  },
  {
    name: 'caller reuses its buffer → block intact',
    async run({ tier }) {
      const bytes = bytesOf(5000, 4)
      const buffer = new Uint8Array(20_000)
      buffer.set(bytes, 7000)
      await tier.put(cidOf(bytes), buffer.subarray(7000, 12_000))
      buffer.fill(255)
      assert.ok(same(await tier.get(cidOf(bytes)), bytes))
    },
  },
  {
    name: 'another CID of the same bytes → found',
    async run({ tier }) {
      const bytes = bytesOf(64, 5)
      await tier.put(cidOf(bytes), bytes)
      const pb = cidOf(bytes, 0x70)
      assert.ok(same(await tier.get(pb), bytes))
      assert.ok(same(await tier.get(pb.toV0()), bytes))
    },
  },
  {
    name: 'deleted block → gone; put again → back',
    async run({ tier }) {
      const bytes = bytesOf(64, 6)
      const cid = cidOf(bytes)
      await tier.put(cid, bytes)
      await tier.delete(cid)
      assert.equal(await tier.get(cid), undefined)
      assert.equal(await tier.has(cid), false)
      await tier.put(cid, bytes)
      assert.ok(same(await tier.get(cid), bytes))
    },
  },
  {
    name: 'concurrent writers → complete blocks',
    async run({ tier }) {
      const one = bytesOf(300_000, 7)
      const many = Array.from({ length: 40 }, (_, index) => bytesOf(3000, 100 + index))
      await Promise.all([
        ...Array.from({ length: 8 }, () => tier.put(cidOf(one), one)),
        ...many.map((bytes) => tier.put(cidOf(bytes), bytes)),
      ])
      assert.ok(same(await tier.get(cidOf(one)), one))
      for (const bytes of many) assert.ok(same(await tier.get(cidOf(bytes)), bytes))
    },
  },
  {
    name: 'aborted signal → rejects with its reason',
    async run({ tier }) {
      const bytes = bytesOf(10, 8)
      const reason = new Error('gone')
      for (const { name, call } of calls(tier, cidOf(bytes), bytes)) {
        await assert.rejects(call(AbortSignal.abort(reason)), (error) => error === reason, name)
      }
      assert.equal(await tier.get(cidOf(bytes)), undefined)
    },
  },
  {
    name: 'abort during a call → rejects with its reason',
    needs: 'silence',
    async run({ tier, silence }) {
      const bytes = bytesOf(10, 9)
      await tier.get(cidOf(bytes)) // connected
      silence?.()
      for (const { name, call } of calls(tier, cidOf(bytes), bytes)) {
        const reason = new Error('left')
        const controller = new AbortController()
        setTimeout(() => controller.abort(reason), 20)
        const began = performance.now()
        await assert.rejects(call(controller.signal), (error) => error === reason, name)
        assert.ok(performance.now() - began < soonMs, `${name} took ${performance.now() - began} ms to stop`)
      }
    },
  },
  {
    name: 'outage → Failure of the tier, never a miss',
    needs: 'outage',
    async run({ tier, outage }) {
      const bytes = bytesOf(10, 10)
      await tier.put(cidOf(bytes), bytes)
      await outage?.begin()
      for (const { name, call } of calls(tier, cidOf(bytes), bytes)) {
        const isOurs = (error: unknown) =>
          error instanceof Failure && error.source === 'tier' && error.message.length > 20
        await assert.rejects(call(), isOurs, `${name} did not say that it could not`)
      }
      await outage?.end()
      const isBack = async () => same(await tier.get(cidOf(bytes)).catch(() => undefined), bytes)
      await eventually('it works again by itself', async () => {
        await tier.put(cidOf(bytes), bytes).catch(() => {})
        return isBack()
      })
    },
  },
  {
    name: 'silence → outage within its timeout',
    needs: 'silence',
    async run({ tier, silence }) {
      const cid = cidOf(bytesOf(10, 11))
      await tier.get(cid)
      silence?.()
      const began = performance.now()
      await assert.rejects(tier.get(cid), (error) => error instanceof Failure && error.kind === 'timeout')
      assert.ok(performance.now() - began < soonMs)
    },
  },
  {
    name: 'restart → blocks still there',
    needs: 'reopen',
    async run({ tier, reopen }) {
      const bytes = bytesOf(5000, 12)
      await tier.put(cidOf(bytes), bytes)
      await tier.close()
      const again = await reopen?.()
      assert.ok(again && same(await again.get(cidOf(bytes)), bytes))
      await again.close()
    },
  },
  {
    name: 'record → read back, replaced, apart from blocks',
    isOfRecords: true,
    async run({ tier }) {
      const records = recordsOf(tier)
      const [one, other] = [bytesOf(300, 20), bytesOf(10 * 1024, 21)]
      const key = blockKey(cidOf(one))
      assert.equal(await records.read(key), undefined)
      assert.equal(await records.replace(key, one, { expected: undefined, keepMs: hour }), true)
      const held = await records.read(key)
      assert.ok(same(held?.bytes, one))
      assert.equal(await records.replace(key, other, { expected: held, keepMs: hour }), true)
      assert.ok(same((await records.read(key))?.bytes, other))
      assert.equal(await records.read('other'), undefined)
      assert.equal(await tier.get(cidOf(one)), undefined)
      assert.equal(await tier.has(cidOf(one)), false)
    },
  },
  {
    name: 'record changed by another writer → not overwritten',
    isOfRecords: true,
    async run({ tier }) {
      const records = recordsOf(tier)
      const [one, two, three] = [bytesOf(300, 22), bytesOf(300, 23), bytesOf(300, 24)]
      await records.replace('key', one, { expected: undefined, keepMs: hour })
      const held = await records.read('key')
      assert.equal(await records.replace('key', two, { expected: undefined, keepMs: hour }), false)
      assert.equal(await records.replace('key', two, { expected: held, keepMs: hour }), true)
      assert.equal(await records.replace('key', three, { expected: held, keepMs: hour }), false)
      assert.ok(same((await records.read('key'))?.bytes, two))
    },
  },
  {
    name: 'concurrent writers of a record → one succeeds',
    isOfRecords: true,
    needs: 'compares',
    async run({ tier }) {
      const records = recordsOf(tier)
      for (const over of [false, true]) {
        const held = over ? await records.read('key') : undefined
        const all = Array.from({ length: 12 }, (_, index) => bytesOf(200, index + (over ? 40 : 60)))
        const written = await Promise.all(
          all.map((bytes) => records.replace('key', bytes, { expected: held, keepMs: hour })),
        )
        assert.equal(written.filter(Boolean).length, 1)
        assert.ok(same((await records.read('key'))?.bytes, all[written.indexOf(true)] as Uint8Array))
      }
    },
  },
  {
    name: 'expired record → gone',
    isOfRecords: true,
    needs: 'forgets',
    async run({ tier }) {
      const records = recordsOf(tier)
      await records.replace('key', bytesOf(300, 25), { expected: undefined, keepMs: 50 })
      await eventually('the record is gone', async () => (await records.read('key')) === undefined)
    },
  },
  {
    name: 'restart → record still there',
    isOfRecords: true,
    needs: 'reopen',
    async run({ tier, reopen }) {
      await recordsOf(tier).replace('key', bytesOf(300, 26), { expected: undefined, keepMs: hour })
      await tier.close()
      const again = await reopen?.()
      assert.ok(again && same((await recordsOf(again).read('key'))?.bytes, bytesOf(300, 26)))
      await again.close()
    },
  },
  {
    name: 'outage or silence for records → Failure of the tier',
    isOfRecords: true,
    needs: 'outage',
    async run({ tier, outage, silence }) {
      const records = recordsOf(tier)
      await records.read('key')
      const isOurs = (error: unknown) => error instanceof Failure && error.source === 'tier'
      await outage?.begin()
      await assert.rejects(records.read('key'), isOurs)
      await assert.rejects(records.replace('key', bytesOf(9), { expected: undefined, keepMs: hour }), isOurs)
      await outage?.end()
      await eventually('it works again by itself', async () => {
        return records.read('key').then(
          () => true,
          () => false,
        )
      })
      const reason = new Error('gone')
      await assert.rejects(records.read('key', AbortSignal.abort(reason)), (error) => error === reason)
      silence?.()
      const began = performance.now()
      if (silence) await assert.rejects(records.read('key'), isOurs)
      assert.ok(performance.now() - began < soonMs)
    },
  },
  {
    name: 'closed twice → no error',
    async run({ tier }) {
      await tier.close()
      await tier.close()
    },
  },
]

export const isRunFor = ({ needs, isOfRecords }: TierCase, store: TierUnderTest): boolean =>
  (needs === undefined || store[needs] !== undefined) && (!isOfRecords || store.tier.records !== undefined)

function recordsOf({ records }: Tier): Records {
  assert.ok(records)
  return records
}

/** The limit for calls to a silent store, on a machine that is busy with other tests. */
const soonMs = 10_000

/** The name of a case that does not apply to a tier, with the reason. */
export type Exception = { readonly test: string; readonly reason: string }

/**
 * Declares the suite with node:test: `make` creates a store for each case. A case that the store
 * does not support (an outage, a restart, records) is skipped with a message.
 */
export function tierContract(
  name: string,
  make: (of: { readonly name: string }) => Promise<TierUnderTest>,
  { except = [] }: { readonly except?: readonly Exception[] } = {},
): void {
  const names = new Set(tierCases.map((one) => one.name))
  for (const { test } of except) assert.ok(names.has(test), `no such case: ${test}`)
  // Sequential, even if the suites of several tiers run in parallel, because some cases measure
  // time.
  describe(`tier: ${name}`, { concurrency: 1 }, () => {
    for (const one of tierCases)
      it(one.name, async (context) => {
        const reason = except.find(({ test }) => test === one.name)?.reason
        if (reason !== undefined) return context.skip(reason)
        const store = await make(one)
        try {
          if (isRunFor(one, store)) await one.run(store)
          else context.skip(one.isOfRecords ? 'it keeps no records, or not in this way' : `there is no ${one.needs}`)
        } finally {
          await store.tier.close()
          await store.stop()
        }
      })
  })
}
