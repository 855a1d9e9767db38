// Clients that know nothing of cidgate, as their users have them: kubo-rpc-client through its door for Kubo's RPC, and
// @helia/verified-fetch with cidgate as its gateway. They have a package of their own (clients/), since they bring hundreds.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const clients = fileURLToPath(new URL('clients/', import.meta.url))

async function run<Seen>(program: string, ...args: string[]): Promise<Seen> {
  if (!existsSync(join(clients, 'node_modules')))
    throw new Error('the clients are not installed: npm ci --ignore-scripts --prefix test/interop/clients')
  const { stdout } = await promisify(execFile)(process.execPath, [join(clients, program), ...args], {
    cwd: dirname(clients),
    timeout: 60_000,
    maxBuffer: 64 * 1024 * 1024,
  })
  return JSON.parse(stdout) as Seen
}

describe('kubo-rpc-client', () => {
  let at: TestGateway
  before(async () => {
    at = await startGateway({
      config: { upload: { rpc: true }, pinning: { providers: [{ name: 'local', use: 'embedded' }] } },
    })
  })
  after(() => at?.close())

  test('adds, reads, exports and lists', async () => {
    const seen = await run<Record<string, unknown>>('kubo-rpc.mjs', at.url)
    const { cid, path } = seen['added'] as { cid: string; path: string }
    assert.match(cid, /^bafybei/)
    assert.equal(path, 'a name.txt')
    assert.match(String(seen['old']), /^Qm/)
    assert.deepEqual(
      (seen['all'] as [string, string][]).map(([name]) => name),
      ['one', 'two'],
    )
    assert.equal(seen['cat'], seen['expected'])
    assert.equal(seen['part'], 'of a')
    assert.equal(seen['blockIsRoot'], true)
    assert.ok(Number(seen['carBytes']) > 2_000_000)
    assert.equal(seen['pinned'], cid)
    const pins = seen['pins'] as [string, string][]
    for (const one of [cid, seen['old']]) assert.ok(pins.some(([pin, type]) => pin === one && type === 'recursive'))
    assert.deepEqual(seen['pin'], [[cid, 'recursive']])
    assert.match(String(seen['missing']), /not pinned/)
  })
})

describe('@helia/verified-fetch', () => {
  let at: TestGateway
  let source: ProgrammableUpstream
  let all: Fixtures
  before(async () => {
    all = await fixtures()
    source = await startUpstream({ blocks: all.blocks })
    at = await startGateway({ upstreams: [{ name: 'source', url: source.url }] })
  })
  after(async () => {
    await at?.close()
    await source?.close()
  })

  test('reads files, an entry of a directory, and documents', async () => {
    const { files, directory, hamt, cbor, dagJson } = all
    type Seen = { status: number; type: string; bytes: number; sha256: string; text?: string }
    const [small, deep, entry, sharded, asCbor, asJson] = await run<Seen[]>(
      'verified-fetch.mjs',
      at.url,
      `ipfs://${files.hello.cid}`,
      `ipfs://${files.deepV0.cid}`,
      `ipfs://${directory}/sub/big.bin`,
      `ipfs://${hamt}/file-1234.txt`,
      `ipfs://${cbor}`,
      `ipfs://${dagJson}`,
    )
    const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex')
    assert.equal(small?.text, 'hello, juror\n')
    assert.equal(deep?.sha256, sha256(files.deepV0.bytes))
    assert.equal(entry?.sha256, sha256(noise(2_500_000, 8)))
    assert.equal(sharded?.text, 'content 1234')
    assert.equal(asCbor?.status, 200)
    assert.equal(asJson?.status, 200)
    assert.equal((JSON.parse(asJson?.text ?? '') as { title: string }).title, 'a document')
    assert.match(asCbor?.text ?? '', /a document/)
  })
})
