// The access log: which requests get a line, what it says, and what it never says.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { UnixFS } from 'ipfs-unixfs'
import { blockKey } from '../../src/core/cid.ts'
import { multipart, post } from '../support/adding.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addNode, type BlockMap, type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, metricsOf, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
})
after(() => upstream.close())

const linesOf = ({ log }: TestGateway) => log.filter(({ event }) => event === 'http.request')

/** A line comes after its answer. */
async function lines(at: TestGateway, count: number): Promise<ReturnType<typeof linesOf>> {
  for (let tries = 0; linesOf(at).length < count; tries++) {
    assert.ok(tries < 100_000, `${linesOf(at).length} lines of ${count}`)
    await setImmediate()
  }
  return linesOf(at)
}

/** Sends these bytes, and reads until the gateway closes. */
async function say({ url }: TestGateway, bytes: string): Promise<string> {
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  socket.write(bytes)
  return text(socket)
}

async function start(access: string): Promise<TestGateway> {
  return startGateway({ upstreams: [{ name: 'one', url: upstream.url }], config: { log: { access } } })
}

describe('access log', () => {
  test('client traceparent → in log line, problem and upstream requests', async () => {
    const traceId = '4bf92f3577b34da6a3ce929d0e0e4736'
    const parentId = '00f067aa0ba902b7'
    const heard: (string | undefined)[] = []
    const service = createServer((request, response) => {
      if (request.method === 'POST') heard.push(request.headers.traceparent as string | undefined)
      request.resume().on('end', () => response.writeHead(500).end())
    })
    await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(service.address() as AddressInfo).port}/add`
    const at = await startGateway({
      upstreams: [{ name: 'one', url: upstream.url }],
      config: {
        log: { access: 'all' },
        // A search behind the answer is of no client.
        retrieval: { backgroundSearch: 0 },
        pinning: { providers: [{ name: 'there', use: 'forward', url }], probeEvery: 0 },
      },
    })
    try {
      const missing = `${at.url}/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy`
      const before = upstream.seen.length
      const { body } = await fetchAll(missing, { traceparent: `00-${traceId}-${parentId}-01` })
      assert.equal(JSON.parse(body.toString()).traceId, traceId)
      const [line] = await lines(at, 1)
      assert.equal(line?.facts['trace'], traceId)
      const asked = upstream.seen.slice(before).map(({ headers }) => headers['traceparent'])
      assert.ok(asked.length > 0)
      for (const one of asked) {
        assert.match(String(one), new RegExp(`^00-${traceId}-[0-9a-f]{16}-01$`))
        assert.doesNotMatch(String(one), new RegExp(parentId))
      }
      await post(`${at.url}/add`, multipart([{ body: 'hello' }]), { traceparent: `00-${traceId}-${parentId}-00` })
      assert.match(String(heard[0]), new RegExp(`^00-${traceId}-[0-9a-f]{16}-00$`))
      for (const wrong of [
        `00-${traceId}-${parentId}`,
        `ff-${traceId}-${parentId}-01`,
        `00-${'0'.repeat(32)}-${parentId}-01`,
      ])
        assert.equal(JSON.parse((await fetchAll(missing, { traceparent: wrong })).body.toString()).traceId, undefined)
      assert.equal((await lines(at, 5))[4]?.facts['trace'], undefined)
    } finally {
      await at.close()
      service.closeAllConnections()
      service.close()
    }
  })

  test('all: each line has id, client, path, status, source, bytes', async () => {
    const at = await start('all')
    try {
      const path = `/ipfs/${all.files.hello.cid}`
      const first = await fetchAll(`${at.url}${path}?token=secret`, {
        authorization: 'Bearer secret',
        cookie: 'a=secret',
      })
      const [miss] = await lines(at, 1)
      const size = all.files.hello.bytes.byteLength
      const { ms, firstByteMs, ...facts } = miss?.facts ?? {}
      assert.ok(Number(ms) >= Number(firstByteMs))
      assert.deepEqual(facts, {
        request: first.headers['x-request-id'],
        client: '127.0.0.1',
        method: 'GET',
        host: new URL(at.url).host,
        path,
        agent: undefined,
        route: 'ipfs',
        status: 200,
        source: 'upstream',
        bytes: size,
      })
      await fetchAll(at.url + path)
      await lines(at, 2)
      const hot = await fetchAll(at.url + path)
      const found = (await lines(at, 3))[2]?.facts ?? {}
      assert.deepEqual(
        [found['request'], found['source'], found['bytes'], found['path']],
        [hot.headers['x-request-id'], 'responses', size, path],
      )
      assert.doesNotMatch(JSON.stringify(at.log), /secret/)
    } finally {
      await at.close()
    }
  })

  test('errors (default): failures rate-limited by kind, skipped lines counted', async () => {
    const clock = createFakeClock()
    const at = await startGateway({ clock, config: { log: { failuresPerSecond: 1 } } })
    try {
      const ask = async (path: string, times: number) => {
        for (let time = 0; time < times; time++) await fetchAll(`${at.url}${path}`)
      }
      const kinds = () => linesOf(at).map(({ facts }) => [facts['kind'], facts['leftOut']])
      await ask(`/ipfs/bafkqaaa`, 1)
      await ask('/ipfs/nonsense', 34)
      await ask('/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', 1)
      await lines(at, 31)
      assert.deepEqual(kinds(), [
        ...Array.from({ length: 30 }, () => ['malformed', undefined]),
        ['not-found', undefined],
      ])
      await clock.advance(1000)
      await ask('/ipfs/nonsense', 2)
      await ask('/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', 1)
      await lines(at, 33)
      assert.deepEqual(kinds().slice(31), [
        ['malformed', 4],
        ['not-found', undefined],
      ])
    } finally {
      await at.close()
    }
  })

  test('errors: Kubo RPC error in a trailer → logged as cut', async () => {
    const blocks: BlockMap = new Map()
    const part = (data: string) =>
      addNode(blocks, { Data: new UnixFS({ type: 'file', data: Buffer.from(data) }).marshal(), Links: [] })
    const gone = part('gone')
    const cids = [...Array.from({ length: 20 }, (_, index) => part(`${index}`)), gone]
    const Links = cids.map((Hash, index) => ({ Name: `${100 + index}`, Hash, Tsize: 1 }))
    const root = addNode(blocks, { Data: new UnixFS({ type: 'directory' }).marshal(), Links })
    blocks.delete(blockKey(gone))
    const source = await startUpstream({ blocks })
    const at = await startGateway({
      upstreams: [{ name: 'one', url: source.url }],
      config: { log: { access: 'errors' }, upload: { kuboRpc: true } },
    })
    try {
      const answer = await fetch(`${at.url}/api/v0/ls?arg=${root}&stream=true`, { method: 'POST' })
      await answer.text()
      const { facts } = (await lines(at, 1))[0] ?? {}
      assert.deepEqual([facts?.['status'], facts?.['cut'], facts?.['kind']], [200, true, 'not-found'])
    } finally {
      await at.close()
      await source.close()
    }
  })

  test("all: cached leaf → line has the client's id", async () => {
    const at = await startGateway({
      upstreams: [{ name: 'one', url: upstream.url }],
      config: { log: { access: 'all' }, cache: { responses: { maxBytes: 0 } } },
    })
    try {
      const url = `${at.url}/ipfs/${all.files.hello.cid}`
      await fetchAll(url)
      for (let turn = 1; turn < 4; turn++) {
        const { headers } = await fetchAll(url)
        const { facts } = (await lines(at, turn + 1))[turn] as ReturnType<typeof linesOf>[number]
        assert.deepEqual([facts['source'], facts['request']], ['memory', headers['x-request-id']])
      }
    } finally {
      await at.close()
    }
  })

  test('errors: 404 → line has reason and upstreams; success → none', async () => {
    const at = await start('errors')
    try {
      await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)
      await fetchAll(`${at.url}/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e`)
      const [line, ...more] = await lines(at, 1)
      assert.deepEqual(more, [])
      assert.equal(line?.facts['status'], 404)
      assert.equal(line.facts['kind'], 'not-found')
      assert.match(JSON.stringify(line.facts['attempts']), /"upstream":"one","outcome":"not-found"/)
    } finally {
      await at.close()
    }
  })

  test('sampled: one line per 100 cached responses', async () => {
    const at = await start('sampled')
    try {
      const path = `/ipfs/${all.files.hello.cid}`
      await fetchAll(at.url + path) // the first of the others
      for (let count = 0; count < 200; count++) await fetchAll(at.url + path)
      const sources = (await lines(at, 3)).map(({ facts }) => facts['source'])
      assert.deepEqual(sources, ['upstream', 'responses', 'responses'])
    } finally {
      await at.close()
    }
  })

  test('request refused while parsing → one line with its id', async () => {
    const at = await start('errors')
    try {
      const said = [
        await say(at, 'noise\r\n\r\n'),
        await say(at, `GET /?token=secret HTTP/1.1\r\nHost: a\r\nX: ${'y'.repeat(20_000)}\r\n\r\n`),
      ]
      const found = await lines(at, 2)
      for (const [index, status] of [400, 431].entries()) {
        const { why, ...facts } = found[index]?.facts ?? {}
        const answer = said[index] ?? ''
        const request = /\r\nX-Request-Id: (\S+)\r\n/.exec(answer)?.[1]
        assert.deepEqual(
          { ...facts },
          { request, client: '127.0.0.1', route: 'none', status, source: 'none', kind: 'malformed' },
        )
        assert.ok(answer.includes(JSON.stringify(why)))
      }
      const metrics = await metricsOf(at.gateway)
      for (const status of [400, 431])
        assert.match(
          metrics,
          new RegExp(
            `^cidgate_http_requests_total\\{route="none",method="other",status="${status}",source="none"\\} 1$`,
            'm',
          ),
        )
      assert.match(metrics, /^cidgate_failures_total\{kind="malformed"\} 2$/m)
      assert.doesNotMatch(JSON.stringify(at.log), /secret/)
    } finally {
      await at.close()
    }
  })

  test('malformed upload body → one line with path, status, id', async () => {
    const at = await startGateway({
      config: { log: { access: 'errors' }, pinning: { providers: [{ name: 'local', use: 'embedded' }] } },
    })
    try {
      const head = 'POST /add HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\n'
      const answer = await say(at, `${head}Transfer-Encoding: chunked\r\n\r\nZZ\r\nxx\r\n`)
      const [line] = await lines(at, 1)
      const { request, path, status, kind, cut } = line?.facts ?? {}
      assert.deepEqual([path, status, kind, cut], ['/add', 400, 'malformed', undefined])
      assert.match(answer, new RegExp(`^HTTP/1.1 400 .*\r\nX-Request-Id: ${String(request)}\r\n`, 's'))
      const metrics = await metricsOf(at.gateway)
      assert.match(metrics, /^cidgate_http_requests_total\{route="add",method="POST",status="400",source="none"\} 1$/m)
      assert.match(metrics, /^cidgate_failures_total\{kind="malformed"\} 1$/m)
      assert.equal(linesOf(at).length, 1)
    } finally {
      await at.close()
    }
  })

  test('off (default): no lines', async () => {
    const at = await start('off')
    try {
      await fetchAll(`${at.url}/ipfs/nonsense`)
      await setImmediate()
      assert.deepEqual(linesOf(at), [])
    } finally {
      await at.close()
    }
  })
})
