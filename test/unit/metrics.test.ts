import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { observe } from '../../scripts/observe.ts'
import { createHistograms } from '../../src/observe/histogram.ts'
import { createMetrics } from '../../src/observe/metrics.ts'

test('what is read is what is shown, labels escaped', async () => {
  const metrics = createMetrics()
  let hits = 1
  metrics.add({ name: 'hits_total', kind: 'counter', help: 'Hits.', read: () => hits })
  metrics.add({
    name: 'state',
    kind: 'gauge',
    help: 'State.',
    read: () => [{ labels: { upstream: 'a"b\\c\nd' }, value: 2 }],
  })
  hits++
  assert.equal(
    await metrics.render(),
    '# HELP hits_total Hits.\n# TYPE hits_total counter\nhits_total 2\n# HELP state State.\n# TYPE state gauge\nstate{upstream="a\\"b\\\\c\\nd"} 2\n',
  )
})

test('a name is registered once', () => {
  const metrics = createMetrics()
  metrics.add({ name: 'hits_total', kind: 'counter', help: 'Hits.', read: () => 1 })
  assert.throws(() => metrics.add({ name: 'hits_total', kind: 'counter', help: 'Hits.', read: () => 1 }), /twice/)
})

test('metrics: counters continue after a reload, gauges show the present', async () => {
  const create = (counts: Record<string, number>) => {
    const metrics = createMetrics()
    const samples = () => Object.entries(counts).map(([tier, value]) => ({ labels: { tier }, value }))
    metrics.add({ name: 'hits_total', kind: 'counter', help: 'Hits.', read: samples })
    metrics.add({ name: 'items', kind: 'gauge', help: 'Items.', read: samples })
    const valueAt = async (series: string) => {
      const line = (await metrics.render()).split('\n').find((one) => one.startsWith(`${series} `))
      return line === undefined ? undefined : Number(line.split(' ')[1])
    }
    return { metrics, valueAt }
  }
  const shared = { memory: 5, disk: 7, s3: 2 }
  const one = create(shared)
  // Memory is made anew and disk goes over; s3 is gone.
  const second = {
    memory: 1,
    get disk() {
      return shared.disk
    },
  }
  const two = create(second)
  two.metrics.goOnFrom(one.metrics)
  shared.disk++
  second.memory++
  assert.equal(await two.valueAt('hits_total{tier="memory"}'), 6)
  assert.equal(await two.valueAt('hits_total{tier="disk"}'), 8)
  assert.equal(await two.valueAt('hits_total{tier="s3"}'), undefined)
  assert.equal(await two.valueAt('items{tier="memory"}'), 2)
  // And what was gone comes back.
  const three = create({ s3: 0, memory: 0 })
  three.metrics.goOnFrom(two.metrics)
  assert.equal(await three.valueAt('hits_total{tier="s3"}'), 2)
  assert.equal(await three.valueAt('hits_total{tier="memory"}'), 6)
})

test('a histogram counts each observation once, at or below its bound, and goes on after a reload', async () => {
  const create = () => {
    const metrics = createMetrics()
    const took = createHistograms<{ readonly tier: string }>([0.1, 1])
    metrics.add({ name: 'took_seconds', kind: 'histogram', help: 'Took.', read: took.read })
    return { metrics, took }
  }
  const one = create()
  for (const seconds of [0.1, 0.5, 2]) one.took.observe({ tier: 's3' }, seconds)
  const two = create()
  two.metrics.goOnFrom(one.metrics)
  assert.equal(
    await two.metrics.render(),
    '# HELP took_seconds Took.\n# TYPE took_seconds histogram\n',
    'no series yet',
  )
  two.took.observe({ tier: 's3' }, 0.1)
  assert.equal(
    await two.metrics.render(),
    [
      '# HELP took_seconds Took.',
      '# TYPE took_seconds histogram',
      'took_seconds_bucket{tier="s3",le="0.1"} 2',
      'took_seconds_bucket{tier="s3",le="1"} 3',
      'took_seconds_bucket{tier="s3",le="+Inf"} 4',
      'took_seconds_sum{tier="s3"} 2.7',
      'took_seconds_count{tier="s3"} 4',
      '',
    ].join('\n'),
  )
})

test('the page of all metrics and log events is up to date (npm run schema)', () => {
  assert.equal(readFileSync(new URL('../../docs/observe.md', import.meta.url), 'utf8'), observe())
})
