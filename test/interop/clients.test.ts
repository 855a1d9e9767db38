// Clients that know nothing of cidgate, as their users have them: kubo-rpc-client and Kubo's own command line through its door
// for Kubo's RPC, @helia/verified-fetch with cidgate as its gateway, and one that @hey-api/openapi-ts makes of /openapi.json.
// Those of npm have a package of their own (clients/), since they bring hundreds.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { runOnce, tempFolder } from './support/processes.ts'

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

// It gives up at the first write that fails, and sends what it has whether or not it was answered.
describe("Kubo's own command line", () => {
  let at: TestGateway
  let folder: { path: string; remove(): Promise<void> }
  before(async () => {
    at = await startGateway({
      config: {
        upload: { rpc: true, maxBytes: '64MiB' },
        pinning: { providers: [{ name: 'local', use: 'embedded' }] },
      },
    })
    folder = await tempFolder()
    runOnce('ipfs', ['init', '--profile=test'], { env: env() })
    await mkdir(join(folder.path, 'files'))
    for (const name of ['a', 'b', 'c', 'd']) await writeFile(join(folder.path, 'files', name), noise(20_000_000, 5))
  })
  after(async () => {
    await at?.close()
    await folder?.remove()
  })
  const env = () => ({ IPFS_PATH: join(folder.path, 'repo'), IPFS_TELEMETRY: 'off' })

  const command = async (...args: string[]): Promise<string> => {
    const api = `/ip4/127.0.0.1/tcp/${new URL(at.url).port}`
    const { stdout } = await promisify(execFile)('ipfs', ['--api', api, ...args], {
      cwd: folder.path,
      env: { ...process.env, ...env() },
    })
    return stdout.trim()
  }

  test('adds a folder, whose files are read by their paths', async () => {
    await mkdir(join(folder.path, 'site', 'docs'), { recursive: true })
    await writeFile(join(folder.path, 'site', 'index.html'), '<h1>hello</h1>')
    await writeFile(join(folder.path, 'site', 'docs', 'a.txt'), 'a text')
    const cid = await command('add', '-Q', '-r', 'site')
    const answer = await fetchAll(`${at.url}/ipfs/${cid}/docs/a.txt`)
    assert.deepEqual([answer.status, answer.body.toString()], [200, 'a text'])
  })

  const refusals: readonly (readonly [what: string, args: readonly string[], says: RegExp])[] = [
    ['a folder that is too large', ['-r', 'files'], /larger than the 67108864 bytes/],
    ['too much', ['files/a', 'files/b', 'files/c', 'files/d'], /larger than the 67108864 bytes/],
    ['an option that is not done', ['--trickle', 'files/a'], /trickle=true is not supported/],
  ]
  for (const [what, args, says] of refusals)
    test(`is told why ${what} is refused, every time`, async () => {
      for (let tries = 0; tries < 20; tries++) {
        const failed = await command('add', '--progress=false', ...args).then(
          () => assert.fail('it was not refused'),
          String,
        )
        assert.match(failed, says)
      }
    })
})

describe('a client that @hey-api/openapi-ts makes of /openapi.json', () => {
  let at: TestGateway
  let folder: { path: string; remove(): Promise<void> }
  before(async () => {
    at = await startGateway({ config: { pinning: { providers: [{ name: 'local', use: 'embedded' }] } } })
    folder = await tempFolder()
  })
  after(async () => {
    await at?.close()
    await folder?.remove()
  })

  test('uploads files and reads them, whole, in part and in other formats', async () => {
    assert.deepEqual(await run('openapi-client.mjs', at.url, join(folder.path, 'client')), {
      uploaded: [200, 1],
      read: [200, 'application/octet-stream', true],
      part: [206, [7, 14, 21]],
      head: [200, '300000'],
      car: 'application/vnd.ipld.car; version=1; order=dfs; dups=n',
      document: { name: 'a', description: 'b', fileURI: '/ipfs/bafkqaaa' },
      refused: [400, ['name', 'description']],
      absent: [404, 'No such path'],
      name: [404, true],
    })
  })

  test('takes a file, and no text, for what is uploaded', async () => {
    const options = ['--noEmit', '--strict', '--skipLibCheck', '--target', 'es2024', '--lib', 'es2024,dom,dom.iterable']
    const modules = ['--module', 'nodenext', '--allowImportingTsExtensions']
    const compile = async (data: string) => {
      await writeFile(
        join(folder.path, 'use.mts'),
        `import { getIpfsContent, uploadToIpfs } from './client/sdk.gen.ts'
         const { data } = await uploadToIpfs({ body: { data: ${data} } })
         export const read = getIpfsContent({ path: { hash: data?.cids[0] ?? '' }, query: { format: 'raw' } })`,
      )
      const tsc = join(clients, 'node_modules/typescript/bin/tsc')
      return promisify(execFile)(process.execPath, [tsc, ...options, ...modules, 'use.mts'], { cwd: folder.path })
    }
    await compile("new File(['a'], 'a.txt')")
    await assert.rejects(compile("'a'"), (error: Error & { stdout?: string }) => /TS2322/.test(error.stdout ?? ''))
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
