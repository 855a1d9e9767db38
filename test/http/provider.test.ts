// Provider mode: other nodes fetch what the tiers hold, and what they ask for beside that becomes no work of ours.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Agent, request as httpRequest, type IncomingMessage } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, inParallel, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
let at: TestGateway
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
  at = await startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: { hosts: { 'node.example': { provider: true } }, limits: { perClient: { misses: 30 } } },
  })
})
after(async () => {
  await at.close()
  await upstream.close()
})

const agent = new Agent({ keepAlive: true, maxSockets: 64 })
const raw = { accept: 'application/vnd.ipld.raw' }

/** As other nodes ask: the status and headers, and how large these are in the counting of HTTP/2. */
async function asked(path: string, method = 'HEAD', headers: Record<string, string> = raw, url = at.url) {
  const request = httpRequest(url + path, { agent, method, headers: { host: 'node.example', ...headers } }).end()
  const [answer] = (await once(request, 'response')) as [IncomingMessage]
  answer.resume()
  await once(answer, 'close')
  const [names, values] = [0, 1].map((odd) => answer.rawHeaders.filter((_, index) => index % 2 === odd))
  const bytes = answer.rawHeaders.join('').length + 32 * (names?.length ?? 0)
  return { status: answer.statusCode, headers: answer.headers, bytes, values }
}

const absent = (number: number): CID => {
  const digest = new Uint8Array(32)
  new DataView(digest.buffer).setUint32(0, number)
  return CID.createV1(0x55, create(0x12, digest))
}

describe('provider mode', () => {
  test('flood of HEAD misses → 404, no search, no upstream', async () => {
    const { cid, bytes } = all.files.json
    assert.equal((await fetchAll(`${at.url}/ipfs/${cid}`)).status, 200)
    const seen = upstream.seen.length
    const flood = inParallel(
      Array.from({ length: 600 }, (_, index) => index),
      32,
      (index) => asked(`/ipfs/${absent(index)}?format=raw`, index % 10 === 0 ? 'GET' : 'HEAD'),
    )
    const hot = await inParallel(
      Array.from({ length: 100 }, (_, index) => index),
      1,
      () => fetchAll(`${at.url}/ipfs/${cid}`),
    )
    for (const answer of hot) assert.ok(answer.status === 200 && answer.body.equals(bytes))
    for (const { status, headers, bytes: size } of await flood) {
      assert.equal(status, 404)
      assert.ok(headers['retry-after'] !== undefined && size < 2048)
    }
    assert.equal(upstream.seen.length, seen)
    // The budget for misses is that of readers: a search would have taken from it.
    assert.equal((await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)).status, 200)
  })

  test('content in tiers → blocks and CARs, headers below 2 KiB', async () => {
    const { cid, bytes } = all.files.hello
    await fetchAll(`${at.url}/ipfs/${cid}`)
    for (const method of ['HEAD', 'GET'])
      for (const format of ['raw', 'car']) {
        const answer = await asked(`/ipfs/${cid}?format=${format}&filename=${'x'.repeat(2000)}`, method)
        assert.equal(answer.status, 200)
        assert.ok(answer.bytes < 1100, `${answer.bytes} bytes`)
      }
    const { body, headers } = await fetchAll(`${at.url}/ipfs/${cid}`, { Host: 'node.example', ...raw })
    assert.ok(body.equals(bytes))
    assert.equal(headers['content-type'], 'application/vnd.ipld.raw')
    assert.equal((await asked('/ipfs/bafkqaaa?format=raw')).status, 200)
  })

  test('other formats → refused, no search', async () => {
    const seen = upstream.seen.length
    const { cid } = all.files.hello
    for (const path of [
      `/ipfs/${cid}`,
      `/ipfs/${all.directory}/`,
      `/ipfs/${cid}?format=tar`,
      '/ipns/example.com?format=raw',
    ])
      assert.equal((await asked(path, 'GET', {})).status, 406, path)
    for (const path of ['/', '/add', '/openapi.json']) assert.equal((await asked(path, 'GET', {})).status, 404, path)
    const cached = await asked(`/ipfs/${absent(9999)}?format=raw`, 'GET', { 'cache-control': 'only-if-cached' })
    assert.equal(cached.status, 412)
    assert.equal(upstream.seen.length, seen)
  })

  test('provider: true → default of every host', async () => {
    const whole = await startGateway({
      upstreams: [{ name: 'one', url: upstream.url }],
      config: {
        provider: true,
        hosts: { 'pages.example': { provider: false }, 'sites.example': { subdomains: true } },
        upload: { auth: 'open' },
      },
    })
    try {
      const { cid } = all.files.hello
      const seen = upstream.seen.length
      for (const host of ['127.0.0.1', 'any.example'])
        assert.equal((await asked(`/ipfs/${cid}?format=raw`, 'HEAD', { host }, whole.url)).status, 404)
      assert.equal(upstream.seen.length, seen)
      assert.equal((await asked('/openapi.json', 'GET', {}, whole.url)).status, 200)
      assert.equal((await asked(`/ipfs/${cid}`, 'GET', { host: 'pages.example' }, whole.url)).status, 200)
      assert.equal((await asked('/', 'GET', { host: `${all.directory}.ipfs.sites.example` }, whole.url)).status, 200)
      assert.equal((await asked(`/ipfs/${cid}?format=raw`, 'HEAD', { host: 'any.example' }, whole.url)).status, 200)
    } finally {
      await whole.close()
    }
  })

  test('client over its limit → 429', async () => {
    const limited = await startGateway({
      config: { provider: true, limits: { perClient: { perMinute: 3, burst: 3 } } },
    })
    try {
      const statuses: unknown[] = []
      for (let turn = 0; turn < 5; turn++)
        statuses.push((await asked(`/ipfs/${absent(turn)}?format=raw`, 'HEAD', raw, limited.url)).status)
      assert.deepEqual(statuses, [404, 404, 404, 429, 429])
    } finally {
      await limited.close()
    }
  })
})
