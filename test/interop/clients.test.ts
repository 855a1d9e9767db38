// Clients that know nothing of cidgate, as their users have them: kubo-rpc-client and Kubo's own command line through its door
// for Kubo's RPC, @helia/verified-fetch with cidgate as its gateway, and one that @hey-api/openapi-ts makes of /openapi.json.
// Those of npm have a package of their own (clients/), since they bring hundreds.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, readFile, stat, symlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { gunzipSync } from 'node:zlib'
import { type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { type Kubo, startKubo } from './support/kubo.ts'
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
      config: { upload: { kuboRpc: true }, pinning: { providers: [{ name: 'local', use: 'embedded' }] } },
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
    assert.deepEqual(seen['imported'], [[cid, '']])
    assert.deepEqual(
      (seen['links'] as [size: number, type: string][]).reduce((sum, [size]) => sum + size, 0),
      3_000_000,
    )
    assert.equal(seen['tarBytes'], 3_000_000 + (512 - (3_000_000 % 512)) + 512 + 1024)
    assert.match(String(seen['put']), /^bafkrei/)
    assert.match(String(seen['removed']), /mayDelete/)
  })

  test('rm with a token that may delete → pin removed', async () => {
    const token = 'a-token-that-may-delete'
    const guarded = await startGateway({
      config: {
        upload: { kuboRpc: true, auth: { tokens: [{ token, mayDelete: true }] } },
        pinning: { providers: [{ name: 'local', use: 'embedded' }] },
      },
    })
    try {
      const seen = await run<Record<string, unknown>>('kubo-rpc.mjs', guarded.url, token)
      assert.equal(seen['removed'], (seen['added'] as { cid: string }).cid)
    } finally {
      await guarded.close()
    }
  })
})

// It gives up at the first write that fails, and sends what it has whether or not it was answered.
describe("Kubo's own command line", () => {
  let at: TestGateway
  let folder: { path: string; remove(): Promise<void> }
  before(async () => {
    at = await startGateway({
      config: {
        upload: { kuboRpc: true, maxBytes: '64MiB' },
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

  test('add of a folder → files readable by path', async () => {
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
    test(`${what} → refused with the reason, every time`, async () => {
      for (let tries = 0; tries < 20; tries++) {
        const failed = await command('add', '--progress=false', ...args).then(
          () => assert.fail('it was not refused'),
          String,
        )
        assert.match(failed, says)
      }
    })
})

describe("Kubo's command line against Kubo and this gateway", () => {
  const [member, owner] = ['a-token-that-may-upload', 'a-token-that-may-delete']
  let node: Kubo
  let at: TestGateway
  let folder: { path: string; remove(): Promise<void> }
  let roots: string[]
  before(async () => {
    node = await startKubo()
    folder = await tempFolder()
    runOnce('ipfs', ['init', '--profile=test'], { env: env() })
    at = await startGateway({
      upstreams: [{ name: 'node', url: node.gateway }],
      config: {
        retrieval: { timeout: '30s' },
        upload: { kuboRpc: true, auth: { tokens: [{ token: member }, { token: owner, mayDelete: true }] } },
        pinning: { providers: [{ name: 'local', use: 'embedded' }] },
      },
    })
    const site = join(folder.path, 'site')
    await mkdir(join(site, 'docs', 'void'), { recursive: true })
    await writeFile(join(site, 'index.html'), '<h1>hello</h1>')
    await writeFile(join(site, 'empty'), '')
    await writeFile(join(site, 'docs', 'large.bin'), noise(600_000, 3))
    await writeFile(join(site, 'docs', 'a b ü.txt'), 'a text', { mode: 0o600 })
    await symlink('index.html', join(site, 'link'))
    const add = (...options: string[]) => there('add', '-Q', '-r', ...options, 'site').then(({ out }) => out)
    roots = [
      await add(),
      await add('--cid-version=1'),
      await add('--preserve-mode', '--preserve-mtime'),
      await add('--cid-version=1', '--max-directory-links=2'),
    ]
  })
  after(async () => {
    await at?.close()
    await node?.stop()
    await folder?.remove()
  })
  const env = () => ({ IPFS_PATH: join(folder.path, 'repo'), IPFS_TELEMETRY: 'off' })

  type Ran = { readonly out: string; readonly error: string; readonly code: number }
  const command = async (url: string, token: string | undefined, args: readonly string[]): Promise<Ran> => {
    const api = ['--api', `/ip4/127.0.0.1/tcp/${new URL(url).port}`]
    const auth = token === undefined ? [] : ['--api-auth', `bearer:${token}`]
    const options = { cwd: folder.path, env: { ...process.env, ...env() } }
    return promisify(execFile)('ipfs', [...api, ...auth, ...args], options).then(
      ({ stdout, stderr }) => ({ out: stdout.trim(), error: stderr, code: 0 }),
      ({ stdout, stderr, code }: { stdout: string; stderr: string; code: number }) => ({
        out: stdout.trim(),
        error: stderr,
        code,
      }),
    )
  }
  const here = (...args: string[]) => command(at.url, member, args)
  const there = (...args: string[]) => command(node.rpc, undefined, args)
  const isSame = async (...args: string[]): Promise<string> => {
    const { out, code, error } = await here(...args)
    assert.equal(code, 0, error)
    assert.deepEqual(
      [out, code],
      await there(...args).then((ran) => [ran.out, ran.code]),
      `${args.join(' ')}: ${error}`,
    )
    return out
  }
  const call = async (url: string, path: string) => {
    const answer = await fetch(`${url}/api/v0/${path}`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${member}` },
    })
    const { status, headers } = answer
    return {
      status,
      type: headers.get('content-type'),
      chunked: headers.get('x-chunked-output'),
      text: await answer.text(),
    }
  }

  test('ls, every option, text or JSON → same output', async () => {
    for (const root of roots) {
      for (const args of [[], ['-v'], ['-l'], ['--size=false', '--resolve-type=false'], ['--cid-base=base32']])
        await isSame('ls', ...args, root)
      await isSame('ls', root, `/ipfs/${root}/docs`, `${root}/index.html`, `${root}/docs/large.bin`, `${root}/link`)
      for (const query of ['', '&size=false', '&resolve-type=false&size=false', '&cid-base=base32&long=true'])
        assert.deepEqual(await call(at.url, `ls?arg=${root}${query}`), await call(node.rpc, `ls?arg=${root}${query}`))
      // Kubo says the entries of shards in the order in which they come.
      const [own, kubos] = await Promise.all(
        [at.url, node.rpc].map((url) =>
          call(url, `ls?arg=${root}&stream=true`).then(({ text, ...rest }) => ({
            ...rest,
            lines: text.split('\n').sort(),
          })),
        ),
      )
      assert.deepEqual(own, kubos)
    }
  })

  test('get: plain, archived, compressed → same files', async () => {
    for (const [index, root] of roots.entries()) {
      const got = async (what: string, run: typeof here, ...args: string[]) => {
        const path = join(folder.path, `${what}${index}`)
        const { code, error } = await run('get', '-o', path, ...args)
        assert.equal(code, 0, error)
        return path
      }
      const [ours, kubos] = [await got('ours', here, root), await got('kubos', there, root)]
      runOnce('diff', ['-r', '--no-dereference', ours, kubos])
      const stats = await Promise.all([ours, kubos].map((path) => stat(join(path, 'docs', 'a b ü.txt'))))
      assert.equal(stats[0]?.mode, stats[1]?.mode)
      const [own, other] = [
        await got('tar', here, '-a', `${root}/docs`),
        await got('ktar', there, '-a', `${root}/docs`),
      ]
      const names = (path: string) => runOnce('tar', ['-tf', `${path}.tar`])
      assert.deepEqual(names(own).split('\n').sort(), names(other).split('\n').sort())
      const gz = await got('gz', here, '-C', '-l', '3', `${root}/docs/large.bin`)
      assert.equal(Buffer.compare(gunzipSync(await readFile(`${gz}.gz`)), Buffer.from(noise(600_000, 3))), 0)
    }
    for (const path of [`${roots[0]}/none`, 'nonsense', ''])
      assert.equal((await here('get', path)).code, (await there('get', path)).code, path)
  })

  test('dag import → CARs stored, roots reported', async () => {
    const cars = await Promise.all(
      roots.map(async (root, index) => {
        const file = join(folder.path, `${index}.car`)
        const answer = await fetch(`${node.rpc}/api/v0/dag/export?arg=${root}`, { method: 'POST' })
        await writeFile(file, new Uint8Array(await answer.arrayBuffer()))
        return file
      }),
    )
    for (const car of cars) {
      await isSame('dag', 'import', car)
      await isSame('dag', 'import', '--stats', car)
      await isSame('dag', 'import', '--pin-roots=false', car)
    }
    await isSame('dag', 'import', '--stats', cars[0] as string, cars[0] as string)
    for (const root of roots) assert.match((await here('pin', 'ls', root)).out, /recursive/)
    const cut = join(folder.path, 'cut.car')
    await writeFile(cut, (await readFile(cars[0] as string)).subarray(0, 300_000))
    const failed = await here('dag', 'import', cars[0] as string, cut)
    assert.deepEqual([failed.code, (await there('dag', 'import', cars[0] as string, cut)).code], [1, 1])
    assert.match(failed.error, /ends in the middle of a block/)
  })

  test('block put → same keys, readable', async () => {
    const file = join(folder.path, 'block')
    const dag = join(folder.path, 'dag')
    await writeFile(file, 'a block of text')
    const root = roots[1] as string
    await writeFile(
      dag,
      new Uint8Array(await (await fetch(`${node.rpc}/api/v0/block/get?arg=${root}`, { method: 'POST' })).arrayBuffer()),
    )
    for (const options of [
      [],
      ['--pin'],
      ['--cid-codec=json'],
      ['--mhtype=sha2-512'],
      ['--mhtype=blake3'],
      ['--mhlen=32'],
    ]) {
      const key = await isSame('block', 'put', ...options, file)
      assert.equal((await here('block', 'get', key)).out, 'a block of text')
    }
    for (const options of [['--cid-codec=dag-pb'], ['--format=protobuf'], ['--format=v0']])
      await isSame('block', 'put', ...options, dag)
    await isSame('block', 'put', file, dag)
    for (const options of [['--allow-big-block'], ['--mhlen=20'], ['--cid-codec=git-raw'], ['--mhtype=md5']]) {
      const { code, error } = await here('block', 'put', ...options, file)
      assert.equal(code, 1)
      assert.match(error, new RegExp(`${options[0]?.slice(2)}.* is not supported`))
    }
  })

  test('pin rm with a token that may delete → same output', async () => {
    const [one, two] = await Promise.all(['one', 'two'].map((text) => addText(text)))
    assert.ok(one && two)
    const refused = await here('pin', 'rm', one)
    assert.deepEqual([refused.code, /mayDelete/.test(refused.error)], [1, true])
    assert.match((await here('pin', 'ls', one)).out, /recursive/)
    const remove = (...cids: string[]) => command(at.url, owner, ['pin', 'rm', ...cids])
    assert.deepEqual((await remove(one, two)).out, (await there('pin', 'rm', one, two)).out)
    const [ours, kubos] = [await remove(one), await there('pin', 'rm', one)]
    assert.deepEqual([ours.code, kubos.code], [1, 1])
    for (const { error } of [ours, kubos]) assert.match(error, /^Error: not pinned or pinned indirectly/)
    assert.match((await here('pin', 'ls', one)).error, /not pinned/)
  })

  async function addText(text: string): Promise<string> {
    const path = join(folder.path, text)
    await writeFile(path, text)
    await there('add', '-Q', '--cid-version=1', path)
    return (await here('add', '-Q', '--cid-version=1', path)).out
  }

  test('late errors → reported as by Kubo', async () => {
    const large = join(folder.path, 'many')
    await mkdir(large)
    for (let index = 0; index < 40; index++) await writeFile(join(large, `${1000 + index}`), `late ${index}`)
    const root = (await there('add', '-Q', '-r', '--pin=false', 'many')).out
    const listed = (await there('ls', root)).out.split('\n')
    const gone = listed.at(-1)?.split(' ')[0] as string
    assert.match((await there('block', 'rm', gone)).out, /removed/)
    for (const args of [
      ['ls', '--stream', root],
      ['get', '-o', join(folder.path, 'late'), root],
    ])
      for (const run of [here, there]) {
        const { code, error } = await run(...args)
        assert.equal(code, 1, args[0])
        assert.match(error, new RegExp(gone), args[0])
      }
  })
})

describe('client generated from /openapi.json by @hey-api/openapi-ts', () => {
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

  test('uploads, reads, ranges and formats → typed', async () => {
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

  test('type of an upload → a file, not text', async () => {
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

  test('reads files, directory entries and documents', async () => {
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
