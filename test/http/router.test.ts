// The exported router in somebody's Express application: it takes what is its own, wherever it is mounted, and nothing else.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { after, afterEach, before, describe, test } from 'node:test'
import express, { type Express } from 'express'
import { silentLog } from '../../src/core/log.ts'
import type { Gateway } from '../../src/gateway.ts'
import { multipart, post } from '../support/adding.ts'
import { startDnsServer } from '../support/dns-server.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, startedGateway, tempFolder } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
})
after(() => upstream.close())

const open: (() => unknown)[] = []
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close()
})

async function serve(app: Express): Promise<string> {
  const server = createServer(app)
  open.push(() => {
    server.closeAllConnections()
    server.close()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** By their configuration. */
const gateways = new Map<string, Gateway>()
const folders: string[] = []
after(async () => {
  for (const gateway of gateways.values()) await gateway.close()
  for (const folder of folders) await rm(folder, { recursive: true, force: true })
})

async function makeGateway(config: Record<string, unknown> = {}): Promise<Gateway> {
  const known = gateways.get(JSON.stringify(config))
  if (known) return known
  const data = await tempFolder()
  folders.push(data)
  const gateway = await startedGateway(
    {
      data,
      retrieval: { probeEvery: 0, upstreams: [{ name: 'one', url: upstream.url }] },
      cache: { tiers: [{ use: 'memory', maxBytes: '64MiB' }] },
      pinning: { providers: [{ name: 'local', use: 'embedded' }] },
      ...config,
    },
    { log: silentLog },
  )
  gateways.set(JSON.stringify(config), gateway)
  return gateway
}

/** An application with a route before ours, ours, and some behind it. */
async function start(config: Record<string, unknown> = {}, path = '/') {
  const { router } = await makeGateway(config)
  const app = express()
  app.disable('x-powered-by')
  app.get('/first', (_request, response) => void response.send('first'))
  app.use(path, router)
  app.get('/after', (_request, response) => void response.send('after'))
  app.post('/after', express.json(), (request, response) => void response.json(request.body))
  app.get('/boom', () => {
    throw new Error('of the application')
  })
  app.use((_request, response) => void response.status(404).send('nothing of ours'))
  app.use((error: Error, _request: unknown, response: express.Response, _next: unknown) => {
    response.status(500).send(`caught: ${error.message}`)
  })
  return serve(app)
}

describe('router at the root of an application', () => {
  test('repeated file → from the response cache', async () => {
    const path = `${await start()}/ipfs/${all.files.hello.cid}`
    await fetchAll(path)
    for (const method of ['GET', 'HEAD']) {
      const answer = await fetchAll(path, { method })
      assert.equal(answer.headers['cache-status'], 'cidgate; hit; detail=responses', method)
      assert.ok(answer.headers['x-request-id'])
    }
  })

  test('handles its paths; leaves others untouched', async () => {
    const url = await start()
    assert.equal((await fetchAll(`${url}/ipfs/${all.files.hello.cid}`)).body.toString(), 'hello, juror\n')
    assert.equal((await fetch(`${url}/openapi.json`)).status, 200)
    assert.equal((await post(`${url}/add`, multipart([{ body: 'hello' }]))).status, 200)
    for (const [path, status, said] of [
      ['/first', 200, 'first'],
      ['/after', 200, 'after'],
      ['/', 404, 'nothing of ours'],
      ['/nothing', 404, 'nothing of ours'],
      ['/ipfs', 404, 'nothing of ours'],
      ['/add/', 404, 'nothing of ours'],
      ['/addition', 404, 'nothing of ours'],
      ['/ADD', 404, 'nothing of ours'],
      ['/openapi.json/x', 404, 'nothing of ours'],
      ['/api/v0/version', 404, 'nothing of ours'],
      ['/boom', 500, 'caught: of the application'],
    ] as const) {
      const answer = await fetchAll(url + path)
      assert.deepEqual([answer.status, answer.body.toString()], [status, said], path)
      for (const name of Object.keys(answer.headers)) assert.doesNotMatch(name, /^(access-control|x-request-id|x-ipfs)/)
    }
    const body = await fetch(`${url}/after`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"a":1}',
    })
    assert.deepEqual(await body.json(), { a: 1 })
  })

  test('own malformed requests → errors; others not interpreted', async () => {
    const url = await start()
    const wrong = await fetch(`${url}/ipfs/nonsense`)
    assert.deepEqual([wrong.status, wrong.headers.get('content-type')], [400, 'application/problem+json'])
    const { hostname, port } = new URL(url)
    const twoHosts = async (path: string) => {
      const socket = connect(Number(port), hostname)
      socket.write(`GET ${path} HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n`)
      return (await text(socket)).split('\r\n')[0]
    }
    assert.equal(await twoHosts('/after'), 'HTTP/1.1 200 OK')
    assert.equal(await twoHosts('/ipfs/bafkqaaa'), 'HTTP/1.1 400 Bad Request')
  })

  test('counts and limits own requests only', async () => {
    const url = await start({ limits: { perClient: { perMinute: 1, burst: 2 } } })
    for (let count = 0; count < 5; count++) assert.equal((await fetchAll(`${url}/after`)).status, 200)
    const statuses = []
    for (let count = 0; count < 3; count++) statuses.push((await fetchAll(`${url}/ipfs/bafkqaaa`)).status)
    assert.deepEqual(statuses, [200, 200, 429])
    assert.equal((await fetchAll(`${url}/after`)).status, 200)
  })

  test('serves its hosts, passes on other paths', async () => {
    const dns = await startDnsServer()
    open.push(() => dns.close())
    const url = await start({
      responses: { types: 'web' },
      hosts: { 'gw.example': { subdomains: true }, 'bytes.example': { trustless: true } },
      names: { dnslinkSites: true, static: { 'site.example': `/ipfs/${all.directory}` }, dns: [dns.address] },
    })
    const get = (path: string, host: string) => fetchAll(url + path, { host })
    assert.equal((await get('/readme.txt', `${all.directory}.ipfs.gw.example`)).body.toString(), 'read me')
    assert.equal((await get('/readme.txt', 'site.example')).body.toString(), 'read me')
    const moved = await get(`/ipfs/${all.directory}/readme.txt`, 'gw.example')
    assert.equal(moved.headers.location, `http://${all.directory}.ipfs.gw.example/readme.txt`)
    assert.equal((await get(`/ipfs/${all.directory}`, 'bytes.example')).status, 406)
    for (const host of ['gw.example', 'app.example', 'localhost'])
      assert.equal((await get('/after', host)).body.toString(), 'after', host)
  })
})

describe('router below the root', () => {
  test('served there; redirects stay below the mount path', async () => {
    const there = createServer((_request, response) => void response.writeHead(302, { Location: '/b/next' }).end())
    await new Promise<void>((resolve) => there.listen(0, '127.0.0.1', resolve))
    open.push(() => there.close())
    const to = `http://127.0.0.1:${(there.address() as AddressInfo).port}/b`
    const config = { responses: { types: 'web' }, proxy: [{ path: '/status', to }] }
    const url = await start(config, '/gw')
    const { directory, files } = all
    assert.equal((await fetchAll(`${url}/gw/ipfs/${files.hello.cid}`)).body.toString(), 'hello, juror\n')
    assert.equal((await fetchAll(`${url}/ipfs/${files.hello.cid}`)).body.toString(), 'nothing of ours')
    assert.equal((await post(`${url}/gw/add`, multipart([{ body: 'hello' }]))).status, 200)
    for (const [path, location] of [
      [`/gw/ipfs/ipfs/${directory}/readme.txt`, `/gw/ipfs/${directory}/readme.txt`],
      [`/gw/ipfs/?uri=ipfs://${directory}/readme.txt`, `/gw/ipfs/${directory}/readme.txt`],
      [`/gw/ipfs/${directory}?a=b`, `/gw/ipfs/${directory}/?a=b`],
      [`/gw/ipns/12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK`, /^\/gw\/ipns\/k51/],
      [`/gw/status/x`, '/gw/status/next'],
    ] as const) {
      const { status, headers } = await fetchAll(url + path)
      assert.ok(status === 301 || status === 302, `${path}: ${status}`)
      if (typeof location === 'string') assert.equal(headers.location, location)
      else assert.match(String(headers.location), location)
    }
    const block = await fetchAll(`${url}/gw/ipfs/${files.hello.cid}`, { accept: 'application/vnd.ipld.raw' })
    assert.equal(block.headers['content-location'], `/gw/ipfs/${files.hello.cid}?format=raw`)
    assert.equal(block.headers['x-ipfs-path'], `/ipfs/${files.hello.cid}`)
  })

  test('every link of its pages includes the mount path', async () => {
    const url = await start({ responses: { types: 'web' } }, '/gw')
    for (const path of [`/gw/ipfs/${all.directory}/`, `/gw/ipfs/${all.directory}/sub/`, `/gw/ipfs/${all.dagJson}`]) {
      const page = await fetchAll(url + path, { accept: 'text/html' })
      assert.equal(page.headers['content-type'], 'text/html; charset=utf-8')
      const links = [...page.body.toString().matchAll(/href="(\/[^"]*)"/g)].map(([, href = '']) => href)
      assert.ok(links.length > 0, path)
      for (const link of links) {
        assert.match(link, /^\/gw\/ip[fn]s\//)
        assert.ok((await fetch(url + link.replaceAll('&amp;', '&'))).status < 400, link)
      }
    }
  })

  test('nested applications → serves its paths, passes on the rest', async () => {
    const { router } = await makeGateway({ responses: { types: 'web' } })
    const inner = express().use('/gw', router)
    inner.get('/gw/mine', (_request, response) => void response.send('inner'))
    const outer = express().use('/inner', inner)
    outer.use((_request, response) => void response.status(404).send('outer'))
    const url = await serve(outer)
    const { directory, files } = all
    const head = await fetch(`${url}/inner/gw/ipfs/${files.hello.cid}`, { method: 'HEAD' })
    assert.deepEqual([head.status, head.headers.get('content-length')], [200, '13'])
    const { headers } = await fetchAll(`${url}/inner/gw/ipfs/${directory}?a=b`)
    assert.equal(headers.location, `/inner/gw/ipfs/${directory}/?a=b`)
    assert.equal((await fetchAll(`${url}/inner/gw/mine`)).body.toString(), 'inner')
    for (const path of ['/inner/gw/other', `/inner/ipfs/${files.hello.cid}`, `/gw/ipfs/${files.hello.cid}`]) {
      const other = await fetch(url + path, { method: 'HEAD' })
      assert.deepEqual([other.status, other.headers.get('x-request-id')], [404, null], path)
      assert.equal((await fetchAll(url + path)).body.toString(), 'outer', path)
    }
  })

  test('OpenAPI names the mount path', async () => {
    const url = await start({}, '/gw')
    const servers = async (path: string) => ((await (await fetch(url + path)).json()) as { servers: unknown }).servers
    assert.deepEqual(await servers('/gw/openapi.json'), [{ url: '/gw' }])
    const root = (await (await fetch(`${await start()}/openapi.json`)).json()) as { servers: unknown }
    assert.deepEqual(root.servers, [{ url: '/' }])
  })

  test('trustless host → applies here too', async () => {
    const url = await start(
      { hosts: { 'bytes.example': { trustless: true }, 'gw.example': { subdomains: true } } },
      '/gw',
    )
    const get = (path: string, host: string) => fetchAll(url + path, { host })
    assert.equal((await get(`/gw/ipfs/${all.files.hello.cid}`, 'bytes.example')).status, 406)
    assert.equal((await get(`/gw/ipfs/${all.files.hello.cid}?format=raw`, 'bytes.example')).status, 200)
    assert.equal((await get('/after', 'bytes.example')).body.toString(), 'after')
    // An origin of its own begins at the root, where the application is: nobody is sent there.
    assert.equal((await get(`/gw/ipfs/${all.files.hello.cid}`, 'gw.example')).status, 200)
  })
})

test('handler answers everything; unknown path → 404', async () => {
  const gateway = await makeGateway()
  const server = createServer(gateway.handler)
  open.push(() => {
    server.closeAllConnections()
    server.close()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/nothing`)
  assert.deepEqual([answer.status, answer.headers.get('content-type')], [404, 'application/problem+json'])
})
