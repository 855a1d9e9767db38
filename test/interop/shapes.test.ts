// Kubo's door against Kubo: every option that decides how a file becomes blocks, beside the others, at every size where the
// blocks change, gives the CID and the size that a Kubo without settings gives.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { profiles } from '../../backends/pinning/contract.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { kuboShapes } from '../support/kubo-shapes.ts'
import { type Kubo, startKubo } from './support/kubo.ts'
import { sendFile } from './support/sending.ts'

const versions = [
  '',
  'cid-version=0',
  'cid-version=1',
  'cid-version=1&raw-leaves=false',
  'raw-leaves=true',
  'raw-leaves',
]
const layouts = [
  '',
  'chunker=size-1048576',
  'chunker=size-16384',
  'chunker=size-2096896',
  'chunker=default',
  's=size-65536',
  'chunker=size-16384&max-file-links=2',
  'chunker=size-16384&max-file-links=3',
  'max-file-links=1024',
]
const edges = [0, 1, 16_384, 16_385, 49_153, 147_457, 262_144, 262_145, 1_048_577, 2_096_897, 174 * 16_384 + 1]
const table = versions
  .flatMap((version) => layouts.map((layout) => [version, layout].filter((part) => part !== '').join('&')))
  .filter((query) => query !== '')

/** More than one node of 174 links of the usual size has room for. */
const wide = 174 * 262_144 + 1

type Told = { readonly Hash: string; readonly Size: string }

describe("file added with options → Kubo's CID", () => {
  let node: Kubo
  let gateways: TestGateway[]
  before(async () => {
    node = await startKubo()
    const providers = [{ name: 'local', use: 'embedded' }]
    gateways = await Promise.all(
      profiles.map((profile) =>
        startGateway({ config: { upload: { kuboRpc: true, profile }, pinning: { providers } } }),
      ),
    )
  })
  after(async () => {
    for (const at of gateways ?? []) await at.close()
    await node?.stop()
  })

  async function told(rpc: string, query: string, bytes: number): Promise<[cid: string, size: number]> {
    const { status, text } = await sendFile(`${rpc}/api/v0/add?only-hash=true&progress=false&${query}`, bytes)
    assert.equal(status, 200, `${query}, ${bytes} bytes: ${text}`)
    const { Hash, Size } = JSON.parse(text) as Told
    return [Hash, Number(Size)]
  }

  async function isSame(query: string, bytes: number): Promise<void> {
    const there = await told(node.rpc, query, bytes)
    for (const at of gateways) assert.deepEqual(await told(at.url, query, bytes), there, `${query}, ${bytes} bytes`)
  }

  for (const query of table)
    test(query, async () => {
      for (const bytes of edges) await isSame(query, bytes)
    })

  test('node at its link limit → same CID', async () => {
    for (const query of ['cid-version=1', 'raw-leaves=true', 'cid-version=1&max-file-links=1024'])
      await isSame(query, wide)
  })

  test('recorded CIDs → those of Kubo', async () => {
    for (const [query, bytes, cid, size] of kuboShapes)
      assert.deepEqual(await told(node.rpc, query, bytes), [cid, size], `${query}, ${bytes} bytes`)
  })
})
