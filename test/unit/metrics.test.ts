import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createMetrics } from '../../src/observe/metrics.ts'

test('what is read is what is shown, labels escaped', () => {
  const metrics = createMetrics()
  let hits = 1
  metrics.add('hits_total', 'counter', 'Hits.', () => hits)
  metrics.add('state', 'gauge', 'State.', () => [{ labels: { upstream: 'a"b\\c\nd' }, value: 2 }])
  hits++
  assert.equal(
    metrics.render(),
    '# HELP hits_total Hits.\n# TYPE hits_total counter\nhits_total 2\n# HELP state State.\n# TYPE state gauge\nstate{upstream="a\\"b\\\\c\\nd"} 2\n',
  )
})

test('a name is registered once', () => {
  const metrics = createMetrics()
  metrics.add('hits_total', 'counter', 'Hits.', () => 1)
  assert.throws(() => metrics.add('hits_total', 'counter', 'Hits.', () => 1), /twice/)
})

test('metrics: counters continue after a reload, gauges show the present', () => {
  const create = (counts: Record<string, number>) => {
    const metrics = createMetrics()
    const samples = () => Object.entries(counts).map(([tier, value]) => ({ labels: { tier }, value }))
    metrics.add('hits_total', 'counter', 'Hits.', samples)
    metrics.add('items', 'gauge', 'Items.', samples)
    const valueAt = (series: string) => {
      const line = metrics
        .render()
        .split('\n')
        .find((one) => one.startsWith(`${series} `))
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
  assert.equal(two.valueAt('hits_total{tier="memory"}'), 6)
  assert.equal(two.valueAt('hits_total{tier="disk"}'), 8)
  assert.equal(two.valueAt('hits_total{tier="s3"}'), undefined)
  assert.equal(two.valueAt('items{tier="memory"}'), 2)
  // And what was gone comes back.
  const three = create({ s3: 0, memory: 0 })
  three.metrics.goOnFrom(two.metrics)
  assert.equal(three.valueAt('hits_total{tier="s3"}'), 2)
  assert.equal(three.valueAt('hits_total{tier="memory"}'), 6)
})
