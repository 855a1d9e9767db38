import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { monitoring } from '../../scripts/monitoring.ts'
import { createHistory } from '../../src/observe/history.ts'
import { createMetrics } from '../../src/observe/metrics.ts'
import {
  type Answered,
  createHistograms,
  createRecentFailures,
  createRequestCounts,
  type FailedRequest,
  quantileOf,
} from '../../src/observe/requests.ts'
import { createFakeClock } from '../support/fake-clock.ts'

test('histogram counts at or below bounds, continues after reload', async () => {
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

test('metrics and events page → up to date (npm run schema)', () => {
  assert.equal(readFileSync(new URL('../../docs/monitoring.md', import.meta.url), 'utf8'), monitoring())
})

test('quantiles are interpolated within bucket bounds', () => {
  const bounds = [1, 2, 4]
  assert.equal(quantileOf(bounds, [0, 0, 0, 0], 0.5), undefined)
  assert.equal(quantileOf(bounds, [], 0.5), undefined)
  assert.equal(quantileOf(bounds, [10, 0, 0, 0], 0.5), 0.5)
  assert.equal(quantileOf(bounds, [5, 0, 5, 0], 0.5), 1)
  assert.equal(quantileOf(bounds, [5, 0, 10, 0], 0.5), 2.5)
  assert.equal(quantileOf(bounds, [0, 0, 0, 3], 0.5), 4, 'above all bounds it is at least the last')
})

test('last hundred failures, newest first, bounded text', () => {
  const failures = createRecentFailures()
  const failed = (at: number): FailedRequest => ({
    ...{ at, request: undefined, client: undefined, method: 'GET', path: '/', route: 'ipfs', status: 404 },
    ...{ isCut: false, ms: 1, why: 'x'.repeat(10_000) },
  })
  for (let at = 0; at < 250; at++) failures.note(failed(at))
  const list = failures.list()
  assert.deepEqual(
    list.map(({ at }) => at),
    Array.from({ length: 100 }, (_, at) => 249 - at),
  )
  assert.equal(list[0]?.why?.length, 500)
})

test('history: ten minutes in spans of five seconds', async () => {
  const clock = createFakeClock()
  const counts = createRequestCounts()
  const history = createHistory(counts, clock)
  const answer = (status: number, firstByteSeconds: number): Answered => ({
    ...{ route: 'ipfs', method: 'GET', status, source: 'upstream', isComplete: true },
    ...{ firstByteSeconds, seconds: 1, bytesIn: 0, bytesOut: 0 },
  })
  for (let at = 0; at < 10; at++) counts.answered(answer(at === 0 ? 404 : at === 1 ? 502 : 200, 0.05))
  await clock.advance(5_000)
  await clock.advance(5_000)
  const [busy, idle] = history.list()
  assert.deepEqual(
    [busy?.requests, busy?.refused, busy?.failed, busy?.seconds, busy?.at],
    [10, 2, 1, 5, clock.now() - 5_000],
  )
  assert.ok((busy?.p50Ms ?? 0) > 25 && (busy?.p50Ms ?? 0) <= 50)
  assert.deepEqual([idle?.requests, idle?.p50Ms], [0, undefined])
  await clock.advance(3_600_000)
  assert.equal(history.list().length, 120)
  history.close()
  assert.equal(clock.timers, 0)
})
