// Hosts that do something else than the rest, over HTTP: origins of their own, provable answers only, and tunnels.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { get as httpGet, request as httpRequest, type IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { base36 } from 'multiformats/bases/base36'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { type Fetched, fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
let at: TestGateway
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
  at = await startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: { hosts: { 'gw.example': { subdomains: true }, 'bytes.example': { trustless: true } } },
  })
})
after(async () => {
  await at.close()
  await upstream.close()
})

const from = (host: string, path: string, headers: Record<string, string> = {}): Promise<Fetched> =>
  fetchAll(`${at.url}${path}`, { Host: host, ...headers })

/** The path as it is written here: `fetchAll` would take // for the beginning of a host. */
async function raw(path: string, method = 'GET', host = 'plain.example'): Promise<IncomingMessage> {
  const { hostname, port } = new URL(at.url)
  const asked = httpRequest({ hostname, port, path, method, headers: { Host: host }, agent: false }).end()
  const [answer] = (await once(asked, 'response')) as [IncomingMessage]
  return answer.resume()
}

describe('subdomain gateway', () => {
  test('path → redirect to its own origin, served there', async () => {
    const { cid, bytes } = all.files.hello
    const moved = await from('gw.example', `/ipfs/${cid}?x=1`)
    assert.equal(moved.status, 301)
    assert.equal(moved.headers.location, `http://${cid}.ipfs.gw.example/?x=1`)
    assert.match(String(moved.headers.vary), /X-Forwarded-Proto/)
    for (let turn = 0; turn < 2; turn++) {
      const answer = await from(`${cid}.ipfs.gw.example`, '/')
      assert.equal(answer.status, 200)
      assert.ok(answer.body.equals(bytes))
      assert.equal(answer.headers['x-ipfs-path'], `/ipfs/${cid}/`)
      assert.equal(answer.headers['content-security-policy'], undefined)
    }
  })

  test('cached on one host → not served on another', async () => {
    const { cid, bytes } = all.files.hello
    for (let turn = 0; turn < 2; turn++) {
      assert.ok((await from('plain.example', `/ipfs/${cid}`)).body.equals(bytes))
      assert.equal((await from('gw.example', `/ipfs/${cid}`)).status, 301)
      assert.equal((await from(`${cid}.ipfs.gw.example`, `/ipfs/${cid}`)).status, 404)
      for (const host of ['bytes.example', 'bytes.example.', 'BYTES.example.:80'])
        assert.equal((await from(host, `/ipfs/${cid}`)).status, 406, host)
    }
  })

  test('cached on a subdomain → not reachable by a spoofed path', async () => {
    const host = `${all.directory}.ipfs.gw.example`
    for (let turn = 0; turn < 2; turn++) assert.equal((await from(host, '/readme.txt')).status, 200)
    for (const path of [`//${host}/readme.txt`, `/readme.txt%20${host}`, `/${host}/readme.txt`])
      assert.equal((await raw(path)).statusCode, 404, path)
  })

  test('subdomain origin → its content only, no gateway routes', async () => {
    const host = `${all.directory}.ipfs.gw.example`
    assert.equal((await from(host, '/add')).status, 404)
    assert.ok((await from(host, '/sub/big.bin')).body.equals(all.names['sub/big.bin'] as Buffer))
    assert.equal((await raw('/add', 'POST', host)).statusCode, 405)
  })

  test('only reads redirect; a redirected preflight would fail', async () => {
    const { cid } = all.files.hello
    const other = cid.toV1().toString(base36)
    for (const [host, path] of [
      ['gw.example', `/ipfs/${cid}`],
      [`${other}.ipfs.gw.example`, '/'],
    ] as const) {
      assert.equal((await raw(path, 'HEAD', host)).statusCode, 301)
      const preflight = await raw(path, 'OPTIONS', host)
      assert.equal(preflight.statusCode, 204)
      assert.match(String(preflight.headers['access-control-allow-methods']), /GET/)
      const post = await raw(path, 'POST', host)
      assert.deepEqual([post.statusCode, post.headers.allow], [405, 'GET, HEAD, OPTIONS'])
    }
  })
})

test('trustless host → verifiable responses only', async () => {
  const { cid, bytes } = all.files.hello
  const raw = await from('bytes.example', `/ipfs/${cid}?format=raw`)
  assert.ok(raw.body.equals(bytes))
  const accept = { Accept: 'application/vnd.ipld.car' }
  assert.equal(
    (await from('bytes.example', `/ipfs/${cid}`, accept)).headers['content-type']?.split(';')[0],
    accept.Accept,
  )
  for (const path of [`/ipfs/${cid}`, `/ipfs/${all.directory}?format=tar`])
    assert.equal((await from('bytes.example', path)).status, 406, path)
  assert.equal((await from('bytes.example', '/add')).status, 404)
})

test('X-Forwarded-Host → believed from trusted proxies only', async () => {
  const path = `/ipfs/${all.files.hello.cid}`
  const forwarded = { 'X-Forwarded-Host': 'plain.example' }
  assert.equal((await from('bytes.example', path, forwarded)).status, 406)
  const behind = await startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: { hosts: { 'bytes.example': { trustless: true } }, trustedProxies: ['127.0.0.0/8'] },
  })
  try {
    assert.equal((await fetchAll(behind.url + path, { Host: 'bytes.example', ...forwarded })).status, 200)
  } finally {
    await behind.close()
  }
})

test('equivalent spellings of a link → one target', async () => {
  const { cid } = all.files.hello
  const rows = [
    [`/ipfs/ipfs/${cid}?x`, `/ipfs/${cid}?x`],
    [`/ipfs/?uri=${encodeURIComponent(`ipfs://${cid}/a b/ü`)}`, `/ipfs/${cid}/a%20b/%C3%BC`],
    ['/ipns/?uri=ipns://en.wiki.example', '/ipns/en.wiki.example'],
  ] as const
  for (const [path, to] of rows) {
    const answer = await fetchAll(`${at.url}${path}`)
    assert.deepEqual([answer.status, answer.headers.location], [301, to])
  }
})

test('service worker on a shared origin → refused', async () => {
  const { cid } = all.files.hello
  const paths = [`/ipfs/${cid}`, `/ipfs/${cid}?format=raw`, `/ipfs/${all.directory}/readme.txt`]
  for (const path of paths)
    for (const asks of [{ 'Service-Worker': 'script' }, { 'service-worker': '' }]) {
      const plain = await fetchAll(at.url + path)
      // Its scope would be the folder of its script, and with this header more than that.
      assert.deepEqual([plain.status, plain.headers['service-worker-allowed']], [200, undefined])
      assert.equal((await fetchAll(at.url + path, asks)).status, 400, `${path}, though it is hot`)
    }
  assert.equal((await fetchAll(`${at.url}/ipns/nobody.example`, { 'Service-Worker': 'script' })).status, 400)
  assert.equal((await from(`${cid}.ipfs.gw.example`, '/', { 'Service-Worker': 'script' })).status, 200)
})

describe('CONNECT', () => {
  const connect = async (path: string): Promise<{ status: number | undefined; socket: Socket }> => {
    const asked = httpRequest(at.url, { method: 'CONNECT', path, agent: false }).end()
    const [answer, socket] = (await once(asked, 'connect')) as [IncomingMessage, Socket]
    return { status: answer.statusCode, socket }
  }

  test('to a served host → tunnel', async () => {
    const { cid, bytes } = all.files.hello
    for (const host of [`${cid}.ipfs.gw.example:80`, new URL(at.url).host]) {
      const { status, socket } = await connect(host)
      assert.equal(status, 200)
      const headers = { Host: `${cid}.ipfs.gw.example`, Connection: 'close' }
      const [answer] = (await once(httpGet({ path: '/', headers, createConnection: () => socket }), 'response')) as [
        IncomingMessage,
      ]
      const pieces: Buffer[] = []
      for await (const piece of answer) pieces.push(piece as Buffer)
      assert.ok(Buffer.concat(pieces).equals(bytes))
    }
  })

  test('second CONNECT on one socket → refused', { timeout: 10_000 }, async () => {
    const { host } = new URL(at.url)
    const { socket } = await connect(host)
    socket.write(`CONNECT ${host} HTTP/1.1\r\nHost: ${host}\r\n\r\n`)
    const said: Buffer[] = []
    for await (const piece of socket) {
      said.push(piece as Buffer)
      if (/ 200 /.test(String(piece))) break
    }
    assert.match(Buffer.concat(said).toString(), /^HTTP\/1\.1 403 .*CONNECT inside a CONNECT tunnel/s)
  })

  test('to any other host → refused without dialing', async () => {
    for (const host of ['evil.test:443', '127.0.0.1:1', new URL(upstream.url).host]) {
      const { status, socket } = await connect(host)
      assert.equal(status, 403, host)
      socket.destroy()
    }
  })
})
