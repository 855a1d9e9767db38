// Denied content over HTTP: whatever way it is asked for, wherever it lies, as soon as a list says so.
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { CID } from 'multiformats/cid'
import { writeCar } from '../../src/ipld/car.ts'
import { addDirectory, addFile, type Fixtures, fixtures, noise, text } from '../support/fixtures.ts'
import {
  type Fetched,
  fetchAll,
  metricsOf,
  startedGateway,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts'
import { keptIn, nothing } from '../support/kept.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let folderCid: CID
let shardedCid: CID
let above: CID
let site: CID
let upstream: ProgrammableUpstream
let folder: string
let list: string
let at: TestGateway
before(async () => {
  all = await fixtures()
  const files = { 'secret.html': text('secret'), 'ok.txt': text('fine'), 'a%20b': text('literal') }
  folderCid = await addDirectory(all.blocks, files)
  shardedCid = await addDirectory(all.blocks, files, { sharded: true })
  above = await addDirectory(all.blocks, { 'sub/secret.html': text('secret'), 'sub/ok.txt': text('fine') })
  site = await addDirectory(all.blocks, {
    'www/index.html': text('<p>start'),
    'www/site/index.html': text('<p>inside'),
    'www/secret.txt': text('secret'),
    'www/ok.txt': text('fine'),
    'www/p%20q': text('literal'),
    _redirects: text('/go /www/secret.txt 200\n/fine /www/ok.txt 200'),
  })
  upstream = await startUpstream({ blocks: all.blocks })
})
after(() => upstream.close())
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'cidgate-deny-'))
  list = join(folder, 'ours.deny')
})
afterEach(async () => {
  await at?.close()
  await rm(folder, { recursive: true, force: true })
})

async function start(lines: string, config: Record<string, unknown> = {}): Promise<void> {
  await writeFile(list, `${lines}\n`)
  at = await startGateway({ upstreams: [{ name: 'one', url: upstream.url }], config: { denylists: [list], ...config } })
}

const get = (path: string, headers: Record<string, string> = {}): Promise<Fetched> =>
  fetchAll(`${at.url}${path}`, headers)

describe('denied content', () => {
  test('410 with reason, or 451 if legal, in every format', async () => {
    const { hello } = all.files
    await start(`/ipfs/${hello.cid} reason=malware\n/ipfs/${all.hamt}/* status=451 reason=court-order`)
    for (const path of [`/ipfs/${hello.cid}`, `/ipfs/${hello.cid}?format=raw`, `/ipfs/${hello.cid}?format=car`]) {
      const { status, body } = await get(path)
      assert.equal(status, 410, path)
      assert.match(body.toString(), /malware/)
    }
    assert.equal((await get(`/ipfs/${hello.cid}`, { 'If-None-Match': `"${hello.cid}"` })).status, 410)
    assert.equal((await get(`/ipfs/${hello.cid}`, { Range: 'bytes=0-1' })).status, 410)
    assert.equal((await get(`/ipfs/${all.hamt}`)).status, 451)
    const { status, body } = await get(`/ipfs/${all.hamt}/any`)
    assert.deepEqual([status, /court-order/.test(body.toString())], [451, true])
    assert.equal(
      upstream.seen.filter((one) => JSON.stringify(one).includes(String(hello.cid))).length,
      0,
      'nobody was asked for it',
    )
  })

  test('denied content → 410 at every path, omitted from exports', async () => {
    const { cid } = await addFile(new Map(), all.names['policy.json'])
    await start(`/ipfs/${cid}`)
    assert.equal((await get(`/ipfs/${all.directory}/policy.json`)).status, 410)
    assert.equal((await get(`/ipfs/${all.directory}/readme.txt`)).status, 200)
    for (const format of ['car', 'tar'])
      assert.match(String(await outcome(`/ipfs/${all.directory}?format=${format}`)), /^(410|cut)$/, format)
    assert.equal((await get(`/ipfs/${all.directory}?format=car&dag-scope=block`)).status, 200)
    assert.equal((await get(`/ipfs/${all.directory}`)).status, 200, 'a list of names holds no block of it')
  })

  test("new rule → client's cached export is revalidated", async () => {
    const paths = ['car', 'tar'].map((format) => `/ipfs/${folderCid}?format=${format}`)
    const tags = new Map<string, string>()
    await start('')
    for (const path of paths) {
      const tag = String((await get(path)).headers['etag'])
      tags.set(path, tag)
      assert.equal((await get(path, { 'If-None-Match': tag })).status, 304)
      assert.equal((await get(path, { 'If-None-Match': '*' })).status, 200, 'nobody knows which copy that is')
    }
    await at.close()
    await start(`/ipfs/${folderCid}/secret.html`)
    for (const path of paths)
      for (const tag of [tags.get(path) ?? '', '*'])
        assert.match(String(await outcome(path, { 'If-None-Match': tag })), /^(410|cut)$/, `${path} ${tag}`)
    await at.close()
    at = await startGateway({ upstreams: [{ name: 'one', url: upstream.url }] })
    for (const path of paths)
      assert.equal((await get(path, { 'If-None-Match': '*' })).status, 304, 'no list, no question')
  })

  test('/add of it or around it → refused, nothing stored', async () => {
    const leaf = noise(1024 * 1024, 5)
    const [own, inside] = [await addFile(new Map(), text('hello world')), await addFile(new Map(), leaf)]
    await start(`/ipfs/${own.cid}\n/ipfs/${inside.cid} status=451`, { upload: { maxBytes: '10MiB' } })
    const post = (bytes: Uint8Array): Promise<Response> => {
      const form = new FormData()
      form.set('data', new Blob([Uint8Array.from(bytes)]))
      return fetch(`${at.url}/add`, { method: 'POST', body: form })
    }
    assert.equal((await post(text('hello world'))).status, 410)
    assert.equal((await get(`/ipfs/${own.cid}`, { 'Cache-Control': 'only-if-cached' })).status, 410)
    assert.equal((await post(Buffer.concat([noise(1024 * 1024, 6), leaf, noise(500, 7)]))).status, 451)
    assert.deepEqual(await keptIn(at.data), nothing)
    assert.equal((await post(noise(1024 * 1024, 6))).status, 200)
  })

  test('new rule → applies to cached content at once', async () => {
    const { cid } = all.files.hello
    const leaf = await addFile(all.blocks, noise(3000, 5), 'v1')
    const json = await addFile(all.blocks, text(JSON.stringify({ of: 'a'.repeat(900), and: 'b'.repeat(200) })))
    const accepts = ['br', 'gzip', 'br, identity;q=0', '']
    const asked = (accepted: string) => get(`/ipfs/${json.cid}`, { 'Accept-Encoding': accepted })
    await start('# nothing yet', { cache: { responses: { maxItemBytes: '2KiB' } } })
    for (let turn = 0; turn < 2; turn++) assert.equal((await get(`/ipfs/${leaf.cid}`)).status, 200)
    for (let turn = 0; turn < 2; turn++) assert.equal((await get(`/ipfs/${cid}`)).status, 200)
    assert.match(String((await get(`/ipfs/${cid}`)).headers['cache-status']), /detail=responses/)
    for (const accepted of accepts) assert.equal((await asked(accepted)).status, 200)
    assert.equal((await asked('gzip')).headers['content-encoding'], 'gzip')
    await writeFile(list, `/ipfs/${cid} reason=since-now\n/ipfs/${leaf.cid}\n/ipfs/${json.cid}\n`)
    for (const until = Date.now() + 20_000; (await get(`/ipfs/${cid}`)).status === 200; await sleep(20))
      assert.ok(Date.now() < until, 'the list was not read again')
    for (const one of [cid, leaf.cid]) assert.equal((await get(`/ipfs/${one}`)).status, 410)
    for (const accepted of accepts) assert.equal((await asked(accepted)).status, 410, accepted)
    assert.match(await metricsOf(at.gateway), /^cidgate_denylist_rules 3$/m)
    assert.match(await metricsOf(at.gateway), /^cidgate_response_cache_bytes 0$/m, 'in no coding either')
  })
})

/** The status, or that what began was cut. */
const outcome = (path: string, headers: Record<string, string> = {}): Promise<number | 'cut'> =>
  get(path, headers).then(
    ({ status }) => status,
    () => 'cut' as const,
  )

describe('path rule', () => {
  test("matches the entry's real name", async () => {
    await start(`/ipfs/${folderCid}/a%2520b`)
    assert.equal((await get(`/ipfs/${folderCid}/a%2520b`)).status, 410)
    assert.equal((await get(`/ipfs/${folderCid}/a%20b`)).status, 410)
    assert.equal((await get(`/ipfs/${folderCid}/ok.txt`)).status, 200)
  })

  test('applies within tar and CAR of an ancestor', async () => {
    const sub = await addDirectory(new Map(), { 'secret.html': text('secret'), 'ok.txt': text('fine') })
    for (const [rules, tops] of [
      [
        [`${folderCid}/secret.html`, `${shardedCid}/secret.html`, `${above}/sub/secret.html`],
        [folderCid, shardedCid, above, `${above}/sub`],
      ],
      [[`${sub}/secret.html`], [above]],
    ] as const) {
      await start(rules.map((rule) => `/ipfs/${rule}`).join('\n'))
      for (const top of tops) {
        for (const format of ['tar', 'car'])
          assert.notEqual(await outcome(`/ipfs/${top}?format=${format}`), 200, `${top}`)
        for (const format of ['tar', 'car', 'raw'])
          assert.equal(
            await outcome(`/ipfs/${top}/${top === above ? 'sub/' : ''}ok.txt?format=${format}`),
            200,
            `${top}`,
          )
        assert.equal(await outcome(`/ipfs/${top}?format=car&dag-scope=entity`), 200)
      }
      await at.close()
    }
  })

  test('allow rule → applies in a CAR along the path', async () => {
    await start(`/ipfs/${folderCid}/*\n!/ipfs/${folderCid}/ok.txt\n/ipfs/${shardedCid}/*\n!/ipfs/${shardedCid}/ok.txt`)
    for (const cid of [folderCid, shardedCid]) {
      for (const query of ['', '?format=raw', '?format=car', '?format=car&dag-scope=entity', '?format=tar'])
        assert.equal(await outcome(`/ipfs/${cid}/ok.txt${query}`), 200, query)
      for (const path of [
        '/secret.html',
        '',
        '?format=car',
        '?format=tar',
        '?format=raw',
        '?format=car&dag-scope=block',
      ])
        assert.equal(await outcome(`/ipfs/${cid}${path}`), 410, path)
    }
  })
})

describe('name rule', () => {
  const web = (lines: string) =>
    start(lines, {
      responses: { types: 'web' },
      hosts: { 'gw.example': { subdomains: true } },
      names: {
        dns: ['https://127.0.0.1:1/dns-query'],
        static: {
          'n.example': `/ipfs/${site}/www`,
          'top.example': `/ipfs/${site}`,
          'm.example': '/ipns/top.example/www',
        },
      },
    })
  const on = (label: string, path: string): Promise<number> =>
    get(path, { Host: `${label}.ipns.gw.example` }).then(({ status }) => status)

  test('applies to paths below, and to names pointing to it', async () => {
    await web('/ipns/n.example reason=name\n!/ipns/n.example/ok.txt\n/ipns/top.example')
    for (const path of ['', '/', '/secret.txt', '/site/', '/secret.txt?format=raw', '/site?format=car'])
      assert.equal(await outcome(`/ipns/n.example${path}`), 410, path)
    assert.equal(await on('n-example', '/secret.txt'), 410)
    assert.equal(await outcome('/ipns/n.example/ok.txt'), 200, 'an exception')
    assert.equal(await outcome('/ipns/m.example/ok.txt'), 410)
  })

  test('with a path → applies to a directory page', async () => {
    await web('/ipns/n.example/site/index.html')
    for (const path of ['/site/index.html', '/site/']) {
      assert.equal(await outcome(`/ipns/n.example${path}`), 410, path)
      assert.equal(await on('n-example', path), 410, path)
    }
    assert.equal(await outcome('/ipns/n.example/'), 200)
    assert.equal(await outcome(`/ipfs/${site}/www/site/`), 200, 'the content itself is not meant')
  })

  test('with a path → applies in exports, aliases and both decodings', async () => {
    await web('/ipns/n.example/secret.txt\n/ipns/top.example/www/secret.txt\n/ipns/n.example/p%2520q')
    for (const name of ['n.example', 'm.example', 'top.example', 'top.example/www']) {
      for (const format of ['tar', 'car'])
        assert.notEqual(await outcome(`/ipns/${name}?format=${format}`), 200, `${name} ${format}`)
    }
    for (const format of ['tar', 'car']) {
      assert.equal(await outcome(`/ipns/n.example/site?format=${format}`), 200, format)
      assert.equal(await outcome(`/ipns/n.example/ok.txt?format=${format}`), 200, format)
      assert.equal(await outcome(`/ipfs/${site}?format=${format}`), 200, format)
    }
    assert.equal(await outcome('/ipns/n.example/p%20q'), 410)
    assert.equal(await outcome('/ipns/m.example/p%20q'), 200)
  })

  test('with a path → applies to `_redirects` targets', async () => {
    await web('/ipns/top.example/www/secret.txt')
    // The stand-in breaks off a CAR of a path that is not there, and would be left alone for a while.
    assert.equal(await outcome(`/ipfs/${site}?format=raw`), 200)
    assert.equal(await on('top-example', '/go'), 410)
    assert.equal(await on('top-example', '/fine'), 200)
  })
})

describe('Kubo RPC and denylists', () => {
  const call = (command: string): Promise<number | 'cut'> =>
    fetch(`${at.url}/api/v0/${command}`, { method: 'POST' })
      .then((response) => response.text().then(() => response.status))
      .catch(() => 'cut' as const)

  test('denied → 410 or 451; its name listed', async () => {
    const { cid } = all.files.hello
    await start(`/ipfs/${cid} status=451\n/ipfs/${folderCid}/secret.html\n/ipfs/${above}/sub`, {
      upload: { kuboRpc: true },
    })
    for (const command of ['cat', 'block/get', 'dag/export', 'pin/add', 'ls', 'get'])
      assert.equal(await call(`${command}?arg=${cid}`), 451, command)
    assert.equal(await call(`cat?arg=${folderCid}/secret.html`), 410)
    assert.equal(await call(`get?arg=${folderCid}/secret.html`), 410)
    assert.equal(await call(`cat?arg=${folderCid}/ok.txt`), 200)
    // Of a denied entry `ls` says the name and no type.
    for (const [directory, expected] of [
      [above, ['sub', 0]],
      [site, ['www', 1]],
    ] as const) {
      const answer = await fetch(`${at.url}/api/v0/ls?arg=${directory}`, { method: 'POST' })
      const { Objects } = (await answer.json()) as { Objects: { Links: { Name: string; Type: number }[] }[] }
      const links = Objects[0]?.Links.map(({ Name, Type }) => [Name, Type]) ?? []
      assert.deepEqual(
        links.filter(([name]) => name !== '_redirects'),
        [expected],
      )
    }
  })

  test('denied block, or CAR with one → not stored', async () => {
    const { cid, bytes } = all.files.hello
    await start(`/ipfs/${cid}`, { upload: { kuboRpc: true } })
    const car: Uint8Array[] = []
    const blocks = (async function* () {
      yield { cid, bytes }
    })()
    for await (const piece of writeCar(cid, blocks)) car.push(piece)
    for (const [command, body] of [
      ['block/put', bytes],
      ['dag/import', Buffer.concat(car)],
    ] as const) {
      const form = new FormData()
      form.append('file', new File([Uint8Array.from(body)], 'a'))
      const { status } = await fetch(`${at.url}/api/v0/${command}`, { method: 'POST', body: form })
      assert.equal(status, 410, command)
    }
  })

  test('content with a denied part → neither stored nor exported', async () => {
    await start(`/ipfs/${folderCid}/secret.html\n/ipfs/${shardedCid}/secret.html`, { upload: { kuboRpc: true } })
    for (const cid of [folderCid, shardedCid]) {
      assert.equal(await call(`pin/add?arg=${cid}`), 410)
      assert.equal(await call(`dag/export?arg=${cid}`), 'cut')
    }
    assert.equal(await call(`pin/add?arg=${above}`), 200)
  })
})

describe('denylist at a URL', () => {
  const serve = async (answer: () => { status: number; text: string }) => {
    const server = createServer((_request, response) => {
      const { status, text } = answer()
      response.writeHead(status).end(text)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/list.deny` }
  }

  test('read at start; unavailable → last copy', async () => {
    const { cid } = all.files.hello
    let status = 200
    const { server, url } = await serve(() => ({ status, text: `/ipfs/${cid}\n` }))
    const data = join(folder, 'data')
    const begin = () => startGateway({ data, config: { denylists: [url] } })
    try {
      at = await begin()
      assert.equal((await get(`/ipfs/${cid}`)).status, 410)
      await at.close()
      status = 500
      at = await begin()
      assert.equal((await get(`/ipfs/${cid}`)).status, 410)
      assert.ok(at.log.some(({ event, level }) => event === 'denylist.read-failed' && level === 'error'))
    } finally {
      server.closeAllConnections()
      server.close()
    }
  })
})

test('denylist that was never available → configuration error', () =>
  assert.rejects(startedGateway({ data: folder, admin: false, denylists: [join(folder, 'none.deny')] }), {
    name: 'ConfigError',
    message: /^config: denylists: the denylist .+none\.deny cannot be read/,
  }))
