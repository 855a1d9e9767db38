// Cache deception: a path that a cache in front takes for that of a file that everybody may have, and that the gateway answers as
// another one. What depends on who asks is never answered under such a path, or says that it is not to be kept.
import assert from 'node:assert/strict'
import { createServer, type IncomingHttpHeaders, type RequestListener, request, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { boundary, multipart } from '../support/adding.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { startUpstream } from '../support/upstream.ts'

const token = 'a-token-that-may-upload'
const bearer = { authorization: `Bearer ${token}` }
/** What makes a path look like that of a static file, to one parser or another. */
const disguises = [
  ...['.css', '/x.css', ';x.css', '%2fx.css', '%252fx.css', '%5cx.css', '%3bx.css', '%00.css', '%0a.css'],
  ...['/..%2fx.css', '//x.css', '%3f.css'],
]

let all: Fixtures
let at: TestGateway
let admin = ''
let asked: string[] = []
const closing: (() => unknown)[] = []

async function listen(handler: RequestListener): Promise<string> {
  const server: Server = createServer(handler)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closing.push(() => server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

before(async () => {
  all = await fixtures()
  const upstream = await startUpstream({ blocks: all.blocks })
  closing.push(() => upstream.close())
  const service = await listen(({ url = '', headers }, response) => {
    asked.push(url)
    response.setHeader('Cache-Control', 'private, no-store').end(`of ${headers.authorization}`)
  })
  at = await startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: {
      upload: { auth: { tokens: [token] }, kuboRpc: true },
      pinning: { providers: [{ name: 'local', use: 'embedded' }] },
      proxy: [{ path: '/account', to: service, sendAuthorization: true }],
      adminAccess: { tokens: ['a-token-of-the-operator'] },
    },
  })
  closing.push(() => at.close())
  admin = await listen(at.gateway.admin)
})
after(async () => {
  for (const close of closing.toReversed()) await close()
})

type Answer = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer }

/** The path as it stands: nothing puts it in order on the way. */
function ask(base: string, path: string, method = 'GET', headers: object = {}, body?: Buffer): Promise<Answer> {
  const { hostname, port } = new URL(base)
  return new Promise((resolve, reject) => {
    const outgoing = request(
      { hostname, port, path, method, headers: { ...headers }, agent: false },
      async (response) => {
        const pieces = await Array.fromAsync(response as AsyncIterable<Buffer>)
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(pieces) })
      },
    )
    outgoing.on('error', reject)
    outgoing.end(body)
  })
}

const detailOf = ({ body }: Answer): unknown => (JSON.parse(String(body)) as { detail: unknown }).detail
const isKept = ({ headers }: Answer): boolean => !/no-store/.test(String(headers['cache-control']))

describe('cache deception: private paths', () => {
  const form = multipart([{ body: 'hello' }])
  const formHeaders = { ...bearer, 'content-type': `multipart/form-data; boundary=${boundary}` }

  for (const path of ['/add', '/api/v0/pin/ls', '/api/v0/version'])
    test(`${path}: no static file, cacheable only if public`, async () => {
      for (const disguise of disguises)
        for (const [method, body] of [['GET'], ['POST', form]] as const) {
          const answer = await ask(at.url, path + disguise, method, formHeaders, body)
          assert.ok(answer.status >= 400, `${method} ${path}${disguise}: ${answer.status}`)
          if (isKept(answer)) assert.match(`${answer.status} ${detailOf(answer)}`, /^404 no such path/, path + disguise)
        }
    })

  test('query on an upload → response not cached', async () => {
    for (const path of ['/add?x.css', '/add?a=/x.css']) {
      const answer = await ask(at.url, path, 'POST', formHeaders, form)
      assert.ok(!isKept(answer), `${path}: ${answer.status} ${answer.headers['cache-control']}`)
    }
  })

  for (const path of ['/metrics', '/status', '/uploads', '/pins/bafkqaaa'])
    test(`${path} of the admin address → never cached, disguised or not`, async () => {
      for (const disguise of ['', '/', '?x.css', ...disguises]) {
        const answer = await ask(admin, path + disguise)
        assert.ok(!isKept(answer), `${path}${disguise}: ${answer.headers['cache-control']}`)
        if (disguise.includes('css') && !disguise.startsWith('?'))
          assert.ok(answer.status >= 400, `${path}${disguise}: ${answer.status}`)
      }
    })

  test('proxied path: encoded slashes refused, caching headers forwarded', async () => {
    asked = []
    for (const disguise of disguises) {
      const answer = await ask(at.url, `/account/me${disguise}`, 'GET', bearer)
      assert.ok(!isKept(answer), `${disguise}: ${answer.headers['cache-control']}`)
    }
    const isSure = (url: string) => !/%(2f|5c|00|0a|0d|252f)|\.\.|\\/i.test(url)
    assert.deepEqual(
      asked.filter((url) => !isSure(url)),
      [],
    )
    assert.ok(asked.length > 0)
    for (const who of ['one', 'other']) {
      const answer = await ask(at.url, '/account/me/x.css', 'GET', { authorization: who })
      assert.equal(String(answer.body), `of ${who}`, 'each client is answered by the service')
    }
  })
})

describe('cache deception: files', () => {
  const name = 'readme.txt'
  test('disguised path → 404, never the cached file', async () => {
    const path = `/ipfs/${all.directory}/${name}`
    const bytes = all.names[name]
    for (let turn = 0; turn < 2; turn++) {
      const file = await ask(at.url, path)
      assert.deepEqual([file.status, file.body.equals(bytes as Buffer)], [200, true])
      for (const disguise of disguises) {
        const answer = await ask(at.url, path + disguise)
        assert.ok(answer.status === 404 || answer.status === 400, `${disguise}: ${answer.status}`)
        assert.ok(!answer.body.equals(bytes as Buffer), disguise)
      }
    }
  })

  test('disguised CID → refused', async () => {
    const { cid } = all.files.hello
    assert.equal((await ask(at.url, `/ipfs/${cid}`)).status, 200)
    for (const disguise of disguises) {
      const answer = await ask(at.url, `/ipfs/${cid}${disguise}`)
      assert.ok(answer.status >= 400, `${disguise}: ${answer.status}`)
      assert.ok(!answer.body.equals(all.files.hello.bytes as Buffer), disguise)
    }
  })

  test('cached response is the same for all clients', async () => {
    const path = `/ipfs/${all.directory}/${name}`
    const answers = [await ask(at.url, path), await ask(at.url, path, 'GET', { ...bearer, cookie: 'who=me' })]
    const [one, other] = answers.map(({ status, headers: { date, 'x-request-id': _id, ...rest }, body }) => [
      ...[status, rest, String(body)],
    ])
    assert.deepEqual(one, other)
  })
})
