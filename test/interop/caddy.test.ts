// Caddy in front, with the very configurations that deploy/caddy ships: only addresses and its authority are put in.
import assert from 'node:assert/strict'
import type { IncomingHttpHeaders } from 'node:http'
import { connect } from 'node:http2'
import { Agent, get, type RequestOptions, request } from 'node:https'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { brotliDecompressSync } from 'node:zlib'
import { boundary, multipart } from '../support/adding.ts'
import { addFile, type Fixtures, fixtures, noise, text } from '../support/fixtures.ts'
import { type Said, type Served, startServed } from '../support/served.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { type CaddyFront, startCaddy } from './support/fronts.ts'
import { freePort, tempFolder } from './support/processes.ts'

type Answer = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer }

let all: Fixtures
let source: ProgrammableUpstream
let at: Served
let web: Served
let front: CaddyFront
let sites: CaddyFront
const closing: (() => Promise<unknown>)[] = []
const agents = new Map<CaddyFront, Agent>()

const said = (more: Said = {}): Said => ({
  trustedProxies: ['127.0.0.1'],
  log: { access: 'all' },
  responses: { types: 'web' },
  upload: { auth: 'open', maxBytes: '100KiB' },
  pinning: { providers: [{ name: 'local', use: 'embedded' }] },
  retrieval: { upstreams: [{ name: 'source', url: source.url }] },
  ...more,
})

async function startFront(...of: Parameters<typeof startCaddy>): Promise<CaddyFront> {
  const one = await startCaddy(...of)
  closing.push(() => one.stop())
  const lookup = (_name: string, options: { all?: boolean }, done: (...of: unknown[]) => void) =>
    options.all ? done(null, [{ address: '127.0.0.1', family: 4 }]) : done(null, '127.0.0.1', 4)
  const agent = new Agent({ ca: one.authority, keepAlive: true, lookup: lookup as never })
  agents.set(one, agent)
  closing.push(async () => agent.destroy())
  return one
}

before(async () => {
  all = await fixtures()
  source = await startUpstream({ blocks: all.blocks })
  closing.push(() => source.close())
  at = await startServed(said())
  closing.push(() => at.close())
  front = await startFront(at.url)
  web = await startServed(said({ hosts: { 'gw.example.org': { subdomains: true } } }))
  closing.push(() => web.close())
  sites = await startFront(web.url, 'Caddyfile.subdomains')
})
after(async () => {
  for (const close of closing.toReversed()) await close()
})

function ask(by: CaddyFront, path: string, headers: Record<string, string> = {}, host = 'gw.example.org') {
  return new Promise<Answer>((resolve, reject) => {
    const options: RequestOptions = { agent: agents.get(by), headers }
    get(`https://${host}:${by.port}${path}`, options, async (response) => {
      const body = await buffer(response)
      resolve({ status: response.statusCode ?? 0, headers: response.headers, body })
    }).on('error', reject)
  })
}

const formHeaders = { 'content-type': `multipart/form-data; boundary=${boundary}` }
const formOf = (bytes: number) => multipart([{ fileName: 'a', body: noise(bytes, 9) }])
const problemOf = ({ body }: Answer) => JSON.parse(body.toString()) as { requestId: string; detail: string }

test('content, ETag and 304 → as without Caddy', async () => {
  const { cid, bytes } = all.files.json
  const answer = await ask(front, `/ipfs/${cid}`, { accept: 'application/json' })
  assert.deepEqual([answer.status, answer.headers.etag, answer.body], [200, `"${cid}"`, Buffer.from(bytes)])
  assert.match(String(answer.headers['cache-control']), /immutable/)
  const again = await ask(front, `/ipfs/${cid}`, { 'if-none-match': `"${cid}"` })
  assert.deepEqual([again.status, again.body.byteLength], [304, 0])
})

test('range of a large file → right bytes', async () => {
  const { cid, bytes } = await addFile(all.blocks, noise(20_000_000, 6), 'v0')
  for (const [range, from, to] of [
    ['bytes=1048570-1048589', 1_048_570, 1_048_590],
    ['bytes=19999000-', 19_999_000, 20_000_000],
  ] as const) {
    const { status, headers, body } = await ask(front, `/ipfs/${cid}`, { range })
    assert.deepEqual([status, headers['content-range']], [206, `bytes ${from}-${to - 1}/20000000`])
    assert.ok(body.equals(bytes.subarray(from, to)))
  }
  assert.ok((await ask(front, `/ipfs/${cid}`)).body.equals(bytes))
})

test('compressed by cidgate → Caddy leaves it unchanged', async () => {
  const page = text('line after line of a page\n'.repeat(2000))
  const { cid } = await addFile(all.blocks, page)
  const { headers, body } = await ask(front, `/ipfs/${cid}`, { 'accept-encoding': 'br' })
  assert.equal(headers['content-encoding'], 'br')
  assert.ok(brotliDecompressSync(body).equals(page))
})

test('absent CID → 404 with Retry-After', async () => {
  const answer = await ask(front, '/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e')
  assert.equal(answer.status, 404)
  assert.match(String(answer.headers['content-type']), /problem\+json|text\/plain/)
  assert.ok(Number(answer.headers['retry-after']) >= 1)
})

test("response and log → have Caddy's request id", async () => {
  for (const path of ['/ipfs/nonsense', `/ipfs/${all.files.hello.cid}`]) {
    const answer = await ask(front, path, { 'x-request-id': 'forged', accept: 'application/json' })
    const id = String(answer.headers['x-request-id'])
    assert.match(id, /^[0-9a-f]{8}-[0-9a-f-]{27}$/)
    if (path.endsWith('nonsense')) assert.equal(problemOf(answer).requestId, id)
    await loggedBy(at, answer.headers)
  }
})

test("client's own X-Forwarded headers → ignored", async () => {
  const forged = { 'x-forwarded-for': '192.0.2.7', 'x-forwarded-host': 'evil.example', 'x-forwarded-proto': 'http' }
  const { cid } = all.files.hello
  const { status, headers } = await ask(sites, `/ipfs/${cid}`, forged)
  assert.deepEqual([status, headers.location], [301, `https://${cid}.ipfs.gw.example.org:${sites.port}/`])
  const told = await loggedBy(web, headers)
  assert.equal(told['client'], '127.0.0.1')
})

test('website → own origin under a wildcard certificate', async () => {
  const moved = await ask(sites, `/ipfs/${all.directory}/`, { accept: 'text/html' })
  assert.equal(moved.headers.location, `https://${all.directory}.ipfs.gw.example.org:${sites.port}/`)
  const own = await ask(sites, '/readme.txt', {}, `${all.directory}.ipfs.gw.example.org`)
  assert.equal(own.status, 200, own.body.toString())
})

test('upload → accepted and read back; refused → readable reason', async () => {
  const add = (bytes: number) =>
    new Promise<Answer>((resolve, reject) => {
      const options: RequestOptions = { method: 'POST', agent: agents.get(front), headers: formHeaders }
      const outgoing = request(`${front.url}/add`, options, async (response) => {
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body: await buffer(response) })
      })
      outgoing.on('error', reject)
      outgoing.end(formOf(bytes))
    })
  const answer = await add(60_000)
  assert.equal(answer.status, 200, answer.body.toString())
  const [path = ''] = (JSON.parse(answer.body.toString()) as { cids: string[] }).cids
  assert.ok(
    (await ask(front, `${path}?format=raw`, { accept: 'application/vnd.ipld.raw' })).body.equals(noise(60_000, 9)),
  )
  // What is still on its way is less than Caddy reads before it closes: of more, the client may be cut first, as the page says.
  const refused = await add(200_000)
  assert.equal(refused.status, 413)
  assert.match(problemOf(refused).detail, /upload\.maxBytes/)
})

test('HTTP/2 → content and an upload pass', async () => {
  const session = connect(`https://127.0.0.1:${front.port}`, { ca: front.authority, servername: 'gw.example.org' })
  const send = async (headers: Record<string, string>, body?: Uint8Array) => {
    const stream = session.request({ ':authority': `gw.example.org:${front.port}`, ...headers })
    let status = 0
    stream.on('response', (head) => {
      status = Number(head[':status'])
    })
    stream.end(body)
    const answered = await buffer(stream)
    return { status, body: answered }
  }
  try {
    const { cid, bytes } = all.files.json
    const read = await send({ ':path': `/ipfs/${cid}` })
    assert.deepEqual([read.status, read.body], [200, Buffer.from(bytes)])
    const added = await send({ ':method': 'POST', ':path': '/add', ...formHeaders }, formOf(60_000))
    assert.equal(added.status, 200, added.body.toString())
  } finally {
    session.destroy()
  }
})

test('request while cidgate restarts → waits for it', async () => {
  const listen = `127.0.0.1:${await freePort()}`
  const first = await startServed(said({ listen }))
  closing.push(() => first.close())
  const before = await startFront(first.url)
  const { cid, bytes } = all.files.json
  assert.equal((await ask(before, `/ipfs/${cid}`)).status, 200)
  await first.close()
  const waiting = ask(before, `/ipfs/${cid}`)
  const second = await startServed(said({ listen }))
  closing.push(() => second.close())
  const { status, body } = await waiting
  assert.deepEqual([status, body], [200, Buffer.from(bytes)])
})

test("unix socket → content, and Caddy's client address", async () => {
  const folder = await tempFolder()
  closing.push(() => folder.remove())
  const listen = `unix:${join(folder.path, 'public.sock')}`
  const served = await startServed(said({ listen, trustedProxies: ['unix'] }))
  closing.push(() => served.close())
  const before = await startFront(listen)
  const { cid, bytes } = all.files.json
  const { status, body } = await ask(before, `/ipfs/${cid}`)
  assert.deepEqual([status, body], [200, Buffer.from(bytes)])
  await until(() => served.log.some(({ event, facts }) => event === 'http.request' && facts['client'] === '127.0.0.1'))
})

async function loggedBy({ log }: Served, { 'x-request-id': id }: IncomingHttpHeaders) {
  const find = () => log.find(({ event, facts }) => event === 'http.request' && facts['request'] === id)
  await until(() => find() !== undefined)
  return find()?.facts ?? {}
}

async function until(holds: () => boolean): Promise<void> {
  for (const end = Date.now() + 10_000; !holds(); ) {
    assert.ok(Date.now() < end, 'not within ten seconds')
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
