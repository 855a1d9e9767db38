// What a cache in front of the gateway relies on, case by case, after the subjects of http-tests/cache-tests that an origin can keep or
// break: conditional requests, ranges, HEAD, Vary, freshness, and what a client says in Cache-Control. Each case is asked hot (ready
// answers) and by the long way, and must be answered the same.
import assert from 'node:assert/strict'
import { type IncomingHttpHeaders, request } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { startUpstream } from '../support/upstream.ts'

let all: Fixtures
let at: TestGateway
const closers: { close(): Promise<void> }[] = []
before(async () => {
  all = await fixtures()
  const upstream = await startUpstream({ blocks: all.blocks })
  at = await startGateway({ upstreams: [{ name: 'one', url: upstream.url }] })
  closers.push(upstream, at)
  for (let time = 0; time < 3; time++) await ask('GET', path(), {})
})
after(async () => {
  for (const one of closers.reverse()) await one.close()
})

type Answer = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer }
type Headers = Readonly<Record<string, string>>

const path = (): string => `/ipfs/${all.files.json.cid}`
const tag = (): string => `"${all.files.json.cid}"`
const size = (): number => all.files.json.bytes.length
const nobodyHas = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'

function ask(method: string, target: string, headers: Headers): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const outgoing = request(at.url + target, { method, headers, agent: false }, (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', reject)
      response.on('end', () =>
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(pieces) }),
      )
    })
    outgoing.on('error', reject)
    outgoing.end()
  })
}

type Case = readonly [name: string, headers: () => Headers, status: number, method?: string]

const inm = (value: () => string) => () => ({ 'if-none-match': value() })
const range =
  (value: string, more: () => Headers = () => ({})) =>
  () => ({ range: value, ...more() })
const control = (value: string) => () => ({ 'cache-control': value })
const later = new Date(Date.UTC(2100, 0, 1)).toUTCString()
const past = new Date(0).toUTCString()

const cases: Readonly<Record<string, readonly Case[]>> = {
  'If-None-Match': [
    ['that it is', inm(tag), 304],
    ['that it is, for HEAD', inm(tag), 304, 'HEAD'],
    ['as a weak one', inm(() => `W/${tag()}`), 304],
    ['the first of three', inm(() => `${tag()}, "a", "b"`), 304],
    ['the second of three', inm(() => `"a", ${tag()}, "b"`), 304],
    ['the last of three', inm(() => `"a", "b", ${tag()}`), 304],
    ['without a space between', inm(() => `"a",${tag()}`), 304],
    ['beside empty ones', inm(() => `, ,${tag()},`), 304],
    ['behind one with a comma in it', inm(() => `"a,b", ${tag()}`), 304],
    ['any', inm(() => '*'), 304],
    ['another', inm(() => '"another"'), 200],
    ['one that begins like it', inm(() => `${tag().slice(0, -1)}x"`), 200],
    ['within another', inm(() => `"a ${tag().slice(1)}`), 200],
    ['in capitals', inm(() => tag().toUpperCase()), 200],
    ['an empty one', inm(() => '""'), 200],
  ],
  'the other conditions': [
    [
      'If-None-Match goes before If-Modified-Since',
      () => ({ 'if-none-match': '"another"', 'if-modified-since': later }),
      200,
    ],
    ['a match goes before a date in the past', () => ({ 'if-none-match': tag(), 'if-modified-since': past }), 304],
    ['If-Modified-Since alone says nothing: there is no date', () => ({ 'if-modified-since': past }), 200],
    ['a date that is none', () => ({ 'if-modified-since': 'yesterday' }), 200],
  ],
  Range: [
    ['first to last', range('bytes=2-4'), 206],
    ['one byte', range('bytes=0-0'), 206],
    ['from one on', range('bytes=2-'), 206],
    ['the last three', range('bytes=-3'), 206],
    ['more than there is, from the end', range('bytes=-999999'), 206],
    ['beyond the end is clipped', range('bytes=2-999999'), 206],
    ['behind the end', range('bytes=999999-'), 416],
    ['the last none', range('bytes=-0'), 416],
    ['the wrong way round', range('bytes=4-2'), 200],
    ['another unit', range('lines=1-2'), 200],
    ['no number', range('bytes=a-b'), 200],
    ['If-Range with its tag', range('bytes=2-4', () => ({ 'if-range': tag() })), 206],
    ['If-Range with another', range('bytes=2-4', () => ({ 'if-range': '"another"' })), 200],
    ['If-Range with a weak one', range('bytes=2-4', () => ({ 'if-range': `W/${tag()}` })), 200],
    ['If-Range with a date', range('bytes=2-4', () => ({ 'if-range': past })), 200],
    ['a copy the client has goes before a range', range('bytes=2-4', () => ({ 'if-none-match': tag() })), 304],
    ['another copy, and a range', range('bytes=2-4', () => ({ 'if-none-match': '"another"' })), 206],
  ],
  'Cache-Control of a client, and what is no condition': [
    ['no-cache', control('no-cache'), 200],
    ['no-store', control('no-store'), 200],
    ['max-age=0', control('max-age=0'), 200],
    ['max-age=1, and more', control('max-age=1, max-stale=5, min-fresh=10'), 200],
    ['only-if-cached, and it is', control('only-if-cached'), 200],
    ['in capitals', control('ONLY-IF-CACHED'), 200],
    ['a directive that is none', control('hello="a, b", =,'), 200],
    ['Pragma', () => ({ pragma: 'no-cache' }), 200],
    ['a cookie', () => ({ cookie: 'a=b' }), 200],
    ['Authorization', () => ({ authorization: 'Bearer hello' }), 200],
    ['no-cache and its own copy', () => ({ 'cache-control': 'no-cache', 'if-none-match': tag() }), 304],
  ],
  HEAD: [
    ['whole', () => ({}), 200, 'HEAD'],
    ['with another copy', inm(() => '"another"'), 200, 'HEAD'],
  ],
}

/** What the case's answer says, whichever way it took. */
function holds({ status, headers, body }: Answer, method: string, asked: Headers): void {
  assert.equal(headers['set-cookie'], undefined)
  assert.match(String(headers.date), / GMT$/)
  if (status === 416) {
    assert.equal(headers['content-range'], `bytes */${size()}`)
    return
  }
  assert.equal(headers.etag, tag())
  assert.match(String(headers['cache-control']), /^public, max-age=\d{7,}, immutable$/)
  assert.match(String(headers.vary), /\bAccept\b/i)
  if (headers.age !== undefined) assert.match(headers.age, /^\d+$/)
  if (status === 304 || method === 'HEAD') assert.equal(body.length, 0)
  if (status === 304) assert.equal(headers['content-range'], undefined)
  if (status === 200) assert.equal(headers['content-length'], String(size()))
  if (status === 200 && method === 'GET') assert.ok(body.equals(all.files.json.bytes))
  if (status !== 206) return
  const [, from, to, of] = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(String(headers['content-range'])) ?? []
  assert.equal(Number(of), size(), `of ${asked['range']}`)
  assert.ok(body.equals(all.files.json.bytes.subarray(Number(from), Number(to) + 1)))
}

for (const [subject, rows] of Object.entries(cases))
  describe(subject, () => {
    for (const [name, headersOf, status, method = 'GET'] of rows)
      test(`${name}: ${status}`, async () => {
        const headers = headersOf()
        // A parameter that means nothing: its answer is not kept ready.
        for (const target of [path(), `${path()}?a=b`]) {
          const answer = await ask(method, target, headers)
          assert.equal(answer.status, status, `${target}: ${answer.body}`)
          holds(answer, method, headers)
        }
      })
  })

describe('variants and cache keys', () => {
  const raw = { accept: 'application/vnd.ipld.raw' }

  test('depends on Accept → own ETag, Vary', async () => {
    const [file, block] = [await ask('GET', path(), {}), await ask('GET', path(), raw)]
    assert.notEqual(file.headers.etag, block.headers.etag)
    for (const { headers } of [file, block]) assert.match(String(headers.vary), /\bAccept\b/i)
  })

  test('ETag of one representation never matches another', async () => {
    const block = await ask('GET', path(), raw)
    assert.equal((await ask('GET', path(), { ...raw, 'if-none-match': tag() })).status, 200)
    assert.equal((await ask('GET', path(), { 'if-none-match': String(block.headers.etag) })).status, 200)
    assert.equal((await ask('GET', path(), { ...raw, 'if-none-match': String(block.headers.etag) })).status, 304)
  })

  test('earlier representation does not affect the next', async () => {
    for (const accept of ['application/vnd.ipld.raw', '*/*', 'application/vnd.ipld.car', 'application/json']) {
      await ask('GET', path(), { accept })
      const { headers, body } = await ask('GET', path(), {})
      assert.equal(headers.etag, tag())
      assert.ok(body.equals(all.files.json.bytes))
    }
  })

  test('HEAD has the headers of GET', async () => {
    const told = ({ headers: { date: _date, 'x-request-id': _id, 'cache-status': _from, ...rest } }: Answer) => rest
    const [head, got] = [await ask('HEAD', path(), {}), await ask('GET', path(), {})]
    const { connection: _one, ...asHead } = told(head)
    const { connection: _other, ...asGet } = told(got)
    assert.deepEqual(asHead, asGet)
  })

  for (const method of ['POST', 'PUT', 'PATCH', 'DELETE'])
    test(`${method} → 405, not cached, file unchanged`, async () => {
      const { status, headers } = await ask(method, path(), {})
      assert.equal(status, 405)
      assert.match(String(headers['cache-control'] ?? 'no-store'), /no-store/)
      assert.match(String(headers.allow), /GET/)
      assert.equal((await ask('GET', path(), {})).status, 200)
    })
})

describe('responses other than the file are not cached for long', () => {
  const rows: readonly (readonly [what: string, path: () => string, headers: Headers, status: number])[] = [
    ['absent', () => `/ipfs/${nobodyHas}`, {}, 404],
    ['absent below a path', () => `/ipfs/${all.directory}/nowhere`, {}, 404],
    ['no CID', () => '/ipfs/hello', {}, 400],
    ['only-if-cached, and it is not', () => `/ipfs/${nobodyHas}`, { 'cache-control': 'only-if-cached' }, 412],
    ['not in this form', () => path(), { accept: 'application/vnd.ipld.dag-cbor' }, 406],
    ['no place', () => '/elsewhere', {}, 404],
  ]
  for (const [what, target, headers, status] of rows)
    test(`${what}: ${status}`, async () => {
      const answer = await ask('GET', target(), headers)
      assert.equal(answer.status, status, String(answer.body))
      const kept = String(answer.headers['cache-control'] ?? '')
      const seconds = Number(/max-age=(\d+)/.exec(kept)?.[1] ?? 0)
      assert.ok(/no-store|no-cache/.test(kept) || seconds <= 60, kept)
      assert.doesNotMatch(kept, /immutable/)
      assert.equal(answer.headers.etag, undefined)
    })
})
