// Spans for traces: what the standard variables say, which traces are recorded, and what becomes of spans while the collector
// is slow, refuses them or is gone.
import assert from 'node:assert/strict'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { createTrace, type FinishedSpan } from '../../src/core/wire/trace.ts'
import { createSpanExporter, readTraceSettings, type SpanExporter } from '../../src/observe/tracing.ts'
import { type Collector, startCollector } from '../support/collector.ts'
import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'

const endpoint = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:4318' }

describe('OpenTelemetry variables', () => {
  const read = (more: Record<string, string>) => readTraceSettings({ ...endpoint, ...more })

  test('no address, empty, or disabled → no spans', () => {
    const nothing = { settings: undefined, faults: [] }
    for (const environment of [
      {},
      { OTEL_SERVICE_NAME: 'x' },
      { OTEL_EXPORTER_OTLP_ENDPOINT: ' ' },
      { ...endpoint, OTEL_SDK_DISABLED: 'True' },
      { ...endpoint, OTEL_TRACES_EXPORTER: 'none' },
    ])
      assert.deepEqual(readTraceSettings(environment), nothing)
  })

  test('general endpoint gets the traces path; specific one unchanged', () => {
    assert.equal(read({}).settings?.url, 'http://127.0.0.1:4318/v1/traces')
    const below = read({ OTEL_EXPORTER_OTLP_ENDPOINT: 'https://collector.example/otlp/' })
    assert.equal(below.settings?.url, 'https://collector.example/otlp/v1/traces')
    const own = read({ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://traces.example/here' })
    assert.equal(own.settings?.url, 'https://traces.example/here')
  })

  test('headers, timeouts, names: trace-specific before general', () => {
    const { settings, faults } = read({
      OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Basic%20abc=, x-scope = one',
      OTEL_EXPORTER_OTLP_TIMEOUT: '2000',
      OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: '3000',
      OTEL_RESOURCE_ATTRIBUTES: 'service.name=other,host.name=h%2C1',
      OTEL_SERVICE_NAME: 'mine',
    })
    assert.deepEqual(faults, [])
    assert.deepEqual(settings?.headers, { authorization: 'Basic abc=', 'x-scope': 'one' })
    assert.equal(settings.timeoutMs, 3000)
    assert.deepEqual(settings.resource, { 'service.name': 'mine', 'host.name': 'h,1' })
    assert.deepEqual(read({ OTEL_RESOURCE_ATTRIBUTES: 'service.name=other' }).settings?.resource, {
      'service.name': 'other',
    })
    assert.deepEqual(read({}).settings?.resource, { 'service.name': 'cidgate' })
  })

  for (const [name, value, isOff] of [
    ['OTEL_EXPORTER_OTLP_ENDPOINT', '127.0.0.1:4318/a-secret', true],
    ['OTEL_EXPORTER_OTLP_ENDPOINT', 'http://user:a-secret@127.0.0.1:4318', true],
    ['OTEL_EXPORTER_OTLP_PROTOCOL', 'grpc', true],
    ['OTEL_TRACES_EXPORTER', 'zipkin', true],
    ['OTEL_EXPORTER_OTLP_HEADERS', 'a-secret', false],
    ['OTEL_EXPORTER_OTLP_TIMEOUT', 'ten', false],
    ['OTEL_EXPORTER_OTLP_COMPRESSION', 'a-secret', false],
    ['OTEL_BSP_MAX_QUEUE_SIZE', '0', false],
    ['OTEL_TRACES_SAMPLER', 'jaeger_remote', false],
    ['OTEL_TRACES_SAMPLER_ARG', '2', false],
  ] as const)
    test(`${name}=${value} → reported without its value${isOff ? ', no spans' : ''}`, () => {
      const { settings, faults } = read({ [name]: value })
      assert.equal(faults.length, 1)
      assert.match(faults[0] ?? '', new RegExp(`^${name}: `))
      assert.doesNotMatch(faults[0] ?? '', /secret/)
      assert.equal(settings === undefined, isOff)
    })
})

describe('sampling', () => {
  const low = `${'f'.repeat(16)}${'0'.repeat(16)}`
  const high = `${'0'.repeat(16)}${'f'.repeat(16)}`
  const rows: readonly [string, number, ...boolean[]][] = [
    // without a parent: low and high trace ids; below one that is not recorded, and below one that is
    ['always_on', 1, true, true, true, true],
    ['always_off', 1, false, false, false, false],
    ['traceidratio', 0.5, false, true, false, false],
    ['traceidratio', 0, false, false, false, false],
    ['traceidratio', 1, true, true, true, true],
    ['parentbased_always_on', 1, true, true, false, true],
    ['parentbased_always_off', 1, false, false, false, true],
    ['parentbased_traceidratio', 0.5, false, true, false, true],
  ]
  for (const [name, ratio, ...expected] of rows)
    test(`${name} ${ratio}`, () => {
      const sampler = { OTEL_TRACES_SAMPLER: name, OTEL_TRACES_SAMPLER_ARG: String(ratio) }
      const { isSampled } = readTraceSettings({ ...endpoint, ...sampler }).settings ?? assert.fail()
      assert.deepEqual(
        [isSampled(low, undefined), isSampled(high, undefined), isSampled(low, '00'), isSampled(low, '01')],
        expected,
      )
    })
})

describe('outgoing requests in a trace', () => {
  test('thousands of blocks → 128 spans, skipped number recorded', () => {
    const taken: FinishedSpan[] = []
    const trace = createTrace({ recorder: { isSampled: () => true, take: (span) => taken.push(span) } })
    const point = trace.of({ headers: {} }) ?? assert.fail()
    for (let count = 0; count < 1000; count++) trace.ask('upstream block', point)?.end({}, false)
    assert.deepEqual([taken.length, point.leftOut], [128, 872])
  })

  test('tracestate → exported to the collector only', () => {
    const taken: FinishedSpan[] = []
    const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
    const recorder = { isSampled: () => true, take: (span: FinishedSpan) => taken.push(span) }
    for (const [headers, told] of [
      [{ traceparent, tracestate: 'vendor=a, other=b' }, 'vendor=a, other=b'],
      [{ traceparent, tracestate: 'a'.repeat(513) }, undefined],
      [{ traceparent, tracestate: 'a=\u00e4' }, undefined],
      [{ traceparent }, undefined],
      [{ tracestate: 'vendor=a' }, undefined],
    ] as const) {
      const trace = createTrace({ recorder })
      const point = trace.of({ headers }) ?? assert.fail()
      trace.run(point, () => trace.ask('upstream block')?.end({}, false))
      trace.answered(point, { name: 'GET ipfs', began: 0, facts: {}, isError: false })
      assert.deepEqual(
        taken.splice(0).map((span) => span.point.traceState),
        [told, told],
      )
      assert.doesNotMatch(trace.run(point, trace.header) ?? '', /vendor/)
    }
  })

  test('costly Node version → only for operators who want spans', () => {
    const headers = { traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' }
    const headerIn = (trace: ReturnType<typeof createTrace>) =>
      trace.run(trace.of({ headers }) ?? assert.fail(), trace.header)
    assert.equal(headerIn(createTrace({ nodeMajor: 22 })), undefined)
    assert.match(
      headerIn(createTrace({ nodeMajor: 22, recorder: { isSampled: () => true, take: () => {} } })) ?? '',
      /^00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-01$/,
    )
  })
})

describe('export to the collector', () => {
  let collector: Collector
  let clock: FakeClock
  let lines: { event: string; why: unknown }[]
  const closing: SpanExporter[] = []
  before(async () => {
    collector = await startCollector()
  })
  after(() => collector.close())
  beforeEach(() => {
    Object.assign(collector, { answer: 200, says: '{}' })
    collector.posts.length = 0
    clock = createFakeClock()
    lines = []
  })
  afterEach(async () => {
    collector.answer = 200
    for (const one of closing.splice(0)) await one.close()
  })

  function open(more: Record<string, string> = {}): SpanExporter {
    const { settings } = readTraceSettings({ OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, ...more })
    const exporter = createSpanExporter({
      settings: settings ?? assert.fail(),
      version: '1',
      clock,
      log: (_level, event, facts) => lines.push({ event, why: facts?.['why'] }),
    })
    closing.push(exporter)
    return exporter
  }

  /** A request that was answered: its span is given to the exporter. */
  function note(exporter: SpanExporter, count = 1): void {
    const trace = createTrace({ recorder: exporter, clock })
    for (let turn = 0; turn < count; turn++) {
      const point = trace.of({ headers: {} }) ?? assert.fail()
      trace.answered(point, { name: 'GET ipfs', began: clock.monotonic() - 5, facts: {}, isError: false })
    }
  }

  async function until(isSo: () => boolean): Promise<void> {
    for (let turn = 0; !isSo(); turn++) {
      assert.ok(turn < 1_000_000, JSON.stringify(lines))
      await setImmediate()
    }
  }

  test('batched for five seconds, or until full', async () => {
    const exporter = open({ OTEL_EXPORTER_OTLP_HEADERS: 'x-scope=one' })
    note(exporter, 3)
    await clock.advance(4_999)
    assert.equal(collector.posts.length, 0)
    await clock.advance(1)
    await until(() => exporter.counts.sent === 3)
    assert.deepEqual([collector.posts.length, collector.posts[0]?.headers['x-scope']], [1, 'one'])
    const [span] = collector.spans
    assert.equal(BigInt(span?.endTimeUnixNano ?? 0) - BigInt(span?.startTimeUnixNano ?? 0), 5_000_000n)
    note(exporter, 256)
    await until(() => exporter.counts.sent === 259)
  })

  test('gzip if configured', async () => {
    const exporter = open({ OTEL_EXPORTER_OTLP_COMPRESSION: 'gzip' })
    const before = collector.spans.length
    note(exporter, 256)
    await until(() => exporter.counts.sent === 256)
    const [post] = collector.posts
    assert.equal(post?.headers['content-encoding'], 'gzip')
    assert.ok(Number(post.headers['content-length']) < post.body.length / 5)
    assert.equal(collector.spans.length, before + 256)
  })

  test('collector hangs → 2,048 spans queued, others counted as dropped', async () => {
    collector.answer = 'hang'
    const exporter = open()
    note(exporter, 256)
    await until(() => collector.posts.length === 1)
    note(exporter, 3_000)
    assert.deepEqual(exporter.counts, { sent: 0, dropped: 3_000 - 2_048, failed: 0 })
    assert.deepEqual(lines, [{ event: 'spans.lost', why: '2048 spans wait for the collector already' }])
    // Its deadline passes; then it answers again.
    collector.answer = 200
    await clock.advance(10_000)
    await clock.advance(1_000)
    await until(() => exporter.counts.sent === 256 + 2_048)
  })

  test('overloaded collector → five attempts with backoff', async () => {
    collector.answer = 503
    // No deadline comes between: time goes on here while a real answer is on its way.
    const exporter = open({ OTEL_BSP_SCHEDULE_DELAY: '1', OTEL_EXPORTER_OTLP_TIMEOUT: '1000000000' })
    note(exporter)
    const began = clock.monotonic()
    for (let turn = 0; exporter.counts.failed === 0; turn++) {
      assert.ok(turn < 500_000)
      await clock.advance(100)
    }
    assert.equal(collector.posts.length, 5)
    assert.ok(clock.monotonic() - began >= 1_000 + 2_000 + 4_000 + 8_000)
    assert.equal(lines[0]?.event, 'spans.lost')
    assert.match(String(lines[0]?.why), /^the collector answered 503/)
  })

  test('refusal → no retry; partial refusal → counted', async () => {
    collector.answer = 401
    const exporter = open({ OTEL_BSP_SCHEDULE_DELAY: '1' })
    note(exporter)
    await clock.advance(1)
    await until(() => exporter.counts.failed === 1)
    assert.equal(collector.posts.length, 1)
    Object.assign(collector, { answer: 200, says: '{"partialSuccess":{"rejectedSpans":"2","errorMessage":"no"}}' })
    note(exporter, 3)
    await clock.advance(1)
    await until(() => exporter.counts.sent === 1)
    assert.deepEqual(exporter.counts, { sent: 1, dropped: 0, failed: 3 })
    collector.says = '{"partialSuccess":{"rejectedSpans":1e999}}'
    note(exporter)
    await clock.advance(1)
    await until(() => exporter.counts.failed !== 3)
    assert.deepEqual(exporter.counts, { sent: 1, dropped: 0, failed: 4 }) // of those that were sent at most
  })

  test('close → queue flushed; hanging collector → no delay', async () => {
    const exporter = open()
    note(exporter, 3)
    await exporter.close()
    assert.deepEqual(exporter.counts, { sent: 3, dropped: 0, failed: 0 })
    collector.answer = 'hang'
    const other = open()
    note(other, 300)
    const closed = other.close()
    await until(() => collector.posts.length === 2)
    await clock.advance(5_000)
    await closed
    assert.deepEqual(other.counts, { sent: 0, dropped: 44, failed: 256 })
  })

  test('unreachable collector → logged once, by code', async () => {
    const exporter = open({ OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1', OTEL_BSP_SCHEDULE_DELAY: '1' })
    note(exporter)
    await clock.advance(1)
    await until(() => lines.length === 1)
    assert.match(String(lines[0]?.why), /ECONNREFUSED|bad port/)
  })
})
