import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { createCidSet } from '../../src/ipld/cid-set.ts'
import { addBlock, text } from '../support/fixtures.ts'
import { calmestWorkMs } from '../support/work.ts'

const cidOf = (digest: Uint8Array): CID => CID.createV1(0x55, create(0x12, digest))
const made = (from: number, to: number): CID[] =>
  Array.from({ length: to - from }, (_, index) => addBlock(new Map(), 0x55, text(`${from + index}`)))

test('set → has exactly the added CIDs', () => {
  const [some, others] = [made(0, 3000), made(3000, 6000)]
  const set = createCidSet()
  for (const cid of [...some, ...some]) set.add(cid)
  assert.equal(set.size, some.length)
  assert.ok(some.every((cid) => set.has(cid)))
  assert.ok(!others.some((cid) => set.has(cid)))
  assert.ok(set.has(CID.createV1(0x70, (some[0] as CID).multihash)), 'whatever it is read as')
})

test('all-zero and short digests → distinct', () => {
  const set = createCidSet()
  const odd = [new Uint8Array(32), Uint8Array.of(7), new Uint8Array()].map(cidOf)
  assert.ok(!odd.some((cid) => set.has(cid)))
  for (const cid of odd) set.add(cid)
  assert.ok(odd.every((cid) => set.has(cid)))
})

test('digests chosen to collide → no slower', () => {
  for (const [byte, step] of [
    [24, 2 ** 5],
    [28, 2 ** 8],
    [28, 2 ** 16],
  ] as const) {
    const alike = Array.from({ length: 20_000 }, (_, index) => {
      const digest = new Uint8Array(32)
      new DataView(digest.buffer).setUint32(byte, index * step)
      return cidOf(digest)
    })
    const ms = calmestWorkMs(() => {
      const set = createCidSet()
      for (const cid of alike) set.add(cid)
      assert.equal(set.size, alike.length)
    })
    assert.ok(ms < 500, `${ms.toFixed(0)} ms`)
  }
})
