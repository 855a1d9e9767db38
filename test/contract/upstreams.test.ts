// The upstreams on their suite, against stand-ins; and what each kind makes of every way an upstream can misbehave: the kind
// of the Failure, the socket let go, nothing buffered.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, afterEach, before, describe, test } from 'node:test'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { CID } from 'multiformats/cid'
import { Agent } from 'undici'
import { wholeOf } from '../../backends/upstreams/ask.ts'
import { isInside } from '../../backends/upstreams/connect.ts'
import type { DagWant, Upstream, UpstreamContext } from '../../backends/upstreams/contract.ts'
import { upstreamKinds } from '../../backends/upstreams/index.ts'
import { blockKey, proves } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { Failure, type FailureKind, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { blockOf, dagOf, upstreamContract } from '../../src/testing/upstream.ts'
import { selfSigned } from '../support/certificate.ts'
import { addCbor, addFile, type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { createKey } from '../support/ipns.ts'
import { type Fault, type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

/** For what an upstream leaves out. Everything else has the time that a busy machine may need. */
const impatient = { connectTimeout: '500ms', firstByteTimeout: '300ms', bodyTimeout: '300ms' }
const patient = { connectTimeout: '10s', firstByteTimeout: '10s', bodyTimeout: '10s' }
const settingsFor = ({ kind }: Fault) => (kind === 'silent' || kind === 'stall' ? impatient : patient)

const context: UpstreamContext = { name: 'one', userAgent: 'cidgate/test', log: silentLog, clock: systemClock }
let all: Fixtures
let server: ProgrammableUpstream
let made: Upstream[] = []

before(async () => {
  all = await fixtures()
})
afterEach(async () => {
  for (const upstream of made) await upstream.close()
  made = []
  await server.close()
})

const certificate = selfSigned('localhost', new Date(Date.now() - 86_400_000), new Date(Date.now() + 86_400_000))
const trusted = getCACertificates('default')
before(() => setDefaultCACertificates([...trusted, certificate.cert]))
after(() => setDefaultCACertificates(trusted))

/** Makes an upstream whose server speaks this protocol alone. */
const over =
  (protocol: 'http/1.1' | 'h2') =>
  async (
    use: string,
    { plain = false, settings = {} }: { plain?: boolean; settings?: Record<string, unknown> } = {},
  ): Promise<Upstream> => {
    server = await startUpstream({
      ...{ blocks: all.blocks, plain },
      ...(protocol === 'h2' && { tls: { ...certificate, protocol } }),
    })
    return connect(use, { url: server.url, ...settings })
  }
const make = over('http/1.1')

function connect(use: string, settings: Record<string, unknown>): Upstream {
  const kind = upstreamKinds[use]
  assert.ok(kind)
  const upstream = kind.create(kind.options.parse({ ...patient, ...settings }), context)
  made.push(upstream)
  return upstream
}

const signal = () => new AbortController().signal
const failure = async (work: Promise<unknown>): Promise<Failure> => {
  const error: unknown = await work.then(
    () => assert.fail('it should have failed'),
    (reason: unknown) => reason,
  )
  assert.ok(isFailure(error), `no Failure: ${String(error)}`)
  return error
}
const entity = (cid: CID, more: Partial<DagWant> = {}): DagWant => ({ cid, segments: [], scope: 'entity', ...more })
const pull = (upstream: Upstream, want: DagWant, own = signal()) => Array.fromAsync(dagOf(upstream, want, own))

/** Sockets in use: kept ones may stay, those of a failed question may not. */
async function idle(most: number): Promise<void> {
  const until = Date.now() + 2000
  while (server.inUse > most) {
    assert.ok(Date.now() < until, `${server.inUse} sockets or streams are still open`)
    await new Promise((resolve) => setImmediate(resolve))
  }
}

const faults: [fault: Fault, block: FailureKind | 'ok', dag: FailureKind | 'ok'][] = [
  [{ kind: 'refuse' }, 'upstream-error', 'upstream-error'],
  [{ kind: 'silent' }, 'timeout', 'timeout'],
  [{ kind: 'slowFirstByte', ms: 50 }, 'ok', 'ok'],
  [{ kind: 'cut', after: 100 }, 'upstream-error', 'upstream-error'],
  [{ kind: 'stall', after: 100 }, 'timeout', 'timeout'],
  [{ kind: 'html' }, 'upstream-error', 'upstream-error'],
  [{ kind: 'redirect', to: 'http://127.0.0.1:1/elsewhere' }, 'upstream-error', 'upstream-error'],
  [{ kind: 'redirect', to: '//evil.example/x' }, 'upstream-error', 'upstream-error'],
  [{ kind: 'notFound' }, 'not-found', 'not-found'],
  [{ kind: 'throttle', retryAfter: '900' }, 'throttled', 'throttled'],
  [{ kind: 'throttle' }, 'throttled', 'throttled'],
  [{ kind: 'status', status: 503, retryAfter: '5' }, 'throttled', 'throttled'],
  [{ kind: 'status', status: 503 }, 'upstream-error', 'upstream-error'],
  [{ kind: 'status', status: 500 }, 'upstream-error', 'upstream-error'],
  [
    { kind: 'status', status: 500, body: 'ipld: could not find x: block was not found locally' },
    'not-found',
    'not-found',
  ],
  [{ kind: 'status', status: 502 }, 'upstream-error', 'upstream-error'],
  [{ kind: 'status', status: 504 }, 'timeout', 'timeout'],
  [{ kind: 'status', status: 403 }, 'refused', 'refused'],
  [{ kind: 'status', status: 410 }, 'refused', 'refused'],
  [{ kind: 'status', status: 451 }, 'refused', 'refused'],
  [{ kind: 'status', status: 204 }, 'upstream-error', 'upstream-error'],
  [{ kind: 'endless' }, 'too-large', 'upstream-error'],
  [{ kind: 'gzipBomb' }, 'upstream-error', 'upstream-error'],
  [{ kind: 'wrongType', type: 'application/octet-stream' }, 'upstream-error', 'upstream-error'],
  [{ kind: 'emptyCar' }, 'ok', 'upstream-error'],
  [{ kind: 'wrongLength' }, 'upstream-error', 'ok'],
]

const nowhere = { url: 'http://127.0.0.1:1' }

for (const protocol of ['http/1.1', 'h2'] as const) {
  const make = over(protocol)
  upstreamContract(
    `trustless ${protocol}`,
    async () => {
      const upstream = await make('trustless')
      const key = createKey()
      const record = await key.record('/ipfs/bafkqaaa')
      server.records.set(key.name, record)
      return { upstream, gone: connect('trustless', nowhere), published: { key, record }, stop: async () => {} }
    },
    { content: () => all },
  )

  describe(`trustless ${protocol}`, () => {
    for (const [fault, onBlock, onDag] of faults) {
      const name = Object.values(fault).join(' ')
      test(`block: ${name} → ${onBlock}`, async () => {
        const upstream = await make('trustless', { settings: settingsFor(fault) })
        server.fault = fault
        const { cid, bytes } = all.files.smallV0
        if (onBlock === 'ok') assert.ok(proves(cid, await blockOf(upstream, cid, signal())))
        else assert.equal((await failure(blockOf(upstream, cid, signal()))).kind, onBlock)
        assert.ok(bytes)
        await idle(1)
      })
      test(`DAG: ${name} → ${onDag}`, async () => {
        const upstream = await make('trustless', { settings: settingsFor(fault) })
        server.fault = fault
        const want = entity(all.files.chunkedV0.cid)
        if (onDag === 'ok')
          await pull(upstream, want).catch((error) => fault.kind === 'wrongLength' || assert.fail(error))
        else assert.equal((await failure(pull(upstream, want))).kind, onDag)
        await idle(1)
      })
    }

    test('block → requested as raw bytes, as specified', async () => {
      const upstream = await make('trustless')
      const { cid, bytes } = all.files.hello
      assert.deepEqual(new Uint8Array(await blockOf(upstream, cid, signal())), bytes)
      const [{ url, headers } = assert.fail()] = server.seen
      assert.equal(url, `/ipfs/${cid}?format=raw`)
      assert.equal(headers.accept, 'application/vnd.ipld.raw')
      assert.equal(headers['accept-encoding'], 'identity')
      assert.equal(headers['user-agent'], 'cidgate/test')
    })

    test('path and range → every name re-encoded', async () => {
      const upstream = await make('trustless')
      const want = entity(all.directory, { segments: ['über', 'ß.txt'], range: { from: 2, to: 4 } })
      const blocks = await pull(upstream, want)
      assert.equal(blocks.length, 3)
      assert.ok(blocks.every(({ cid, bytes }) => proves(cid, bytes)))
      const url = new URL(server.seen[0]?.url ?? '', server.url)
      assert.equal(url.pathname, `/ipfs/${all.directory}/%C3%BCber/%C3%9F.txt`)
      assert.deepEqual(Object.fromEntries(url.searchParams), {
        format: 'car',
        'dag-scope': 'entity',
        'entity-bytes': '2:4',
        'car-version': '1',
        'car-order': 'dfs',
        'car-dups': 'n',
      })
    })

    test('every entity arrives complete', async () => {
      const upstream = await make('trustless')
      for (const cid of [all.files.chunkedV1.cid, all.files.deepV0.cid, all.hamt]) {
        assert.ok((await pull(upstream, entity(cid))).every((block) => proves(block.cid, block.bytes)))
      }
    })

    const inAMinute = () => new Date(Date.now() + 60_000).toUTCString()
    const retryAfter: [what: string, value: () => string, least: number, most: number][] = [
      ['900 seconds', () => '900', 900_000, 900_000],
      ['0 seconds', () => '0', 0, 0],
      ['a date', inAMinute, 40_000, 61_000],
      ['no sane number', () => '1000000000000', 86_400_000, 86_400_000],
    ]
    for (const [what, value, least, most] of retryAfter) {
      test(`Retry-After: ${what} → reported uncapped`, async () => {
        const upstream = await make('trustless')
        server.fault = { kind: 'throttle', retryAfter: value() }
        const { retryAfterMs = -1 } = await failure(blockOf(upstream, all.files.hello.cid, signal()))
        assert.ok(retryAfterMs >= least && retryAfterMs <= most, String(retryAfterMs))
      })
    }

    test('abort before or within a response → stops, frees the socket', async () => {
      const upstream = await make('trustless')
      for (const fault of [{ kind: 'silent' }, { kind: 'stall', after: 1000 }] as const) {
        server.fault = fault
        const controller = new AbortController()
        const reason = new Failure('cancelled', 'enough', { source: 'client' })
        const work = failure(pull(upstream, entity(all.files.chunkedV1.cid), controller.signal))
        const began = performance.now()
        setTimeout(() => controller.abort(reason), 20)
        assert.equal(await work, reason)
        assert.ok(performance.now() - began < 3000)
        await idle(0)
      }
    })

    test('dag: reader stops pulling → socket stops; return() frees it', async () => {
      const upstream = await make('trustless', { settings: impatient })
      const large = await addFile(all.blocks, noise(50_000_000, 6))
      const iterator = dagOf(upstream, entity(large.cid), signal())
      await iterator.next()
      await new Promise((resolve) => setTimeout(resolve, 400)) // longer than the idle clock: it runs only while we pull
      assert.ok(server.sentBytes < 20_000_000, `${server.sentBytes} bytes were sent to a reader that stopped`)
      assert.equal((await iterator.next()).done, false)
      await iterator.return(undefined)
      await idle(0)
    })

    test('redirect on the same site → followed once', async () => {
      const upstream = await make('trustless')
      server.fault = ({ url }) =>
        url.includes('moved')
          ? undefined
          : { kind: 'redirect', to: `${server.url}/ipfs/${all.files.hello.cid}?format=raw&moved` }
      assert.deepEqual(new Uint8Array(await blockOf(upstream, all.files.hello.cid, signal())), all.files.hello.bytes)
      server.fault = { kind: 'redirect', to: '/again' }
      assert.equal((await failure(blockOf(upstream, all.files.hello.cid, signal()))).kind, 'upstream-error')
    })

    test('block without length, truncated → broken, not false bytes', async () => {
      const upstream = await make('trustless')
      server.fault = { kind: 'endsEarly', after: 5 }
      assert.equal((await failure(blockOf(upstream, all.files.hello.cid, signal()))).kind, 'upstream-error')
      server.fault = { kind: 'endsEarly', after: all.files.hello.bytes.byteLength }
      assert.deepEqual(new Uint8Array(await blockOf(upstream, all.files.hello.cid, signal())), all.files.hello.bytes)
    })

    test('connections are reused', async () => {
      const upstream = await make('trustless')
      for (let count = 0; count < 20; count++) await blockOf(upstream, all.files.hello.cid, signal())
      assert.ok(server.sockets <= 2, `${server.sockets} connections`)
    })

    test('stale connection → no failure', async () => {
      const upstream = await make('trustless')
      await blockOf(upstream, all.files.hello.cid, signal())
      server.kill()
      await blockOf(upstream, all.files.hello.cid, signal())
    })

    test('response broken off on a reused connection → not requested again', async () => {
      const upstream = await make('trustless')
      await blockOf(upstream, all.files.hello.cid, signal())
      server.fault = { kind: 'cut', after: 100 }
      const before = server.asked.length
      await failure(pull(upstream, entity(all.files.chunkedV0.cid)))
      assert.equal(server.asked.length - before, 1)
    })

    test('reset CARs are counted by root, independent of concurrent requests', async () => {
      const upstream = await make('trustless')
      server.fault = ({ url }) => (url.includes('format=car') ? { kind: 'refuse' } : undefined)
      const { hello, smallV0, json, chunkedV0 } = all.files
      const files = [smallV0, json, chunkedV0].map(({ cid }) => cid)
      const torn = async (cid: CID) =>
        assert.equal((await failure(pull(upstream, entity(cid)))).facts.refuses, 'format')
      for (const cid of files) {
        await torn(cid)
        await blockOf(upstream, hello.cid, signal())
      }
      assert.equal(upstream.traits.dag, true, 'the blocks of another request say nothing of these CARs')
      for (const cid of files) await torn(cid)
      for (const cid of files) await blockOf(upstream, cid, signal())
      assert.equal(upstream.traits.dag, false)
    })

    test('probe: reports abilities and alternatives', async () => {
      const upstream = await make('trustless')
      assert.deepEqual(
        { ...(await upstream.probe(signal())), ms: 0 },
        { usable: true, raw: true, car: true, findings: [], ms: 0 },
      )
      server.fault = ({ url }) => (url.includes('format=car') ? { kind: 'html' } : undefined)
      const half = await upstream.probe(signal())
      assert.deepEqual([half.usable, half.car, upstream.traits.dag], [true, false, false])
      server.fault = { kind: 'html' }
      assert.equal((await upstream.probe(signal())).usable, false)
      server.fault = { kind: 'throttle' }
      assert.equal((await failure(upstream.probe(signal()))).kind, 'throttled')
      server.fault = { kind: 'status', status: 500 }
      assert.equal((await failure(upstream.probe(signal()))).kind, 'upstream-error')
    })

    test('out of file descriptors → overloaded, upstream not blamed', async () => {
      server = await startUpstream({ blocks: all.blocks })
      for (const code of ['EMFILE', 'ENFILE']) {
        const agent = new Agent({
          connect: (_options, done) => done(Object.assign(new Error('connect'), { code }), null),
        })
        const question = {
          ...{ name: 'one', url: 'http://one.example/', headers: {}, expects: undefined, agent },
          ...{ clock: systemClock, firstByteTimeout: 10_000, bodyTimeout: 10_000 },
        }
        const asked = wholeOf(question, 1, signal())
        const { kind, source, message } = await failure(asked)
        assert.deepEqual([kind, source], ['overloaded', 'ours'])
        assert.match(message, new RegExp(`${code}.*ulimit`))
        await agent.destroy()
      }
    })

    test('name that resolves to a private address → refused unless allowed', async () => {
      server = await startUpstream({ blocks: all.blocks })
      const { port } = new URL(server.url)
      const named = connect('trustless', { url: `http://localhost:${port}` })
      await blockOf(named, all.files.hello.cid, signal())
      for (const address of [
        '127.0.0.1',
        '10.1.2.3',
        '169.254.169.254',
        '192.168.0.1',
        '100.64.0.1',
        '::1',
        'fe80::1',
        'fd00::1',
        '::ffff:127.0.0.1',
        '0.0.0.0',
        '::',
        '::1',
        '::7f00:1',
        '64:ff9b::7f00:1',
        '64:ff9b:1::a00:1',
        '2002:7f00:1::1',
        'fec0::1',
        '::ffff:7f00:1',
      ]) {
        assert.ok(isInside(address), address)
      }
      for (const address of ['1.1.1.1', '2606:4700::1111', '::ffff:8.8.8.8']) assert.ok(!isInside(address), address)
    })
  })
}

describe('trustless: IPNS records', () => {
  const key = createKey()
  const recordOf = (upstream: Upstream, own = signal()) => upstream.record?.(key.cid, own) ?? assert.fail()
  const withRecord = async (bytes: Uint8Array, settings = {}) => {
    const upstream = await make('trustless', { settings })
    server.records.set(key.name, bytes)
    return upstream
  }

  test('raw bytes, requested as specified, for every key spelling', async () => {
    const record = await key.record('/ipfs/bafkqaaa')
    const upstream = await withRecord(record)
    assert.deepEqual(Buffer.from(await recordOf(upstream)), Buffer.from(record))
    const rsa = CID.parse('QmcJM7PRfkSbcM5cf1QugM5R37TLRKyJGgBEhXjLTB8uA2')
    assert.equal((await failure(upstream.record?.(rsa, signal()) ?? assert.fail())).kind, 'not-found')
    const [{ url, headers } = assert.fail(), other] = server.seen
    assert.equal(url, `/ipns/${key.name}?format=ipns-record`)
    assert.equal(headers.accept, 'application/vnd.ipfs.ipns-record')
    assert.equal(other?.url, '/ipns/k2k4r8ol4m8kkcqz509c1rcjwunebj02gcnm5excpx842u736nja8ger?format=ipns-record')
  })

  for (const [fault, , expected] of faults.filter(([{ kind }]) => kind !== 'emptyCar' && kind !== 'slowFirstByte')) {
    const kind = fault.kind === 'endless' ? 'too-large' : fault.kind === 'wrongLength' ? 'upstream-error' : expected
    test(`${Object.values(fault).join(' ')} → ${kind}`, async () => {
      const upstream = await withRecord(await key.record(`/ipfs/bafkqaaa/${'x'.repeat(200)}`), settingsFor(fault))
      server.fault = fault
      assert.equal((await failure(recordOf(upstream))).kind, kind)
      await idle(1)
    })
  }

  test('response larger than a record → dropped', async () => {
    const upstream = await withRecord(new Uint8Array(10 * 1024 + 1))
    assert.equal((await failure(recordOf(upstream))).kind, 'too-large')
    server.records.set(key.name, new Uint8Array(10 * 1024))
    assert.equal((await recordOf(upstream)).byteLength, 10 * 1024)
    await idle(2)
  })

  test('abort → stops at once', async () => {
    const upstream = await withRecord(new Uint8Array(1))
    server.fault = { kind: 'silent' }
    const controller = new AbortController()
    const reason = new Failure('cancelled', 'enough', { source: 'client' })
    const work = failure(recordOf(upstream, controller.signal))
    controller.abort(reason)
    assert.equal(await work, reason)
    await idle(0)
  })
})

describe('plain', () => {
  test('raw block → the file itself', async () => {
    const upstream = await make('plain', { plain: true })
    assert.ok(proves(all.files.hello.cid, await blockOf(upstream, all.files.hello.cid, signal())))
  })
  for (const name of ['smallV0', 'chunkedV0', 'jsonV0'] as const) {
    test(`${name}: rebuilt from its bytes with leaves, one request`, async () => {
      const upstream = await make('plain', { plain: true })
      const { cid } = all.files[name]
      const root = await blockOf(upstream, cid, signal())
      assert.ok(proves(cid, root))
      const { linksOf } = await import('../../src/ipld/block-links.ts')
      for (const link of linksOf({ cid, bytes: root })) assert.ok(proves(link, await blockOf(upstream, link, signal())))
      assert.equal(server.seen.length, 1)
    })
  }
  test('unverifiable file → not-found', async () => {
    const upstream = await make('plain', { plain: true })
    const { cid: large } = await addFile(all.blocks, noise(9_000_000, 6), 'v0')
    for (const cid of [large, all.files.deepV0.cid])
      assert.equal((await failure(blockOf(upstream, cid, signal()))).kind, 'not-found')
    assert.equal((await failure(blockOf(upstream, all.directory, signal()))).kind, 'upstream-error') // a page that lists it
    assert.equal(upstream.traits.canBlock(all.cbor), false)
  })
  for (const [fault, expected] of faults.filter(
    ([{ kind }]) => !['emptyCar', 'wrongType', 'slowFirstByte', 'endless', 'cut', 'stall'].includes(kind),
  )) {
    test(`${Object.values(fault).join(' ')} → ${expected}`, async () => {
      const upstream = await make('plain', { plain: true, settings: settingsFor(fault) })
      server.fault = fault
      assert.equal((await failure(blockOf(upstream, all.files.hello.cid, signal()))).kind, expected)
      await idle(1)
    })
  }
})

describe('kubo', () => {
  let asked: string[] = []
  let behind = false
  const events = new Map<string, string>()
  const node = createServer((request, response) => {
    asked.push(`${request.method} ${request.url}`)
    if (request.url?.startsWith('/api/v0/version'))
      return void response.setHeader('content-type', 'application/json').end('{"Version":"0.42.0"}')
    const arg = new URL(request.url ?? '', 'http://node').searchParams.get('arg') ?? ''
    if (request.url?.startsWith('/api/v0/routing/get'))
      return void response.setHeader('content-type', 'application/json').end(events.get(arg) ?? '')
    const cid = CID.parse(arg)
    const bytes = all.blocks.get(blockKey(cid))
    if (!bytes)
      return void response
        .writeHead(500, { 'content-type': 'application/json' })
        .end('{"Message":"block was not found locally (offline)"}')
    response.writeHead(200, { 'content-type': 'text/plain', trailer: 'X-Stream-Error' })
    response.write(bytes)
    if (behind) response.addTrailers({ 'X-Stream-Error': 'it broke' })
    response.end()
  })
  before(() => new Promise<void>((resolve) => node.listen(0, '127.0.0.1', resolve)))
  after(() => new Promise((resolve) => node.close(resolve)))
  const kubo = async () => {
    server = await startUpstream({ blocks: all.blocks })
    asked = []
    behind = false
    return connect('kubo', { url: `http://127.0.0.1:${(node.address() as AddressInfo).port}` })
  }
  upstreamContract(
    'kubo',
    async () => ({ upstream: await kubo(), gone: connect('kubo', nowhere), stop: async () => {} }),
    { content: () => all },
  )
  test('block by POST; missing block → not-found', async () => {
    const upstream = await kubo()
    assert.ok(proves(all.files.hello.cid, await blockOf(upstream, all.files.hello.cid, signal())))
    assert.match(asked[0] ?? '', /^POST \/api\/v0\/block\/get\?arg=bafk/)
    const nobodys = addCbor(new Map(), { nobody: true })
    assert.equal((await failure(blockOf(upstream, nobodys, signal()))).kind, 'not-found')
    assert.equal((await upstream.probe(signal())).usable, true)
  })
  test('error after a 200 → failure', async () => {
    const upstream = await kubo()
    behind = true
    assert.equal((await failure(blockOf(upstream, all.files.hello.cid, signal()))).kind, 'upstream-error')
  })

  test('record found among the search events', async () => {
    const upstream = await kubo()
    const key = createKey()
    const record = await key.record('/ipfs/bafkqaaa')
    const event = (Type: number, Extra: string) => JSON.stringify({ Extra, ID: '', Responses: null, Type })
    const ask = () => upstream.record?.(key.cid, signal()) ?? assert.fail()
    events.set(`/ipns/${key.name}`, `${event(4, '')}\n${event(5, Buffer.from(record).toString('base64'))}\n`)
    assert.deepEqual(Buffer.from(await ask()), Buffer.from(record))
    assert.equal(asked[0], `POST /api/v0/routing/get?arg=%2Fipns%2F${key.name}`)
    events.set(`/ipns/${key.name}`, '')
    assert.equal((await failure(ask())).kind, 'not-found')
    events.set(`/ipns/${key.name}`, 'a page')
    assert.equal((await failure(ask())).kind, 'upstream-error')
  })
})
