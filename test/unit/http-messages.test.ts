// The words of HTTP that this gateway reads and writes: ranges, tags, names to save by, representations, targets.
import assert from 'node:assert/strict'
import type { IncomingMessage } from 'node:http'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { Failure } from '../../src/core/failure.ts'
import { headerSafe, isHost } from '../../src/core/wire/http.ts'
import { disposition } from '../../src/http/content/deliver.ts'
import { matches, negotiate, parseRange, rangeHint } from '../../src/http/content/negotiate.ts'
import { readTarget } from '../../src/http/wire/request.ts'
import { cacheStatus, RequestRecord } from '../../src/observe/requests.ts'
import { anyText } from '../support/any-text.ts'
import { runs } from '../support/property.ts'

test('Host: host and optional port (RFC 3986), repeatedly', () => {
  const right = [
    '',
    'a',
    'gate.example',
    'gate.example.',
    'GATE.example:8080',
    'a:',
    'a:0',
    'a:65535',
    'my_service',
    'xn--bcher-kva.example',
  ]
  const rightAddresses = [
    '127.0.0.1:80',
    '[::1]',
    '[2001:db8::1]:8080',
    '[::ffff:127.0.0.1]',
    '[v1.fe80:a]',
    'b%C3%BCcher.example',
    "a!$&'()*+,;=~b",
  ]
  const wrong = [
    'a b',
    'a:99999',
    'a:65536',
    'a:b',
    'a:80:80',
    'evil@localhost',
    'a/b',
    'a?b',
    'a#b',
    'a\\b',
    'a%',
    'a%2',
    'a%zz',
    'b\u00fccher.example',
    '::1',
    '[::1',
    '[::1]8080',
    '[:::1]',
    '[1.2.3.4]',
    '[fe80::1%25eth0]',
    '[]',
    '"a"',
    '<a>',
    'a\tb',
    '\0',
  ]
  for (const host of [...right, ...rightAddresses]) assert.ok(isHost(host), host)
  for (const host of wrong) assert.ok(!isHost(host), host)
  assert.ok(!isHost(`${'%41'.repeat(5000)}%4`))
})

describe('Range', () => {
  const whole = undefined
  const rows: [header: string | undefined, size: number, expected: ReturnType<typeof parseRange>][] = [
    [undefined, 10, whole],
    ['BYTES = 0-1', 10, whole],
    ['Bytes=0-1', 10, { from: 0, to: 1 }],
    ['bytes= 0-1 , 4-5', 10, { from: 0, to: 1 }],
    ['bytes=99-,4-5', 10, { from: 4, to: 5 }],
    ['bytes=99-,-0', 10, 'unsatisfiable'],
    ['bytes=0-', 0, whole],
    ['bytes=-5', 0, whole],
    ['bytes=0-1,x', 10, whole],
    ['bytes=', 10, whole],
    ['bytes=-', 10, whole],
    ['bytes=1-2-3', 10, whole],
    ['bytes=+1-2', 10, whole],
    ['bytes=0x1-2', 10, whole],
    ['bytes=99999999999999999999-', 10, 'unsatisfiable'],
  ]
  for (const [header, size, expected] of rows) {
    test(`${header} of ${size}`, () => assert.deepEqual(parseRange(header, size), expected))
  }
  test('any Range → inside the file, hint covers its start', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom(...'bytes=0123456789-, ') }), fc.nat(50), (tail, size) => {
        const header = `bytes=${tail}`
        const range = parseRange(header, size)
        if (range === undefined || range === 'unsatisfiable') return
        assert.ok(range.from >= 0 && range.from <= range.to && range.to < size)
        const hint = rangeHint(header)
        if (hint && !tail.includes(',')) assert.ok(hint.from === range.from && (hint.to ?? size) >= range.to)
      }),
      runs(100),
    )
  })
})

describe('If-None-Match', () => {
  const rows: [header: string | undefined, etag: string, expected: boolean][] = [
    [undefined, '"a"', false],
    ['', '"a"', false],
    ['"a"', 'W/"a"', true],
    ['a', '"a"', true],
    ['x, a', '"a"', true],
    ['"*"', '"a"', false],
    ['"a', '"a"', false],
    // Of those who take the quotes of a weak tag away, and put others around what is left.
    ['"W/"a"', 'W/"a"', true],
    ['W/"W/"a"', 'W/"a"', true],
    ['"W/"b"', 'W/"a"', false],
    ['W/a', 'W/"a"', true],
  ]
  for (const [header, etag, expected] of rows) {
    test(`${header} for ${etag} → ${expected}`, () => assert.equal(matches(header, etag), expected))
  }
})

describe('Content-Disposition', () => {
  const rows: [name: string | undefined, expected: string][] = [
    [undefined, 'attachment'],
    ['', 'attachment'],
    ['a.txt', `attachment; filename="a.txt"; filename*=UTF-8''a.txt`],
    ['../../etc/passwd', `attachment; filename="passwd"; filename*=UTF-8''passwd`],
    ['c:\\x\\y.exe', `attachment; filename="y.exe"; filename*=UTF-8''y.exe`],
    ['a\r\nSet-Cookie: x', `attachment; filename="aSet-Cookie: x"; filename*=UTF-8''aSet-Cookie%3A%20x`],
    ['a\0b', `attachment; filename="ab"; filename*=UTF-8''ab`],
    ['a"b', `attachment; filename="a_b"; filename*=UTF-8''a%22b`],
    ["a'(b)*", `attachment; filename="a'(b)*"; filename*=UTF-8''a%27%28b%29%2A`],
    ['\u202egnp.exe', `attachment; filename="gnp.exe"; filename*=UTF-8''gnp.exe`],
    ['\ud800', `attachment; filename="_"; filename*=UTF-8''%EF%BF%BD`],
  ]
  for (const [name, expected] of rows) {
    test(JSON.stringify(name) ?? 'none', () => assert.equal(disposition('attachment', name), expected))
  }
  test('any name → one line of printable ASCII', () => {
    fc.assert(
      fc.property(anyText(), (name) => assert.match(disposition('inline', name), /^[\x20-\x7e]+$/)),
      runs(100),
    )
  })
})

test('X-Ipfs-Path: any path → one line of printable ASCII', () => {
  fc.assert(
    fc.property(anyText(), (path) => {
      assert.match(headerSafe(path), /^[\x21-\x7e]*$/)
    }),
    runs(100),
  )
})

describe('content negotiation', () => {
  const rows: [query: string, accept: string | undefined, as: string, byAccept: boolean][] = [
    ['', undefined, 'file', false],
    ['', '*/*', 'file', false],
    ['', 'text/html,application/xhtml+xml,*/*;q=0.8', 'file', false],
    ['', 'application/vnd.ipld.raw', 'raw', true],
    ['', 'application/vnd.ipld.raw;q=0.1, application/vnd.ipld.car; order=dfs', 'car', true],
    ['', 'application/vnd.ipld.car;q=0', 'file', false],
    ['', 'Application/Vnd.IPLD.Raw', 'raw', true],
    ['format=car', 'application/vnd.ipld.raw', 'car', false],
    ['format=', 'application/vnd.ipld.raw', 'raw', true],
    ['format=raw&format=car', undefined, 'raw', false],
  ]
  for (const [query, accept, as, byAccept] of rows) {
    test(`?${query} and ${accept} → ${as}`, () => {
      const found = negotiate(new URLSearchParams(query), accept)
      assert.deepEqual([found.as, found.byAccept], [as, byAccept])
    })
  }
})

describe('request target', () => {
  const request = (url: string, ...lines: [string, string][]): IncomingMessage => {
    const rawHeaders = [...lines, ['Host', 'gate.example']].flat()
    const headers = Object.fromEntries(
      [...lines, ['Host', 'gate.example']].map(([name, value]) => [name?.toLowerCase(), value]),
    )
    return { url, rawHeaders, headers, httpVersion: '1.1' } as unknown as IncomingMessage
  }
  const good: [url: string, path: string, search: string][] = [
    ['/ipfs/a', '/ipfs/a', ''],
    ['/ipfs/a?b=c?d', '/ipfs/a', 'b=c?d'],
    ['http://gate.example/ipfs/a?b', '/ipfs/a', 'b'],
    ['HTTPS://GATE.example/ipfs/a', '/ipfs/a', ''],
    ['http://gate.example', '/', ''],
    ['//evil.example/x', '//evil.example/x', ''],
  ]
  for (const [url, path, search] of good) {
    test(url, () => {
      const target = readTarget(request(url))
      assert.deepEqual([target.path, target.search], [path, search])
    })
  }
  const bad: [name: string, request: IncomingMessage][] = [
    ['another host', request('http://evil.example/ipfs/a')],
    ['a user in front of ours', request('http://x@gate.example/ipfs/a')],
    ['another port', request('http://gate.example:81/ipfs/a')],
    ['no host', request('http:///ipfs/a')],
    ['another scheme', request('ftp://gate.example/ipfs/a')],
    ['a fragment', request('/ipfs/a#b')],
    ['a backslash', request('/ipfs/a\\b')],
    ['two hosts', request('/ipfs/a', ['HOST', 'evil.example'])],
    ['a transfer coding', request('/ipfs/a', ['Transfer-Encoding', 'gzip, chunked'])],
    [
      'a transfer coding in HTTP/1.0',
      { ...request('/ipfs/a', ['Transfer-Encoding', 'chunked']), httpVersion: '1.0' } as IncomingMessage,
    ],
  ]
  for (const [name, one] of bad) {
    test(`${name} → refused`, () => {
      assert.throws(
        () => readTarget(one),
        (error) => error instanceof Failure && error.kind === 'malformed',
      )
    })
  }
})

describe('Cache-Status', () => {
  test('none, hit, miss, and a name with a quote', () => {
    const requestRecord = new RequestRecord()
    assert.equal(cacheStatus(requestRecord), 'cidgate')
    requestRecord.tierHit('memory')
    assert.equal(cacheStatus(requestRecord), 'cidgate; hit; detail=memory')
    requestRecord.fetched('a "b"\r\n')
    assert.equal(cacheStatus(requestRecord), 'cidgate; fwd=miss; detail="a b"')
  })
  test('several upstreams → each with its share', () => {
    const requestRecord = new RequestRecord()
    requestRecord.fetched('one', 300)
    requestRecord.fetched('two', 50)
    requestRecord.fetched('two', 50)
    assert.equal(cacheStatus(requestRecord), 'cidgate; fwd=miss; detail="one 75%, two 25%"')
  })
  test('several tiers → the slowest needed one', () => {
    const order = ['memory', 'pins', 'disk', 's3']
    for (const [hits, slowest] of [
      [['memory', 's3', 'disk', 'memory'], 's3'],
      [['disk', 'memory'], 'disk'],
      [['pins', 'memory', 'pins'], 'pins'],
      [['memory', 'of a name'], 'memory'],
      [['of a name'], 'of a name'],
    ] as const) {
      const requestRecord = new RequestRecord(order)
      for (const tier of hits) requestRecord.tierHit(tier)
      assert.equal(requestRecord.tier, slowest)
    }
  })
})
