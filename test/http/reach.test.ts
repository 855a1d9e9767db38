// `cidgate reach`: what keeps others from content here is named, the first thing last.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { createServer, type RequestListener, request as requestTo } from 'node:http'
import { createSecureServer, type Http2ServerRequest, type Http2ServerResponse } from 'node:http2'
import { createServer as createTlsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Writable } from 'node:stream'
import { after, before, test } from 'node:test'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { stringify } from 'yaml'
import { reachCommand } from '../../src/cli/client/reach.ts'
import { selfSigned } from '../support/certificate.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { startIndexer, type TestIndexer } from '../support/indexer.ts'

let at: TestGateway
let indexer: TestIndexer
let config: Record<string, unknown>
let cid: string
before(async () => {
  const free = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => free.once('listening', resolve))
  const { port } = free.address() as AddressInfo
  await new Promise((resolve) => free.close(resolve))
  indexer = await startIndexer()
  const indexers = [{ name: 'test', url: indexer.url }]
  config = { public: `http://127.0.0.1:${port}`, provider: true, announce: { indexers, every: '100ms' } }
  at = await startGateway({ port, config })
  const body = new FormData()
  body.append('data', new Blob(['within reach']), 'x')
  const { cids } = (await (await fetch(`${at.url}/add`, { method: 'POST', body })).json()) as { cids: string[] }
  cid = cids[0]?.slice('/ipfs/'.length) ?? ''
  while (indexer.announced.length === 0) await new Promise((resolve) => setTimeout(resolve, 50))
})
after(async () => {
  await at.close()
  await indexer.close()
})

/** What stands in front of a gateway: TLS, with HTTP/2 or without. */
type Proxy = { readonly url: string; extra: Record<string, string>; to: number; close(): void }

async function startProxy(protocol: 'h2' | 'http/1.1', { cert, key }: { cert: string; key: string }): Promise<Proxy> {
  const pass = (request: Http2ServerRequest, response: Http2ServerResponse) => {
    const { url: path = '', headers, method } = request
    const plain = Object.fromEntries(Object.entries(headers).filter(([name]) => !name.startsWith(':')))
    const on = requestTo({ host: '127.0.0.1', port: proxy.to, path, method, headers: plain }, (answer) => {
      const { connection: _connection, 'keep-alive': _keepAlive, ...kept } = answer.headers
      response.writeHead(answer.statusCode ?? 500, { ...kept, ...proxy.extra })
      answer.on('data', (chunk: Buffer) => response.write(chunk)).on('end', () => response.end())
    })
    on.on('error', () => response.end()).end()
  }
  const server =
    protocol === 'h2'
      ? createSecureServer({ cert, key, allowHTTP1: true }, pass)
      : createTlsServer({ cert, key }, pass as unknown as RequestListener)
  await new Promise<void>((resolve) => server.listen(0, 'localhost', resolve))
  const url = `https://localhost:${(server.address() as AddressInfo).port}`
  const proxy: Proxy = { url, extra: {}, to: 0, close: () => void server.close() }
  return proxy
}

async function reach(of: string, more: Record<string, unknown> = {}): Promise<{ code: number; lines: string[] }> {
  const file = join(at.data, 'my.yaml')
  await writeFile(file, stringify({ ...config, retrieval: { upstreams: [], routers: [] }, ...more }))
  const said: Buffer[] = []
  const stdout = new Writable({ write: (chunk, _encoding, done) => done(void said.push(chunk)) })
  const io = { stdin: process.stdin, stdout, stderr: process.stderr, environment: {} }
  const code = await reachCommand({ values: { config: file }, positionals: [of], io }, of)
  return { code, lines: Buffer.concat(said).toString().trim().split('\n') }
}

test('pinned and announced, indexer lacks it → reported last', async () => {
  const { code, lines } = await reach(cid)
  assert.equal(code, 1)
  for (const name of ['public', 'router', 'block', 'headers', 'miss', 'head'])
    assert.ok(
      lines.some((line) => line.startsWith(`ok   ${name}: `)),
      `${name}\n${lines.join('\n')}`,
    )
  assert.match(String(lines.at(-1)), /^first fault: indexer test: it does not name this gateway/)
})

test('not pinned here → router answers empty, reported first', async () => {
  const { code, lines } = await reach('bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e')
  assert.equal(code, 1)
  assert.match(String(lines.at(-1)), /^first fault: router: .*names no gateway for it/)
})

test('no `public`, plain HTTP, or unreachable → named', async () => {
  const last = async (more: Record<string, unknown>) => String((await reach(cid, more)).lines.at(-1))
  assert.match(await last({ public: undefined, announce: false }), /^first fault: public: it is not set/)
  assert.match(await last({ public: 'http://localhost:1', announce: false }), /^first fault: public: .*plain HTTP/)
  assert.match(await last({ public: 'https://127.0.0.1:1', announce: false }), /^first fault: router: .*ECONNREFUSED/)
})

test('over TLS without HTTP/2 or short headers → named first', async (t) => {
  const day = 86_400_000
  const certificate = selfSigned('localhost', new Date(Date.now() - day), new Date(Date.now() + day))
  const trusted = getCACertificates('default')
  setDefaultCACertificates([...trusted, certificate.cert])
  t.after(() => setDefaultCACertificates(trusted))
  for (const protocol of ['h2', 'http/1.1'] as const) {
    const proxy = await startProxy(protocol, certificate)
    const behind = await startGateway({ config: { public: proxy.url, provider: true } })
    t.after(() => behind.close())
    t.after(() => proxy.close())
    proxy.to = Number(new URL(behind.url).port)
    const body = new FormData()
    body.append('data', new Blob(['behind TLS']), 'x')
    const { cids } = (await (await fetch(`${behind.url}/add`, { method: 'POST', body })).json()) as { cids: string[] }
    const again = () => reach(cids[0] ?? '', { public: proxy.url, announce: false })
    const { code, lines } = await again()
    if (protocol === 'http/1.1') {
      assert.match(String(lines.at(-1)), /^first fault: http: http\/1\.1: Kubo requires HTTP\/2/)
      continue
    }
    assert.equal(code, 0, lines.join('\n'))
    for (const line of [`public: ${proxy.url}`, 'http: HTTP/2', 'block: 10 bytes, proved'])
      assert.ok(lines.includes(`ok   ${line}`), `${line}\n${lines.join('\n')}`)
    proxy.extra = { 'x-long': 'x'.repeat(2048) }
    assert.match(String((await again()).lines.at(-1)), /^first fault: headers: \d+ bytes, above Kubo's limit of 2048/)
    proxy.extra = {}
    setDefaultCACertificates(trusted)
    assert.match(String((await again()).lines.at(-1)), /^first fault: router: .*self-signed certificate/)
    setDefaultCACertificates([...trusted, certificate.cert])
  }
})
