// Paths that are passed on: what reaches the service, what comes back, and what happens when it does not answer.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import {
  createServer,
  get as httpGet,
  request as httpRequest,
  type IncomingMessage,
  type RequestListener,
} from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import { parseConfig } from '../../src/config/load.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'

let answer: RequestListener
let at: TestGateway
const seen: IncomingMessage[] = []
const service = createServer((request, response) => {
  seen.push(request)
  answer(request, response)
})
let there: string
before(async () => {
  await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
  there = `http://127.0.0.1:${(service.address() as AddressInfo).port}`
})
after(() => {
  service.closeAllConnections()
  service.close()
})
beforeEach(async () => {
  seen.length = 0
  answer = (_request, response) => response.end('fine')
  at = await startGateway({
    config: {
      proxy: [
        { path: '/status', to: `${there}/base/`, timeout: '300ms' },
        {
          path: '/status/deep',
          to: `${there}/other`,
          methods: ['GET', 'POST'],
          sendAuthorization: true,
          maxBytes: '1KiB',
        },
        { path: '/gone', to: 'http://127.0.0.1:1' },
      ],
    },
  })
})
afterEach(() => at.close())

const get = (path: string, headers: Record<string, string> = {}) => fetchAll(`${at.url}${path}`, headers)

async function post(path: string, body: string, headers: Record<string, string> = {}): Promise<number | undefined> {
  const asked = httpRequest(`${at.url}${path}`, { method: 'POST', headers, agent: false })
  asked.on('error', () => {})
  asked.end(body)
  const [said] = (await once(asked, 'response')) as [IncomingMessage]
  said.resume()
  return said.statusCode
}

test('what follows the path is put behind the address, as it was written, and the longest path takes it', async () => {
  const rows = [
    ['/status', '/base/'],
    ['/status?x=%20', '/base/?x=%20'],
    ['/status/a%2Fb/%C3%BC?y=1', '/base/a%2Fb/%C3%BC?y=1'],
    ['/status/deep/er', '/other/er'],
  ] as const
  for (const [asked, passed] of rows) {
    assert.equal((await get(asked)).status, 200)
    assert.equal(seen.at(-1)?.url, passed)
  }
  assert.equal((await get('/statuses')).status, 404, 'another name that begins alike')
  assert.equal(seen.length, rows.length)
})

test('who asked is said, and nothing personal unless it is wanted', async () => {
  answer = (_request, response) => response.setHeader('Set-Cookie', 'a=b').end('fine')
  const personal = { Authorization: 'Bearer x', Cookie: 'c=d', TE: 'trailers', 'X-Own': 'kept' }
  const { headers } = await get('/status', personal)
  assert.equal(headers['set-cookie'], undefined)
  const [first] = seen
  assert.equal(first?.headers.authorization, undefined)
  assert.equal(first?.headers.cookie, undefined)
  assert.equal(first?.headers.te, undefined)
  assert.equal(first?.headers['x-own'], 'kept')
  assert.equal(first?.headers['x-forwarded-for'], '127.0.0.1')
  assert.equal(first?.headers.host, new URL(there).host)
  assert.equal(first?.headers.via, '1.1 cidgate')
  assert.deepEqual((await get('/status/deep', personal)).headers['set-cookie'], ['a=b'])
  assert.equal(seen[1]?.headers.authorization, 'Bearer x')
})

test('methods and bodies are those of the table', async () => {
  assert.equal(await post('/status', 'x'), 405)
  assert.equal(await post('/status/deep', 'x'.repeat(1025)), 413)
  assert.equal(await post('/status/deep', 'x', { 'Transfer-Encoding': 'chunked' }), 411)
  assert.equal(seen.length, 0)
  let body = ''
  answer = async (request, response) => {
    for await (const piece of request) body += String(piece)
    response.statusCode = 201
    response.end()
  }
  assert.equal(await post('/status/deep', 'hello'), 201)
  assert.equal(body, 'hello')
})

test('no way out of the path that was opened', async () => {
  for (const path of ['/status/..%2fsecret', '/status/%2e%2e/secret', '/status/./x']) {
    const asked = httpRequest(at.url, { path, agent: false }).end()
    const [said] = (await once(asked, 'response')) as [IncomingMessage]
    assert.equal(said.resume().statusCode, 400, path)
  }
  assert.equal(seen.length, 0)
})

test('a redirect is not followed; one within the service leads through here', async () => {
  let location = `${there}/base/next`
  answer = (_request, response) => response.writeHead(302, { Location: location }).end()
  assert.equal((await get('/status')).headers.location, '/status/next')
  location = 'http://elsewhere.example/x'
  assert.equal((await get('/status')).headers.location, location)
  assert.equal(seen.length, 2)
})

test('a service that is gone is 502, a silent one 504, and a cut answer never looks whole', async () => {
  const gone = await get('/gone')
  assert.equal(gone.status, 502)
  assert.match(String(gone.headers['content-type']), /problem\+json/)
  answer = () => {}
  assert.equal((await get('/status')).status, 504)
  answer = (_request, response) => {
    response.writeHead(200, { 'Content-Length': '100' })
    response.write('half')
    setImmediate(() => response.destroy())
  }
  await assert.rejects(get('/status'))
})

test('a client that leaves is left', async () => {
  const left = Promise.withResolvers<void>()
  answer = (_request, response) => {
    response.write('begun')
    response.once('close', () => left.resolve())
  }
  const asked = httpGet(`${at.url}/status`, { agent: false })
  asked.on('error', () => {})
  await once(asked, 'response')
  asked.destroy()
  await left.promise
})

test('a table cannot take the paths of the gateway', () => {
  const refuses = (path: string) =>
    assert.throws(() => parseConfig({ proxy: [{ path, to: there }] }), /proxy\[0\]\.path/)
  for (const path of ['/ipfs', '/ipfs/x', '/api', '/api/v0/add', '/add', '/openapi.json', 'status', '/a/', '/..'])
    refuses(path)
  const twice = [
    { path: '/a', to: there },
    { path: '/a', to: there },
  ]
  assert.throws(() => parseConfig({ proxy: twice }), /\/a is there twice/)
})
