// POST /add row by row, over HTTP.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import { createSchemaChecks } from '../../src/schemas/checks.ts'
import { type Adding, below, boundary, idle, multipart, post, raw, startAdding } from '../support/adding.ts'
import { keptIn, nothing } from '../support/kept.ts'
import { calmestWorkMs } from '../support/work.ts'

const head = (headers: string) =>
  `POST /add HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=${boundary}\r\n${headers}\r\n`

/** The CID of the small file, as `ipfs add --cid-version=1 --raw-leaves` has it. */
const hello = { body: 'hello world\n', cid: 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4' }

describe('POST /add', () => {
  let adding: Adding
  before(async () => {
    adding = await startAdding({ maxBytes: 100_000 })
  })
  after(() => adding.close())

  const left = async () => (await keptIn(adding.data)).strays

  it('file → its CID, stored, no longer in the negative cache', async () => {
    const answer = await post(`${adding.url}/add`, multipart([{ fileName: 'hello.txt', body: hello.body }]))
    assert.equal(answer.status, 200, answer.body)
    assert.deepEqual(answer.json, { cids: [`/ipfs/${hello.cid}`] })
    assert.equal(answer.headers['access-control-allow-origin'], '*')
    const cid = CID.parse(hello.cid)
    assert.ok(adding.forgotten.includes(hello.cid))
    assert.equal(Buffer.from((await adding.embedded.store.get(cid)) ?? []).toString(), hello.body)
  })

  it('no provider configured → 502 at once', async () => {
    const none = await startAdding({ withoutEmbedded: true })
    try {
      const said = await raw(none.port, (socket) => socket.write(head('Content-Length: 90000\r\n')))
      assert.match(said, /^HTTP\/1\.1 502 .+this gateway accepts no uploads/s)
    } finally {
      await none.close()
    }
  })

  it('other form fields → ignored', async () => {
    const others = Array.from({ length: 30 }, (_, index) => ({ name: `field${index}`, body: 'x' }))
    const answer = await post(`${adding.url}/add`, multipart([...others, { body: hello.body }]))
    assert.deepEqual([answer.status, answer.json['cids']], [200, [`/ipfs/${hello.cid}`]])
  })

  it('text field → stored as a file', async () => {
    const answer = await post(`${adding.url}/add`, multipart([{ body: hello.body }]))
    assert.deepEqual([answer.status, answer.json['cids']], [200, [`/ipfs/${hello.cid}`]])
  })

  it('data parts → one CID each, in order; others ignored', async () => {
    const parts = [
      { name: 'operation', body: 'evidence' },
      { fileName: 'a', body: hello.body },
      { name: 'other', fileName: '../../etc/passwd', body: randomBytes(500) },
      { fileName: '../../../b', body: 'another' },
      { body: hello.body },
    ]
    const { status, json } = await post(`${adding.url}/add?operation=evidence&x=1`, multipart(parts))
    const cids = json['cids'] as string[]
    assert.equal(status, 200)
    assert.equal(cids.length, 3)
    assert.deepEqual([cids[0], cids[2]], [`/ipfs/${hello.cid}`, `/ipfs/${hello.cid}`])
    assert.notEqual(cids[1], cids[0])
  })

  it('part parameters: quoted or not, any order and case', async () => {
    const types = [
      `multipart/form-data; charset=utf-8; BOUNDARY="${boundary}"`,
      `Multipart/Form-Data;boundary=${boundary};`,
      `multipart/form-data; x="; boundary=b"; boundary=${boundary}`,
    ]
    const dispositions = [
      'form-data; name=data',
      'form-data; filename="a; name=\\"other\\""; name="data"',
      'form-data; name="data"; filename="a"; filename*=utf-8\'\'b',
      'form-data;\r\n\tname="data"',
    ]
    for (const type of types)
      for (const disposition of dispositions) {
        const body = `--${boundary}\r\nContent-Disposition: ${disposition}\r\n\r\n${hello.body}\r\n--${boundary}--\r\n`
        const answer = await post(`${adding.url}/add`, Buffer.from(body), { 'Content-Type': type })
        assert.deepEqual([answer.status, answer.json['cids']], [200, [`/ipfs/${hello.cid}`]], `${type} ${disposition}`)
      }
  })

  it("file names in every client's spelling", async () => {
    const dispositions = [
      // form-data of Node, and axios over it, escape nothing.
      'form-data; name="data"; filename="say "hi".txt"',
      'form-data; name="data"; filename="a""',
      'form-data; name="data"; filename="C:\\dir\\"',
      // Browsers, fetch and curl leave a backslash as it is.
      'form-data; name="data"; filename="trail\\"',
      'form-data; name="data"; filename="a\\"b.txt"',
      'form-data; name="data"; filename="say "hi".txt"; filename*=utf-8\'\'say',
      'form-data; name=data; filename="a"b"; size=5',
      'form-data; name=data; filename=my file.txt',
      'form-data; name=data; filename=',
      'form-data; name = "data"; filename = "x"',
      'form-data; name="data"; filename="x=y; name.txt"',
      'form-data;name="data";filename="räk "日".txt";',
    ]
    for (const disposition of dispositions) {
      const part = `--${boundary}\r\nContent-Disposition: ${disposition}\r\n\r\n${hello.body}\r\n`
      const other = part.replace('=data', '=other').replace('"data"', '"other"')
      const answer = await post(`${adding.url}/add`, Buffer.from(`${other}${part}${other}--${boundary}--\r\n`))
      assert.deepEqual([answer.status, answer.json['cids']], [200, [`/ipfs/${hello.cid}`]], disposition + answer.body)
    }
    for (const name of ['trail\\', 'say "hi".txt', 'a\nb', '日本.txt', '"; name="other"']) {
      const form = new FormData()
      form.append('data', new File([hello.body], name))
      const answer = await fetch(`${adding.url}/add`, { method: 'POST', body: form })
      assert.deepEqual(await answer.json(), { cids: [`/ipfs/${hello.cid}`] }, name)
    }
  })

  it('other part headers → ignored', async () => {
    const said = [
      // addTextBody of Apache HttpClient.
      'Content-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit',
      'Content-Type: text/plain; charset=klingon',
      'Content-Type: text/plain\r\nContent-Type: text/html',
      // curl, with two files in one field.
      'Content-Type: multipart/mixed; boundary=inner',
    ]
    for (const headers of said) {
      const other = `--${boundary}\r\nContent-Disposition: form-data; name="note"\r\n${headers}\r\n\r\nr\xe4k\r\n`
      const data = multipart([{ fileName: 'a', body: hello.body }])
      const answer = await post(`${adding.url}/add`, Buffer.concat([Buffer.from(other, 'latin1'), data]))
      assert.deepEqual([answer.status, answer.json['cids']], [200, [`/ipfs/${hello.cid}`]], headers)
    }
  })

  it('upload of exactly the maximum size → accepted', async () => {
    const { status } = await post(`${adding.url}/add`, multipart([{ fileName: 'a', body: randomBytes(100_000) }]))
    assert.equal(status, 200)
    const more = await post(`${adding.url}/add`, multipart([{ fileName: 'a', body: randomBytes(100_001) }]))
    assert.equal(more.status, 413)
  })

  const refused: readonly (readonly [name: string, status: number, body: Buffer, headers?: Record<string, string>])[] =
    [
      ['is not multipart', 400, Buffer.from('{}'), { 'Content-Type': 'application/json' }],
      ['has no content type', 400, multipart([{ body: 'x' }]), { 'Content-Type': '' }],
      ['has no boundary', 400, multipart([{ body: 'x' }]), { 'Content-Type': 'multipart/form-data' }],
      [
        'has a boundary of 71',
        400,
        multipart([{ body: 'x' }], 'b'.repeat(71)),
        { 'Content-Type': `multipart/form-data; boundary=${'b'.repeat(71)}` },
      ],
      [
        'has a boundary of 252',
        400,
        multipart([{ body: 'x' }], 'b'.repeat(252)),
        { 'Content-Type': `multipart/form-data; boundary=${'b'.repeat(252)}` },
      ],
      ['has another boundary', 400, multipart([{ body: 'x' }], 'another')],
      ['has no data', 400, multipart([{ name: 'file', fileName: 'a', body: 'x' }])],
      ['has no parts', 400, Buffer.from(`--${boundary}--\r\n`)],
      ['is empty', 400, Buffer.alloc(0)],
      ['has an empty data', 400, multipart([{ body: '' }])],
      ['has an empty file', 400, multipart([{ fileName: 'a', body: '' }])],
      ['has a good one and an empty one', 400, multipart([{ body: 'x' }, { body: '' }])],
      ['has 500 parts', 400, multipart(Array.from({ length: 500 }, () => ({ body: 'x' })))],
      [
        'has too many fields',
        400,
        multipart([...Array.from({ length: 130 }, () => ({ name: 'a', body: 'x' })), { body: 'x' }]),
      ],
      ['has huge part headers', 400, multipart([{ body: 'x', type: `text/plain; a=${'b'.repeat(20_000)}` }])],
      ['has many part headers', 400, multipart([{ body: 'x', type: `text/plain${'\r\nX-A: b'.repeat(30)}` }])],
      [
        'has a part header of __proto__ alone',
        400,
        Buffer.from(`--${boundary}\r\n__proto__: x\r\n\r\nx\r\n--${boundary}--\r\n`),
      ],
      [
        'has no CRLF',
        400,
        Buffer.from(
          multipart([{ body: 'x' }])
            .toString()
            .replaceAll('\r\n', '\n'),
        ),
      ],
      [
        'is nested',
        400,
        multipart([{ type: 'multipart/mixed; boundary=inner', body: multipart([{ body: 'x' }], 'inner') }]),
      ],
      ['says another charset', 400, multipart([{ type: 'text/plain; charset=utf-16', body: 'x' }])],
      ['has text that is not UTF-8', 400, multipart([{ body: Buffer.from([0x66, 0xff, 0xfe]) }])],
      ['has text that ends within a character', 400, multipart([{ body: Buffer.from([0x66, 0xc3]) }])],
      ['is encoded', 400, multipart([{ body: 'x' }]), { 'Content-Encoding': 'gzip' }],
      ['is too large', 413, multipart([{ fileName: 'a', body: Buffer.alloc(150_000) }])],
      [
        'is too large by its other parts',
        413,
        multipart([{ name: 'o', fileName: 'a', body: Buffer.alloc(170_000) }, { body: 'x' }]),
      ],
      [
        'is too large in all',
        413,
        multipart([
          { fileName: 'a', body: Buffer.alloc(60_000) },
          { fileName: 'b', body: Buffer.alloc(60_000) },
        ]),
      ],
      ['asks for an unknown schema', 400, multipart([{ body: '{}' }])],
      ...[
        `boundary=${boundary}; boundary=b`,
        `x="; boundary=b"; y; boundary=${boundary}`,
        `boundary="${boundary}"b`,
      ].map((parameters): readonly [string, number, Buffer, Record<string, string>] => [
        `says ${parameters}`,
        400,
        multipart([{ body: 'x' }]),
        { 'Content-Type': `multipart/form-data; ${parameters}` },
      ]),
      ...[
        'Content-Disposition: form-data; name="data"\r\nContent-Disposition: form-data; name="other"',
        'Content-Disposition: form-data; name="data"\r\nContent-Type: text/plain\r\ncontent-type: text/html',
        'Content-Disposition: form-data; name="data"; name="other"',
        'Content-Disposition: form-data; name="other";\r\n NAME=data',
        "Content-Disposition: form-data; name*=utf-8''data",
        'Content-Disposition: form-data; name="data"other"',
        'Content-Disposition: form-data; name="data"; filename="a\\"; name="b"',
        'Content-Disposition: form-data; name="other"; filename="a"b"; name="data"',
        'Content-Disposition: form-data; name="other"; filename="a"b"; NAME = data',
        'Content-Disposition: form-data; name="other"; filename="a"b"; name*=utf-8\'\'data',
        'Content-Disposition: form-data; filename="a"b"; name="data"',
        'Content-Disposition: form-data; name="data"b"; filename="c"',
        'Content-Disposition: form-data; name="data; filename="a"',
        // The parser would pass over it in silence.
        'Content-Disposition: form-data; name="data"; filename*=utf-8\'\'a%0Ab',
        'Content-Disposition : form-data; name="data"',
      ].map((headers): readonly [string, number, Buffer] => [
        `has a part of ${JSON.stringify(headers)}`,
        400,
        Buffer.from(
          `--${boundary}\r\n${headers}\r\n\r\nx\r\n--${boundary}\r\nContent-Disposition: form-data; name="data"\r\n\r\ny\r\n--${boundary}--\r\n`,
        ),
      ]),
    ]
  for (const [name, status, body, headers] of refused) {
    it(`body that ${name} → ${status}, nothing stored`, async () => {
      await idle(adding)
      const before = await keptIn(adding.data)
      const query = name.includes('schema') ? '?schema=nothing' : ''
      const answer = await post(`${adding.url}/add${query}`, body, headers)
      assert.equal(answer.status, status, answer.body)
      assert.equal(answer.headers['content-type'], 'application/problem+json')
      assert.equal(answer.json['status'], status)
      assert.deepEqual(await keptIn(adding.data), before)
      assert.deepEqual(await left(), [])
    })
  }

  it('last line break missing → 200', async () => {
    const whole = multipart([{ fileName: 'a', body: 'some bytes' }, { body: 'text' }])
    assert.equal((await post(`${adding.url}/add`, whole.subarray(0, -'\r\n'.length))).status, 200)
  })

  it('client still sending → can read the 413', async () => {
    for (const headers of ['Connection: close\r\n', '']) {
      const said = await raw(adding.port, (socket) => {
        socket.write(`${head(`Transfer-Encoding: chunked\r\n${headers}`)}`)
        const first = `--${boundary}\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n`
        socket.write(`${first.length.toString(16)}\r\n${first}\r\n`)
        const chunk = Buffer.concat([Buffer.from('4000\r\n'), Buffer.alloc(0x4000), Buffer.from('\r\n')])
        const more = () => {
          while (!socket.destroyed && socket.write(chunk));
          if (!socket.destroyed) socket.once('drain', more)
        }
        more()
      })
      assert.match(said, /^HTTP\/1\.1 413 /)
      assert.match(said, /"status":413/)
      assert.match(said, /Connection: close/i)
    }
  })

  it('client that reads only after sending → gets the 413', async () => {
    const said = await raw(adding.port, (socket) => {
      socket.pause()
      socket.write(head('Content-Length: 160000\r\n'))
      socket.write(`--${boundary}\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n`)
      socket.write(Buffer.alloc(110_000))
      let left = 8
      const more = setInterval(() => {
        socket.write(Buffer.alloc(1000))
        if (--left > 0) return
        clearInterval(more)
        socket.resume()
      }, 20)
    })
    assert.match(said, /^HTTP\/1\.1 413 /)
  })

  it('Content-Length too large → 413; Continue only if acceptable', async () => {
    const early = await raw(adding.port, (socket) =>
      socket.write(head('Content-Length: 100000000\r\nExpect: 100-continue\r\n')),
    )
    assert.match(early, /^HTTP\/1\.1 413 /)
    const body = multipart([{ body: hello.body }])
    const taken = await raw(adding.port, (socket) => {
      socket.write(head(`Content-Length: ${body.byteLength}\r\nExpect: 100-continue\r\nConnection: close\r\n`))
      socket.once('data', () => socket.write(body))
    })
    assert.match(taken, /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 /)
  })

  it('complete request → connection is kept', async () => {
    const body = multipart([{ body: hello.body }])
    const request = Buffer.concat([Buffer.from(head(`Content-Length: ${body.byteLength}\r\n`)), body])
    let count = 0
    const said = await raw(adding.port, (socket) => {
      socket.write(request)
      socket.on('data', () => (count++ === 0 ? socket.write(request) : socket.end()))
    })
    assert.equal(said.match(/HTTP\/1\.1 200 /g)?.length, 2)
  })

  it('stalled upload → aborted, nothing stored', async () => {
    const body = multipart([{ fileName: 'a', body: randomBytes(1000) }])
    const said = await raw(adding.port, (socket) => {
      socket.write(head(`Content-Length: ${body.byteLength}\r\n`))
      socket.write(body.subarray(0, 500))
    })
    assert.match(said, /^HTTP\/1\.1 408 /)
    assert.deepEqual(await left(), [])
  })

  it('client leaves during upload → nothing stored', async () => {
    const body = multipart([{ fileName: 'a', body: randomBytes(50_000) }])
    await raw(adding.port, (socket) => {
      socket.write(head(`Content-Length: ${body.byteLength}\r\n`))
      socket.write(body.subarray(0, 40_000), () => setTimeout(() => socket.resetAndDestroy(), 50))
    })
    for (let tries = 0; adding.uploads.admission.uploads > 0 && tries < 100; tries++) await sleep(10)
    assert.deepEqual(await left(), [])
    assert.deepEqual([adding.uploads.admission.uploads, adding.uploads.admission.bytes], [0, 0])
  })

  it('only-hash → CIDs, nothing stored, no provider asked', async () => {
    const asked: string[] = []
    const ask = (what: string) => async () => {
      asked.push(what)
      throw new Error(`was asked for ${what}`)
    }
    const other: Provider = {
      name: 'other',
      traits: { takesBytes: true, local: false },
      pin: ask('pin'),
      unpin: ask('unpin'),
      status: ask('status'),
      probe: ask('probe'),
      close: async () => {},
    }
    const hashing = await startAdding({ maxBytes: 3_000_000, others: [other], confirm: 2 })
    const keeping = await startAdding({ maxBytes: 3_000_000 })
    try {
      const parts = [
        { fileName: 'a.txt', body: hello.body },
        { fileName: 'b/c.bin', body: randomBytes(2_500_000) },
      ]
      for (const query of ['only-hash=true', 'only-hash=true&wrap=true', 'wrap=1&only-hash']) {
        const { status, json, body } = await post(`${hashing.url}/add?${query}`, multipart(parts))
        assert.equal(status, 200, body)
        const kept = await post(`${keeping.url}/add?${query.replace('only-hash', 'other')}`, multipart(parts))
        assert.deepEqual(json, kept.json, query)
      }
      const told = await post(`${hashing.url}/add?only-hash=yes`, multipart(parts))
      assert.deepEqual([told.status, told.json['detail']], [400, 'only-hash=yes is not true or false'])
      const large = multipart([{ fileName: 'a', body: randomBytes(3_000_001) }])
      assert.equal((await post(`${hashing.url}/add?only-hash=true`, large)).status, 413)
      assert.deepEqual(await keptIn(hashing.data), nothing)
      assert.deepEqual([asked, hashing.tiers.size, hashing.forgotten], [[], 0, []])
      // Said to be off, it is an upload, which here has to be held by a provider that refuses.
      assert.equal((await post(`${hashing.url}/add?only-hash=false`, multipart(parts))).status, 502)
      assert.deepEqual(asked.slice(0, 1), ['pin'])
    } finally {
      await hashing.close()
      await keeping.close()
    }
  })

  it('other methods → 405', async () => {
    const preflight = await fetch(`${adding.url}/add`, { method: 'OPTIONS' })
    assert.equal(preflight.status, 204)
    assert.match(preflight.headers.get('access-control-allow-methods') ?? '', /POST/)
    assert.equal((await fetch(`${adding.url}/add`)).status, 405)
  })
})

describe('gateway shutdown', () => {
  it('cut-off upload → nothing stored, no later writes', async () => {
    const adding = await startAdding({ maxBytes: 16 * 1024 * 1024 })
    const folder = join(adding.data, 'uploads')
    const hasBegun = Promise.withResolvers<void>()
    async function* slow() {
      for (let count = 0; count < 4; count++) yield randomBytes(1024 * 1024)
      while ((await below(folder)).length === 0) await setImmediate()
      hasBegun.resolve()
      await new Promise(() => {})
    }
    const cut = assert.rejects(adding.uploads.add(slow()), /shut down before the upload was complete/)
    await hasBegun.promise
    await adding.uploads.close()
    const left = (await keptIn(adding.data)).strays
    await cut
    await adding.close()
    assert.deepEqual(left, [])
  })
})

describe('POST /add with tokens', () => {
  it('no token → refused; Bearer or x-auth-token → accepted', async () => {
    const adding = await startAdding({ tokens: ['one-token', 'another'] })
    try {
      const body = multipart([{ body: 'x' }])
      const cases: readonly (readonly [number, Record<string, string>])[] = [
        [401, {}],
        [401, { Authorization: 'Bearer wrong' }],
        [401, { Authorization: 'Basic one-token' }],
        [200, { Authorization: 'Bearer one-token' }],
        [200, { Authorization: 'bearer another' }],
        [200, { 'x-auth-token': 'another' }],
        [401, { 'x-auth-token': 'another ' + 'x' }],
      ]
      for (const [status, headers] of cases) {
        const answer = await post(`${adding.url}/add`, body, headers)
        assert.equal(answer.status, status, JSON.stringify(headers))
        if (status === 401) assert.equal(answer.headers['www-authenticate'], 'Bearer')
      }
    } finally {
      await adding.close()
    }
  })
})

describe('POST /add with a schema', () => {
  let adding: Adding
  before(async () => {
    adding = await startAdding({ maxBytes: 4 * 1024 * 1024 })
  })
  after(() => adding.close())

  const cases: readonly (readonly [schema: string, status: number, document: unknown, fields: readonly string[]])[] = [
    [
      'evidence',
      200,
      {
        name: 'a',
        description: 'b',
        fileURI: '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy/a b.png',
        evidenceType: 'Image',
      },
      [],
    ],
    [
      'evidence',
      400,
      { description: 1, fileURI: 'https://x', evidenceType: 'Song' },
      ['description', 'evidenceType', 'fileURI', 'name'],
    ],
    ['policy', 200, { name: 'a', description: 'b', rulingCriteria: 'c', version: '1' }, []],
    ['policy', 400, { name: 'a', description: 'b', version: 2 }, ['rulingCriteria', 'version']],
    [
      'dispute-template',
      200,
      {
        title: 'a',
        description: 'b',
        question: 'c',
        answers: [{ id: '0x1', title: 'Yes' }],
        policyURI: '/ipfs/x',
        more: 1,
      },
      [],
    ],
    [
      'dispute-template',
      400,
      { title: 'a', description: 'b', question: 'c', answers: [{ id: '1', title: 'Yes' }, { id: '0x2' }] },
      ['answers[0].id', 'answers[1].title'],
    ],
    ['evidence', 400, 'a string', ['document']],
    // The contract asks for texts, and an empty one is a text.
    ['evidence', 200, { name: '', description: '' }, []],
    ['policy', 200, { name: '', description: '', rulingCriteria: '' }, []],
    ['dispute-template', 200, { title: '', description: '', question: '', answers: [] }, []],
    ...[
      '/ipfs/bafkqaaa',
      '/ipfs/bafkqaaa/',
      '/ipfs/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG/readme',
      '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy/line\nand line',
      '/ipfs/f0155122068656c6c6f20776f726c642068656c6c6f20776f726c642068656c6c6f202121',
    ].map((fileURI) => ['evidence', 200, { name: 'a', description: 'b', fileURI }, []] as const),
    ...[
      '/ipfs/abcdefghij',
      '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52',
      '/ipfs/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPb',
      '/ipfs/',
      '/ipfs',
      '',
      '/ipns/k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r',
      'ipfs://bafkqaaa',
      ' /ipfs/bafkqaaa',
      '/ipfs//bafkqaaa',
      '/ipfs/bafkqaaa?filename=a',
    ].map((fileURI) => ['evidence', 400, { name: 'a', description: 'b', fileURI }, ['fileURI']] as const),
  ]
  for (const [schema, status, document, fields] of cases) {
    const naming = fields.length > 0 ? ` naming ${fields.join(', ')}` : ''
    it(`${schema}: ${status}${naming}: ${JSON.stringify(document)}`, async () => {
      const answer = await post(`${adding.url}/add?schema=${schema}`, multipart([{ body: JSON.stringify(document) }]))
      assert.equal(answer.status, status, answer.body)
      const errors = (answer.json['errors'] ?? []) as { field: string }[]
      assert.deepEqual(errors.map(({ field }) => field).sort(), [...fields])
      await idle(adding)
      if (status === 400) assert.equal((await below(`${adding.data}/uploads`)).length, 0)
    })
  }

  const many = (values: number) => `{"answers":[${Array(values).fill('{}').join(',')}]}`
  const template = (body: string) => post(`${adding.url}/add?schema=dispute-template`, multipart([{ body }]))

  it('expensive validation → refused up front', async () => {
    const tooMany = await template(many(300_000))
    assert.equal(tooMany.status, 400)
    assert.match(String(tooMany.json['detail']), /more than 10000 values/)
    const tooLong = await template(many(400_000))
    assert.equal(tooLong.status, 413)
    assert.match(String(tooLong.json['detail']), /the document is larger than the 1048576 bytes/)
    const { check } = createSchemaChecks({ maxBytes: 8_000_000 }).check('dispute-template')
    for (const text of [many(300_000), many(9_990), `${'['.repeat(500_000)}${']'.repeat(500_000)}`]) {
      const ms = calmestWorkMs(() => assert.throws(() => check(text)))
      assert.ok(ms < 200, `${ms} ms`)
    }
  })

  it('schema limits → count values; many values are errors', async () => {
    const right = { title: '[{,'.repeat(20_000), description: '\\"],', question: 'c', answers: [] }
    assert.equal((await template(JSON.stringify(right))).status, 200)
    const wrong = await template(many(9_990))
    assert.equal(wrong.status, 400)
    assert.equal((wrong.json['errors'] as unknown[]).length, 50)
  })

  it('document with byte order mark → validated, stored unchanged', async () => {
    const add = (body: string) => post(`${adding.url}/add?schema=evidence`, multipart([{ body }]))
    const right = `\ufeff${JSON.stringify({ name: 'a', description: 'b' })}`
    const marked = await add(right)
    assert.equal(marked.status, 200, marked.body)
    const plain = await post(`${adding.url}/add`, multipart([{ body: right }]))
    assert.deepEqual(marked.json['cids'], plain.json['cids'])
    const wrong = await add(`\ufeff${JSON.stringify({ name: 'a' })}`)
    assert.equal(wrong.status, 400)
    assert.deepEqual(wrong.json['errors'], [{ field: 'description', message: 'is missing' }])
    assert.equal((await add(`\ufeff${right}`)).status, 400)
  })

  it('invalid CID → named in the error', async () => {
    const body = JSON.stringify({ name: 'a', description: 'b', fileURI: '/ipfs/abcdefghij' })
    const { json } = await post(`${adding.url}/add?schema=evidence`, multipart([{ body }]))
    assert.match(String((json['errors'] as { message: string }[])[0]?.message), /not a CID/)
  })
})
