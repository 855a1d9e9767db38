// The front of the gateway under clients that are many, slow, greedy or wrong: over HTTP, and raw sockets where no client
// of the language would send such a thing.
import assert from 'node:assert/strict'
import { connect, type Socket } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { UnixFS } from 'ipfs-unixfs'
import type { CID } from 'multiformats/cid'
import { codec } from '../../src/core/cid.ts'
import { addBlock, addFile, addNode, type Fixtures, fixtures, noise, text } from '../support/fixtures.ts'
import { fetchAll, inParallel, metricsOf, startGateway, type TestGateway } from '../support/gateway.ts'
import { openLine } from '../support/several-processes.ts'
import { type Fault, type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
let at: TestGateway
const running: { close(): Promise<void> }[] = []
const started = async (config: Record<string, unknown> = {}): Promise<TestGateway> => {
  const one = await startGateway({ upstreams: [{ name: 'one', url: upstream.url }], config })
  running.push(one)
  return one
}

before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
  running.push(upstream)
  at = await started()
})
after(async () => {
  for (const one of running.reverse()) {
    if ('log' in one)
      assert.deepEqual(
        (one as TestGateway).log.filter(({ level }) => level === 'error'),
        [],
      )
    await one.close()
  }
})

const nobodyHas = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'

type Raw = Socket & { said: string; readonly closed: Promise<void> }

/** A socket that sends exactly this, and keeps what it hears. */
function raw({ url }: TestGateway, sent: string): Raw {
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  let done = () => {}
  const closed = new Promise<void>((resolve) => {
    done = resolve
  })
  const one = Object.assign(socket, { said: '' })
  socket.on('data', (piece) => (one.said += piece.toString('latin1')))
  socket.on('error', () => {})
  socket.on('close', done)
  socket.setTimeout(20_000, () => socket.destroy())
  socket.write(sent)
  return Object.defineProperty(one, 'closed', { value: closed }) as Raw
}

/** Resolves as soon as it is so; fails after half a minute. */
async function until(isSo: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const late = performance.now() + 30_000
  while (!(await isSo())) {
    assert.ok(performance.now() < late, what)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

const inFlight = async ({ gateway }: TestGateway): Promise<number> =>
  Number(/^cidgate_http_requests_in_progress (\d+)$/m.exec(await metricsOf(gateway))?.[1])

describe('request line', () => {
  const rows: [name: string, lines: (path: string) => string, status: number][] = [
    ['a whole URL of this host', (path) => `GET http://gate.example${path} HTTP/1.1\r\nHost: gate.example\r\n`, 200],
    ['a whole URL of another', (path) => `GET http://evil.example${path} HTTP/1.1\r\nHost: gate.example\r\n`, 400],
    ['no Host', (path) => `GET ${path} HTTP/1.1\r\n`, 400],
    ['no Host, in 1.0', (path) => `GET ${path} HTTP/1.0\r\n`, 200],
    ['an empty Host', (path) => `GET ${path} HTTP/1.1\r\nHost:\r\n`, 200],
    ['a Host that is none', (path) => `GET ${path} HTTP/1.1\r\nHost: a b\r\n`, 400],
    ['a Host with a user', (path) => `GET ${path} HTTP/1.1\r\nHost: evil@gate.example\r\n`, 400],
    ['a port that is none', (path) => `GET ${path} HTTP/1.1\r\nHost: a:99999\r\n`, 400],
    ['a Host that is none, in 1.0', (path) => `GET ${path} HTTP/1.0\r\nHost: a/b\r\n`, 400],
    ['a fragment, elsewhere', () => 'GET /elsewhere#x HTTP/1.1\r\nHost: a\r\n', 400],
    ['a backslash, elsewhere', () => 'GET /else\\where HTTP/1.1\r\nHost: a\r\n', 400],
    ['HTTP/0.9', (path) => `GET ${path} HTTP/0.9\r\nHost: a\r\n`, 505],
    ['HTTP/2.0', (path) => `GET ${path} HTTP/2.0\r\nHost: a\r\n`, 505],
    ['HTTP/2.0, elsewhere', () => 'GET /elsewhere HTTP/2.0\r\nHost: a\r\n', 505],
    ['TRACE', (path) => `TRACE ${path} HTTP/1.1\r\nHost: a\r\n`, 405],
  ]
  for (const [name, lines, status] of rows) {
    test(`${name}: ${status}, cached or not, with CORS`, async () => {
      const path = `/ipfs/${all.files.hello.cid}`
      for (let time = 0; time < 2; time++) {
        const socket = raw(at, `${lines(path)}Connection: close\r\n\r\n`)
        await socket.closed
        assert.match(socket.said, new RegExp(`^HTTP/1.1 ${status} `))
        assert.match(socket.said, /\r\nAccess-Control-Allow-Origin: \*\r\n/)
      }
    })
  }

  test('kept connection → more than 1,000 requests', async () => {
    const line = openLine(at.url)
    const path = `/ipfs/${all.files.hello.cid}`
    const before = at.opened()
    for (let times = 0; times < 1010; times++) assert.equal((await line.get(path)).status, 200)
    line.close()
    assert.equal(at.opened(), before + 1)
  })

  test('GET with body → connection closed (no smuggling)', async () => {
    const inner = `GET /ipfs/${nobodyHas} HTTP/1.1\r\nHost: a\r\n\r\n`
    for (const path of [`/ipfs/${all.files.hello.cid}`, '/elsewhere']) {
      const socket = raw(at, `GET ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: ${inner.length}\r\n\r\n${inner}`)
      await socket.closed
      assert.equal(socket.said.split('HTTP/1.1 ').length, 2)
      assert.match(socket.said, /\r\nConnection: close\r\n/i)
    }
  })

  const chunked = (chunks: string) =>
    `POST /add HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n${chunks}`
  const broken: [name: string, request: string, status: number][] = [
    ['a chunk whose size is none', chunked('ZZ\r\nxx\r\n'), 400],
    ['chunks that end in LF alone', chunked('2\nxx\n'), 400],
    ['a chunk that is longer than it says', chunked('2\r\nxxx\r\n'), 400],
    ['a chunk extension of 20 kB', chunked(`2;${'x'.repeat(20_000)}\r\nxx\r\n`), 413],
    ['an expectation that is none', 'GET /ipfs/x HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n', 417],
    ['a space before the colon', 'GET / HTTP/1.1\r\nHost : a\r\n\r\n', 400],
    ['noise', '\x16\x03\x01\x02\x00\x01\x00\r\n\r\n', 400],
    ['headers of 20 KiB', `GET / HTTP/1.1\r\nHost: a\r\nX: ${'y'.repeat(20_000)}\r\n\r\n`, 431],
    ['both lengths', chunked('0\r\n\r\n').replace('\r\n', '\r\nContent-Length: 3\r\n'), 400],
  ]
  for (const [name, request, status] of broken)
    test(`${name}: ${status}, with CORS, connection closed`, async () => {
      const socket = raw(at, request)
      await socket.closed
      assert.match(socket.said, new RegExp(`^HTTP/1.1 ${status} `))
      assert.match(socket.said, /\r\nAccess-Control-Allow-Origin: \*\r\n/)
      assert.match(socket.said, /\r\nConnection: close\r\n/i)
      assert.equal(socket.said.split('HTTP/1.1 ').length, 2)
      const body = JSON.parse(socket.said.split('\r\n\r\n')[1] ?? '') as Record<string, unknown>
      assert.deepEqual([body['status'], body['detail']], [status, body['message']])
    })

  test('invalid Expect → refused, also pipelined and on cached paths', async () => {
    const path = `/ipfs/${all.files.hello.cid}`
    const expecting = `GET ${path} HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n`
    const socket = raw(at, `GET /ipfs/${all.files.deepV0.cid} HTTP/1.1\r\nHost: a\r\n\r\n${expecting}`)
    await socket.closed
    assert.deepEqual(
      [...socket.said.matchAll(/HTTP\/1.1 (\d+) /g)].map(([, status]) => status),
      ['200', '417'],
    )
    assert.equal((await fetchAll(at.url + path)).status, 200)
  })

  const sending: [method: string, path: () => string, status: number][] = [
    ['PUT', () => `/ipfs/${nobodyHas}`, 405],
    ['OPTIONS', () => `/ipfs/${nobodyHas}`, 204],
    ['PUT', () => '/add', 405],
    ['GET', () => '/add', 405],
    ['OPTIONS', () => '/add', 204],
    ['GET', () => '/openapi.json', 200],
    ['PUT', () => '/openapi.json', 405],
  ]
  for (const [method, path, status] of sending)
    test(`${method} ${path().slice(0, 14)} with unfinished body → ${status}, rest unread`, async () => {
      const socket = raw(at, `${method} ${path()} HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n`)
      for (let count = 0; count < 64; count++) socket.write(Buffer.alloc(64 * 1024))
      await socket.closed
      assert.match(socket.said, new RegExp(`^HTTP/1.1 ${status} `))
      assert.match(socket.said, /\r\nConnection: close\r\n/i)
      if (status === 405) assert.match(socket.said, /\r\nAllow: [A-Z, ]+\r\n/)
      assert.ok(socket.bytesWritten < 50_000_000)
    })
})

describe('reads no more than needed', () => {
  const json = async (salt: string, bytes: number) => {
    const { cid } = await addFile(all.blocks, text(`["${salt}","${'x'.repeat(bytes)}"]`))
    return `/ipfs/${cid}`
  }
  const costOf = async (work: () => Promise<unknown>): Promise<number> => {
    const before = upstream.sentBytes
    await work()
    return upstream.sentBytes - before
  }
  const aBlock = 1_200_000

  test('current copy → no body, even after path resolution', async () => {
    const path = await json('a', 6_000_000)
    const any = await costOf(() => fetchAll(`${at.url}${path}`, { 'if-none-match': '*' }))
    assert.ok(any < aBlock, `${any} bytes`)
  })
  test('HEAD of a cold non-JSON file → its beginning only', async () => {
    const { cid, bytes } = { ...(await addFile(all.blocks, noise(7_000_000, 8))), bytes: 7_000_000 }
    let length: string | null = null
    const cost = await costOf(async () => {
      const answer = await fetch(`${at.url}/ipfs/${cid}`, { method: 'HEAD' })
      length = answer.headers.get('content-length')
    })
    assert.equal(length, String(bytes))
    assert.ok(cost < 2 * aBlock, `${cost} bytes`)
  })
  test('large JSON → same type by HEAD, range, GET, any order', async () => {
    for (const [index, order] of [
      ['HEAD', 'range', 'GET'],
      ['range', 'GET', 'HEAD'],
      ['GET', 'HEAD', 'range'],
    ].entries()) {
      const path = await json(`order ${index}`, 3_000_000)
      for (const kind of order) {
        const answer = await fetch(`${at.url}${path}`, {
          method: kind === 'HEAD' ? 'HEAD' : 'GET',
          headers: kind === 'range' ? { range: 'bytes=1-10' } : {},
        })
        assert.equal(answer.headers.get('content-type'), 'application/json', `${kind} of ${order}`)
        const body = Buffer.from(await answer.arrayBuffer())
        if (kind === 'range') assert.equal(body.toString(), `"order ${index}",`.slice(0, 10))
        if (kind === 'GET') assert.equal((JSON.parse(body.toString()) as string[])[1]?.length, 3_000_000)
      }
    }
  })
  test('JSON after much white space → JSON, complete or range', async () => {
    const { cid } = await addFile(all.blocks, text(`${' '.repeat(5000)}{"a":1}`))
    const cold = await startGateway({ upstreams: [{ name: 'one', url: upstream.url }] })
    try {
      const part = await fetchAll(`${cold.url}/ipfs/${cid}`, { range: 'bytes=0-9' })
      assert.deepEqual([part.status, part.headers['content-type']], [206, 'application/json'])
      assert.equal((await fetchAll(`${cold.url}/ipfs/${cid}`)).headers['content-type'], 'application/json')
    } finally {
      await cold.close()
    }
  })
  test('40 clients, one large JSON file → complete for each', async () => {
    const path = await json('many', 2_500_000)
    const answers = await inParallel(Array.from({ length: 40 }), 40, () => fetchAll(`${at.url}${path}`))
    for (const { status, body, headers } of answers) {
      assert.deepEqual([status, body.length, headers['content-type']], [200, 2_500_011, 'application/json'])
    }
  })
})

describe('fast path and Express agree', () => {
  const rows: [name: string, headers: Record<string, string>, status: number][] = [
    ['a browser', { accept: 'text/html,application/xhtml+xml,*/*;q=0.8' }, 200],
    ['JSON wanted', { accept: 'application/json' }, 200],
    ['a raw block', { accept: 'application/vnd.ipld.raw' }, 200],
    ['a CAR', { accept: 'application/vnd.ipld.car' }, 200],
    ['dag-cbor, which it is not', { accept: 'application/vnd.ipld.dag-cbor' }, 406],
    ['a part', { range: 'bytes=2-4' }, 206],
    ['behind the end', { range: 'bytes=999-' }, 416],
    ['an old copy', { 'if-none-match': '"other"' }, 200],
    ['no-cache', { 'cache-control': 'no-cache' }, 200],
    ['only-if-cached', { 'cache-control': 'only-if-cached' }, 200],
  ]
  // Where it came from, when, and which request it was: these may differ.
  const told = ({ status, headers, body }: Awaited<ReturnType<typeof fetchAll>>) => {
    const {
      'cache-status': _from,
      'x-request-id': _id,
      date: _date,
      'x-ipfs-path': _path,
      'content-location': _at,
      ...rest
    } = headers
    return { status, body: body.toString('hex'), rest }
  }
  for (const [name, headers, status] of rows) {
    test(name, async () => {
      const path = `${at.url}/ipfs/${all.files.json.cid}`
      await fetchAll(path)
      assert.equal((await fetchAll(path)).headers['cache-status'], 'cidgate; hit; detail=responses')
      const hot = await fetchAll(path, headers)
      // A parameter nobody knows changes nothing but that the answer is not kept ready.
      const long = await fetchAll(`${path}?nobody=knows`, headers)
      assert.equal(hot.status, status)
      assert.notEqual(long.headers['cache-status'], 'cidgate; hit; detail=responses')
      if (status < 300) assert.deepEqual(told(hot), told(long))
      else assert.equal(long.status, status)
    })
  }
  test('unacceptable format → 406, even when cached', async () => {
    const path = `${at.url}/ipfs/${all.cbor}`
    for (let time = 0; time < 2; time++) assert.equal((await fetchAll(path)).status, 200)
    assert.equal((await fetchAll(path, { accept: 'application/json' })).status, 406)
  })
  const asked: [name: string, method: string, more: string][] = [
    ['GET', 'GET', ''],
    ['HEAD', 'HEAD', ''],
    ['a 304', 'GET', 'If-None-Match: *\r\n'],
    ['in HTTP/1.0', 'GET', 'Connection: keep-alive\r\n'],
  ]
  for (const [name, method, more] of asked)
    test(`head as Node writes it: ${name}`, async () => {
      const path = `/ipfs/${all.files.json.cid}`
      await fetchAll(at.url + path)
      const version = name === 'in HTTP/1.0' ? 'HTTP/1.0' : 'HTTP/1.1'
      const headOf = async (target: string) => {
        const socket = raw(at, `${method} ${target} ${version}\r\nHost: a\r\n${more}\r\n`)
        await until(() => socket.said.includes('\r\n\r\n'), 'a head')
        socket.destroy()
        return (socket.said.split('\r\n\r\n', 1)[0] ?? '').split('\r\n')
      }
      // An answer that is not hot is written by `writeHead`.
      const [hot, long] = [await headOf(path), await headOf(`${path}?nobody=knows`)]
      assert.ok(hot.includes('Cache-Status: cidgate; hit; detail=responses'))
      const differs = /^(Cache-Status|X-Request-Id|Date|X-Ipfs-Path): \S.*$/
      // Those that a 304 needs not, and that only the long way sends.
      const spared = /^(X-Content-Type-Options|Cross-Origin-Resource-Policy|Referrer-Policy):/
      const told = (lines: string[]) =>
        lines.filter((line) => name !== 'a 304' || !spared.test(line)).map((line) => line.replace(differs, '$1'))
      assert.deepEqual(told(hot), told(long))
      assert.match(
        hot.find((line) => line.startsWith('Date')) ?? '',
        /^Date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$/,
      )
    })
  test('304 from the fast path: required headers, no body', async () => {
    const path = `/ipfs/${all.files.json.cid}`
    await fetchAll(at.url + path)
    const socket = raw(
      at,
      `GET ${path} HTTP/1.1\r\nHost: a\r\nIf-None-Match: "${all.files.json.cid}"\r\nConnection: close\r\n\r\n`,
    )
    await socket.closed
    const [head = '', body] = socket.said.split('\r\n\r\n')
    assert.match(head, /^HTTP\/1.1 304 /)
    for (const name of ['ETag', 'Cache-Control', 'Access-Control-Allow-Origin', 'Cache-Status']) {
      assert.match(head, new RegExp(`\r\n${name}: `))
    }
    assert.doesNotMatch(head, /^content-(length|type):/im)
    assert.equal(body, '')
  })
  test('responses to queries → not cached', async () => {
    const path = `${at.url}/ipfs/${all.files.hello.cid}?x=`
    for (let count = 0; count < 3; count++) {
      assert.equal((await fetchAll(`${path}${count}`)).status, 200)
      assert.notEqual((await fetchAll(`${path}${count}`)).headers['cache-status'], 'cidgate; hit; detail=responses')
    }
  })
})

describe('overload', () => {
  test('request above the limit → 503, then recovers', async () => {
    const small = await started({ limits: { maxConcurrentRequests: 3 } })
    upstream.fault = { kind: 'slowFirstByte', ms: 2000 }
    try {
      const cids = await Promise.all([41, 42, 43].map((seed) => addFile(all.blocks, noise(2000, seed))))
      const held = cids.map(({ cid }) => fetchAll(`${small.url}/ipfs/${cid}`))
      await until(async () => (await inFlight(small)) === 3, 'three are in flight')
      const refused = await fetchAll(`${small.url}/ipfs/${nobodyHas}`)
      assert.deepEqual(
        [refused.status, refused.headers['retry-after'], refused.headers['cache-control']],
        [503, '1', 'no-store'],
      )
      assert.equal(refused.headers['access-control-allow-origin'], '*')
      for (const { status } of await Promise.all(held)) assert.equal(status, 200)
      await until(async () => (await inFlight(small)) === 0, 'none is in flight')
    } finally {
      upstream.fault = undefined
    }
  })

  test('client over its rate → 429, cached or not', async () => {
    const strict = await started({ limits: { perClient: { perMinute: 1, burst: 3 } } })
    const path = `${strict.url}/ipfs/${all.files.hello.cid}`
    const statuses: number[] = []
    for (let count = 0; count < 5; count++) statuses.push((await fetchAll(path)).status)
    assert.deepEqual(statuses, [200, 200, 200, 429, 429])
    const { headers } = await fetchAll(path)
    assert.ok(Number(headers['retry-after']) > 1)
    assert.equal(headers['cache-control'], 'no-store')
  })

  for (const [name, query] of [
    ['hot', ''],
    ['other', '?pipelined'],
  ] as const)
    test(`5,000 pipelined ${name} requests → in order, others served meanwhile`, async () => {
      const path = `/ipfs/${all.files.hello.cid}`
      await fetchAll(at.url + path)
      const request = (end = '') => `GET ${path}${query} HTTP/1.1\r\nHost: a\r\n${end}\r\n`
      const greedy = raw(at, request().repeat(4999) + request('Connection: close\r\n'))
      let most = 0
      let isOver = false
      const watched = (async () => {
        while (!isOver) most = Math.max(most, await inFlight(at))
      })()
      const { status, ms } = await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)
      assert.equal(status, 200)
      assert.ok(ms < 10_000, `${ms} ms`)
      await greedy.closed
      isOver = true
      await watched
      assert.equal(greedy.said.split('HTTP/1.1 200 ').length - 1, 5000)
      assert.ok(most <= 2, `${most} in flight`)
    })

  test('100 cached requests in one segment → all answered', async () => {
    const request = `GET /ipfs/${all.files.hello.cid} HTTP/1.1\r\nHost: a\r\n\r\n`
    const client = raw(at, request.repeat(100))
    const answered = () => client.said.split('HTTP/1.1 200 ').length - 1
    await until(() => answered() === 100, '100 answers')
    client.write(request)
    await until(() => answered() === 101, 'one more')
    client.destroy()
  })

  test('unread cached responses count as in progress', async () => {
    const { cid } = await addFile(upstream.blocks, noise(900_000, 91))
    const big = await started({ limits: { maxConcurrentRequests: 10 } })
    const path = `/ipfs/${cid}`
    await fetchAll(big.url + path)
    await until(async () => {
      const answer = await fetchAll(big.url + path)
      return answer.headers['cache-status'] === 'cidgate; hit; detail=responses'
    }, 'hot')
    const greedy = Array.from({ length: 6 }, () => raw(big, ''))
    for (const one of greedy) {
      one.pause()
      one.write(`GET ${path} HTTP/1.1\r\nHost: a\r\n\r\n`.repeat(10))
    }
    await until(async () => (await inFlight(big)) === 6, 'one of each is in flight')
    for (const one of greedy) one.destroy()
    await until(async () => (await inFlight(big)) === 0, 'none is in flight')
  })

  test('only normalized paths are cached', async () => {
    const path = `${at.url}/ipfs/${all.directory}`
    for (const [name, isHot] of [
      ['policy.json', true],
      ['%70olicy.json', false],
      ['policy%2Ejson', false],
      ['policy%2ejson', false],
    ] as const) {
      await fetchAll(`${path}/${name}`)
      const again = await fetchAll(`${path}/${name}`)
      assert.equal(again.status, 200)
      assert.equal(again.headers['cache-status'] === 'cidgate; hit; detail=responses', isHot, name)
    }
  })

  test('client stops reading → disconnected: cached, buffered and streamed', async () => {
    const impatient = await started({ limits: { writeTimeout: '300ms' } })
    const { cid } = await addFile(all.blocks, noise(900_000, 51))
    const large = await addFile(all.blocks, noise(30_000_000, 52))
    const path = `/ipfs/${cid}`
    await fetchAll(impatient.url + path)
    const ways: [name: string, target: string, times: number][] = [
      ['hot', path, 30],
      ['whole', `${path}?x`, 30],
      ['streamed', `/ipfs/${large.cid}`, 1],
    ]
    for (const [name, target, times] of ways) {
      const before = impatient.connections()
      const idle = raw(impatient, '')
      idle.pause()
      idle.write(`GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`.repeat(times))
      await until(() => impatient.connections() > before, `${name}: it is connected`)
      await until(() => impatient.connections() <= before, `${name}: it is cut off`)
      idle.destroy()
    }
    await until(async () => (await inFlight(impatient)) === 0, 'none is in flight')
  })

  test('slow reader → not disconnected', async () => {
    const impatient = await started({ limits: { writeTimeout: '2s' } })
    const { cid, bytes } = { ...(await addFile(all.blocks, noise(8_000_000, 53))), bytes: 8_000_000 }
    await fetchAll(`${impatient.url}/ipfs/${cid}`)
    const slow = raw(impatient, '')
    let heard = 0
    slow.on('data', (piece) => {
      heard += piece.length
      slow.pause()
      setTimeout(() => slow.resume(), 8)
    })
    slow.write(`GET /ipfs/${cid} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`)
    await slow.closed
    assert.ok(heard > bytes, `${heard} bytes`)
  })
})

describe('truncated body with known length', () => {
  const mib = 1024 * 1024
  const leaves = [71, 72, 73].map((seed) => noise(mib, seed))
  const ofThree = (sizes: readonly number[]): CID =>
    addNode(all.blocks, {
      Data: new UnixFS({ type: 'file', blockSizes: sizes.map(BigInt) }).marshal(),
      Links: leaves.map((leaf) => ({ Name: '', Hash: addBlock(all.blocks, codec.raw, leaf), Tsize: mib })),
    })
  const cut = ({ url }: { readonly url: string }): Fault =>
    url.includes('format=car') ? { kind: 'cut', after: 1.5 * mib } : { kind: 'notFound' }
  const ways: readonly (readonly [what: string, last: number, fault?: typeof cut])[] = [
    ['its upstream resets the connection in the middle', mib, cut],
    ['its root says more bytes than its last leaf has', mib + 1],
    ['its root says fewer bytes than its last leaf has', mib - 1],
  ]
  for (const [what, last, fault] of ways)
    test(`${what}: reset, and only verified bytes`, async () => {
      const one = await started({ retrieval: { blockTimeout: '300ms', timeout: '1s', backgroundSearch: 0 } })
      upstream.fault = fault
      try {
        const cid = ofThree([mib, mib, last])
        const socket = raw(one, `GET /ipfs/${cid} HTTP/1.1\r\nHost: a\r\n\r\n`)
        let wasReset = false
        socket.on('error', (error: NodeJS.ErrnoException) => {
          wasReset = error.code === 'ECONNRESET'
        })
        await socket.closed
        const [head = '', ...rest] = socket.said.split('\r\n\r\n')
        const body = Buffer.from(rest.join('\r\n\r\n'), 'latin1')
        assert.match(head, /^HTTP\/1.1 200 /)
        assert.match(head, new RegExp(`\r\nContent-Length: ${2 * mib + last}\r\n`))
        assert.ok(wasReset && body.byteLength < 2 * mib + last)
        assert.ok(body.equals(Buffer.concat(leaves).subarray(0, body.byteLength)))
      } finally {
        upstream.fault = undefined
      }
    })
})

test('failure after the first byte → reset, never looks complete', async () => {
  const brief = await started({ retrieval: { blockTimeout: '300ms', timeout: '1s', backgroundSearch: 0 } })
  const { cid } = await addFile(all.blocks, noise(20_000_000, 61))
  upstream.fault = { kind: 'stall', after: 9_000_000 }
  try {
    const socket = raw(brief, `GET /ipfs/${cid} HTTP/1.1\r\nHost: a\r\n\r\n`)
    let wasReset = false
    socket.on('error', (error: NodeJS.ErrnoException) => {
      wasReset = error.code === 'ECONNRESET'
    })
    await socket.closed
    assert.match(socket.said, /^HTTP\/1.1 200 [\s\S]*\r\nContent-Length: 20000000\r\n/)
    assert.ok(socket.said.length < 20_000_000)
    assert.equal(wasReset, true)
    assert.equal(await inFlight(brief), 0)
  } finally {
    upstream.fault = undefined
  }
})
