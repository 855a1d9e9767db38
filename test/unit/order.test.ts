// Who goes first and how long is waited: a table.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { order } from '../../src/retrieval/upstreams/pool.ts'

const at = (who: string, load: number, typicalMs?: number) => ({ who, load, typicalMs })

test('lowest load goes first', () => {
  assert.deepEqual(
    order([at('slow', 900), at('quick', 30), at('middle', 200)], 'auto').map(({ who }) => who),
    ['quick', 'middle', 'slow'],
  )
})

const patience: { name: string; usual: (number | undefined)[]; hedge: 'auto' | number; expected: number[] }[] = [
  { name: 'nothing known: a fixed patience', usual: [undefined, undefined], hedge: 'auto', expected: [300, 300] },
  { name: 'what is usual for it', usual: [120, 400], hedge: 'auto', expected: [120, 400] },
  { name: 'never under 50 ms', usual: [5, 10], hedge: 'auto', expected: [50, 50] },
  { name: 'never over two seconds', usual: [4000, 9000], hedge: 'auto', expected: [2000, 2000] },
  { name: 'an unknown one: as the quickest known', usual: [undefined, 100], hedge: 'auto', expected: [100, 100] },
  { name: 'a fixed delay', usual: [120, 400], hedge: 250, expected: [250, 250] },
  { name: 'all at once', usual: [120, 400], hedge: 0, expected: [0, 0] },
]
for (const { name, usual, hedge, expected } of patience) {
  test(`hedge delay: ${name}`, () => {
    const steps = order(
      usual.map((typicalMs, index) => at(String(index), index, typicalMs)),
      hedge,
    )
    assert.deepEqual(
      steps.map(({ hedgeDelayMs }) => hedgeDelayMs),
      expected,
    )
  })
}

test('unknown upstream → asked with the best, not waited for', () => {
  const steps = order([at('quick', 30, 60), at('slow', 900, 900), { ...at('new', 1000), isUntried: true }], 'auto')
  assert.deepEqual(
    steps.map(({ who, hedgeDelayMs }) => [who, hedgeDelayMs]),
    [
      ['quick', 0],
      ['new', 60],
      ['slow', 900],
    ],
  )
})

test('nothing known → asked one after another', () => {
  const steps = order(
    [
      { ...at('one', 5), isUntried: true },
      { ...at('two', 5), isUntried: true },
    ],
    'auto',
  )
  assert.equal(steps[0]?.who, 'one')
})
