// /metrics: that each request is counted once where an operator looks for it, and that names, types and units are those that
// Prometheus and its tools expect.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { multipart, post } from '../support/adding.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, metricsOf, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
let at: TestGateway
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
  at = await startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: {
      upload: { kuboRpc: true },
      pinning: { providers: [{ name: 'local', use: 'embedded' }] },
      proxy: [{ path: '/behind', to: 'http://127.0.0.1:9' }],
      cache: {
        tiers: [
          { use: 'memory', maxBytes: '64MiB' },
          { use: 'disk', maxBytes: '1GiB' },
        ],
      },
    },
  })
})
after(async () => {
  await at.close()
  await upstream.close()
})

async function seriesOf(): Promise<ReadonlyMap<string, number>> {
  const lines = (await metricsOf(at.gateway)).split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return new Map(lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]))
}

/** By how much each series grew; the last step of a request comes after its answer. */
async function grown(work: () => Promise<unknown>, series: string): Promise<ReadonlyMap<string, number>> {
  const earlier = await seriesOf()
  const difference = (now: ReadonlyMap<string, number>) =>
    new Map([...now].map(([name, value]) => [name, value - (earlier.get(name) ?? 0)] as const))
  await work()
  for (let tries = 0; ; tries++) {
    const grew = difference(await seriesOf())
    if ((grew.get(series) ?? 0) > 0) return grew
    assert.ok(tries < 500, `${series} does not grow`)
    await sleep(5)
  }
}

describe('request metrics by route', () => {
  const ask = (path: string, init?: RequestInit) => async () => (await fetch(at.url + path, init)).arrayBuffer()
  type Row = readonly [what: string, work: () => () => Promise<unknown>, labels: string]
  const rows: readonly Row[] = [
    ['a miss', () => ask(`/ipfs/${all.files.hello.cid}`), 'route="ipfs",method="GET",status="200",source="upstream"'],
    [
      'a hot answer',
      () => ask(`/ipfs/${all.files.hello.cid}`),
      'route="ipfs",method="GET",status="200",source="responses"',
    ],
    [
      'a hot HEAD',
      () => ask(`/ipfs/${all.files.hello.cid}`, { method: 'HEAD' }),
      'route="ipfs",method="HEAD",status="200",source="responses"',
    ],
    [
      'a copy that the client has',
      () => () => fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`, { 'If-None-Match': `"${all.files.hello.cid}"` }),
      'route="ipfs",method="GET",status="304",source="responses"',
    ],
    [
      'a part that is in memory',
      () => ask(`/ipfs/${all.files.hello.cid}`, { headers: { Range: 'bytes=0-1' } }),
      'route="ipfs",method="GET",status="206",source="memory"',
    ],
    ['a path that is wrong', () => ask('/ipfs/nonsense'), 'route="ipfs",method="GET",status="400",source="none"'],
    ['a path of nobody', () => ask('/nothing'), 'route="none",method="GET",status="404",source="none"'],
    [
      'an upload',
      () => () => post(`${at.url}/add`, multipart([{ body: 'counted' }])),
      'route="add",method="POST",status="200",source="none"',
    ],
    [
      'a refused upload',
      () => () => post(`${at.url}/add`, multipart([{ body: '' }])),
      'route="add",method="POST",status="400",source="none"',
    ],
    [
      'a method that is refused',
      () => ask('/add', { method: 'PUT' }),
      'route="add",method="PUT",status="405",source="none"',
    ],
    [
      'a command',
      () => ask('/api/v0/version', { method: 'POST' }),
      'route="rpc",method="POST",status="200",source="none"',
    ],
    ['the description', () => ask('/openapi.json'), 'route="openapi",method="GET",status="200",source="none"'],
    ['a service that is down', () => ask('/behind/it'), 'route="proxy",method="GET",status="502",source="none"'],
  ]
  for (const [what, work, labels] of rows)
    test(what, async () => {
      const series = `cidgate_http_requests_total{${labels}}`
      const grew = await grown(work(), series)
      const requests = [...grew].filter(([name, value]) => name.startsWith('cidgate_http_requests_total') && value > 0)
      assert.deepEqual(requests, [[series, 1]])
    })

  test('body bytes in both directions, and duration', async () => {
    const place = 'route="ipfs",source="memory"'
    const range = { headers: { Range: 'bytes=2-6' } }
    const read = await grown(
      ask(`/ipfs/${all.files.hello.cid}`, range),
      `cidgate_http_request_duration_seconds_count{${place}}`,
    )
    assert.equal(read.get(`cidgate_http_response_body_bytes_total{${place}}`), 5)
    assert.equal(read.get(`cidgate_http_time_to_first_byte_seconds_count{${place}}`), 1)
    const body = multipart([{ body: 'x'.repeat(100_000) }])
    const added = await grown(
      () => post(`${at.url}/add`, body),
      'cidgate_http_request_duration_seconds_count{route="add",source="none"}',
    )
    assert.equal(added.get('cidgate_http_request_body_bytes_total{route="add"}'), body.byteLength)
    assert.equal(added.get('cidgate_uploads_total{outcome="accepted"}'), 1)
    assert.equal(added.get('cidgate_uploaded_bytes_total'), 100_000)
    assert.equal(added.get('cidgate_provider_requests_total{provider="local",outcome="pinned"}'), 1)
  })
})

describe('Prometheus conventions', () => {
  type Family = { readonly name: string; readonly type: string; readonly help: string; readonly series: string[] }
  let families: Family[]
  before(async () => {
    families = (await metricsOf(at.gateway))
      .split('# HELP ')
      .slice(1)
      .map((text) => {
        const [help = '', type = '', ...series] = text.trimEnd().split('\n')
        const [name = ''] = help.split(' ')
        assert.ok(type.startsWith(`# TYPE ${name} `), type)
        return { name, help: help.slice(name.length + 1), type: type.split(' ')[3] ?? '', series }
      })
  })

  test('each family: unique name, help sentence, type', () => {
    assert.equal(new Set(families.map(({ name }) => name)).size, families.length)
    for (const { name, help, type } of families) {
      assert.match(name, /^(cidgate|process|nodejs)_[a-z0-9]+(_[a-z0-9]+)*$/)
      assert.match(help, /\.$/, name)
      assert.match(type, /^(counter|gauge|histogram)$/, name)
    }
  })

  test('counters end in _total; units are seconds and bytes', () => {
    for (const { name, type } of families) {
      assert.equal(name.endsWith('_total'), type === 'counter', name)
      assert.doesNotMatch(name, /_(ms|milliseconds|kb|mib|megabytes|minutes|hours|percent)(_|$)/, name)
      if (type === 'histogram') assert.match(name, /_seconds$/, name)
      assert.doesNotMatch(name, /_(count|sum|bucket)$/, name)
    }
  })

  test('snake-case labels, unique series, no missing values', () => {
    const seen = new Set<string>()
    for (const line of families.flatMap(({ series }) => series)) {
      const [, series = '', labels = '', value] = /^([a-z_0-9]+(?:\{(.*)\})?) (\S+)$/.exec(line) ?? assert.fail(line)
      assert.ok(!seen.has(series), series)
      seen.add(series)
      assert.ok(Number.isFinite(Number(value)), line)
      for (const [, label] of labels.matchAll(/(\w+)="/g)) assert.match(label ?? '', /^[a-z]+(_[a-z]+)*$/, line)
    }
  })

  test('docs/monitoring.md lists the labels', () => {
    const page = readFileSync(new URL('../../docs/monitoring.md', import.meta.url), 'utf8')
    const rows = page.matchAll(/^\| `(\w+)` \| (?:counter|gauge|histogram) \| (.*?) \|/gm)
    const told = new Map([...rows].map(([, name, labels = '']) => [name, labels.replaceAll('`', '')]))
    assert.deepEqual(
      [...told.keys()],
      families.map(({ name }) => name),
    )
    for (const { name, series } of families)
      for (const line of series) {
        const labels = [...line.matchAll(/(\w+)="/g)].map(([, label]) => label).filter((label) => label !== 'le')
        assert.equal(labels.join(', '), told.get(name), line)
      }
  })

  test('buckets increase up to +Inf, the count', () => {
    for (const { name, type, series } of families) {
      if (type !== 'histogram') continue
      let below = 0
      for (const line of series) {
        const value = Number(line.slice(line.lastIndexOf(' ')))
        if (line.startsWith(`${name}_bucket`)) {
          assert.ok(value >= below, line)
          below = value
        }
        if (!line.startsWith(`${name}_count`)) continue
        assert.equal(value, below, line)
        below = 0
      }
    }
  })

  test('an upstream has exactly one state', () => {
    const states = families.find(({ name }) => name === 'cidgate_upstream_state')?.series ?? []
    assert.equal(states.length, 6)
    assert.equal(states.filter((line) => line.endsWith(' 1')).length, 1)
  })
})
