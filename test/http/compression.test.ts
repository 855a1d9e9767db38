// Answers in codings (`Accept-Encoding`), over HTTP and nothing else: each one a representation of its own, kept beside the plain one
// and gone with it, and never in place of what the client asked for byte by byte.
import assert from 'node:assert/strict'
import { type IncomingHttpHeaders, request } from 'node:http'
import { connect } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { brotliDecompressSync, gunzipSync, zstdDecompressSync } from 'node:zlib'
import { addDirectory, addFile, type BlockMap, fixtures, noise, text } from '../support/fixtures.ts'
import { inParallel, metricsOf, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const back = { br: brotliDecompressSync, zstd: zstdDecompressSync, gzip: gunzipSync } as const
type Coding = keyof typeof back
const codings = Object.keys(back) as Coding[]
const browser = 'gzip, deflate, br, zstd'

type Answer = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer }
type Headers = Readonly<Record<string, string>>

const rows = (count: number): Uint8Array =>
  text(JSON.stringify(Array.from({ length: count }, (_, id) => ({ id, name: `number ${id}` }))))

let blocks: BlockMap
let upstream: ProgrammableUpstream
let at: TestGateway
let web: TestGateway
const cids: Record<string, string> = {}
const bytes: Record<string, Buffer> = {}
let folder = ''

before(async () => {
  const all = await fixtures()
  blocks = all.blocks
  const files: Record<string, Uint8Array> = {
    json: rows(3000),
    other: rows(3001),
    small: text(JSON.stringify({ a: 'x'.repeat(900) })),
    large: rows(60_000),
    noise: noise(3000, 3),
  }
  for (const [name, content] of Object.entries(files)) {
    cids[name] = (await addFile(blocks, content)).cid.toString()
    bytes[name] = Buffer.from(content)
  }
  folder = (
    await addDirectory(blocks, { 'page.html': text(`<p>${'hello '.repeat(900)}</p>`), 'a.png': noise(2000, 4) })
  ).toString()
  upstream = await startUpstream({ blocks })
  const upstreams = [{ name: 'one', url: upstream.url }]
  at = await startGateway({ upstreams })
  web = await startGateway({ upstreams, config: { responses: { types: 'web' } } })
})
after(async () => {
  await at.close()
  await web.close()
  await upstream.close()
})

const ipfs = (name: string): string => `/ipfs/${cids[name]}`
const tag = (name: string, coding?: string): string => `"${cids[name]}${coding === undefined ? '' : `-${coding}`}"`

function ask(target: string, headers: Headers = {}, { method = 'GET', of = at } = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const outgoing = request(of.url + target, { method, headers, agent: false }, (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', reject)
      response.on('end', () => {
        if (!response.complete) return reject(new Error('the answer was cut'))
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(pieces) })
      })
    })
    outgoing.on('error', reject)
    outgoing.end()
  })
}

/** By HTTP/1.0, as nginx asks by default. */
async function askOld(method: string, target: string, accepted: string): Promise<{ head: string; bytes: number }> {
  const { hostname, port } = new URL(at.url)
  const socket = connect(Number(port), hostname)
  socket.write(`${method} ${target} HTTP/1.0\r\nHost: ${hostname}:${port}\r\nAccept-Encoding: ${accepted}\r\n\r\n`)
  const all = await buffer(socket)
  const end = all.indexOf('\r\n\r\n')
  return { head: all.toString('latin1', 0, end).replaceAll('\r', ''), bytes: all.byteLength - end - 4 }
}

const taking = (accepted: string, more: Headers = {}): Headers => ({ 'Accept-Encoding': accepted, ...more })
const isHot = ({ headers }: Answer): boolean => String(headers['cache-status']).includes('detail=responses')
const plainOf = ({ headers, body }: Answer): Buffer => {
  const coding = headers['content-encoding'] as Coding | undefined
  return coding === undefined ? body : back[coding](body)
}

describe('each coding', () => {
  for (const coding of codings) {
    test(`${coding}: own bytes, ETag, length; same cached, uncached, HEAD`, async () => {
      const plain = await ask(ipfs('json'))
      assert.equal(plain.headers['content-encoding'], undefined)
      for (const turn of [1, 2, 3]) {
        const no = turn === 2 ? { 'Cache-Control': 'no-cache' } : {}
        const answer = await ask(ipfs('json'), taking(coding, no))
        assert.equal(answer.headers['content-encoding'], coding)
        assert.equal(answer.headers['content-type'], 'application/json')
        assert.equal(answer.headers.etag, tag('json', coding))
        assert.equal(answer.headers.vary, 'Accept, Accept-Encoding')
        assert.equal(answer.headers['accept-ranges'], 'none')
        assert.equal(Number(answer.headers['content-length']), answer.body.byteLength)
        assert.ok(answer.body.byteLength < plain.body.byteLength / 3)
        assert.deepEqual(plainOf(answer), bytes['json'])
        const head = await ask(ipfs('json'), taking(coding, no), { method: 'HEAD' })
        for (const name of ['content-encoding', 'content-type', 'etag', 'vary', 'accept-ranges', 'cache-control'])
          assert.equal(head.headers[name], answer.headers[name], name)
        if (turn !== 2) assert.equal(head.headers['content-length'], answer.headers['content-length'])
      }
      assert.ok(isHot(await ask(ipfs('json'), taking(coding))))
    })

    test(`${coding}: 304 for acceptable codings only`, async () => {
      await ask(ipfs('json'), taking(coding))
      for (const no of [{}, { 'Cache-Control': 'no-cache' }]) {
        for (const own of [
          tag('json', coding),
          `W/${tag('json', coding)}`,
          `"x", ${tag('json', coding)}, ${tag('json')}`,
        ]) {
          const { status, headers, body } = await ask(ipfs('json'), taking(coding, { 'If-None-Match': own, ...no }))
          assert.deepEqual([status, headers.etag, body.byteLength], [304, tag('json', coding), 0])
          assert.equal(headers.vary, 'Accept, Accept-Encoding')
          assert.equal(headers['content-encoding'], undefined)
        }
        const plain = await ask(ipfs('json'), taking(coding, { 'If-None-Match': tag('json'), ...no }))
        assert.deepEqual([plain.status, plain.headers.etag], [304, tag('json')])
        for (const takes of ['', 'deflate', coding === 'gzip' ? 'br' : 'gzip']) {
          const other = await ask(ipfs('json'), taking(takes, { 'If-None-Match': tag('json', coding), ...no }))
          assert.equal(other.status, 200, takes)
        }
      }
    })
  }

  test('clients with different codings → each stays cached', async () => {
    for (const coding of codings) await ask(ipfs('json'), taking(coding))
    for (const coding of codings) assert.ok(isHot(await ask(ipfs('json'), taking(coding))), coding)
  })

  test('many concurrent clients → compressed once, same bytes', async () => {
    const made = async () =>
      Number(/^cidgate_compressions_total\{coding="br"\} (\d+)$/m.exec(await metricsOf(at.gateway))?.[1])
    const before = await made()
    assert.ok(!isHot(await ask(ipfs('other'))))
    const answers = await inParallel(Array.from({ length: 20 }), 20, () => ask(ipfs('other'), taking(browser)))
    for (const answer of answers) {
      assert.equal(answer.headers['content-encoding'], 'br')
      assert.deepEqual(plainOf(answer), bytes['other'])
    }
    const saved = await ask(`${ipfs('other')}?filename=a.json`, taking(browser))
    assert.match(String(saved.headers['content-disposition']), /a\.json/)
    assert.deepEqual(plainOf(saved), bytes['other'])
    assert.equal(await made(), before + 1)
  })
})

describe('identity', () => {
  test('client without codings, or preferring identity → identity', async () => {
    for (const header of ['', 'identity', 'deflate', 'br;q=0', 'identity, br;q=0.5', '*;q=0']) {
      const answer = await ask(ipfs('json'), taking(header))
      assert.equal(answer.headers['content-encoding'], undefined, header)
      assert.equal(answer.headers.etag, tag('json'))
      assert.equal(answer.headers.vary, 'Accept, Accept-Encoding', 'another client gets another one')
      assert.deepEqual(answer.body, bytes['json'])
    }
  })

  test('Range → identity', async () => {
    for (const headers of [{}, { 'If-Range': tag('json') }]) {
      const part = await ask(ipfs('json'), taking(browser, { Range: 'bytes=10-19', ...headers }))
      assert.equal(part.status, 206)
      assert.deepEqual(part.body, bytes['json']?.subarray(10, 20))
      assert.equal(part.headers.etag, tag('json'))
      assert.equal(part.headers['content-encoding'], undefined)
      assert.equal(part.headers.vary, 'Accept, Accept-Encoding')
    }
    const whole = await ask(ipfs('json'), taking(browser, { Range: 'bytes=10-19', 'If-Range': tag('json', 'br') }))
    assert.deepEqual(
      [whole.status, whole.headers['content-encoding']],
      [200, undefined],
      'a part of another representation',
    )
    assert.deepEqual(whole.body, bytes['json'])
  })

  test('small or binary body → identity without Vary', async () => {
    for (const [path, vary] of [
      [ipfs('small'), 'Accept'],
      [ipfs('noise'), 'Accept'],
      [`${ipfs('json')}?format=raw`, undefined],
      [`${ipfs('json')}?format=car`, undefined],
      [`${ipfs('json')}?format=tar`, undefined],
    ] as const) {
      for (const turn of ['cold', 'hot']) {
        const { status, headers } = await ask(path, taking(browser))
        assert.deepEqual([status, headers['content-encoding'], headers.vary], [200, undefined, vary], `${path} ${turn}`)
      }
    }
  })

  test('compression disabled → identity', async () => {
    const off = await startGateway({
      upstreams: [{ name: 'one', url: upstream.url }],
      config: { responses: { compression: false } },
    })
    try {
      for (const more of [{}, {}, { 'If-None-Match': tag('json', 'br') }]) {
        const { status, headers, body } = await ask(ipfs('json'), taking(browser, more), { of: off })
        assert.deepEqual([status, headers['content-encoding'], headers.vary], [200, undefined, 'Accept'])
        assert.deepEqual(body, bytes['json'])
      }
    } finally {
      await off.close()
    }
  })
})

describe('compressed streams', () => {
  for (const coding of codings) {
    test(`${coding}: file too large to buffer`, async () => {
      const path = ipfs('large')
      const answer = await ask(path, taking(coding))
      assert.deepEqual(
        [answer.headers['content-encoding'], answer.headers.etag, answer.headers['content-length']],
        [coding, tag('large', coding), undefined],
      )
      assert.ok(plainOf(answer).equals(bytes['large'] ?? Buffer.alloc(0)))
      const head = await ask(path, taking(coding), { method: 'HEAD' })
      for (const name of ['content-encoding', 'etag', 'content-length', 'vary', 'accept-ranges'])
        assert.equal(head.headers[name], answer.headers[name], name)
      const { status } = await ask(path, taking(coding, { 'If-None-Match': tag('large', coding) }))
      assert.equal(status, 304)
    })
  }

  test('clients that leave early release everything', { timeout: 20_000 }, async () => {
    const leave = () =>
      new Promise<void>((resolve, reject) => {
        const outgoing = request(at.url + ipfs('large'), { headers: taking('gzip'), agent: false }, (response) => {
          response.once('data', () => outgoing.destroy())
          response.on('error', () => {})
          response.once('close', resolve)
        })
        outgoing.on('error', reject)
        outgoing.end()
      })
    for (let turn = 0; turn < 12; turn++) await leave()
    // More than there is room for at once: each has given its place back, in a moment.
    for (let last: Answer | undefined; last?.headers['content-encoding'] !== 'gzip'; )
      last = await ask(ipfs('large'), taking('gzip'))
  })

  test('HTTP/1.0 → identity with Content-Length', async () => {
    for (const method of ['GET', 'HEAD']) {
      const answer = await askOld(method, ipfs('large'), browser)
      const length = bytes['large']?.byteLength ?? 0
      assert.match(answer.head, new RegExp(`^Content-Length: ${length}$`, 'm'))
      assert.doesNotMatch(answer.head, /Content-Encoding/)
      assert.match(answer.head, /^Vary: .*Accept-Encoding/m)
      assert.equal(answer.bytes, method === 'GET' ? length : 0)
    }
  })

  test('listing: HEAD has the same headers', async () => {
    const answer = await ask(`/ipfs/${folder}`, taking('br'))
    assert.equal(answer.headers['content-encoding'], 'br')
    assert.equal(answer.headers.etag, `W/"${folder}.listing-br"`)
    assert.equal(JSON.parse(plainOf(answer).toString()).entries.length, 2)
    const head = await ask(`/ipfs/${folder}`, taking('br'), { method: 'HEAD' })
    for (const name of ['content-encoding', 'etag', 'vary']) assert.equal(head.headers[name], answer.headers[name])
    const { status } = await ask(`/ipfs/${folder}`, taking('br', { 'If-None-Match': String(answer.headers.etag) }))
    assert.equal(status, 304)
  })
})

test('web mode: pages and scripts are compressed, images are not', async () => {
  for (const turn of ['cold', 'hot']) {
    const page = await ask(`/ipfs/${folder}/page.html`, taking(browser), { of: web })
    assert.deepEqual(
      [page.headers['content-encoding'], page.headers['content-type']],
      ['br', 'text/html; charset=utf-8'],
      turn,
    )
    assert.match(plainOf(page).toString(), /^<p>hello/)
    const image = await ask(`/ipfs/${folder}/a.png`, taking(browser), { of: web })
    assert.deepEqual([image.headers['content-encoding'], image.headers.vary], [undefined, 'Accept'], turn)
    const copy = await ask(`/ipfs/${folder}/a.png`, taking(browser, { 'If-None-Match': String(image.headers.etag) }), {
      of: web,
    })
    assert.deepEqual([copy.status, copy.headers.vary], [304, 'Accept'], turn)
  }
  const listing = await ask(`/ipfs/${folder}/`, taking(browser), { of: web })
  assert.equal(listing.headers['content-encoding'], 'br')
  assert.match(plainOf(listing).toString(), /page\.html/)
})
