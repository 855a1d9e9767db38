// Spans for traces: what a whole gateway sends to a collector, what it never sends, and that a collector which hangs or is gone
// costs a request nothing.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { multipart, post } from '../support/adding.ts'
import { type Collector, startCollector } from '../support/collector.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, metricsOf, type StartOptions, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const traceId = '4bf92f3577b34da6a3ce929d0e0e4736'
const parentId = '00f067aa0ba902b7'
const traceparent = `00-${traceId}-${parentId}-01`
const absent = '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'
const [server, client] = [2, 3]

let all: Fixtures
let has: ProgrammableUpstream
let lacks: ProgrammableUpstream
let collector: Collector
let started: TestGateway[] = []
before(async () => {
  all = await fixtures()
  has = await startUpstream({ blocks: all.blocks })
  lacks = await startUpstream({ blocks: new Map() })
})
after(() => Promise.all([has.close(), lacks.close()]))
beforeEach(async () => {
  started = []
  collector = await startCollector()
})
afterEach(async () => {
  for (const at of started) await at.close()
  await collector.close()
})

async function start(more: StartOptions & { tracing?: Record<string, string> } = {}): Promise<TestGateway> {
  const at = await startGateway({
    upstreams: [{ name: 'has', url: has.url }],
    ...more,
    tracing: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, ...more.tracing },
  })
  started.push(at)
  return at
}

/** What was recorded until the gateway closed. */
async function spansOf(at: TestGateway) {
  started = started.filter((one) => one !== at)
  await at.close()
  const { spans } = collector
  return { server: spans.filter(({ kind }) => kind === server), client: spans.filter(({ kind }) => kind === client) }
}

describe('spans', () => {
  test('race of two upstreams → one server, two client spans', async () => {
    const silent = await startUpstream({ blocks: all.blocks })
    silent.fault = { kind: 'silent' }
    try {
      const at = await start({
        upstreams: [
          { name: 'silent', url: silent.url },
          { name: 'has', url: has.url },
        ],
        config: { retrieval: { hedgeDelay: 0 }, cache: { responses: { maxBytes: 0 } } },
        tracing: { OTEL_SERVICE_NAME: 'gateway-of-ours', OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment=a%20test' },
      })
      const [askedSilent, askedHas] = [silent.asked.length, has.asked.length]
      const { cid, bytes } = all.files.hello
      const { headers } = await fetchAll(`${at.url}/ipfs/${cid}?token=a-secret`, {
        traceparent,
        tracestate: 'vendor=a',
        authorization: 'Bearer a-secret',
      })
      const { server, client } = await spansOf(at)
      const [answered, ...others] = server
      assert.deepEqual(others, [])
      assert.deepEqual([answered?.traceId, answered?.parentSpanId, answered?.name], [traceId, parentId, 'GET ipfs'])
      assert.equal(answered?.traceState, 'vendor=a')
      const { 'cidgate.first_byte_ms': _, ...facts } = answered?.facts ?? {}
      assert.deepEqual(facts, {
        'http.request.method': 'GET',
        'http.route': 'ipfs',
        'http.response.status_code': 200,
        'http.response.body.size': bytes.byteLength,
        'cidgate.source': 'upstream',
        'cidgate.request_id': headers['x-request-id'],
        'server.address': new URL(at.url).host,
        'url.path': `/ipfs/${cid}`,
      })
      assert.deepEqual(client.map(({ facts }) => [facts['cidgate.upstream'], facts['cidgate.outcome']]).sort(), [
        ['has', 'won'],
        ['silent', 'lost'],
      ])
      const won = client.find(({ facts }) => facts['cidgate.upstream'] === 'has')
      assert.equal(won?.facts['cidgate.bytes'], bytes.byteLength)
      assert.equal(won?.facts['http.response.status_code'], 200)
      for (const span of client) {
        assert.deepEqual([span.traceId, span.parentSpanId], [traceId, answered?.spanId])
        assert.ok(BigInt(span.startTimeUnixNano) >= BigInt(answered?.startTimeUnixNano ?? 0))
        assert.equal(span.status, undefined)
      }
      // What an upstream is sent names its own span as the parent of what it records.
      const told = [silent.asked.slice(askedSilent), has.asked.slice(askedHas)]
      for (const { headers } of told.flat()) assert.equal(headers['tracestate'], undefined)
      for (const [index, name] of ['silent', 'has'].entries()) {
        const { spanId } = client.find(({ facts }) => facts['cidgate.upstream'] === name) ?? assert.fail(name)
        for (const { headers } of told[index] ?? []) assert.equal(headers.traceparent, `00-${traceId}-${spanId}-01`)
        assert.ok((told[index]?.length ?? 0) > 0)
      }
      assert.equal(collector.posts[0]?.path, '/v1/traces')
      assert.equal(collector.resource['service.name'], 'gateway-of-ours')
      assert.equal(collector.resource['deployment.environment'], 'a test')
      assert.doesNotMatch(JSON.stringify(collector.posts), /secret/)
    } finally {
      await silent.close()
    }
  })

  test('new trace → id in log and problem', async () => {
    const at = await start({ upstreams: [{ name: 'lacks', url: lacks.url }], config: { log: { access: 'all' } } })
    const before = lacks.asked.length
    const { status, body } = await fetchAll(at.url + absent)
    assert.equal(status, 404)
    const { log } = at
    const {
      server: [answered],
      client,
    } = await spansOf(at)
    assert.equal(answered?.parentSpanId, undefined)
    assert.equal(answered?.facts['error.type'], 'not-found')
    assert.equal(answered.status, undefined)
    assert.equal(JSON.parse(body.toString()).traceId, answered.traceId)
    assert.equal(log.find(({ event }) => event === 'http.request')?.facts['trace'], answered.traceId)
    assert.ok(client.length > 0)
    const { traceId: begun } = answered
    const parents = new Set(client.map(({ spanId }) => `00-${begun}-${spanId}-01`))
    for (const { headers } of lacks.asked.slice(before)) assert.ok(parents.has(String(headers.traceparent)))
    for (const { facts, status, parentSpanId } of client) {
      assert.deepEqual([facts['cidgate.outcome'], facts['http.response.status_code']], ['not-found', 404])
      assert.deepEqual([status, parentSpanId], [undefined, answered.spanId])
    }
  })

  test('cached response → server span only', async () => {
    const at = await start({ config: { log: { access: 'all' } } })
    const url = `${at.url}/ipfs/${all.files.hello.cid}`
    const ids: unknown[] = []
    for (let turn = 0; turn < 3; turn++) ids.push((await fetchAll(url, { traceparent })).headers['x-request-id'])
    const { log } = at
    const { server, client } = await spansOf(at)
    // A hot answer is noted as it is written, and another one when it has gone.
    const sources = new Map(server.map(({ facts }) => [facts['cidgate.request_id'], facts['cidgate.source']]))
    assert.deepEqual([server.length, client.length], [3, 1])
    assert.deepEqual([sources.get(ids.at(0)), sources.get(ids.at(-1))], ['upstream', 'responses'])
    assert.equal(log.filter(({ event }) => event === 'http.request').length, 3)
  })

  test('upload to a provider → client span; failure marked', async () => {
    let heard: unknown
    const service = createServer((request, response) => {
      if (request.method === 'POST') heard = request.headers.traceparent
      request.resume().on('end', () => response.writeHead(500).end('the key is a-secret'))
    })
    await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(service.address() as AddressInfo).port}/add`
    try {
      for (const [provider, status, outcome] of [
        [{ name: 'here', use: 'embedded' }, 200, 'pinned'],
        [{ name: 'there', use: 'forward', url }, 502, 'transient'],
      ] as const) {
        const at = await start({ config: { pinning: { providers: [provider], probeEvery: 0 } } })
        const answer = await post(`${at.url}/add`, multipart([{ body: 'hello' }]), { traceparent })
        assert.equal(answer.status, status)
        const found = await spansOf(at)
        const answered = found.server.at(-1)
        const pinned = found.client.at(-1)
        const error = outcome === 'pinned' ? undefined : { code: 2 }
        assert.deepEqual([answered?.name, answered?.status], ['POST add', error])
        assert.deepEqual(
          [pinned?.name, pinned?.status, pinned?.parentSpanId],
          ['provider pin', error, answered?.spanId],
        )
        assert.deepEqual(pinned?.facts['cidgate.provider'], provider.name)
        assert.deepEqual(pinned.facts['cidgate.outcome'], outcome)
        if (outcome === 'pinned') continue
        assert.equal(pinned.facts['http.response.status_code'], 500)
        assert.equal(heard, `00-${traceId}-${pinned.spanId}-01`)
      }
      assert.doesNotMatch(JSON.stringify(collector.posts), /secret/)
    } finally {
      service.closeAllConnections()
      service.close()
    }
  })

  test('thin mode → service request is in the trace', async () => {
    const thick = await startGateway({ config: { pinning: { providers: [{ name: 'here', use: 'embedded' }] } } })
    try {
      const at = await start({ upstreams: [], config: { upload: { forwardTo: { url: `${thick.url}/add` } } } })
      const { status, body } = await post(`${at.url}/add`, multipart([{ body: 'hello' }]), { traceparent })
      assert.equal(status, 200, body)
      const { server, client } = await spansOf(at)
      const [{ name, parentSpanId, facts } = assert.fail(), ...others] = client
      assert.deepEqual([name, parentSpanId, others], ['provider pin', server[0]?.spanId, []])
      const host = new URL(thick.url).host
      assert.deepEqual(facts, { 'cidgate.provider': host, 'cidgate.outcome': 'pinned', 'cidgate.bytes': 5 })
    } finally {
      await thick.close()
    }
  })

  test('unsampled parent → gateway does not record, forwards the decision', async () => {
    const at = await start({ upstreams: [{ name: 'lacks', url: lacks.url }] })
    const before = lacks.asked.length
    await fetchAll(at.url + absent, { traceparent: `00-${traceId}-${parentId}-00` })
    for (const { headers } of lacks.asked.slice(before))
      assert.match(String(headers.traceparent), new RegExp(`^00-${traceId}-[0-9a-f]{16}-00$`))
    assert.deepEqual(await spansOf(at), { server: [], client: [] })
  })

  for (const [what, tracing] of [
    ['OTEL_SDK_DISABLED', { OTEL_SDK_DISABLED: 'true' }],
    ['OTEL_TRACES_SAMPLER=always_off', { OTEL_TRACES_SAMPLER: 'always_off' }],
  ] as const)
    test(`${what} → nothing exported`, async () => {
      const at = await start({ tracing })
      assert.equal((await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`, { traceparent })).status, 200)
      assert.deepEqual(await spansOf(at), { server: [], client: [] })
      assert.deepEqual(collector.posts, [])
    })

  test('paths of proxied services → not exported', async () => {
    const service = createServer((_request, response) => response.end('answered'))
    await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
    const to = `http://127.0.0.1:${(service.address() as AddressInfo).port}`
    try {
      const at = await start({ config: { proxy: [{ path: '/service', to }] as never } })
      assert.equal((await fetchAll(`${at.url}/service/a-secret`)).status, 200)
      await fetchAll(`${at.url}/no/such/a-secret`)
      const { server } = await spansOf(at)
      assert.deepEqual(
        server.map(({ name }) => name),
        ['GET proxy', 'GET none'],
      )
      assert.doesNotMatch(JSON.stringify(collector.posts), /secret/)
    } finally {
      service.close()
    }
  })

  for (const [what, spoil] of [
    ['hangs', () => (collector.answer = 'hang')],
    ['is gone', () => collector.close()],
  ] as const)
    test(`collector that ${what} → no request fails, losses counted`, async () => {
      await spoil()
      const at = await start({
        config: { cache: { responses: { maxBytes: 0 } } },
        tracing: { OTEL_BSP_SCHEDULE_DELAY: '1', OTEL_EXPORTER_OTLP_TIMEOUT: '100', OTEL_BSP_MAX_QUEUE_SIZE: '10' },
      })
      for (let turn = 0; turn < 50; turn++)
        assert.equal((await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)).status, 200)
      const page = await metricsOf(at.gateway)
      assert.match(page, /cidgate_spans_total\{outcome="sent"\} 0\n/)
      assert.match(page, /cidgate_spans_total\{outcome="dropped"\} [1-9]/)
      await spansOf(at)
      assert.equal(collector.spans.length, 0)
    })
})
