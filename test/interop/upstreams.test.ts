// The upstreams on their suite, against Kubo itself: its gateway as a trustless one, its RPC, and its gateway as a plain one.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, afterEach, before, test } from 'node:test'
import { CarWriter } from '@ipld/car/writer'
import { base32 } from 'multiformats/bases/base32'
import { CID } from 'multiformats/cid'
import * as Digest from 'multiformats/hashes/digest'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import { upstreamKinds } from '../../backends/upstreams/index.ts'
import { proves } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { blockOf, upstreamContract } from '../../src/testing/upstream.ts'
import { type BlockMap, type Fixtures, fixtures } from '../support/fixtures.ts'
import { createKey, type TestKey } from '../support/ipns.ts'
import { type Kubo, startKubo } from './support/kubo.ts'

let all: Fixtures
let node: Kubo
let published: { key: TestKey; record: Uint8Array }

async function carOf(blocks: BlockMap): Promise<Uint8Array> {
  const { writer, out } = CarWriter.create([])
  const gathered = Array.fromAsync(out)
  // A node files blocks by their hash: any codec will do.
  for (const [key, bytes] of blocks)
    await writer.put({ cid: CID.createV1(0x55, Digest.decode(base32.decode(key))), bytes })
  await writer.close()
  return Buffer.concat(await gathered)
}

before(async () => {
  all = await fixtures()
  node = await startKubo()
  node.ipfs(['dag', 'import', '--pin-roots=false'], await carOf(all.blocks))
  const key = createKey()
  const record = await key.record('/ipfs/bafkqaaa')
  const file = join(node.repo, 'record-of-a-test')
  await writeFile(file, record)
  node.ipfs(['routing', 'put', '--allow-offline', `/ipns/${key.name}`, file])
  published = { key, record }
})
after(() => node?.stop())

const made: Upstream[] = []
afterEach(async () => {
  for (const upstream of made.splice(0)) await upstream.close()
})

function connect(use: string, url: string): Upstream {
  const kind = upstreamKinds[use]
  assert.ok(kind)
  const context = { name: 'kubo', userAgent: 'cidgate/test', log: silentLog, clock: systemClock }
  const upstream = kind.create(kind.options.parse({ url }), context)
  made.push(upstream)
  return upstream
}

const kinds = { trustless: () => node.gateway, kubo: () => node.rpc }
for (const [use, url] of Object.entries(kinds))
  upstreamContract(
    `${use}, Kubo itself`,
    async () => ({
      upstream: connect(use, url()),
      gone: connect(use, 'http://127.0.0.1:1'),
      // Its RPC searches records on its network alone, and this node has none.
      ...(use === 'trustless' && { published }),
      stop: async () => {},
    }),
    { content: () => all },
  )

test('plain, Kubo: served file → rebuilt into verified blocks', async () => {
  const upstream = connect('plain', node.gateway)
  const { hello, jsonV0, chunkedV0, chunkedV1 } = all.files
  for (const { cid } of [hello, jsonV0, chunkedV0])
    assert.ok(proves(cid, await blockOf(upstream, cid, new AbortController().signal)), String(cid))
  await assert.rejects(blockOf(upstream, chunkedV1.cid, new AbortController().signal), { kind: 'not-found' })
  assert.equal((await upstream.probe(new AbortController().signal)).usable, true)
})
