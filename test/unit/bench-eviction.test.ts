// The caches that `bench/eviction.ts` compares do what their names say.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Cache, lru, numbers, orders, zipf } from '../../bench/eviction.ts'

const readsOf = (cache: Cache, keys: readonly number[]): boolean[] => keys.map((key) => cache.read(key))

test('an LRU cache drops what was read longest ago', () => {
  assert.deepEqual(readsOf(lru(2), [1, 2, 1, 3, 1, 2]), [false, false, true, false, true, false])
})

for (const [name, make] of Object.entries(orders)) {
  test(`${name} holds no more than fits, and all that fits`, () => {
    const cache = make(10)
    const ten = Array.from({ length: 10 }, (_, key) => key)
    readsOf(cache, ten)
    assert.ok(readsOf(cache, ten).every((isHit) => isHit))
    const next = zipf(1000, 0.6, numbers(1))
    for (let at = 0; at < 2000; at++) cache.read(next())
    // Each read may bring one in and one out: what is there is found before anything else is asked for.
    const there = Array.from({ length: 1000 }, (_, key) => key).filter((key) => cache.read(key))
    assert.ok(there.length <= 30, `${there.length} of 1000 were there`)
  })

  test(`${name} answers the most wanted from a cache of a tenth`, () => {
    const [cache, next] = [make(100), zipf(1000, 1.2, numbers(2))]
    const hits = Array.from({ length: 20_000 }, () => cache.read(next())).filter((isHit) => isHit)
    assert.ok(hits.length > 0.65 * 20_000, `${hits.length} of 20000`)
  })
}
