// Nodes above the leaves whose sizes need more than 31 bits, against what Kubo makes of the same files.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import { decode } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { parentOf } from '../../src/upload/import.ts'

const gibibyte = 1024 ** 3
const cid = CID.parse('bafybeihavp4d7rhuxwqovr3ukauo3vwok5kmi76jwfv5csnz2nwsujmcra')

test("2 GiB file → Kubo's root CID", () => {
  const other = CID.parse('bafybeiajbaq3gpwreixqo5bzubnlieg5en67v23g2wdhz6yg2ajio4jaoe')
  const parts = [cid, other].map((one) => ({ cid: one, fileBytes: gibibyte, dagBytes: 1_073_793_035 }))
  const { block, fileBytes, dagBytes } = parentOf(parts)
  const digest = createDigest(0x12, createHash('sha256').update(block).digest())
  assert.equal(String(CID.createV1(0x70, digest)), 'bafybeia2ykn7u2pzytzw56wvnfi5cllsnw6kdnul45226jyaqkvsbzn7ke')
  assert.deepEqual({ fileBytes, dagBytes }, { fileBytes: 2 * gibibyte, dagBytes: 2_147_586_188 })
})

for (const fileBytes of [2 ** 31 - 1, 2 ** 31, 2 ** 31 + 1, 3 * gibibyte, 2 ** 32 - 1, 2 ** 32, 2 ** 40, 2 ** 50]) {
  test(`part of ${fileBytes} bytes → read back equal`, () => {
    const { block } = parentOf([
      { cid, fileBytes, dagBytes: fileBytes },
      { cid, fileBytes: 1, dagBytes: 1 },
    ])
    const { Data, Links } = decode(block)
    const { blockSizes, type } = UnixFS.unmarshal(Data ?? new Uint8Array())
    assert.deepEqual([type, blockSizes], ['file', [BigInt(fileBytes), 1n]])
    assert.equal(Links[0]?.Tsize, fileBytes)
  })
}
