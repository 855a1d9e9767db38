// What the processes of one gateway share, and how they speak to one another: each part by itself, in one process.
import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, get, type IncomingMessage, type RequestListener, request, type Server } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { CID } from 'multiformats/cid'
import { parse } from 'yaml'
import { configOf, inputOf, parseConfig } from '../../src/config/load.ts'
import { blockKey } from '../../src/core/cid.ts'
import { silentLog } from '../../src/core/log.ts'
import { createChannel, createHeartbeat, type Line } from '../../src/team/channel.ts'
import { createForwarder, fromInternalSocket, isForwarded, peerHeader } from '../../src/team/forward-request.ts'
import {
  createUploadEpochs,
  inPlace,
  openShared,
  removeOtherPlaces,
  type SharedFiles,
  socketPathOf,
} from '../../src/team/shared-files.ts'
import type { Team } from '../../src/team/team.ts'
import { createWorkerClient, type Orders, WorkerProcess } from '../../src/team/workers.ts'
import { createOwnerForwarder } from '../../src/wiring/public.ts'
import { shareOf } from '../../src/wiring/worker.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const folder = mkdtempSync(join(tmpdir(), 'cidgate-team-'))
after(() => rmSync(folder, { recursive: true, force: true }))

describe('shared state of worker processes', () => {
  let processes: SharedFiles[]
  before(() => {
    processes = [0, 1, 2].map((index) => openShared(folder, { index, isNew: index === 0 }))
    for (const [index, { processTable }] of processes.entries()) processTable.begin(index, 1000 + index)
  })
  after(() => {
    for (const one of processes) one.close()
  })
  const of = (index: number) => processes[index] as SharedFiles

  it('arrived block → seen by others; other blocks → not', () => {
    const [one, other] = ['bafkqaaa', 'bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku'].map((text) =>
      CID.parse(text),
    ) as [CID, CID]
    assert.equal(of(1).team.uploadEpochs.of(one), 0)
    of(0).team.uploadEpochs.note(blockKey(one))
    assert.equal(of(1).team.uploadEpochs.of(one), 1)
    assert.equal(of(1).team.uploadEpochs.of(other), 0)
    of(0).team.uploadEpochs.note(blockKey(one))
    assert.equal(of(2).team.uploadEpochs.of(one), 2)
  })

  it('disk refuses the arrival note → upload not acknowledged', () => {
    const view = new DataView(new ArrayBuffer(4))
    const uploadEpochs = createUploadEpochs({ count: 8, read: () => view, write: () => false, close() {} })
    assert.throws(() => uploadEpochs.note('a'), /cannot be notified of an upload/)
  })

  it('fetch in progress → known to others until its last response', () => {
    const [first, second] = [of(1).team.inProgress.hold('/ipfs/a'), of(1).team.inProgress.hold('/ipfs/a')]
    assert.deepEqual(
      processes.map(({ team }) => team.inProgress.fetcherOf('/ipfs/a')),
      [1, undefined, 1],
    )
    assert.equal(of(0).team.inProgress.fetcherOf('/ipfs/b'), undefined)
    first?.()
    assert.equal(of(0).team.inProgress.fetcherOf('/ipfs/a'), 1)
    second?.()
    assert.equal(of(0).team.inProgress.fetcherOf('/ipfs/a'), undefined)
  })

  it('team ends → running requests finish', () => {
    const own = mkdtempSync(join(folder, 'ended-'))
    const shared = openShared(own, { index: 0, isNew: true })
    const letGo = shared.team.inProgress.hold('/ipfs/a')
    shared.close()
    letGo?.()
    shared.team.uploadEpochs.note('a')
    assert.equal(shared.team.connectionBalance.beyondShare(100, 2), 0)
    assert.equal(shared.team.inProgress.fetcherOf('/ipfs/a'), undefined)
    shared.team.budgets({ size: 1, perSecond: 1 })('a').take()
    shared.close()
  })

  it('process ended → holds nothing, nor its successor', () => {
    of(2).team.inProgress.hold('/ipfs/c')
    assert.equal(of(0).team.inProgress.fetcherOf('/ipfs/c'), 2)
    of(0).processTable.end(2)
    assert.equal(of(0).team.inProgress.fetcherOf('/ipfs/c'), undefined)
    of(0).processTable.begin(2, 2002)
    assert.equal(of(0).team.inProgress.fetcherOf('/ipfs/c'), undefined)
  })

  it('release does not affect a new holder', () => {
    const mine = of(0).team.inProgress.hold('/ipfs/d')
    of(1).team.inProgress.hold('/ipfs/d')
    mine?.()
    assert.equal(of(0).team.inProgress.fetcherOf('/ipfs/d'), 1)
  })

  it('one rate limit per client across processes', () => {
    const limit = { size: 3, perSecond: 0.001 }
    const [one, other] = [of(0).team.budgets(limit)('192.0.2.1'), of(1).team.budgets(limit)('192.0.2.1')]
    assert.deepEqual([one.take(), other.take(), one.take(), other.take(), one.take()], [true, true, true, false, false])
    assert.ok(other.waitMs > 900_000, String(other.waitMs))
    assert.equal(of(2).team.budgets(limit)('192.0.2.2').take(), true)
    one.earn(1)
    assert.equal(other.take(), true)
  })

  it('process learns its connections above its share', () => {
    const all = (counts: readonly number[]) =>
      counts.map((count, index) => of(index).team.connectionBalance.beyondShare(count, 3))
    all([30, 0, 0])
    assert.deepEqual(all([30, 0, 0]), [20, 0, 0])
    all([12, 10, 8])
    assert.deepEqual(all([12, 10, 8]), [0, 0, 0])
    of(0).processTable.end(2)
    all([10, 30, 999])
    assert.deepEqual(all([10, 30, 999]).slice(0, 2), [0, 10], 'one that does not live has no share')
    of(0).processTable.begin(2, 3002)
  })
})

describe('shared folder of the processes', () => {
  const makePlace = (data: string): string => inPlace(data, () => {}).folder

  it('disk full → elsewhere; nowhere → explained', () => {
    const data = join(folder, 'full')
    const tried: string[] = []
    const failing = (times: number) => (at: string) => {
      tried.push(at)
      writeFileSync(join(at, 'half'), '')
      if (tried.length <= times) throw new Error('ENOSPC: no space left')
    }
    const { folder: place } = inPlace(data, failing(1))
    assert.deepEqual([tried[0]?.startsWith(`${data}/`), place.startsWith(`${data}/`)], [true, false])
    rmSync(place, { recursive: true })
    tried.length = 0
    assert.throws(
      () => inPlace(data, failing(2)),
      /^Failure: workers: .*full nor in .*ENOSPC.*; free some space, or set workers to 1$/,
    )
    assert.deepEqual(tried.map(existsSync), [false, false], 'what could not be made leaves nothing')
  })

  it('short data folder path → inside it', () => {
    const place = makePlace(join(folder, 'data'))
    assert.equal(place.startsWith(join(folder, 'data/')), true)
  })

  for (const data of [join(folder, 'left'), join(folder, 'x'.repeat(120))])
    it(`leftover folder (${data.length < 100 ? 'in the data folder' : 'elsewhere'}) → removed at start`, () => {
      const [left, own, others] = [makePlace(data), makePlace(data), makePlace(`${data}-other`)]
      assert.ok(Buffer.byteLength(socketPathOf(own, 63)) < 108, own)
      removeOtherPlaces(data, own)
      assert.deepEqual([left, own, others].map(existsSync), [false, true, true])
      rmSync(own, { recursive: true })
      rmSync(others, { recursive: true })
    })
})

describe('messages between two processes', () => {
  /** Two ends of one line, which lose nothing and copy what goes over. */
  function line(): [Line & EventEmitter, Line & EventEmitter] {
    const ends = [new EventEmitter(), new EventEmitter()] as const
    const send = (to: EventEmitter) => (message: unknown, handle?: unknown) => {
      setImmediate(() => to.emit('message', structuredClone(message), handle))
    }
    return [Object.assign(ends[0], { send: send(ends[1]) }), Object.assign(ends[1], { send: send(ends[0]) })]
  }

  it('request → answer, or reason', async () => {
    const clock = createFakeClock()
    const [one, other] = line()
    const [asks, answers] = [createChannel(one, clock), createChannel(other, clock)]
    answers.on('sum', async (said) => (said as number[]).reduce((sum, value) => sum + value))
    answers.on('fails', () => {
      throw new Error('the disk is full')
    })
    assert.equal(await asks.ask('sum', [1, 2, 3], 1000), 6)
    await assert.rejects(asks.ask('fails', undefined, 1000), /the disk is full/)
    assert.equal(clock.timers, 0)
  })

  it('request ends by timeout or exit of the peer', async () => {
    const clock = createFakeClock()
    const [one, other] = line()
    const [asks, answers] = [createChannel(one, clock), createChannel(other, clock)]
    answers.on('silent', () => new Promise(() => {}))
    const late = assert.rejects(asks.ask('silent', undefined, 500), /no answer to silent within 500 ms/)
    await clock.advance(500)
    await late
    const open = assert.rejects(asks.ask('silent', undefined, 500), /the other process is gone/)
    asks.end()
    await open
    await assert.rejects(asks.ask('silent', undefined, 500), /the other process is gone/)
  })

  it('silent peer → detected; stalled machine → not', async () => {
    const clock = createFakeClock()
    const [one, other] = line()
    const [owner, worker] = [createChannel(one, clock), createChannel(other, clock)]
    let silent = 0
    const ends = [
      createHeartbeat(owner, clock, () => silent++),
      createHeartbeat(worker, clock, () => assert.fail('the owner lives')),
    ]
    for (let seconds = 0; seconds < 20; seconds++) await clock.advance(1000)
    await clock.jump(3_600_000)
    assert.equal(silent, 0)
    ends[1]?.()
    for (let seconds = 0; seconds < 10; seconds++) await clock.advance(1000)
    assert.equal(silent, 0)
    for (let seconds = 0; seconds < 2; seconds++) await clock.advance(1000)
    assert.equal(silent > 0, true)
    ends[0]?.()
  })
})

describe('worker process', () => {
  const orders = (at: string): Orders => ({ index: 1, size: 2, folder: at, input: { workers: 2 }, denied: [] })

  function startFake(pid: number | undefined) {
    const child = Object.assign(new EventEmitter(), {
      pid,
      told: [] as string[],
      killedBy: [] as string[],
      send(message: { readonly topic: string }) {
        child.told.push(message.topic)
      },
      kill(signal: string) {
        child.killedBy.push(signal)
        child.emit('exit', null, signal)
      },
    })
    const ended: unknown[] = []
    const worker = new WorkerProcess({
      child: child as never,
      orders: orders(folder),
      clock: createFakeClock(),
      log: silentLog,
      onMessage: () => {},
      onAnswering: () => {},
      onEnded: (how) => void ended.push(how),
    })
    return { child, worker, ended }
  }

  it('not serving yet → ended at once', async () => {
    const { child, worker } = startFake(4711)
    await worker.end(30_000)
    assert.deepEqual(child.killedBy, ['SIGKILL'])
  })

  it('failed to start → ended', async () => {
    const { child, worker, ended } = startFake(undefined)
    child.emit('error', new Error('spawn EAGAIN'))
    assert.equal(ended.length, 1)
    await worker.end(30_000)
  })

  it('orders during start → handled once it runs', async () => {
    const line = Object.assign(new EventEmitter(), { send: () => {} })
    const member = createWorkerClient(line as unknown as Line, createFakeClock())
    line.emit('message', { topic: 'begin', body: orders(folder), id: 1 })
    line.emit('message', { topic: 'reload', body: { size: 3 }, id: 2 })
    const done: unknown[] = []
    await member.orders
    member.follow('reload', (said) => void done.push(said))
    await new Promise((resolve) => setImmediate(resolve))
    assert.deepEqual(done, [])
    member.begun()
    await new Promise((resolve) => setImmediate(resolve))
    assert.deepEqual(done, [{ size: 3 }])
  })
})

describe('forwarded request', () => {
  let forward: ReturnType<typeof createForwarder>
  let inner: Server
  let front: Server
  let answer: RequestListener = (_request, response) => void response.end()
  let firstByteTimeoutMs = 5000
  let otherwise: string[] = []
  const door = join(folder, '7.sock')

  before(async () => {
    forward = createForwarder(() => firstByteTimeoutMs)
    inner = createServer(
      { requireHostHeader: false },
      fromInternalSocket((request, response) => answer(request, response)),
    )
    front = createServer((asked, response) =>
      forward(asked, response, door, (error) => {
        otherwise.push(error.message)
        response.end('from here')
      }),
    )
    inner.listen(door)
    front.listen(0, '127.0.0.1')
    await Promise.all([once(inner, 'listening'), once(front, 'listening')])
  })
  after(() => {
    forward.close()
    for (const server of [inner, front]) server.close().closeAllConnections()
  })

  type Told = { status: number; headers: IncomingMessage['headers']; raw: string[]; body: string; trailers: object }
  const ask = (options: { method?: string; path?: string; headers?: object; body?: string } = {}) =>
    new Promise<Told>((resolve, reject) => {
      const { port } = front.address() as AddressInfo
      const { method = 'GET', path = '/ipfs/x?a=b', headers = {}, body } = options
      const asked = request(
        { port, host: '127.0.0.1', method, path, headers: { ...headers }, agent: false },
        (told) => {
          let text = ''
          told.setEncoding('utf8').on('data', (piece) => (text += piece))
          told.once('error', reject)
          told.once('end', () =>
            resolve({
              status: told.statusCode ?? 0,
              headers: told.headers,
              raw: told.rawHeaders,
              body: text,
              trailers: told.trailers,
            }),
          )
        },
      )
      asked.once('error', reject)
      asked.end(body)
    })

  it('content, other process full → handled here', async () => {
    const limits = { inFlight: 2, concurrency: 2, wouldRefuse: () => false }
    const elsewhere = createOwnerForwarder({
      team: { inProgress: { fetcherOf: () => undefined, hold: () => undefined } } as unknown as Team,
      hosts: { keyOf: ({ url }) => url, locate: () => ({ kind: 'by-path' }) },
      holds: () => false,
      limits,
      here: () => assert.fail('it was handed on once more'),
      refuse: () => assert.fail('it was refused'),
    })
    answer = (asked, response) => void (elsewhere.take(asked, response) || response.end('from there'))
    otherwise = []
    assert.equal((await ask({ path: '/ipfs/bafkqaaa' })).body, 'from here')
    assert.deepEqual(otherwise, ['it is at its limit'])
    assert.equal((await ask({ path: '/ipns/a' })).body, 'from there')
    limits.inFlight = 1
    assert.equal((await ask({ path: '/ipfs/bafkqaaa' })).body, 'from there')
    assert.equal(otherwise.length, 1)
  })

  it("arrives unchanged, with the client's address", async () => {
    type Got = {
      url: string
      headers: IncomingMessage['headers']
      raw: string[]
      address: string
      isForwarded: boolean
    }
    let got: Got | undefined
    answer = (asked, response) => {
      const { url = '', headers, rawHeaders, socket } = asked
      got = { url, headers, raw: rawHeaders, address: String(socket.remoteAddress), isForwarded: isForwarded(asked) }
      response.writeHead(206, 'Some Of It', [
        ['X-Twice', 'a'],
        ['X-Twice', 'b'],
      ] as never)
      response.end('part')
    }
    const told = await ask({
      headers: { Range: 'bytes=0-3', [peerHeader]: 'forged', Connection: 'close, X-Hop', 'X-Hop': '1' },
    })
    assert.deepEqual([told.status, told.body], [206, 'part'])
    assert.equal(told.raw.filter((name) => name === 'X-Twice').length, 2)
    assert.deepEqual(
      [got?.url, got?.headers.range, got?.address, got?.isForwarded],
      ['/ipfs/x?a=b', 'bytes=0-3', '127.0.0.1', true],
    )
    assert.equal(got?.headers[peerHeader], undefined)
    assert.equal(got?.raw.includes(peerHeader), false)
    assert.equal(got?.headers['x-hop'], '1', 'a client takes nothing away by naming it')
  })

  it('body and response trailers pass', async () => {
    answer = (asked, response) => {
      let text = ''
      asked.setEncoding('utf8').on('data', (piece) => (text += piece))
      asked.once('end', () => {
        response.writeHead(200, { Trailer: 'X-Sum' })
        response.write(`${text.length} of ${asked.headers['content-length']}`)
        response.addTrailers({ 'X-Sum': 'good' })
        response.end()
      })
    }
    const told = await ask({ method: 'POST', body: 'x'.repeat(200_000) })
    assert.equal(told.body, '200000 of 200000')
    assert.deepEqual({ ...told.trailers }, { 'x-sum': 'good' })
  })

  /** A request as it stands, and what comes back until the connection ends. */
  async function raw(text: string): Promise<string> {
    const { port } = front.address() as AddressInfo
    const socket = connect(port, '127.0.0.1')
    let got = ''
    socket.on('data', (piece) => (got += piece)).on('error', () => {})
    socket.write(text)
    await once(socket, 'close')
    return got
  }

  it('hop-by-hop headers do not change its meaning', async () => {
    answer = ({ headers, httpVersion }, response) => void response.end(`${httpVersion} of ${headers.host}`)
    const head = 'GET /ipfs/x HTTP/1.1\r\nHost: a\r\n'
    assert.match(await raw(`${head}Connection: host, close\r\n\r\n`), /1\.1 of a/)
    assert.match(await raw(`${head}Connection: close\r\nTrailer: x\r\n\r\n`), /1\.1 of a/)
    assert.match(await raw('GET /ipfs/x HTTP/1.0\r\n\r\n'), /1\.0 of undefined/)
  })

  it('early response passes', async () => {
    answer = (_asked, response) => {
      response.shouldKeepAlive = false
      response.writeHead(401).end()
    }
    for (let times = 0; times < 100; times++)
      assert.equal((await ask({ method: 'POST', body: 'x'.repeat(1000) })).status, 401)
  })

  it('peer without heartbeat → handled here', async () => {
    const came = Promise.withResolvers<void>()
    answer = () => came.resolve()
    const told = ask({ method: 'POST', body: 'x' })
    await came.promise
    otherwise = []
    forward.giveUp('no sign of life')
    assert.deepEqual([(await told).body, otherwise], ['from here', ['no sign of life']])
  })

  it('peer too late → handled here', async () => {
    answer = () => {}
    firstByteTimeoutMs = 50
    otherwise = []
    assert.equal((await ask()).body, 'from here')
    assert.deepEqual(otherwise, ['the response did not begin in time'])
    firstByteTimeoutMs = 5000
  })

  it('truncated response → truncated, never looks complete', async () => {
    answer = (_asked, response) => {
      response.writeHead(200, { 'Content-Length': 1000 })
      response.write('x'.repeat(500))
      setImmediate(() => response.destroy())
    }
    await assert.rejects(ask(), /aborted|ECONNRESET|hang up/)
    answer = (_asked, response) => {
      response.write('x'.repeat(500))
      setImmediate(() => response.destroy())
    }
    await assert.rejects(ask(), /aborted|ECONNRESET|hang up/)
  })

  it('client leaves → ends at the peer', async () => {
    const left = Promise.withResolvers<void>()
    const came = Promise.withResolvers<void>()
    answer = (_asked, response) => {
      response.once('close', () => left.resolve())
      came.resolve()
    }
    const { port } = front.address() as AddressInfo
    const asked = get({ port, host: '127.0.0.1', path: '/ipfs/x', agent: false })
    asked.on('error', () => {})
    await came.promise
    asked.destroy()
    await left.promise
  })

  it('internal socket requires the process header', async () => {
    const socket = connect(door)
    socket.end('GET / HTTP/1.1\r\nHost: a\r\n\r\n')
    let got = ''
    socket.on('data', (piece) => (got += piece)).on('error', () => {})
    await once(socket, 'close')
    assert.equal(got, '')
  })
})

describe('share of one process', () => {
  const config = parseConfig(
    parse(`
retrieval: { readAhead: 8MiB, upstreams: [{ url: "https://a.example", perMinute: 100, perCidPerMinute: 1 }] }
limits: { maxConcurrentRequests: 1001, maxConnections: 500 }
cache: { responses: { maxBytes: 30MiB }, tiers: [{ use: memory, maxBytes: 60MiB }, { use: disk, maxBytes: 3GiB }] }
`),
  )

  it('part of each total limit, never zero', () => {
    const { limits, cache, retrieval } = shareOf(config, 3)
    assert.deepEqual([limits.maxConcurrentRequests, limits.maxConnections], [333, 500])
    assert.equal(cache.responses.maxBytes, 10 * 2 ** 20)
    assert.deepEqual(
      cache.tiers.map(({ options }) => (options as { maxBytes: number }).maxBytes),
      [20 * 2 ** 20, 3 * 2 ** 30],
    )
    assert.deepEqual([retrieval.upstreams[0]?.perMinute, retrieval.upstreams[0]?.perCidPerMinute], [33, 1])
    assert.equal(shareOf(config, 1), config)
  })

  it("owner's configuration, copied → same for the worker", () => {
    assert.deepEqual(configOf(structuredClone(inputOf(config))), config)
  })
})
