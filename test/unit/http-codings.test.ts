// Content codings: what a client takes, which answers have one, what is compressed at once and what is kept of it.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { createCompression } from '../../src/http/compression.ts'
import { acceptedOf, type Coding, codedTag, isCompressible, tagOfCopy } from '../../src/http/content/negotiate.ts'
import { createResponseCache } from '../../src/http/content/response-cache.ts'
import { noise, text } from '../support/fixtures.ts'

describe('Accept-Encoding', () => {
  const rows: readonly (readonly [header: string, best: Coding | undefined, all: string])[] = [
    ['', undefined, ''],
    ['identity', undefined, ''],
    ['deflate', undefined, ''],
    ['gzip', 'gzip', 'gzip'],
    ['x-gzip', 'gzip', 'gzip'],
    ['GZIP', 'gzip', 'gzip'],
    ['gzip, deflate', 'gzip', 'gzip'],
    ['gzip, deflate, br', 'br', 'br gzip'],
    ['gzip, deflate, br, zstd', 'br', 'br zstd gzip'],
    ['zstd , gzip', 'zstd', 'zstd gzip'],
    ['br;q=0.5, gzip', 'gzip', 'gzip br'],
    ['br;q=0.5, gzip;q=0.8, zstd;q=0.8', 'zstd', 'zstd gzip br'],
    ['br ; q = 0.9 , gzip ; Q=1.0', 'gzip', 'gzip br'],
    ['br;q=0, gzip', 'gzip', 'gzip'],
    ['br;q=0.000', undefined, ''],
    ['gzip;q=0.001', 'gzip', 'gzip'],
    ['*', 'br', 'br zstd gzip'],
    ['br;q=0, *', 'zstd', 'zstd gzip'],
    ['*;q=0', undefined, ''],
    ['gzip, *;q=0', 'gzip', 'gzip'],
    ['identity;q=0', undefined, ''],
    ['identity;q=0, gzip;q=0.1', 'gzip', 'gzip'],
    ['identity;q=0, *', 'br', 'br zstd gzip'],
    ['identity, gzip;q=0.5', undefined, 'gzip'],
    ['identity;q=0.5, gzip;q=1.0', 'gzip', 'gzip'],
    ['identity, gzip', 'gzip', 'gzip'],
    ['identity;q=0.9, *;q=0.8', undefined, 'br zstd gzip'],
    ['gzip;q=2', undefined, ''],
    ['gzip;q=-1', undefined, ''],
    ['gzip;q=', undefined, ''],
    ['gzip;q=one', undefined, ''],
    ['gzip;q=1.5', undefined, ''],
    ['gzip;level=9', 'gzip', 'gzip'],
    [',, gzip ,', 'gzip', 'gzip'],
    ['gzip br', undefined, ''],
  ]
  for (const [header, best, all] of rows) {
    test(`${JSON.stringify(header)} → ${best ?? 'plain'}`, () =>
      assert.deepEqual(acceptedOf(header), { best, all: all.split(' ').filter(Boolean) }))
  }
})

test('only text of medium size is compressed', () => {
  const size = 2000
  for (const type of [
    ...['application/json', 'text/html; charset=utf-8', 'text/css', 'text/javascript', 'image/svg+xml'],
    ...['application/geo+json', 'application/xml', 'application/wasm', undefined],
  ])
    assert.ok(isCompressible({ type, size }), type)
  for (const type of [
    ...['application/octet-stream', 'application/vnd.ipld.raw', 'application/vnd.ipld.car; version=1'],
    ...['application/x-tar', 'image/png', 'video/mp4', 'application/gzip', 'application/cbor', 'application/pdf'],
  ])
    assert.ok(!isCompressible({ type, size }), type)
  const type = 'application/json'
  assert.deepEqual(
    [0, 1024, 1025, 8 * 1024 * 1024, 8 * 1024 * 1024 + 1, undefined].map((bytes) =>
      isCompressible({ type, size: bytes }),
    ),
    [false, false, true, true, false, true],
  )
})

describe('If-None-Match with codings', () => {
  const rows: readonly (readonly [header: string | undefined, takes: string, tag: string | undefined])[] = [
    [undefined, 'br', undefined],
    ['"c"', '', '"c"'],
    ['"c"', 'br', '"c"'],
    ['"c-br"', 'br', '"c-br"'],
    ['W/"c-br"', 'br', '"c-br"'],
    ['"c-gzip"', 'br, gzip', '"c-gzip"'],
    ['"c", "c-br"', 'br', '"c-br"'],
    ['"c-br", "c"', 'identity, br;q=0.5', '"c"'],
    ['"c-br"', 'identity, br;q=0.5', '"c-br"'],
    ['"c-br", "c"', '', '"c"'],
    ['"c-br"', '', undefined],
    ['"c-br"', 'gzip', undefined],
    ['"other"', 'br', undefined],
    ['*', 'br', '"c"'],
  ]
  for (const [header, takes, tag] of rows) {
    test(`${header}, client accepts ${takes || 'none'} → ${tag}`, () =>
      assert.equal(tagOfCopy(header, '"c"', acceptedOf(takes)), tag))
  }
})

const all: readonly Coding[] = ['br', 'zstd', 'gzip']
const long = text(JSON.stringify(Array.from({ length: 4000 }, (_, id) => ({ id, name: `number ${id}` }))))

async function joined(pieces: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const found: Uint8Array[] = []
  for await (const piece of pieces) found.push(piece)
  return Buffer.concat(found)
}

describe('compression', () => {
  test('concurrent compressions → limited; same name → shared', async () => {
    const compression = createCompression({ isOn: true })
    const [one, other] = [compression.compress(long, 'br', 'a'), compression.compress(long, 'gzip', 'b')]
    assert.equal(compression.compress(long, 'zstd', 'c'), undefined)
    const same = compression.compress(long, 'br', 'a')
    const made = await one
    assert.equal(await same, made)
    assert.equal(made?.buffer.byteLength, made?.byteLength, 'what is kept holds no more than itself')
    await other
    assert.equal(compression.counts.busy, 1)
    assert.ok(await compression.compress(long, 'zstd', 'c'), 'there is room again')
    assert.deepEqual(compression.counts.made, { br: 1, zstd: 1, gzip: 1 })
  })

  describe('streams', () => {
    /** Says how many pieces were asked for, and whether it was ended. */
    function counted(max = Number.POSITIVE_INFINITY) {
      const seen = { asked: 0, isOver: false }
      async function* read() {
        try {
          for (; seen.asked < max; seen.asked++) yield noise(64 * 1024, seen.asked)
          throw new Error('no more of it')
        } finally {
          seen.isOver = true
        }
      }
      return { seen, pieces: read() }
    }
    const until = async (isTrue: () => boolean) => {
      for (const end = performance.now() + 10_000; !isTrue(); await setImmediate())
        assert.ok(performance.now() < end, 'it did not come to that')
    }

    test('closed before it is read → slot freed', () => {
      const compression = createCompression({ isOn: true })
      const make = () => compression.stream(counted().pieces, 'gzip')
      const [unread] = Array.from({ length: 8 }, make)
      assert.equal(make(), undefined)
      unread?.close()
      assert.ok(make())
    })

    for (const coding of all) {
      test(`${coding}: slow reader → no reading ahead, may leave`, { timeout: 10_000 }, async () => {
        const { seen, pieces } = counted()
        const reading = createCompression({ isOn: true }).stream(pieces, coding)?.[Symbol.asyncIterator]()
        await reading?.next()
        let [before, quiet] = [-1, 0]
        for (; quiet < 200; quiet = seen.asked === before ? quiet + 1 : 0) {
          before = seen.asked
          await setImmediate()
        }
        assert.ok(seen.asked < 100, `${seen.asked} pieces`)
        await reading?.return?.(undefined)
        await until(() => seen.isOver)
      })

      test(`${coding}: source fails → reader gets the same error`, async () => {
        const { pieces } = counted(3)
        const coded = createCompression({ isOn: true }).stream(pieces, coding)
        assert.ok(coded)
        await assert.rejects(joined(coded), /no more of it/)
      })
    }
  })
})

describe('coded forms in the response cache', () => {
  const headers = ['Content-Type', 'application/json', 'ETag', '"c"', 'Cache-Status', 'x', 'Content-Length', '2000']
  const answer = { headers, body: Buffer.alloc(2000), isLent: false, etag: '"c"', isCompressible: true }
  const br = { ...answer, coded: { coding: 'br', body: Buffer.alloc(500) } } as const
  const gzip = { ...answer, coded: { coding: 'gzip', body: Buffer.alloc(600) } } as const

  test('counted with the identity form; one coding keeps the others', () => {
    const hot = createResponseCache({ maxBytes: 100_000, maxItemBytes: 10_000 })
    hot.add('/k', answer)
    const before = hot.bytes
    hot.add('/k', br)
    assert.equal(hot.get('/k')?.coded.br?.etag, codedTag('"c"', 'br'))
    assert.ok(hot.bytes >= before + 500)
    hot.add('/k', gzip)
    assert.deepEqual(Object.keys(hot.get('/k')?.coded ?? {}), ['br', 'gzip'])
    assert.equal(hot.items, 1)
    hot.clear()
    assert.deepEqual([hot.get('/k'), hot.bytes], [undefined, 0])
  })

  test('purged meanwhile → not stored; another ETag → replaced', () => {
    const hot = createResponseCache({ maxBytes: 100_000, maxItemBytes: 10_000 })
    const begun = hot.epoch
    hot.clear()
    hot.add('/k', br, begun)
    assert.equal(hot.bytes, 0)
    hot.add('/k', br)
    hot.add('/k', { ...answer, etag: '"d"' })
    assert.deepEqual(hot.get('/k')?.coded, {})
  })

  test('no space for both → identity form stays', () => {
    const hot = createResponseCache({ maxBytes: 4500, maxItemBytes: 3000 })
    hot.add('/k', answer)
    hot.add('/k', { ...br, coded: { coding: 'br', body: Buffer.alloc(1900) } })
    assert.deepEqual(hot.get('/k')?.coded, {})
    assert.ok(hot.bytes <= 4500)
  })
})
