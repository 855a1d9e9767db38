// The page about scaling is as its model makes it, the model is right where that is known, and so are the caches that it is compared with.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { type Cache, lru, numbers, orders, zipf } from '../../bench/eviction.ts'
import { hitRatio } from '../../bench/model/model.ts'
import { made } from '../../bench/model/page.ts'

const root = new URL('../../', import.meta.url)

test('docs/scaling.md and its plots are as bench/model makes them', () => {
  for (const [path, text] of Object.entries(made()))
    assert.ok(
      readFileSync(fileURLToPath(new URL(path, root)), 'utf8') === text,
      `${path} is another: node bench/model/main.ts makes it`,
    )
})

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

test('the approximation of the model is what an LRU cache does', () => {
  const [cache, next] = [lru(500), zipf(5000, 0.9, numbers(3))]
  let hits = 0
  for (let at = 0; at < 60_000; at++) if (cache.read(next()) && at >= 10_000) hits++
  assert.ok(Math.abs(hits / 50_000 - hitRatio(500, 5000, 0.9)) < 0.02, `${hits / 50_000}, ${hitRatio(500, 5000, 0.9)}`)
})
