// nginx in front, with the very configuration that deploy/nginx ships: only addresses and folders are put in.
import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { join } from 'node:path'
import { text as textOf } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { addFile, type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { startServed } from '../support/served.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { startNginx } from './support/fronts.ts'
import { tempFolder } from './support/processes.ts'

let all: Fixtures
let source: ProgrammableUpstream
let at: TestGateway
let web: TestGateway
let closing: (() => Promise<void>)[] = []
let front = ''
let webFront = ''

/** The address of an nginx in front of a gateway. */
async function startFront(behind: { readonly url: string }): Promise<string> {
  const { url, stop } = await startNginx(behind.url)
  closing.push(stop)
  return url
}

before(async () => {
  all = await fixtures()
  source = await startUpstream({ blocks: all.blocks })
  closing.push(() => source.close())
  const upstreams = [{ name: 'source', url: source.url }]
  at = await startGateway({
    upstreams,
    config: { upload: { maxBytes: '1MiB' }, pinning: { providers: [{ name: 'local', use: 'embedded' }] } },
  })
  closing.push(() => at.close())
  web = await startGateway({
    upstreams,
    config: {
      responses: { types: 'web' },
      trustedProxies: ['127.0.0.1'],
      hosts: { 'gw.example': { subdomains: true }, 'bytes.example': { trustless: true } },
      retrieval: { negativeCache: { initialTtl: '30s' } },
    },
  })
  closing.push(() => web.close())
  front = await startFront(at)
  webFront = await startFront(web)
})
after(async () => {
  for (const close of closing.toReversed()) await close()
  closing = []
})

const served = (headers: Record<string, unknown>) => String(headers['cache-status'])

test("range across nginx's slices → right bytes", async () => {
  const { cid, bytes } = await addFile(all.blocks, noise(50_000_000, 6), 'v0')
  const path = `/ipfs/${cid}`
  const ranges: [range: string, from: number, to: number][] = [
    ['bytes=0-9', 0, 10],
    ['bytes=1048570-1048589', 1_048_570, 1_048_590],
    ['bytes=20000000-23999999', 20_000_000, 24_000_000],
    ['bytes=-1000', bytes.byteLength - 1000, bytes.byteLength],
    ['bytes=49999000-', 49_999_000, bytes.byteLength],
  ]
  for (const [range, from, to] of ranges) {
    for (const turn of ['first', 'kept']) {
      const { status, headers, body } = await fetchAll(front + path, { range })
      assert.equal(status, 206, `${range} ${turn}`)
      assert.equal(headers['content-range'], `bytes ${from}-${to - 1}/${bytes.byteLength}`)
      assert.ok(Buffer.compare(body, bytes.subarray(from, to)) === 0, `${range} ${turn}`)
    }
  }
  assert.equal((await fetchAll(front + path, { range: 'bytes=50000000-' })).status, 416)
  const whole = await fetchAll(front + path)
  assert.equal(whole.status, 200)
  assert.ok(Buffer.compare(whole.body, bytes) === 0)
})

test('small or empty file → complete and by range', async () => {
  const { hello, empty } = all.files
  const part = await fetchAll(`${front}/ipfs/${hello.cid}`, { range: 'bytes=7-11' })
  assert.deepEqual([part.status, part.body.toString()], [206, 'juror'])
  for (let count = 0; count < 2; count++) {
    const { status, body } = await fetchAll(`${front}/ipfs/${empty.cid}`)
    assert.deepEqual([status, body.byteLength], [200, 0])
  }
})

const browser = 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8'

const jsonFirst = 'application/json;q=0.9, text/html;q=0.1'

test("nginx, web mode → each client's own representation cached", async () => {
  const asked: [accept: string | undefined, type: RegExp][] = [
    [browser, /^text\/html/],
    ['application/json', /^application\/(problem\+)?json/],
    ['text/html', /^text\/html/],
  ]
  const gone = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
  const errors: typeof asked = [
    ...asked,
    ['image/avif,*/*', /json/],
    [undefined, /^text\/plain/],
    [jsonFirst, /^text\/html/],
    ['html', /json/],
  ]
  const rows = [
    [`/ipfs/${all.directory}/`, 200, [...asked, [jsonFirst, /json/]] as typeof asked],
    [`/ipfs/${all.dagJson}`, 200, [asked[0], asked[1]] as typeof asked],
    [`/ipfs/${all.directory}/nothing`, 404, errors],
    [`/ipfs/${gone}`, 404, errors],
  ] as const
  for (const [path, code, clients] of rows) {
    for (const order of [clients, clients.toReversed(), clients]) {
      for (const [accept, type] of order) {
        const headers = accept === undefined ? {} : { accept }
        const { status, headers: got } = await fetchAll(webFront + path, headers)
        assert.deepEqual(
          [status, type.test(String(got['content-type']))],
          [code, true],
          `${path} ${accept} ${got['content-type']}`,
        )
      }
    }
    const again = await fetchAll(webFront + path, { accept: `${browser},image/apng` })
    assert.match(served(again.headers), /nginx; hit/, `one copy for all browsers of ${path}`)
  }
})

test('foreign forwarded host → does not change a cached response', async () => {
  const path = `/ipfs/${all.files.hello.cid}`
  const evil = { 'x-forwarded-host': 'gw.example', 'x-forwarded-proto': 'https' }
  for (const headers of [evil, {}]) {
    assert.equal((await fetchAll(webFront + path, { host: 'plain.example', ...headers })).status, 200)
    assert.equal((await fetchAll(webFront + path, { host: 'bytes.example', ...headers })).status, 406)
    const moved = await fetchAll(webFront + path, { host: 'gw.example', ...headers })
    assert.equal(moved.headers.location, `http://${all.files.hello.cid}.ipfs.gw.example/`)
  }
})

test('port of the request → kept in redirects and links', async () => {
  const path = `/ipfs/${all.files.hello.cid}`
  const { port } = new URL(webFront)
  for (const host of [`gw.example:${port}`, 'gw.example:8443', 'gw.example']) {
    const moved = await fetchAll(webFront + path, { host })
    assert.deepEqual([moved.status, moved.headers.location], [301, `http://${all.files.hello.cid}.ipfs.${host}/`])
  }
  const own = await fetchAll(`${webFront}/`, { host: `${all.directory}.ipfs.gw.example:${port}`, accept: 'text/html' })
  assert.equal(own.status, 200)
  assert.ok(own.body.toString().includes(`//gw.example:${port}/ipfs/`))
})

/** By hand, because no library sends a request line that names another host than the header. */
async function ask(front: string, line: string, host: string): Promise<string> {
  const { hostname, port } = new URL(front)
  const socket = connect(Number(port), hostname)
  socket.write(`${line}\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)
  return textOf(socket)
}

test('request line with another host → cache not poisoned', async () => {
  const path = `/ipfs/${all.files.chunkedV1.cid}`
  const mixed = await ask(webFront, `GET http://bytes.example${path} HTTP/1.1`, 'plain.example')
  assert.match(mixed, /^HTTP\/1\.1 200 /)
  assert.equal((await fetchAll(webFront + path, { host: 'bytes.example' })).status, 406)
})

test("response → nginx's request id, never the client's", async () => {
  const seen = new Set<unknown>()
  for (const path of [
    `/ipfs/${all.files.hello.cid}`,
    `/ipfs/${all.files.hello.cid}`,
    '/ipfs/nonsense',
    '/openapi.json',
  ]) {
    const { headers, body } = await fetchAll(webFront + path, { 'x-request-id': 'forged', accept: 'application/json' })
    const id = String(headers['x-request-id'])
    assert.match(id, /^[0-9a-f]{32}$/)
    assert.ok(!seen.has(id))
    seen.add(id)
    if (path.endsWith('nonsense')) assert.equal((JSON.parse(body.toString()) as { requestId: string }).requestId, id)
  }
})

test("upload → read back; too large → cidgate's own 413", async () => {
  const add = (bytes: number) => {
    const form = new FormData()
    form.set('data', new Blob([new Uint8Array(bytes)]), 'file')
    return fetch(`${front}/add`, { method: 'POST', body: form })
  }
  const answer = await add(100_000)
  assert.equal(answer.status, 200)
  const { cids } = (await answer.json()) as { cids: string[] }
  assert.equal((await fetchAll(front + cids[0])).body.byteLength, 100_000)
  const large = await add(3_000_000)
  assert.equal(large.status, 413)
  assert.match(((await large.json()) as { detail: string }).detail, /1 ?MiB|1048576/)
  // What may be large elsewhere is for cidgate to say, too.
  const elsewhere = await fetch(`${front}/api/v0/add`, { method: 'POST', body: new Uint8Array(3_000_000) })
  assert.deepEqual([elsewhere.status, elsewhere.headers.get('content-type')], [404, 'application/problem+json'])
})

test('nginx: cidgate down → cached responses served', async () => {
  const path = `/ipfs/${all.files.jsonV0.cid}`
  assert.equal((await fetchAll(front + path)).status, 200)
  await at.close()
  const { status, headers } = await fetchAll(front + path)
  assert.equal(status, 200)
  assert.match(served(headers), /nginx; hit/)
})

test("unix socket → content, limits by nginx's client address", async () => {
  const folder = await tempFolder()
  closing.push(() => folder.remove())
  const listen = `unix:${join(folder.path, 'public.sock')}`
  const served = await startServed({
    ...{ listen, upload: { auth: 'open' }, trustedProxies: ['unix', '127.0.0.1'], log: { access: 'all' } },
    retrieval: { upstreams: [{ name: 'source', url: source.url }] },
  })
  closing.push(() => served.close())
  const before = await startFront({ url: listen })
  const { cid, bytes } = all.files.json
  const { status, body } = await fetchAll(`${before}/ipfs/${cid}`, { 'x-forwarded-for': '192.0.2.7' })
  assert.deepEqual([status, body], [200, Buffer.from(bytes)])
  const told = () => served.log.find(({ event }) => event === 'http.request')?.facts
  for (const until = Date.now() + 10_000; !told() && Date.now() < until; )
    await new Promise((resolve) => setTimeout(resolve, 20))
  assert.equal(told()?.['client'], '192.0.2.7')
})
