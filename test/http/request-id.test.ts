// The id that every answer has, and how it gets into problems; and who may say which one it is.
import assert from 'node:assert/strict'
import { request } from 'node:http'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { multipart, post } from '../support/adding.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
})
after(() => upstream.close())

const pinning = { providers: [{ name: 'local', use: 'embedded' }] }

for (const types of ['api', 'web'] as const) {
  describe(`X-Request-Id, ${types} mode`, () => {
    let at: TestGateway
    before(async () => {
      at = await startGateway({
        upstreams: [{ name: 'one', url: upstream.url }],
        config: {
          responses: { types },
          pinning,
          upload: { kuboRpc: true },
          hosts: { 'gw.example': { subdomains: true } },
        },
      })
    })
    after(() => at.close())

    type Ask = readonly [what: string, path: () => string, init?: RequestInit, host?: string]
    const asked: readonly Ask[] = [
      ['a file', () => `/ipfs/${all.files.hello.cid}`],
      ['the same, kept ready', () => `/ipfs/${all.files.hello.cid}`],
      ['a copy of it', () => `/ipfs/${all.files.hello.cid}`, { headers: { 'If-None-Match': '*' } }],
      ['a part', () => `/ipfs/${all.files.hello.cid}`, { headers: { Range: 'bytes=0-1' } }],
      ['a large file', () => `/ipfs/${all.files.deepV0.cid}`, { headers: { Range: 'bytes=0-9' } }],
      ['a HEAD', () => `/ipfs/${all.files.hello.cid}`, { method: 'HEAD' }],
      ['a listing', () => `/ipfs/${all.directory}/?format=json`],
      ['a redirect', () => `/ipfs/ipfs/${all.files.hello.cid}`, { redirect: 'manual' }],
      ['a preflight', () => `/ipfs/${all.files.hello.cid}`, { method: 'OPTIONS' }],
      ['no CID', () => '/ipfs/nonsense'],
      ['nothing', () => '/nothing'],
      ['no method', () => '/add', { method: 'DELETE' }],
      ['the description', () => '/openapi.json'],
      ['a command', () => '/api/v0/version', { method: 'POST' }],
      ['no command', () => '/api/v0/nothing', { method: 'POST' }],
      ['headers that are too long', () => '/add', { headers: { 'X-Long': 'x'.repeat(20_000) } }],
    ]
    const seen = new Set<string>()
    for (const [what, path, init] of asked)
      test(`${what} → unique id`, async () => {
        const answer = await fetch(at.url + path(), init)
        const id = answer.headers.get('x-request-id') ?? ''
        assert.match(id, /^[\w-]{8,}$/)
        assert.ok(!seen.has(id))
        seen.add(id)
        if (answer.headers.get('content-type')?.startsWith('application/problem+json'))
          assert.equal(((await answer.json()) as { requestId?: string }).requestId, id)
        else await answer.arrayBuffer()
      })

    test('upload, accepted or refused → id', async () => {
      for (const [body, status] of [
        ['hello', 200],
        ['', 400],
      ] as const) {
        const answer = await post(`${at.url}/add`, multipart([{ body }]))
        assert.equal(answer.status, status)
        const id = answer.headers['x-request-id']
        assert.ok(id)
        if (status === 400) assert.equal(answer.json['requestId'], id)
      }
    })

    test('redirect to another host, or malformed request → id', async () => {
      const moved = await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`, { host: 'gw.example' })
      assert.equal(moved.status, 301)
      assert.ok(moved.headers['x-request-id'])
      const { hostname, port } = new URL(at.url)
      const socket = connect(Number(port), hostname)
      socket.write('GARBAGE\r\n\r\n')
      assert.match(await text(socket), /^HTTP\/1\.1 400 [\s\S]*\r\nX-Request-Id: ([\w-]+)\r\n[\s\S]*"requestId":"\1"/)
    })

    test('error page and text show it', async () => {
      if (types === 'api') return
      const page = await fetch(`${at.url}/ipfs/nonsense`, { headers: { accept: 'text/html' } })
      assert.ok((await page.text()).includes(`Request <code>${page.headers.get('x-request-id')}</code>`))
      const silent = await fetchAll(`${at.url}/ipfs/nonsense`)
      assert.ok(silent.body.toString().includes(`Request ${silent.headers['x-request-id']}`))
    })

    test('readable by scripts (CORS)', async () => {
      const answer = await fetch(`${at.url}/ipfs/nonsense`)
      assert.match(answer.headers.get('access-control-expose-headers') ?? '', /X-Request-Id/)
    })

    test("client's own id → ignored", async () => {
      const answer = await fetch(`${at.url}/ipfs/bafkqaaa`, { headers: { 'X-Request-Id': 'mine-mine-mine' } })
      assert.notEqual(answer.headers.get('x-request-id'), 'mine-mine-mine')
    })
  })
}

test("trusted proxy's id → used if safe to log", async () => {
  const at = await startGateway({ config: { trustedProxies: ['127.0.0.1'], pinning } })
  try {
    const ask = (id: string) =>
      new Promise<unknown>((resolve, reject) => {
        request(`${at.url}/ipfs/bafkqaaa`, { headers: { 'X-Request-Id': id } }, (answer) => {
          answer.resume()
          resolve(answer.headers['x-request-id'])
        })
          .once('error', reject)
          .end()
      })
    for (const id of [
      'a',
      '0af7651916cd43dd8448eb211c80319c',
      'Root=1-67891233-abcdef012345678912345678',
      'x'.repeat(128),
    ])
      for (let count = 0; count < 2; count++) assert.equal(await ask(id), id)
    for (const id of ['', 'two words', '<b>', 'x'.repeat(129), 'a"b', 'a\tb']) assert.notEqual(await ask(id), id)
  } finally {
    await at.close()
  }
})
