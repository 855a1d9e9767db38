// The same bytes, the same CID: what cidgate and Kubo make of files of every layout, Kubo by its own settings of the profile.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { profiles } from '../../backends/pinning/contract.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { type Kubo, startKubo } from './support/kubo.ts'
import { sendFile } from './support/sending.ts'

const mebibyte = 1024 * 1024
const sizes: readonly [what: string, bytes: number][] = [
  ['one byte', 1],
  ['a chunk less a byte', mebibyte - 1],
  ['a chunk', mebibyte],
  ['a chunk and a byte', mebibyte + 1],
  ['more links than v0 has in a node', 175 * mebibyte],
  ['a stream of 2 GiB', 2048 * mebibyte],
]

for (const profile of profiles) {
  describe(profile, () => {
    let node: Kubo
    let at: TestGateway
    before(async () => {
      node = await startKubo({ profile })
      at = await startGateway({
        config: {
          upload: { profile, maxBytes: '4GiB', maxPendingBytes: '4GiB' },
          pinning: { providers: [{ name: 'local', use: 'embedded' }] },
        },
      })
    })
    after(async () => {
      await at?.close()
      await node?.stop()
    })

    for (const [what, bytes] of sizes) {
      test(what, async () => {
        const there = await sendFile(`${node.rpc}/api/v0/add?only-hash=true&progress=false`, bytes)
        assert.equal(there.status, 200, there.text)
        const here = await sendFile(`${at.url}/add`, bytes)
        assert.equal(here.status, 200, here.text)
        const { Hash } = JSON.parse(there.text) as { Hash: string }
        assert.deepEqual(JSON.parse(here.text), { cids: [`/ipfs/${Hash}`] })
      })
    }
  })
}
