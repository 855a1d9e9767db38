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
