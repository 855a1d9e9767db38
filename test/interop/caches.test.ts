// The subjects of http-tests/cache-tests through real caches: nginx and Varnish with the configurations of deploy/nginx and
// deploy/varnish. What the gateway is asked is observed, so that each answer is known to be kept, or not.
import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { type IncomingHttpHeaders, type IncomingMessage, request } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { gunzipSync } from 'node:zlib'
import { addFile, type FileFixture, type Fixtures, fixtures, noise, text } from '../support/fixtures.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { createKey, type TestKey } from '../support/ipns.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { type Front, replaced, startNginx, startVarnish } from './support/fronts.ts'

type Kind = 'nginx' | 'varnish'
type Headers = Readonly<Record<string, string>>
type Answer = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer }
type Asked = { readonly method: string; readonly url: string; readonly headers: IncomingHttpHeaders }

let all: Fixtures
let page: FileFixture
let source: ProgrammableUpstream
let gateway: TestGateway
const fronts = new Map<Kind, Front>()
const closing: (() => Promise<void>)[] = []
const asked: Asked[] = []

const note = (message: unknown): void => {
  const { request } = message as { request: IncomingMessage }
  if (String(request.socket.localPort) !== new URL(gateway.url).port) return
  asked.push({ method: request.method ?? '', url: request.url ?? '', headers: request.headers })
}

before(async () => {
  all = await fixtures()
  page = await addFile(all.blocks, text('line after line of a page\n'.repeat(2000)))
  source = await startUpstream({ blocks: all.blocks })
  closing.push(() => source.close())
  gateway = await startGateway({
    upstreams: [{ name: 'source', url: source.url }],
    config: {
      responses: { types: 'web' },
      trustedProxies: ['127.0.0.1'],
      retrieval: { negativeCache: { initialTtl: '3s' } },
      names: { ttl: { min: '1s', max: '1h' } },
      pinning: { providers: [{ name: 'local', use: 'embedded' }] },
    },
  })
  closing.push(() => gateway.close())
  subscribe('http.server.request.start', note)
  for (const [kind, start] of [
    ['nginx', startNginx],
    ['varnish', startVarnish],
  ] as const) {
    const front = await start(gateway.url)
    closing.push(() => front.stop())
    fronts.set(kind, front)
  }
})
after(async () => {
  unsubscribe('http.server.request.start', note)
  for (const close of closing.toReversed()) await close()
})

function ask(url: string, headers: Headers = {}, method = 'GET', body?: Uint8Array): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const outgoing = request(url, { method, headers, agent: false }, (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', reject)
      response.on('end', () =>
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(pieces) }),
      )
    })
    outgoing.on('error', reject)
    outgoing.end(body)
  })
}

/** An answer, and how often the gateway was asked for it. */
async function asking(kind: Kind, target: string, headers: Headers = {}, method = 'GET') {
  const askedFor = () => asked.filter(({ url }) => url === target).length
  const before = askedFor()
  const answer = await ask((fronts.get(kind)?.url ?? '') + target, headers, method)
  return { ...answer, went: askedFor() - before }
}

/** Until the cache does what it may do only after a time that the gateway said: a busy machine may take longer. */
async function eventually<T>(what: string, look: () => Promise<T | undefined>): Promise<T> {
  for (const until = Date.now() + 60_000; Date.now() < until; ) {
    const found = await look()
    if (found !== undefined) return found
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
  throw new Error(`not within a minute: ${what}`)
}

const file = () => `/ipfs/${all.files.json.cid}`
const tag = () => `"${all.files.json.cid}"`
const bytes = () => Buffer.from(all.files.json.bytes)
const later = new Date(Date.UTC(2100, 0, 1)).toUTCString()
const past = new Date(0).toUTCString()

/** Of the gateway, or what the cache kept; undefined where it may do either. */
type From = 'gateway' | 'kept' | undefined
type Step = readonly [headers: Headers, status: number | Readonly<Record<Kind, number>>, from: From, method?: string]
type Case = readonly [name: string, steps: () => readonly Step[], target?: () => string]

const plain: Step = [{}, 200, 'gateway']
const again: Step = [{}, 200, 'kept']
const filled =
  (headers: () => Headers, status: Step[1], method = 'GET') =>
  () =>
    [plain, [headers(), status, 'kept', method], again] as const
const inm = (value: () => string, status: Step[1]) => filled(() => ({ 'if-none-match': value() }), status)
const range = (value: string, status: Step[1], more: () => Headers = () => ({})) =>
  filled(() => ({ range: value, ...more() }), status)
const never =
  (status: number, headers: Headers = {}) =>
  () =>
    [
      [headers, status, 'gateway'],
      [headers, status, 'gateway'],
    ] as const
const kept =
  (status: number, headers: Headers = {}) =>
  () =>
    [
      [headers, status, 'gateway'],
      [headers, status, 'kept'],
      [headers, status, 'kept'],
    ] as const

/** A file under an address of its own in each case: a parameter that means nothing is part of a cache's key. */
const cases: Readonly<Record<string, readonly Case[]>> = {
  'what is kept': [
    ['a file', kept(200)],
    [
      'a file, whatever a client says in Cache-Control',
      () => [plain, [{ 'cache-control': 'no-cache' }, 200, 'kept'], again],
    ],
    ['a file, beside no-store', () => [plain, [{ 'cache-control': 'no-store' }, 200, 'kept'], again]],
    ['a file, beside max-age=0', () => [plain, [{ 'cache-control': 'max-age=0' }, 200, 'kept'], again]],
    ['a file, beside Pragma', () => [plain, [{ pragma: 'no-cache' }, 200, 'kept'], again]],
    ['a file, beside only-if-cached', () => [plain, [{ 'cache-control': 'only-if-cached' }, 200, 'kept'], again]],
    ['a file, with a cookie', () => [plain, [{ cookie: 'a=b' }, 200, 'kept'], again]],
    ['a file for the first client with a cookie', kept(200, { cookie: 'a=b' })],
    ['a file, with Authorization', () => [plain, [{ authorization: 'Bearer hello' }, 200, undefined], again]],
    ['HEAD of what is kept', () => [plain, [{}, 200, 'kept', 'HEAD'], again]],
    ['what HEAD asked for', () => [[{}, 200, 'gateway', 'HEAD'], [{}, 200, 'kept', 'HEAD'], again]],
    [
      'one copy for all browsers',
      () => [
        [{ accept: 'text/html,*/*' }, 200, 'gateway'],
        [{ accept: 'text/html, image/avif' }, 200, 'kept'],
      ],
    ],
    [
      'a block beside its file',
      () => [
        plain,
        [{ accept: 'application/vnd.ipld.raw' }, 200, 'gateway'],
        [{ accept: 'application/vnd.ipld.raw' }, 200, 'kept'],
      ],
    ],
    ['a listing', kept(200, { accept: 'text/html' }), () => `/ipfs/${all.directory}/`],
    ['a listing as JSON', kept(200, { accept: 'application/json' }), () => `/ipfs/${all.directory}/`],
    ['a file of a directory', kept(200), () => `/ipfs/${all.directory}/readme.txt`],
    ['that a directory has no such name', kept(404), () => `/ipfs/${all.directory}/nowhere`],
  ],
  'what is not kept': [
    ['no CID', never(400), () => '/ipfs/hello'],
    ['no such form', never(406, { accept: 'application/vnd.ipld.dag-cbor' }), file],
    ['a service worker', never(400, { 'service-worker': 'script' }), file],
    [
      'a method that changes things',
      () => [[{}, 405, 'gateway', 'DELETE'], [{}, 405, 'gateway', 'DELETE'], plain],
      file,
    ],
    ['GET of the address of uploads', never(405), () => '/add'],
  ],
  'If-None-Match': [
    ['the tag, before anything is kept', () => [[{ 'if-none-match': tag() }, 304, 'gateway'], again]],
    ['the tag', inm(tag, 304)],
    ['as a weak one', inm(() => `W/${tag()}`, 304)],
    ['any', inm(() => '*', { nginx: 304, varnish: 200 })],
    ['one of a list', inm(() => `"a", ${tag()}`, { nginx: 304, varnish: 200 })],
    ['another', inm(() => '"another"', 200)],
    ['one that begins like it', inm(() => `${tag().slice(0, -1)}x"`, 200)],
    ['in capitals', inm(() => tag().toUpperCase(), 200)],
    ['goes before a date', filled(() => ({ 'if-none-match': '"another"', 'if-modified-since': later }), 200)],
    ['for HEAD', filled(() => ({ 'if-none-match': tag() }), 304, 'HEAD')],
    ['a date alone says nothing', filled(() => ({ 'if-modified-since': past }), 200)],
    ['a date that is none', filled(() => ({ 'if-modified-since': 'yesterday' }), 200)],
  ],
  Range: [
    ['first to last', range('bytes=2-4', 206)],
    [
      'before anything is kept',
      () => [[{ range: 'bytes=2-4' }, 206, 'gateway'], [{ range: 'bytes=0-0' }, 206, 'kept'], again],
    ],
    ['one byte', range('bytes=0-0', 206)],
    ['from one on', range('bytes=2-', 206)],
    ['the last three', range('bytes=-3', 206)],
    ['more than there is, from the end', range('bytes=-999999', 206)],
    ['beyond the end is clipped', range('bytes=2-999999', 206)],
    ['behind the end', range('bytes=999999-', 416)],
    ['another unit', range('lines=1-2', 200)],
    ['no number', range('bytes=a-b', { nginx: 416, varnish: 200 })],
    ['several at once', range('bytes=0-1,4-5', 200)],
    ['If-Range with its tag', range('bytes=2-4', 206, () => ({ 'if-range': tag() }))],
    ['If-Range with another', range('bytes=2-4', 200, () => ({ 'if-range': '"another"' }))],
    ['If-Range with a date', range('bytes=2-4', 200, () => ({ 'if-range': past }))],
    ['a copy the client has goes before it', range('bytes=2-4', 304, () => ({ 'if-none-match': tag() }))],
  ],
}

/** What holds of each answer with the bytes of the file, kept or not. */
function holds({ status, headers, body }: Answer, method: string): void {
  if (status === 416) return
  assert.match(String(headers.etag), new RegExp(`^(W/)?${tag()}$`))
  assert.match(String(headers['cache-control']), /^public, max-age=\d{7,}, immutable$/)
  if (status === 304 || method === 'HEAD') assert.equal(body.length, 0)
  else if (status === 200) assert.ok(body.equals(bytes()))
  if (status !== 206) return
  const [, from, to, of] = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(String(headers['content-range'])) ?? []
  assert.equal(Number(of), bytes().length)
  assert.equal(headers['content-encoding'], undefined)
  assert.ok(body.equals(bytes().subarray(Number(from), Number(to) + 1)))
}

let count = 0
const kinds = ['nginx', 'varnish'] as const
for (const kind of kinds)
  for (const [subject, rows] of Object.entries(cases))
    describe(`${kind}: ${subject}`, () => {
      for (const [name, stepsOf, targetOf] of rows)
        test(name, async () => {
          const target = `${targetOf?.() ?? file()}?case=${count++}`
          for (const [index, [headers, status, from, method = 'GET']] of stepsOf().entries()) {
            const answer = await asking(kind, target, headers, method)
            const told = `step ${index}: ${JSON.stringify(answer.headers)} ${answer.body.subarray(0, 300)}`
            assert.equal(answer.status, typeof status === 'number' ? status : status[kind], told)
            if (from !== undefined) assert.equal(answer.went === 0 ? 'kept' : 'gateway', from, told)
            const isFile = headers['accept'] === undefined && targetOf === undefined
            if (isFile) holds(answer, method)
          }
        })
    })

const until = (what: string, look: () => Promise<boolean>) => eventually(what, async () => (await look()) || undefined)

for (const kind of kinds)
  describe(`${kind}: cache lifetimes`, () => {
    test('cached 404 past its max-age → requested again', async () => {
      const { cid } = await addFile(new Map(), text(`absent before ${kind}`))
      const path = `/ipfs/${cid}`
      const { status, headers } = await asking(kind, path)
      assert.equal(status, 404)
      const [, seconds = ''] = /^public, max-age=(\d+)$/.exec(String(headers['cache-control'])) ?? []
      assert.ok(
        Number(seconds) >= 1 && Number(seconds) <= Number(headers['retry-after']),
        String(headers['cache-control']),
      )
      await until('asked again', async () => (await asking(kind, path)).went > 0)
    })

    test('failed response → not cached, complete after recovery', async () => {
      const { cid, bytes } = await addFile(all.blocks, text(`a file of the outage before ${kind}`))
      source.fault = { kind: 'refuse' }
      const { status, headers } = await asking(kind, `/ipfs/${cid}`)
      assert.ok(status >= 500, String(status))
      assert.equal(headers['cache-control'], 'no-store')
      assert.ok(Number(headers['retry-after']) >= 1)
      source.fault = undefined
      await until('the file', async () => {
        const { status, body } = await asking(kind, `/ipfs/${cid}`)
        assert.ok(status !== 200 || body.equals(Buffer.from(bytes)))
        return status === 200
      })
      assert.equal((await asking(kind, `/ipfs/${cid}`)).went, 0)
    })

    test('truncated response → not cached', async () => {
      const had = new Set(all.blocks.keys())
      const { cid, bytes } = await addFile(all.blocks, noise(3_000_000, kind.length), 'v0')
      // The leaves come before their root.
      const last = [...all.blocks.keys()].filter((key) => !had.has(key)).at(-2) ?? ''
      const block = all.blocks.get(last) as Uint8Array
      all.blocks.delete(last)
      await assert.rejects(asking(kind, `/ipfs/${cid}`), 'it broke off')
      all.blocks.set(last, block)
      await until('the whole file', async () => {
        const whole = await asking(kind, `/ipfs/${cid}`).catch(() => undefined)
        assert.ok(whole?.status !== 200 || whole.body.equals(Buffer.from(bytes)))
        return whole?.status === 200
      })
    })

    test('upload → reaches the gateway each time', async () => {
      for (let time = 0; time < 2; time++) {
        const form = new FormData()
        form.set('data', new Blob([`uploaded through ${kind}`]), 'file.txt')
        const before = asked.length
        const answer = await fetch(`${fronts.get(kind)?.url}/add`, { method: 'POST', body: form })
        assert.deepEqual([answer.status, answer.headers.get('cache-control')], [200, 'no-store'])
        assert.equal(asked.length - before, 1)
        const { cids } = (await answer.json()) as { cids: string[] }
        assert.equal((await asking(kind, String(cids[0]))).body.toString(), `uploaded through ${kind}`)
      }
    })
  })

const publish = async (key: TestKey, value: string, sequence: number, ttlMs: number) =>
  source.records.set(key.name, await key.record(value, { sequence, ttlMs }))

describe('names', () => {
  test('nginx → caches no name, the gateway does', async () => {
    const key = createKey()
    await publish(key, `/ipfs/${all.files.json.cid}`, 1, 60_000)
    for (let time = 0; time < 2; time++) {
      const { status, went } = await asking('nginx', `/ipns/${key.name}`)
      assert.deepEqual([status, went], [200, 1])
    }
  })

  test('Varnish → caches a name for its remaining TTL', async () => {
    const key = createKey()
    await publish(key, `/ipfs/${all.files.json.cid}`, 1, 3_600_000)
    const { headers } = await asking('varnish', `/ipns/${key.name}`)
    assert.match(String(headers['cache-control']), /^public, max-age=3[56]\d\d, stale-while-revalidate=/)
    const { status, body, went } = await asking('varnish', `/ipns/${key.name}`)
    assert.deepEqual([status, body, went], [200, bytes(), 0])
  })

  test('Varnish, TTL over → revalidates, gets a changed file', async () => {
    const key = createKey()
    const path = `/ipns/${key.name}`
    await publish(key, `/ipfs/${all.files.json.cid}`, 1, 1000)
    assert.deepEqual((await asking('varnish', path)).body, bytes())
    const byTag = () => asked.some(({ url, headers }) => url === path && headers['if-none-match']?.includes(tag()))
    await until('asked by its tag', async () => {
      const { status, body } = await asking('varnish', path)
      assert.deepEqual([status, body], [200, bytes()])
      return byTag()
    })
    assert.deepEqual((await asking('varnish', path)).body, bytes())
    await publish(key, `/ipfs/${all.files.hello.cid}`, 2, 1000)
    await until('the new file', async () => {
      const { status, body } = await asking('varnish', path)
      assert.equal(status, 200)
      return body.equals(Buffer.from(all.files.hello.bytes))
    })
  })
})

describe('compressed and identity', () => {
  const whole = () => Buffer.from(page.bytes)

  /** What any client may get: the file in a coding that it takes, and a part of the plain bytes, of no others. */
  function isRight({ status, headers, body }: Answer, coding: string): void {
    assert.ok(status === 200 || status === 206, String(status))
    const by = headers['content-encoding'] ?? 'identity'
    if (status === 206) {
      assert.equal(by, 'identity', 'a part of compressed bytes')
      const [, from, to, of] = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(String(headers['content-range'])) ?? []
      assert.equal(Number(of), whole().length)
      assert.ok(body.equals(whole().subarray(Number(from), Number(to) + 1)))
      return
    }
    assert.ok(by === 'identity' || by === coding, `${by} where ${coding} was asked for`)
    assert.ok((by === 'gzip' ? gunzipSync(body) : body).equals(whole()))
  }

  /** Clients of all kinds, in two orders: the first one fills the cache. */
  async function everyClient(url: string): Promise<string[]> {
    const got: string[] = []
    const clients: Headers[] = [
      { 'accept-encoding': 'gzip' },
      {},
      { 'accept-encoding': 'br' },
      { 'accept-encoding': 'gzip, br' },
    ]
    for (const order of [clients, clients.toReversed()]) {
      const target = `${url}/ipfs/${page.cid}?case=${count++}`
      for (const headers of order)
        for (const range of [{}, { range: 'bytes=100-299' }, { range: 'bytes=-50' }, {}]) {
          const answer = await ask(target, { ...headers, ...range })
          isRight(answer, headers['accept-encoding']?.includes('gzip') ? 'gzip' : 'identity')
          got.push(`${answer.status} ${answer.headers['content-encoding'] ?? 'identity'}`)
        }
    }
    return got
  }

  for (const kind of kinds)
    test(`${kind}: range → identity bytes, whatever was cached`, async () => {
      const got = await everyClient(fronts.get(kind)?.url ?? '')
      for (const wanted of ['200 gzip', '200 identity', '206 identity']) assert.ok(got.includes(wanted), wanted)
    })

  test('nginx without Accept-Encoding and slice settings → ranges are wrong', async () => {
    const front = await startNginx(gateway.url, (shown) => {
      const whole = shown.replaceAll('proxy_set_header Accept-Encoding "";', '').replace(' $slice_range";', '";')
      return replaced(replaced(whole, 'slice 1m;', ''), 'proxy_set_header Range $slice_range;', '')
    })
    closing.push(() => front.stop())
    await assert.rejects(everyClient(front.url), /a part of compressed bytes/)
  })
})
