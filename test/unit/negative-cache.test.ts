import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import type { MultihashDigest } from 'multiformats/hashes/interface'
import { Failure } from '../../src/core/failure.ts'
import { createNegativeCache } from '../../src/retrieval/negative-cache.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const cid = CID.parse('bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e')
const failure = (sure: boolean) => new Failure('not-found', 'nobody has it', { source: 'upstream', facts: { sure } })

function make() {
  const clock = createFakeClock()
  const memory = createNegativeCache({ initialTtlMs: 5000, maxTtlMs: 60_000, clock })
  return { clock, memory }
}

test('certain absence → initial TTL, doubling to the maximum', async () => {
  const { clock, memory } = make()
  const lengths: number[] = []
  for (let round = 0; round < 6; round++) {
    lengths.push(memory.remember(cid, '', failure(true), []).forMs)
    await clock.advance((lengths.at(-1) ?? 0) + 1)
    assert.equal(memory.find(cid, ''), undefined)
  }
  assert.deepEqual(lengths, [5000, 10_000, 20_000, 40_000, 60_000, 60_000])
})

test('uncertain absence → never beyond the initial TTL', async () => {
  const { clock, memory } = make()
  memory.remember(cid, '', failure(true), [])
  await clock.advance(5001)
  memory.remember(cid, '', failure(true), [])
  await clock.advance(10_001)
  assert.equal(memory.remember(cid, '', failure(false), []).forMs, 5000)
})

test('paths below a root are separate; root clears all', () => {
  const { memory } = make()
  memory.remember(cid, 'a', failure(true), [])
  assert.equal(memory.find(cid, 'b'), undefined)
  assert.ok(memory.find(cid, 'a'))
  memory.forget(cid)
  assert.equal(memory.find(cid, 'a'), undefined)
})

test('v0, v1, raw, dag-pb of same bytes → one entry', () => {
  const { memory } = make()
  memory.remember(CID.createV1(0x70, cid.multihash), '', failure(true), [])
  assert.ok(memory.find(CID.createV0(cid.multihash as MultihashDigest<0x12>), ''))
})

test('during a search → does not expire', async () => {
  const { clock, memory } = make()
  memory.remember(cid, '', failure(true), [])
  memory.hold(cid, '', true)
  await clock.advance(50_000)
  assert.ok(memory.find(cid, ''))
  memory.hold(cid, '', false)
  assert.equal(memory.find(cid, ''), undefined)
})

const numbered = (count: number): CID => {
  const digest = new Uint8Array(34).fill(0)
  digest.set([0x12, 32])
  new DataView(digest.buffer).setUint32(2, count)
  return CID.decode(digest)
}

test('many roots → bounded', () => {
  const { memory } = make()
  for (let count = 0; count < 10_050; count++) memory.remember(numbered(count), '', failure(true), [])
  assert.equal(memory.size, 10_000)
})

test('absent again soon → twice as long; later → as first', async () => {
  const { clock, memory } = make()
  memory.remember(numbered(0), '', failure(true), [])
  await clock.advance(5000 + 59_999)
  assert.equal(memory.remember(numbered(0), '', failure(true), []).forMs, 10_000)
  await clock.advance(10_000 + 60_000)
  assert.equal(memory.remember(numbered(0), '', failure(true), []).forMs, 5000)
})

test('entry memory is small: no causes or string slices', () => {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const { memory } = make()
  const most = 4000
  const miss = (count: number) => {
    const one = CID.createV1(0x55, createDigest(0x12, createHash('sha256').update(String(count)).digest()))
    const cause = new Failure('not-found', `upstream ${one} has nothing`, { source: 'upstream' })
    const failure = new Failure('not-found', `no upstream has ${one}`, { source: 'upstream', cause })
    const attempts = ['a', 'b', 'c'].map((upstream) => ({ upstream, outcome: 'not-found', ms: 1 }))
    memory.remember(one, '', failure, attempts)
  }
  for (let count = 0; count < 100; count++) miss(count)
  collect()
  const before = process.memoryUsage().heapUsed
  for (let count = 100; count < most + 100; count++) miss(count)
  collect()
  const each = (process.memoryUsage().heapUsed - before) / most
  assert.equal(memory.size, most + 100)
  assert.ok(each < 1000, `${Math.round(each)} bytes each`)
})
