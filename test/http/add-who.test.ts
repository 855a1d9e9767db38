// Which clients may upload: pages of strangers in a browser on this machine, and tokens with names, hashes and ends.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { encode } from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import { multipart, post } from '../support/adding.ts'
import { metricsOf, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'

const upload = ({ url }: TestGateway, headers: Record<string, string> = {}) =>
  post(`${url}/add`, multipart([{ body: 'hello' }]), headers)

describe('page that uploads without a token', () => {
  let own: TestGateway
  let open: TestGateway
  before(async () => {
    own = await startGateway()
    open = await startGateway({ config: { upload: { auth: 'open' } } })
  })
  after(() => Promise.all([own, open].map((one) => one.close())))

  for (const [origin, status] of [
    ['https://evil.example', 403],
    ['null', 403],
    ['http://bafkqaaa.ipfs.localhost:8080', 403],
    ['http://localhost.evil.example', 403],
    ['http://127.0.0.1.evil.example', 403],
    ['http://localhost:3000', 200],
    ['http://127.0.0.1:8080', 200],
    ['http://[::1]:8080', 200],
  ] as const)
    test(`${origin} → ${status} on this machine`, async () => {
      const answer = await upload(own, { origin })
      assert.equal(answer.status, status, answer.body)
      // Where it is refused, its script is told why.
      assert.equal(answer.headers['access-control-allow-origin'], '*')
      if (status === 403)
        assert.match(String(answer.json['detail']), /may not upload here without a token.*upload\.auth/)
    })

  for (const [site, status] of [
    ['cross-site', 403],
    ['same-site', 403],
    ['same-origin', 200],
    ['none', 200],
  ] as const)
    test(`without Origin, Sec-Fetch-Site is ${site} → ${status}`, async () => {
      const answer = await upload(own, { 'sec-fetch-site': site })
      assert.equal(answer.status, status, answer.body)
      if (status === 403) assert.match(String(answer.json['detail']), /^a page of another site may not upload here/)
    })

  test('names an origin of this machine → 200 whatever Sec-Fetch-Site says', async () => {
    const headers = { origin: 'http://localhost:3000', 'sec-fetch-site': 'cross-site' }
    assert.equal((await upload(own, headers)).status, 200)
  })

  test('foreign page, uploads open → accepted', async () => {
    assert.equal((await upload(open, { origin: 'https://evil.example' })).status, 200)
  })

  test('preflight → still answered', async () => {
    const headers = { origin: 'https://evil.example', 'access-control-request-method': 'POST' }
    const { status, headers: said } = await fetch(`${own.url}/add`, { method: 'OPTIONS', headers })
    assert.deepEqual([status, said.get('access-control-allow-methods')], [204, 'POST, OPTIONS'])
  })
})

describe('remote client behind a trusted proxy', () => {
  const stranger = { 'x-forwarded-for': '203.0.113.9' }
  const trustedProxies = ['127.0.0.1']
  const path = '/add'
  const rpc = '/api/v0/add'

  let own: TestGateway
  let open: TestGateway
  let thin: TestGateway
  before(async () => {
    own = await startGateway({ config: { trustedProxies, upload: { kuboRpc: true } } })
    open = await startGateway({ config: { trustedProxies, upload: { auth: 'open', kuboRpc: true } } })
    thin = await startGateway({ config: { trustedProxies, upload: { forwardTo: 'http://127.0.0.1:9/add' } } })
  })
  after(() => Promise.all([own, open, thin].map((one) => one.close())))

  for (const [what, at, to, sent, status] of [
    ['no token', () => own, path, stranger, 403],
    ['page, no token', () => own, path, { ...stranger, origin: 'http://localhost:3000' }, 403],
    ['Kubo RPC, no token', () => own, rpc, stranger, 403],
    ['thin mode, no token', () => thin, path, stranger, 403],
    ['uploads open', () => open, rpc, stranger, 200],
    ['this machine by IPv4', () => own, rpc, { 'x-forwarded-for': '127.0.0.1' }, 200],
    ['this machine by IPv6', () => own, path, { 'x-forwarded-for': '::1' }, 200],
  ] as const)
    test(`${what} → ${status}`, async () => {
      const answer = await post(at().url + to, multipart([{ fileName: 'a', body: 'hello' }]), sent)
      assert.equal(answer.status, status, answer.body)
      if (status === 403)
        assert.match(answer.body, /only on the machine of the gateway.*upload\.auth to tokens, or to open/)
    })

  test('page behind a local proxy → refused', async () => {
    assert.equal((await upload(own, { origin: 'https://evil.example' })).status, 403)
  })

  test('program that opens its own address → accepted', async () => {
    const server = createServer(own.gateway.handler)
    try {
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      const { port } = server.address() as AddressInfo
      const url = `http://127.0.0.1:${port}${path}`
      assert.equal((await post(url, multipart([{ body: 'hello' }]), stranger)).status, 200)
    } finally {
      server.closeAllConnections()
      server.close()
    }
  })
})

describe('token with a quota', () => {
  const secret = 'the-token-of-the-tests'
  const authorization = { authorization: `Bearer ${secret}` }
  const start = (quota: Record<string, unknown>, more: Parameters<typeof startGateway>[0] = {}) =>
    startGateway({
      ...more,
      config: {
        upload: {
          kuboRpc: true,
          auth: { tokens: [{ name: 'ci', token: secret, quota }, 'another-without-a-quota'] },
          ...(more.config?.['upload'] as object),
        },
      },
    })
  const quotaOf = ({ json }: { readonly json: Record<string, unknown> }) => json['quota']

  test('exhausted → refused with remaining quota, counted across all endpoints', async () => {
    const at = await start({ uploads: 3, bytes: '1KiB' })
    try {
      assert.equal((await upload(at, authorization)).status, 200)
      const rpc = (path: string, body = multipart([{ fileName: 'a', body: 'hello' }])) =>
        post(at.url + path, body, authorization)
      assert.equal((await rpc('/api/v0/add')).status, 200)
      assert.equal((await rpc('/api/v0/add?only-hash=true')).status, 200)
      assert.equal((await rpc('/add?only-hash=true')).status, 200)
      const large = await post(`${at.url}/add`, multipart([{ fileName: 'a', body: 'x'.repeat(1020) }]), authorization)
      assert.equal(large.status, 429)
      assert.deepEqual(quotaOf(large), {
        token: 'ci',
        uploads: { limit: 3, remaining: 0 },
        bytes: { limit: 1024, remaining: 1014 },
      })
      assert.match(String(large.json['detail']), /^the token ci has 1014 bytes left today, of 1024/)
      assert.ok(Number(large.headers['retry-after']) > 0 && Number(large.headers['retry-after']) <= 86_400)
      assert.equal((await rpc('/api/v0/pin/add?arg=bafkqaaa')).status, 200)
      for (const answer of [
        await upload(at, authorization),
        await rpc('/api/v0/add'),
        await rpc('/api/v0/pin/add?arg=bafkqaaa'),
        await rpc('/api/v0/block/put'),
        await rpc('/api/v0/dag/import'),
      ]) {
        assert.equal(answer.status, 429)
        assert.match(answer.body, /the token ci has no upload left today, of 3/)
      }
      // What only computes a CID uses nothing up.
      for (const door of ['/api/v0/add', '/add']) assert.equal((await rpc(`${door}?only-hash=true`)).status, 200)
      assert.equal((await upload(at, { authorization: 'Bearer another-without-a-quota' })).status, 200)
      const metrics = await metricsOf(at.gateway)
      for (const series of [
        'used_uploads{token="ci"} 3',
        'limit_uploads{token="ci"} 3',
        'used_bytes{token="ci"} 10',
        'limit_bytes{token="ci"} 1024',
        'quota_refusals_total{token="ci"} 6',
      ])
        assert.ok(
          metrics.includes(`\ncidgate_token_${series}\n`),
          `${series}\n${metrics.match(/cidgate_token.*/g)?.join('\n')}`,
        )
      assert.ok(!metrics.includes(secret))
    } finally {
      await at.close()
    }
  })

  test('linked blocks count; announced length is checked before the body', async () => {
    const at = await start({ bytes: '1KiB' })
    try {
      const put = (query: string, body: Uint8Array, token: string) =>
        post(`${at.url}/api/v0/block/put${query}`, multipart([{ fileName: 'a', body }]), {
          authorization: `Bearer ${token}`,
        })
      const leaf = await put('', Buffer.alloc(1100), 'another-without-a-quota')
      assert.equal(leaf.status, 200)
      const node = encode({ leaf: CID.parse(String(leaf.json['Key'])) })
      assert.equal((await put('?cid-codec=dag-cbor', node, secret)).status, 429)
      assert.equal((await put('?cid-codec=dag-cbor', node, 'another-without-a-quota')).status, 200)
      const socket = connect(Number(new URL(at.url).port), '127.0.0.1')
      socket.write(
        `POST /add HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${secret}\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 80000\r\nExpect: 100-continue\r\n\r\n`,
      )
      const [said] = await once(socket, 'data')
      socket.destroy()
      assert.match(String(said), /^HTTP\/1.1 429 /)
    } finally {
      await at.close()
    }
  })

  test('failed uploads are free; the count survives a restart', async () => {
    const data = await tempFolder()
    const first = await start({ uploads: 2, bytes: '1KiB' }, { data })
    try {
      assert.equal((await upload(first, authorization)).status, 200)
      assert.equal(
        (await post(`${first.url}/add`, multipart([{ name: 'other', body: 'x' }]), authorization)).status,
        400,
      )
    } finally {
      await first.close()
    }
    const next = await start({ uploads: 2, bytes: '1KiB' }, { data })
    try {
      assert.equal((await upload(next, authorization)).status, 200)
      assert.deepEqual(quotaOf(await upload(next, authorization)), {
        token: 'ci',
        uploads: { limit: 2, remaining: 0 },
        bytes: { limit: 1024, remaining: 1014 },
      })
    } finally {
      await next.close()
      await rm(data, { recursive: true, force: true })
    }
  })

  test('applies in thin mode', async () => {
    const behind = await startGateway()
    const at = await start({ uploads: 1 }, { config: { upload: { kuboRpc: false, forwardTo: `${behind.url}/add` } } })
    try {
      assert.equal((await upload(at, authorization)).status, 200)
      assert.equal((await upload(at, authorization)).status, 429)
    } finally {
      await at.close()
      await behind.close()
    }
  })
})

test('token → known by name and hash, until it expires', async () => {
  const [plain, hashed, ended] = ['plain-plain-plain', 'hashed-hashed-hashed', 'ended-ended-ended-ended']
  const sha256 = createHash('sha256').update(hashed).digest('hex')
  const tokens = [
    plain,
    { name: 'ci', sha256, expires: '2999-01-01' },
    { name: 'old', token: ended, expires: '2020-01-01T00:00:00Z' },
  ]
  const at = await startGateway({ config: { upload: { auth: { tokens } }, log: { access: 'all' } } })
  try {
    const as = (token: string) => upload(at, { authorization: `Bearer ${token}`, origin: 'https://page.example' })
    assert.equal((await as(plain)).status, 200)
    assert.equal((await as(hashed)).status, 200)
    assert.equal((await as(sha256)).status, 401)
    const late = await as(ended)
    assert.equal(late.status, 401)
    assert.match(String(late.json['detail']), /^this token ended at 2020-01-01T00:00:00\.000Z/)
    const lines = () => at.log.filter(({ event }) => event === 'http.request')
    while (lines().length < 4) await setImmediate()
    assert.deepEqual(
      lines().map(({ facts }) => facts['token']),
      [undefined, 'ci', undefined, undefined],
    )
  } finally {
    await at.close()
  }
})
