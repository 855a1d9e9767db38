// The cache in memory that the memory tier and the response cache share.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { numbers, zipf } from '../../bench/work/zipf.ts'
import { AdmittingCache, remembered } from '../../src/core/cache.ts'

const fits = 500
const files = 20 * fits
const count = 20 * files

type Asked = { readonly key: string; readonly isReader: boolean }
type Seen = { readonly hits: number; readonly made: number }

/** The share of readers' requests that were hits, and of all for which a value was made, behind a time to fill. */
function run(probation: number, ask: (at: number) => Asked): Seen {
  const cache = new AdmittingCache<string>({ maxBytes: fits * 100, probation })
  let [hits, made, readers, counted] = [0, 0, 0, 0]
  for (let at = 0; at < count; at++) {
    const { key, isReader } = ask(at)
    const isCounted = at > count / 4
    const isHit = cache.get(key) !== undefined
    let isMade = false
    if (!isHit) cache.set(key, 100, () => String((isMade = true)))
    if (!isCounted) continue
    counted++
    if (isMade) made++
    if (!isReader) continue
    readers++
    if (isHit) hits++
  }
  return { hits: hits / readers, made: made / counted }
}

function readers(): (at: number) => Asked {
  const next = zipf(files, 0.9, numbers(1))
  return () => ({ key: `/ipfs/${next()}`, isReader: true })
}

function besideCrawler(): (at: number) => Asked {
  const next = readers()
  return (at) => (at % 2 === 0 ? { key: `/crawled/${at}`, isReader: false } : next(at))
}

for (const probation of [0, 0.1])
  describe(`with ${probation * 100} % on probation`, () => {
    test('crawler among readers → at most 2 points fewer hits', () => {
      const [alone, beside] = [run(probation, readers()), run(probation, besideCrawler())]
      // LRU has 49 and 37 %.
      assert.ok(alone.hits > 0.54, `${alone.hits} hit`)
      assert.ok(beside.hits > alone.hits - 0.02, `${alone.hits} alone, ${beside.hits} beside a crawler`)
    })

    test('set a fifth larger than the cache → mostly stays', () => {
      const { hits } = run(probation, (at) => ({ key: `/ipfs/${at % (1.2 * fits)}`, isReader: true }))
      assert.ok(hits > 0.7, `${hits} hit`)
    })

    test('values of any size → never more bytes than the limit', () => {
      const random = numbers(3)
      const cache = new AdmittingCache<number>({ maxBytes: 10_000, probation })
      for (let at = 0; at < 20_000; at++) {
        const bytes = 1 + Math.floor(random() ** 4 * 10_100)
        cache.set(String(Math.floor(random() * 300)), bytes, () => bytes)
        cache.get(String(Math.floor(random() * 300)))
        if (at % 7 === 0) cache.delete(String(Math.floor(random() * 300)))
        assert.ok(cache.bytes <= 10_000, `${cache.bytes} bytes`)
      }
      const kept = Array.from({ length: 300 }, (_, key) => cache.peek(String(key)) ?? 0)
      assert.equal(
        kept.reduce((sum, bytes) => sum + bytes),
        cache.bytes,
      )
      assert.equal(kept.filter((bytes) => bytes > 0).length, cache.size)
      cache.clear()
      assert.deepEqual([cache.bytes, cache.size], [0, 0])
    })
  })

const full = (probation: number): AdmittingCache<string> => {
  const cache = new AdmittingCache<string>({ maxBytes: 1000, probation })
  for (let at = 0; at < 10; at++) cache.set(`first ${at}`, 100, () => 'first')
  return cache
}

test('no probation, full, first sight → not made', () => {
  const cache = full(0)
  assert.equal(
    cache.set('new', 100, () => assert.fail('it was made')),
    undefined,
  )
  assert.equal(
    cache.set('new', 100, () => 'kept'),
    'kept',
  )
  assert.equal(cache.get('new'), 'kept')
})

test('newest on probation → found, however large', () => {
  const cache = full(0.1)
  cache.set('large', 1000, () => 'large')
  assert.equal(cache.get('large'), 'large')
  assert.deepEqual([cache.bytes, cache.size], [1000, 1])
})

test('seen again → spares what was read, once', () => {
  const cache = full(0)
  for (const key of ['new', 'newer', 'newest']) cache.set(key, 100, () => key)
  cache.get('first 0')
  for (let at = 1; at < 10; at++) cache.get(`first ${at}`)
  const admitted = ['new', 'newer', 'newest'].map((key) => cache.set(key, 100, () => key))
  assert.deepEqual(admitted, [undefined, undefined, undefined])
  for (let at = 0; at < 8; at++) cache.set('new', 100, () => 'new')
  assert.equal(cache.get('new'), 'new')
  assert.equal(cache.get('first 0'), undefined)
})

test('value that grows → others evicted', () => {
  const cache = full(0)
  cache.set('first 9', 500, () => 'grown')
  assert.equal(cache.get('first 9'), 'grown')
  assert.deepEqual([cache.bytes, cache.size], [1000, 6])
})

test('short text → computed once', () => {
  let computed = 0
  const length = remembered((text) => {
    computed++
    return { length: text.length }
  })
  assert.equal(length('br, gzip'), length('br, gzip'))
  assert.equal(computed, 1)
  const long = 'x'.repeat(5000)
  assert.deepEqual([length(long), length(long)], [{ length: 5000 }, { length: 5000 }])
  assert.equal(computed, 3)
})
