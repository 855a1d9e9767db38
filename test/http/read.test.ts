// GET and HEAD /ipfs/… as the contract has it, one row after another, over HTTP and nothing else.
import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { CarReader } from '@ipld/car'
import { base256emoji } from 'multiformats/bases/base256emoji'
import { CID } from 'multiformats/cid'
import supertest from 'supertest'
import { blockKey } from '../../src/core/cid.ts'
import { addBlock, addCbor, addFile, type BlockMap, type Fixtures, fixtures, noise, text } from '../support/fixtures.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
let at: TestGateway
const more: Record<string, { cid: string; bytes: Uint8Array }> = {}

before(async () => {
  all = await fixtures()
  const blocks: BlockMap = all.blocks
  const add = async (name: string, bytes: Uint8Array) => {
    const { cid } = await addFile(blocks, bytes)
    more[name] = { cid: cid.toString(), bytes }
  }
  await add('array', text('[1,2,3]'))
  await add('number', text('42'))
  await add('broken', text('{"a":'))
  await add('marked', text('\ufeff{"a":1}'))
  await add('html', text('<script>alert(1)</script>'))
  await add('bigJson', text(`{"a":"${'x'.repeat(70_000)}"}`))
  await add('video', noise(3_000_000, 21))
  upstream = await startUpstream({ blocks })
  at = await startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: { responses: { json: { maxBytes: '64KiB' } }, limits: { maxConcurrentRequests: 100 } },
  })
})
after(async () => {
  await at.close()
  await upstream.close()
})

const get = (path: string) => supertest(at.url).get(path).buffer(true).parse(binary)
const binary = (answer: supertest.Response, done: (error: Error | null, body: Buffer) => void) => {
  const response = answer as unknown as NodeJS.ReadableStream
  const pieces: Buffer[] = []
  response.on('data', (piece: Buffer) => pieces.push(piece))
  response.on('end', () => done(null, Buffer.concat(pieces)))
}
const ipfs = (cid: unknown, rest = '') => `/ipfs/${cid}${rest}`

describe('media types', () => {
  const rows: [name: string, path: () => string, type: string][] = [
    ['an object', () => ipfs(all.files.json.cid), 'application/json'],
    ['the same as v0', () => ipfs(all.files.jsonV0.cid), 'application/json'],
    ['an array', () => ipfs(more['array']?.cid), 'application/json'],
    ['JSON in a directory', () => ipfs(all.directory, '/policy.json'), 'application/json'],
    ['JSON behind a byte order mark', () => ipfs(more['marked']?.cid), 'application/json'],
    ['a number', () => ipfs(more['number']?.cid), 'application/octet-stream'],
    ['JSON that does not parse', () => ipfs(more['broken']?.cid), 'application/octet-stream'],
    ['HTML', () => ipfs(more['html']?.cid), 'application/octet-stream'],
    ['text', () => ipfs(all.files.hello.cid), 'application/octet-stream'],
    ['JSON larger than is looked into', () => ipfs(more['bigJson']?.cid), 'application/octet-stream'],
    ['the same by a .json name', () => ipfs(more['bigJson']?.cid, '?filename=a.json'), 'application/json'],
    ['dag-json', () => ipfs(all.dagJson), 'application/json'],
    ['dag-cbor', () => ipfs(all.cbor), 'application/octet-stream'],
    ['a directory', () => ipfs(all.directory), 'application/json'],
    ['an identity CID', () => ipfs(all.identity), 'application/octet-stream'],
    ['nothing at all', () => ipfs(all.files.empty.cid), 'application/octet-stream'],
  ]
  for (const [name, path, type] of rows) {
    test(`${name}: ${type}, by GET, HEAD, range and from memory`, async () => {
      const first = await get(path())
      assert.equal(first.status, 200)
      assert.equal(first.headers['content-type'], type)
      for (const again of [
        await supertest(at.url).head(path()),
        await get(path()).set('Range', 'bytes=0-0'),
        await get(path()),
      ]) {
        if (again.status !== 416) assert.equal(again.headers['content-type'], type)
      }
    })
  }
})

describe('bytes', () => {
  test('every file and layout → unchanged', async () => {
    for (const [name, { cid, bytes }] of Object.entries(all.files)) {
      const answer = await get(ipfs(cid))
      assert.ok((answer.body as Buffer).equals(bytes), name)
      assert.equal(answer.headers['content-length'], String(bytes.length))
    }
  })
  test('byte order mark → sent as stored, parsed by clients', async () => {
    const { cid, bytes } = more['marked'] ?? { cid: '', bytes: new Uint8Array() }
    const answer = await get(ipfs(cid))
    assert.deepEqual(answer.body, Buffer.from(bytes))
    assert.deepEqual(await (await fetch(`${at.url}${ipfs(cid)}`)).json(), { a: 1 })
  })
  test('SHA3 and base256emoji CIDs → 200', async () => {
    const sha3 = CID.parse('bafkrmigog4cuzym3ysf3lrjnnvqk43tkvdzl4a53qzscfwzwp4midg2gjq')
    all.blocks.set(blockKey(sha3), text('text\n'))
    for (const spelled of [sha3.toString(), encodeURIComponent(sha3.toString(base256emoji))]) {
      const { status, body, headers } = await get(ipfs(spelled))
      assert.deepEqual([status, String(body), headers['x-ipfs-roots']], [200, 'text\n', String(sha3)])
    }
  })

  test('CAR of a path inside a document → all below it', async () => {
    const [below, beside] = await Promise.all(['below', 'beside'].map((name) => addFile(all.blocks, text(name))))
    const root = addCbor(all.blocks, { in: { here: [below?.cid] }, out: beside?.cid })
    const { status, body } = await get(ipfs(root, '/in?format=car'))
    assert.equal(status, 200)
    const cids = await Array.fromAsync((await CarReader.fromBytes(body as Buffer)).cids())
    assert.deepEqual(cids.map(String), [root, below?.cid].map(String))
  })
  test('CAR of an undecodable block → 200 with the block', async () => {
    const cid = addBlock(all.blocks, 0x71, text('garbage'))
    for (const scope of ['block', 'entity', 'all']) {
      const { status, body } = await get(ipfs(cid, `?format=car&dag-scope=${scope}`))
      assert.equal(status, 200)
      const cids = await Array.fromAsync((await CarReader.fromBytes(body as Buffer)).cids())
      assert.deepEqual(cids.map(String), [String(cid)])
    }
  })
  test('names with spaces, umlauts and percent signs → found', async () => {
    for (const [name, bytes] of Object.entries(all.names)) {
      const answer = await get(ipfs(all.directory, `/${name.split('/').map(encodeURIComponent).join('/')}`))
      assert.ok((answer.body as Buffer).equals(bytes), name)
    }
    const spelledOnce = await get(ipfs(all.directory, '/literal%20percent.txt'))
    assert.deepEqual(spelledOnce.body, Buffer.from(all.names['literal%20percent.txt'] as Uint8Array))
  })
  test('symlink → its target', async () => {
    assert.equal((await get(ipfs(all.linked, '/link'))).body.toString(), 'hello.txt')
  })
  test('directory → list', async () => {
    const answer = await get(ipfs(all.directory))
    const { cid, path, entries } = JSON.parse(answer.body.toString()) as {
      cid: string
      path: string
      entries: { name: string; type: string; cid: string }[]
    }
    assert.equal(cid, all.directory.toString())
    assert.equal(path, `/ipfs/${all.directory}`)
    assert.deepEqual(entries.map((entry) => entry.name).sort(), [
      'literal%20percent.txt',
      'policy.json',
      'readme.txt',
      'sub',
      'with space.txt',
      'über',
    ])
    assert.equal(entries.find((entry) => entry.name === 'readme.txt')?.type, 'file')
  })
  test('HAMT directory → all names', async () => {
    const { entries } = JSON.parse((await get(ipfs(all.hamt))).body.toString()) as { entries: { name: string }[] }
    assert.deepEqual(entries.map(({ name }) => name).sort(), Object.keys(all.manyNames).sort())
    for (const name of ['file-0.txt', 'file-777.txt', 'file-1499.txt'])
      assert.deepEqual((await get(ipfs(all.hamt, `/${name}`))).body, Buffer.from(all.manyNames[name] as Uint8Array))
  })
})

describe('malformed block', () => {
  const rows: [name: string, code: number, bytes: Uint8Array][] = [
    ['dag-pb', 0x70, Uint8Array.of(9, 8, 7, 122, 113)],
    ['dag-json', 0x0129, text('{bad')],
  ]
  for (const [name, code, bytes] of rows) {
    test(`${name}: bytes by format=raw, never "not found"`, async () => {
      const cid = addBlock(all.blocks, code, bytes)
      const answer = await get(ipfs(cid, '?format=raw'))
      assert.equal(answer.status, 200)
      assert.deepEqual(Uint8Array.from(answer.body as Buffer), bytes)
    })
  }
})

describe('formats', () => {
  test('raw → last block of the path, and its ranges', async () => {
    const block = Buffer.from(all.blocks.get(blockKey(all.directory)) as Uint8Array)
    const { headers, body } = await get(ipfs(all.directory, '?format=raw'))
    assert.deepEqual(body, block)
    assert.deepEqual([headers['content-type'], headers['etag']], ['application/vnd.ipld.raw', `"${all.directory}.raw"`])
    assert.match(headers['content-disposition'] ?? '', new RegExp(`^attachment; filename="${all.directory}.bin"`))
    const part = await get(ipfs(all.directory, '?format=raw')).set('Range', 'bytes=3-8')
    assert.deepEqual([part.status, part.body], [206, block.subarray(3, 9)])
    assert.equal(String((await get(ipfs(all.directory, '/readme.txt?format=raw'))).body), 'read me')
    assert.equal(String((await get(ipfs(all.identity, '?format=raw'))).body), 'carried in the CID')
    assert.deepEqual((await get(ipfs(all.cbor, '/inside/file?format=raw'))).body, Buffer.from(all.files.hello.bytes))
    const { cid } = await addFile(all.blocks, noise(4_000_000, 32))
    const before = upstream.sentBytes
    assert.equal((await get(ipfs(cid, '?format=raw'))).status, 200)
    assert.ok(upstream.sentBytes - before < 10_000, 'more than its block was fetched')
  })

  const codecs = { 'dag-json': 0x0129, 'dag-cbor': 0x71, json: 0x0200, cbor: 0x51 }
  const asStored = [
    'dag-json dag-json',
    'dag-json json',
    'dag-cbor dag-cbor',
    'dag-cbor cbor',
    'json json',
    'cbor cbor',
  ]
  for (const [codec, code] of Object.entries(codecs))
    test(`${codec} → under its own names only`, async () => {
      const isJson = codec.endsWith('json')
      const stored = isJson ? text('{ "b":1, "a":2 }') : Uint8Array.of(0xa1, 0x61, 0x61, 0x01)
      const cid = addBlock(all.blocks, code, stored)
      for (const name of Object.keys(codecs)) {
        const { status, headers, body } = await get(ipfs(cid, `?format=${name}`))
        if (!asStored.includes(`${codec} ${name}`)) {
          assert.equal(status, 406, name)
          continue
        }
        assert.deepEqual([status, headers['etag'], body], [200, `"${cid}.${name}"`, Buffer.from(stored)])
        assert.match(String(headers['content-type']), new RegExp(`[/.]${name}$`))
        const [kind, ending] = isJson ? ['inline', 'json'] : ['attachment', 'cbor']
        assert.match(headers['content-disposition'] ?? '', new RegExp(`^${kind}; filename="[^"]*.${ending}"`))
      }
    })
})

describe('response headers', () => {
  test('a file', async () => {
    const { headers } = await get(ipfs(all.directory, '/sub/deep/file.bin'))
    assert.match(String(headers['etag']), /^"baf[a-z0-9]+"$/)
    assert.equal(headers['cache-control'], 'public, max-age=29030400, immutable')
    assert.equal(headers['vary'], 'Accept', 'another Accept would get another format under this address')
    assert.equal(headers['accept-ranges'], 'bytes')
    assert.equal(headers['x-ipfs-path'], `/ipfs/${all.directory}/sub/deep/file.bin`)
    assert.equal(String(headers['x-ipfs-roots']).split(',').length, 4)
    assert.equal(headers['x-content-type-options'], 'nosniff')
    assert.equal(headers['access-control-allow-origin'], '*')
    assert.match(String(headers['access-control-expose-headers']), /Cache-Status/)
    assert.match(String(headers['content-security-policy']), /sandbox/)
  })
  test('Cache-Status → names upstream, response cache or tier', async () => {
    const { cid } = await addFile(all.blocks, noise(1234, 99))
    assert.match(String((await get(ipfs(cid))).headers['cache-status']), /^cidgate; fwd=miss; detail="one"$/)
    assert.equal((await get(ipfs(cid))).headers['cache-status'], 'cidgate; hit; detail=responses')
    assert.equal((await get(ipfs(cid, '?filename=x'))).headers['cache-status'], 'cidgate; hit; detail=memory')
  })
  test('chosen by Accept → Content-Location', async () => {
    const car = 'application/vnd.ipld.car; version=1; order=dfs; dups=y; q=0.9; other=1'
    const rows: [accept: string, query: string, location: string | undefined][] = [
      [car, '', '?format=car&car-version=1&car-order=dfs&car-dups=y'],
      [car, '?car-dups=n&dag-scope=block', '?car-dups=n&dag-scope=block&format=car&car-version=1&car-order=dfs'],
      ['application/vnd.ipld.raw; version=1', '', '?format=raw'],
      [car, '?format=car', undefined],
    ]
    for (const [accept, query, location] of rows) {
      const asked = ipfs(all.cbor, query)
      const { headers } = await get(asked).set('Accept', accept)
      const expected = location && ipfs(all.cbor, location)
      assert.equal(headers['content-location'], expected)
      if (expected === undefined) continue
      const there = await get(expected)
      for (const name of ['etag', 'content-type']) assert.equal(there.headers[name], headers[name])
    }
  })
  test('file name: quoted, stripped, exact', async () => {
    const { headers } = await get(
      ipfs(all.files.hello.cid, `?download=true&filename=${encodeURIComponent('../e"v\r\nil/ü.txt')}`),
    )
    assert.equal(headers['content-disposition'], `attachment; filename="_.txt"; filename*=UTF-8''%C3%BC.txt`)
    assert.equal((await get(ipfs(all.files.hello.cid, '?download=true'))).headers['content-disposition'], 'attachment')
  })
})

describe('ranges', () => {
  const size = 3_000_000
  const rows: [header: string, status: number, range: string | undefined, length: number][] = [
    ['bytes=0-9', 206, `bytes 0-9/${size}`, 10],
    ['bytes=1048570-1048590', 206, `bytes 1048570-1048590/${size}`, 21],
    ['bytes=-10', 206, `bytes ${size - 10}-${size - 1}/${size}`, 10],
    ['bytes=2999990-', 206, `bytes 2999990-${size - 1}/${size}`, 10],
    ['bytes=0-99999999', 206, `bytes 0-${size - 1}/${size}`, size],
    ['bytes=0-0,5-6', 206, `bytes 0-0/${size}`, 1],
    ['bytes=3000000-', 416, `bytes */${size}`, -1],
    ['bytes=-0', 416, `bytes */${size}`, -1],
    ['bytes=5-3', 200, undefined, size],
    ['lines=0-9', 200, undefined, size],
    ['bytes=a-b', 200, undefined, size],
  ]
  for (const [header, status, range, length] of rows) {
    test(`${header}: ${status}`, async () => {
      const { cid, bytes } = more['video'] as { cid: string; bytes: Uint8Array }
      const answer = await get(ipfs(cid)).set('Range', header)
      assert.equal(answer.status, status)
      assert.equal(answer.headers['content-range'], range)
      if (length < 0) return
      const from = range ? Number(/ (\d+)-/.exec(range)?.[1]) : 0
      assert.ok((answer.body as Buffer).equals(bytes.slice(from, from + length)))
    })
  }
  test('If-Range with another ETag → complete file', async () => {
    const { cid } = more['video'] as { cid: string }
    assert.equal((await get(ipfs(cid)).set('Range', 'bytes=0-9').set('If-Range', '"other"')).status, 200)
    assert.equal((await get(ipfs(cid)).set('Range', 'bytes=0-9').set('If-Range', `"${cid}"`)).status, 206)
  })
  test('cold range → fetches only what it needs', async () => {
    const { cid } = await addFile(all.blocks, noise(20_000_000, 31))
    const before = upstream.sentBytes
    assert.equal((await get(ipfs(cid)).set('Range', 'bytes=15000000-15000009')).status, 206)
    assert.ok(upstream.sentBytes - before < 4_000_000, `${upstream.sentBytes - before} bytes`)
  })
})

describe('conditional requests', () => {
  test('current copy → no upstream request', async () => {
    const cid = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
    const before = upstream.seen.length
    assert.equal((await get(ipfs(cid)).set('If-None-Match', `"${cid}"`)).status, 304)
    assert.equal(upstream.seen.length, before)
  })
  test('ETag of one representation never matches another', async () => {
    const [asked, cid] = [ipfs(all.directory), String(all.directory)]
    assert.equal((await get(asked).set('If-None-Match', `"${cid}"`)).status, 200, 'a listing has a tag of its own')
    const { headers } = await get(asked)
    const again = await get(asked).set('If-None-Match', String(headers['etag']))
    assert.equal(again.status, 304)
    for (const name of ['etag', 'cache-control']) assert.equal(again.headers[name], headers[name])
    for (const file of [more['video']?.cid, all.cbor]) {
      assert.equal((await get(ipfs(file)).set('If-None-Match', `"${file}"`)).status, 304)
    }
  })
  test('If-Match → 412 unless it names the ETag, also when cached', async () => {
    const { cid } = await addFile(all.blocks, noise(600, 78))
    for (let round = 0; round < 2; round++) {
      for (const match of [`"${cid}"`, `"a", "${cid}"`, '*', `"${cid}-gzip"`])
        assert.equal((await get(ipfs(cid)).set('If-Match', match)).status, 200, match)
      for (const match of ['"a"', `W/"${cid}"`]) {
        const refused = await get(ipfs(cid)).set('If-Match', match).set('If-None-Match', `"${cid}"`)
        assert.equal(refused.status, 412, match)
        assert.match(refused.text + String(refused.body), /Precondition failed/)
      }
    }
  })

  test('only-if-cached, not cached → 412 without upstream request', async () => {
    const { cid } = await addFile(all.blocks, noise(999, 77))
    const before = upstream.seen.length
    const answer = await get(ipfs(cid)).set('Cache-Control', 'only-if-cached')
    assert.equal(answer.status, 412)
    assert.equal(upstream.seen.length, before)
    await get(ipfs(cid))
    assert.equal((await get(ipfs(cid)).set('Cache-Control', 'only-if-cached')).status, 200)
  })
})

describe('errors', () => {
  const rows: [name: string, path: () => string, status: number][] = [
    ['no CID', () => '/ipfs/hello', 400],
    ['nothing', () => '/ipfs/', 400],
    ['bad percent', () => ipfs(all.directory, '/%zz'), 400],
    ['an encoded slash', () => ipfs(all.directory, '/sub%2Fdeep'), 400],
    ['a format nobody knows', () => ipfs(all.files.hello.cid, '?format=nonsense'), 400],
    ['a name that is not there', () => ipfs(all.directory, '/absent.txt'), 404],
    ['a name that no shard has', () => ipfs(all.hamt, '/absent.txt'), 404],
    ['below a file', () => ipfs(all.files.hello.cid, '/x'), 404],
    ['below a file of a directory', () => ipfs(all.directory, '/readme.txt/x'), 404],
    ['below a symlink', () => ipfs(all.linked, '/link/x'), 404],
    ['a directory as a document', () => ipfs(all.directory, '?format=dag-json'), 406],
    ['a file as a document', () => ipfs(all.files.jsonV0.cid, '?format=dag-cbor'), 406],
    ['a value inside a document, as raw', () => ipfs(all.cbor, '/inside/number?format=raw'), 501],
    ['nobody has it', () => ipfs('bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'), 404],
    ['another place', () => '/elsewhere', 404],
    ['a value inside a document', () => ipfs(all.cbor, '/title'), 501],
    ['a value inside a document, as a document', () => ipfs(all.dagJson, '/title?format=dag-json'), 501],
    ['what a document does not have', () => ipfs(all.cbor, '/absent'), 404],
    ['wrong case', () => ipfs(all.files.hello.cid).replace('ipfs', 'IPFS'), 404],
  ]
  for (const [name, path, status] of rows) {
    test(`${name}: ${status}, as a readable problem`, async () => {
      const answer = await supertest(at.url).get(path())
      assert.equal(answer.status, status)
      assert.equal(answer.headers['content-type'], 'application/problem+json')
      assert.equal(answer.headers['access-control-allow-origin'], '*')
      const body = JSON.parse(answer.text) as Record<string, unknown>
      assert.equal(body['status'], status)
      assert.equal(body['detail'], body['message'])
      assert.ok(String(body['detail']).length > 10)
      if (name === 'nobody has it') assert.ok(Array.isArray(body['attempts']) && body['attempts'].length === 1)
    })
  }
  test('405 with Allow; OPTIONS → preflight', async () => {
    const wrong = await supertest(at.url).put(ipfs(all.files.hello.cid))
    assert.deepEqual([wrong.status, wrong.headers['allow']], [405, 'GET, HEAD, OPTIONS'])
    const flight = await supertest(at.url).options(ipfs(all.files.hello.cid))
    assert.equal(flight.status, 204)
    assert.match(String(flight.headers['access-control-allow-methods']), /GET/)
    assert.match(String(flight.headers['access-control-allow-headers']), /Range/)
  })
  test('no-cache → asked again what nobody had', async () => {
    const later: BlockMap = new Map()
    const { cid } = await addFile(later, noise(500, 78))
    assert.equal((await get(ipfs(cid))).status, 404)
    for (const [key, block] of later) all.blocks.set(key, block)
    assert.equal((await get(ipfs(cid))).status, 404)
    assert.equal((await get(ipfs(cid)).set('Cache-Control', 'no-cache')).status, 200)
  })
  test('/ipfs/ipfs/… → corrected', async () => {
    const answer = await supertest(at.url).get(`/ipfs/ipfs/${all.files.hello.cid}`).redirects(0)
    assert.deepEqual([answer.status, answer.headers['location']], [301, `/ipfs/${all.files.hello.cid}`])
  })
})

describe('ambiguous requests', () => {
  /** Sends exactly this and answers the first line that comes back. */
  const raw = (lines: string): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connect(Number(new URL(at.url).port), '127.0.0.1', () => socket.write(lines))
      let said = ''
      socket.setTimeout(3000, () => socket.destroy(new Error('no answer')))
      socket.on('data', (chunk) => {
        said += chunk.toString()
        if (said.includes('\r\n')) {
          resolve(said.split('\r\n')[0] as string)
          socket.destroy()
        }
      })
      socket.on('error', reject)
      socket.on('close', () => resolve(said.split('\r\n')[0] as string))
    })
  const rows: [name: string, request: (path: string) => string][] = [
    ['two Host lines', (path) => `GET ${path} HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n`],
    ['a target elsewhere', (path) => `GET http://evil.example${path} HTTP/1.1\r\nHost: a\r\n\r\n`],
    ['a fragment', (path) => `GET ${path}#x HTTP/1.1\r\nHost: a\r\n\r\n`],
    ['a backslash', (path) => `GET ${path}/..\\..\\x HTTP/1.1\r\nHost: a\r\n\r\n`],
    ['dot segments', (path) => `GET ${path}/../x HTTP/1.1\r\nHost: a\r\n\r\n`],
    ['an encoded NUL', (path) => `GET ${path}/a%00 HTTP/1.1\r\nHost: a\r\n\r\n`],
    [
      'another transfer coding',
      (path) => `GET ${path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`,
    ],
    ['two lengths', (path) => `GET ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n`],
  ]
  for (const [name, request] of rows) {
    test(`${name}: refused, cached or not`, async () => {
      await get(ipfs(all.files.hello.cid))
      assert.match(await raw(request(ipfs(all.files.hello.cid))), / (400|404) /)
    })
  }
})
