// Paths that are passed on: what reaches the service, what comes back, and what happens when it does not answer.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import {
  Agent,
  createServer,
  get as httpGet,
  request as httpRequest,
  type IncomingMessage,
  type RequestListener,
} from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { after, before, beforeEach, test } from 'node:test'
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
        { path: '/gone', to: 'http://127.0.0.1:1', methods: ['GET', 'POST'] },
      ],
    },
  })
})
after(async () => {
  await at.close()
  service.closeAllConnections()
  service.close()
})
beforeEach(() => {
  seen.length = 0
  answer = (_request, response) => response.end('fine')
})

const get = (path: string, headers: Record<string, string> = {}) => fetchAll(`${at.url}${path}`, headers)

/** One request as it is written, and all that comes back until the connection is closed. */
async function raw(lines: readonly string[], body = '', continued = ''): Promise<string> {
  const socket = connect(Number(new URL(at.url).port), '127.0.0.1')
  let said = ''
  socket.on('data', (piece) => {
    said += piece.toString()
    if (continued !== '' && said.startsWith('HTTP/1.1 100')) socket.write(continued)
  })
  socket.write(`${lines.join('\r\n')}\r\n\r\n${body}`)
  await once(socket, 'close')
  return said
}

async function post(path: string, body: string, headers: Record<string, string> = {}): Promise<number | undefined> {
  const asked = httpRequest(`${at.url}${path}`, { method: 'POST', headers, agent: false })
  asked.on('error', () => {})
  asked.end(body)
  const [said] = (await once(asked, 'response')) as [IncomingMessage]
  said.resume()
  return said.statusCode
}

test('path suffix is appended as written; longest match wins', async () => {
  const rows = [
    ['/status', '/base/'],
    ['/status?x=%20', '/base/?x=%20'],
    ['/status/a%20b/%C3%BC?y=%2F', '/base/a%20b/%C3%BC?y=%2F'],
    ['/status/deep/er', '/other/er'],
  ] as const
  for (const [asked, passed] of rows) {
    assert.equal((await get(asked)).status, 200)
    assert.equal(seen.at(-1)?.url, passed)
  }
  assert.equal((await get('/statuses')).status, 404, 'another name that begins alike')
  assert.equal(seen.length, rows.length)
})

test('X-Forwarded-* sent; cookies and Authorization only if configured', async () => {
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

test('headers that override path or method → dropped', async () => {
  answer = (_request, response) =>
    response.setHeader('X-Accel-Redirect', '/private').setHeader('X-Sendfile', '/etc/passwd').end('fine')
  const other = {
    'X-Original-URL': '/admin',
    'X-Rewrite-Url': '/admin',
    'X-HTTP-Method-Override': 'DELETE',
    X_Method_Override: 'DELETE',
  }
  const { headers } = await get('/status', other)
  assert.deepEqual(
    Object.keys(headers).filter((name) => /accel|sendfile/.test(name)),
    [],
  )
  assert.deepEqual(
    Object.keys(seen[0]?.headers ?? {}).filter((name) => /original|rewrite|override/.test(name)),
    [],
  )
})

test('methods and body limits come from the table', async () => {
  const refused = await raw(['POST /status HTTP/1.1', 'Host: h', 'Content-Length: 0', 'Connection: close'])
  assert.match(refused, /^HTTP\/1\.1 405 /)
  assert.match(refused, /\r\nAllow: GET, HEAD\r\n/)
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

test('Connection header cannot reframe a body; connections are not shared', async () => {
  const bodies: string[] = []
  const sockets = new Set<unknown>()
  answer = async (request, response) => {
    sockets.add(request.socket)
    let body = ''
    for await (const piece of request) body += String(piece)
    bodies.push(body)
    response.end(request.url)
  }
  const hidden = 'GET /private HTTP/1.1\r\nHost: x\r\n\r\n'
  for (const named of [
    'connection, content-length, transfer-encoding',
    'close, Content-Length',
    'keep-alive, host, via',
  ]) {
    const lines = [
      'POST /status/deep/a HTTP/1.1',
      'Host: h',
      `Connection: ${named}`,
      `Content-Length: ${hidden.length}`,
    ]
    const asked = connect(Number(new URL(at.url).port), '127.0.0.1')
    asked.write(`${lines.join('\r\n')}\r\n\r\n${hidden}`)
    await once(asked, 'data')
    asked.destroy()
    assert.equal((await get('/status/victim')).body.toString(), '/base/victim', named)
  }
  assert.deepEqual(bodies, [hidden, '', hidden, '', hidden, ''])
  assert.deepEqual([...new Set(seen.map(({ url }) => url))], ['/other/a', '/base/victim'])
  assert.equal(seen[4]?.headers.host, new URL(there).host)
  assert.equal(sockets.size, 6)
  assert.deepEqual([...new Set(seen.map(({ headers }) => headers.connection))], ['close'])
})

test('GET with a body → body dropped', async () => {
  for (const framing of ['Content-Length: 3', 'Transfer-Encoding: chunked'])
    for (const method of ['GET', 'HEAD']) {
      const said = await raw([`${method} /status HTTP/1.1`, 'Host: h', framing], '3\r\nabc\r\n0\r\n\r\n')
      assert.match(said, /^HTTP\/1\.1 400 /)
    }
  assert.equal(seen.length, 0)
})

test('Expect: 100-continue → handled here; personal headers not forwarded', async () => {
  let body = ''
  answer = async (request, response) => {
    for await (const piece of request) body += String(piece)
    response.end('fine')
  }
  const wait = ['Host: h', 'Expect: 100-continue', 'Cookie: a=b', 'Authorization: Bearer x', 'Proxy-Authorization: y']
  assert.match(
    await raw(['GET /status HTTP/1.1', ...wait, 'Connection: close']),
    /^HTTP\/1\.1 100 .*\r\n\r\nHTTP\/1\.1 200 /,
  )
  assert.match(await raw(['GET /status HTTP/1.0', ...wait]), /^HTTP\/1\.1 200 /)
  const lines = [...wait, 'Connection: close', 'Content-Length: 3']
  assert.match(await raw(['POST /status/deep HTTP/1.1', ...lines], '', 'abc'), /\r\n\r\nHTTP\/1\.1 200 /)
  assert.equal(body, 'abc')
  assert.match(await raw(['POST /status HTTP/1.1', ...lines]), /^HTTP\/1\.1 405 /, 'without a 100')
  assert.equal(seen.length, 3)
  for (const { headers, url } of seen) {
    assert.equal(headers.expect, undefined)
    assert.equal(headers['proxy-authorization'], undefined)
    assert.equal(headers.cookie, url === '/other/' ? 'a=b' : undefined)
    assert.equal(headers.authorization, url === '/other/' ? 'Bearer x' : undefined)
  }
})

test('path traversal → refused', async () => {
  const out = [
    '..%2fs',
    'x%2f..%2f..%2fs',
    '..%5cs',
    'x%5C..',
    '..;/s',
    '..;a=b/s',
    '..%3b/s',
    '%2e%2e/s',
    '.%2E',
    './x',
  ]
  const odd = ['%252e%252e/s', 'x%252fs', '%25%32%65./s', '%c0%ae./s', '..%00/s', '..%20/s', '%0d%0as', '%', 'a\\s']
  for (const path of [...out, ...odd])
    for (const under of ['/status', '/status/deep'])
      assert.match(await raw([`GET ${under}/${path} HTTP/1.1`, 'Host: h']), /^HTTP\/1\.1 400 /, path)
  assert.match(await raw([`GET /status/${'%25'.repeat(4000)} HTTP/1.1`, 'Host: h', 'Connection: close']), / 200 /)
  assert.match(await raw([`GET /status/%${'25'.repeat(4000)} HTTP/1.1`, 'Host: h']), / 400 /)
  assert.equal(seen.length, 1)
  for (const path of ['...', '..a', 'a..', '.well-known/x', 'a;b=..', '100%25', '%C3%9C', 'a//b', '?../x%2f..'])
    assert.equal((await get(`/status/${path}`)).status, 200, path)
})

test('client forwarding headers → replaced', async () => {
  const forged = [
    'X-Forwarded-Host: evil',
    'X-Forwarded-Proto: https',
    'X-Forwarded-User: admin',
    'X-Real-IP: 192.0.2.1',
  ]
  const more = ['Forwarded: for=192.0.2.1', 'X_Forwarded_For: 192.0.2.1', 'Via: 1.0 first', 'X-Own: 1', 'X-Other: 2']
  const named = 'Connection: close, X-Forwarded-For, x-forwarded-host, Via, X-Own'
  const address = 'X-Forwarded-For: 192.0.2.1'
  const said = await raw([
    'GET /status HTTP/1.1',
    'Host: here:1',
    'X-Request-Id: forged',
    ...forged,
    ...more,
    named,
    address,
  ])
  const { headers } = seen[0] as IncomingMessage
  const [, id] = /\r\nx-request-id: (\S+)\r\n/i.exec(said) ?? []
  assert.ok(id !== undefined && id !== 'forged')
  const told = Object.entries(headers).filter(([name]) => /^(x[-_]|via|forwarded)/.test(name))
  assert.deepEqual(Object.fromEntries(told), {
    'x-forwarded-for': '192.0.2.1, 127.0.0.1',
    'x-forwarded-host': 'here:1',
    'x-forwarded-proto': 'http',
    via: '1.0 first, 1.1 cidgate',
    'x-other': '2',
    'x-request-id': id,
  })
})

test('trusted proxy → its host and scheme are forwarded', async () => {
  const behind = await startGateway({
    config: { trustedProxies: ['127.0.0.1'], proxy: [{ path: '/status', to: there }] },
  })
  const said = {
    'X-Forwarded-Host': 'public.example',
    'X-Forwarded-Proto': 'https',
    'X-Forwarded-For': '192.0.2.1',
    'X-Request-Id': 'of-the-proxy',
  }
  await fetchAll(`${behind.url}/status`, said).finally(behind.close)
  const { headers } = seen[0] as IncomingMessage
  assert.equal(headers['x-forwarded-host'], 'public.example')
  assert.equal(headers['x-forwarded-proto'], 'https')
  assert.equal(headers['x-request-id'], 'of-the-proxy')
  assert.equal(headers['x-forwarded-for'], '192.0.2.1, 127.0.0.1')
})

test("service's connection headers → dropped; client connection kept", async () => {
  answer = (_request, response) => {
    const own = {
      Connection: 'close, X-Secret',
      'X-Secret': '1',
      'Keep-Alive': 'timeout=9',
      'Proxy-Authenticate': 'Basic',
    }
    response
      .writeHead(200, { ...own, Upgrade: 'foo', Trailer: 'x-t', 'X-Own': '2', 'X-Request-Id': 'theirs' })
      .end('fine')
  }
  const asked = 'GET /status HTTP/1.1\r\nHost: h\r\n'
  const both = await raw([`${asked}\r\nGET /status HTTP/1.1`, 'Host: h', 'Connection: close'])
  const [first = '', second = ''] = both.split(/(?<=fine\r\n0\r\n\r\n)/)
  assert.match(first, /^HTTP\/1\.1 200 OK\r\nX-Request-Id: \S+\r\nx-own: 2\r\n/)
  assert.doesNotMatch(first, /theirs/)
  assert.match(first, /\r\nConnection: keep-alive\r\n/)
  assert.match(second, /^HTTP\/1\.1 200 OK\r\n/)
  assert.match(second, /\r\nConnection: close\r\n/)
  assert.doesNotMatch(both, /secret|timeout=9|proxy-auth|upgrade|trailer/i)
  assert.equal(seen.length, 2)
})

test('upgrade or invalid status → 502', async () => {
  const heads = ['101 Switching\r\nConnection: Upgrade\r\nUpgrade: foo', '099 Odd\r\nContent-Length: 0']
  for (const head of heads) {
    answer = (request) => request.socket.write(`HTTP/1.1 ${head}\r\n\r\n`)
    assert.equal((await get('/status/deep')).status, 502, head)
  }
})

test('redirect → not followed; inside the service → rewritten', async () => {
  let location = `${there}/base/next`
  answer = (_request, response) => response.writeHead(302, { Location: location }).end()
  assert.equal((await get('/status')).headers.location, '/status/next')
  location = 'http://elsewhere.example/x'
  assert.equal((await get('/status')).headers.location, location)
  const rows = [
    ['/base/login?a#b', '/status/login?a#b'],
    ['/base', '/status'],
    ['next', '/status/x/next'],
    [`//${new URL(there).host}/base/x`, '/status/x'],
    [`${there.toUpperCase()}/base/x`, '/status/x'],
    ['/based', '/based'],
    ['/base/../other', '/base/../other'],
    ['//elsewhere.example/base/', '//elsewhere.example/base/'],
    ['http://[', 'http://['],
  ] as const
  for (const [said, meant] of rows) {
    location = said
    assert.equal((await get('/status/x/y?z')).headers.location, meant, said)
  }
  assert.equal(seen.length, 2 + rows.length)
})

test('down → 502, silent → 504, truncated → reset', async () => {
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
  assert.deepEqual(
    at.log.filter(({ level }) => level === 'error'),
    [],
    'no mistake of ours',
  )
})

test('early response → connection closed afterwards', async () => {
  answer = (_request, response) => response.writeHead(403).end('no')
  const lines = ['POST /status/deep HTTP/1.1', 'Host: h', 'Content-Length: 100']
  for (const [path, status] of [
    ['/status/deep', 403],
    ['/gone', 502],
  ] as const) {
    const socket = connect(Number(new URL(at.url).port), '127.0.0.1')
    socket.write(`${lines.join('\r\n').replace('/status/deep', path)}\r\n\r\nhalf`)
    const [said] = (await once(socket, 'data')) as [Buffer]
    assert.match(said.toString(), new RegExp(`^HTTP/1\\.1 ${status} `))
    assert.match(said.toString(), /\r\nConnection: close\r\n/)
    socket.destroy()
  }
})

test('concurrent requests per service are limited', async () => {
  const full = Promise.withResolvers<void>()
  const waiting: { end(): void }[] = []
  answer = (_request, response) => {
    if (waiting.push(response) === 256) full.resolve()
  }
  const agent = new Agent({ maxSockets: 300 })
  const asked = Array.from({ length: 256 }, () =>
    once(httpGet(`${at.url}/status/deep`, { agent }), 'response').then(([said]) => said.resume().statusCode),
  )
  await full.promise
  assert.equal((await get('/status/deep')).status, 503)
  for (const response of waiting) response.end()
  assert.deepEqual([...new Set(await Promise.all(asked))], [200])
  answer = (_request, response) => response.end('fine')
  assert.equal((await get('/status/deep')).status, 200)
  agent.destroy()
})

test('client leaves → service request aborted', async () => {
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

test("table cannot take the gateway's paths", () => {
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
