// Documents in one pass: the same links, refusals and paths as the libraries of the ecosystem give for every block, whole or
// broken, and no piece of the work is long.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import fc from 'fast-check'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { blocksBelow, eachLinkInSlices } from '../../src/ipld/block-links.ts'
import { documentLinks, documentLinksNow, stepIntoDocument, visitDocument } from '../../src/ipld/documents.ts'
import { anyText } from '../support/any-text.ts'
import { anyChanges, changed } from '../support/changes.ts'
import { runs } from '../support/property.ts'

const digest = (length: number) => fc.uint8Array({ minLength: length, maxLength: length })
const cids = fc.oneof(
  digest(32).map((bytes) => CID.createV1(0x55, create(0x12, bytes))),
  digest(32).map((bytes) => CID.createV0(create(0x12, bytes))),
  digest(64).map((bytes) => CID.createV1(0x0129, create(0x13, bytes))),
  digest(3).map((bytes) => CID.createV1(0x70, create(0, bytes))),
)
const names = fc.oneof(
  fc.constantFrom('/', 'bytes', 'a', '0', '1', '', '__proto__', '\ufeffa', 'é', '\u{1f600}'),
  anyText({ maxLength: 40 }),
)
const { value: documents } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 4, withCrossShrink: true },
    fc.oneof(
      cids,
      fc.uint8Array({ maxLength: 30 }),
      fc.maxSafeInteger(),
      fc.bigInt({ min: -(2n ** 64n), max: 2n ** 64n - 1n }),
      fc.double({ noNaN: true, noDefaultInfinity: true }),
      fc.constantFrom(null, true, false),
      names,
    ),
    fc.array(tie('value'), { maxLength: 30 }),
    fc.uniqueArray(fc.tuple(names, tie('value')), { maxLength: 6, selector: ([name]) => name }).map(Object.fromEntries),
  ),
}))

type Codec = { readonly code: number; encode(value: unknown): Uint8Array; decode(bytes: Uint8Array): unknown }
const codecs: readonly Codec[] = [dagCbor, dagJson]
const idOf = (code: number): CID => CID.createV1(code, create(0x12, new Uint8Array(32)))
const atOnce = () => undefined

/** What a change puts in is most often what means something. */
const telling = Buffer.from(
  '{}[],:"\\/+-.0123456789eEuntrflsba \n=\xff\xf0\xc3\x80\x40\x42\x58\x60\x62\xa1\xa2\xd8\x2a\xf7\xf9\xfb\x18\x19\x1b\x81\x98',
  'latin1',
)
const changes = anyChanges(3, telling)

/** A map whose `/` is its `bytes` is taken for a CID by the encoders, which throw. */
function encoded(codec: Codec, value: unknown): Uint8Array {
  try {
    return codec.encode(value)
  } catch {
    return codec.encode(null)
  }
}

/** The links in a decoded value, sorted: objects have lost the order. */
function linksIn(value: unknown, found: string[] = []): string[] {
  // A CID that was parsed remembers how it was spelled.
  if (value instanceof CID) found.push(CID.decode(value.bytes).toString())
  else if (value !== null && typeof value === 'object' && !(value instanceof Uint8Array))
    for (const inner of Object.values(value)) linksIn(inner, found)
  return found
}

/** A path to somewhere in a value, or beyond it, and what it leads to. */
function walk(value: unknown, turns: readonly number[]): { path: string[]; end: unknown } {
  const path: string[] = []
  let at = value
  for (const turn of turns) {
    if (at === null || typeof at !== 'object' || at instanceof Uint8Array) {
      if (turn % 2 === 0) return { path: [...path, 'beyond'], end: undefined }
      break
    }
    if (at instanceof CID) break
    const keys = Object.keys(at)
    const key = turn % 7 === 6 ? 'nowhere' : (keys[turn % Math.max(1, keys.length)] ?? 'nowhere')
    path.push(key)
    if (!Object.hasOwn(at, key)) return { path, end: undefined }
    at = (at as Record<string, unknown>)[key]
  }
  return { path, end: path.length > 0 ? (at instanceof CID ? at : 'value') : undefined }
}

for (const [name, codec] of Object.entries({ 'dag-cbor': codecs[0] as Codec, 'dag-json': codecs[1] as Codec })) {
  test(`every ${name} block, also mutated → agrees with the library`, async () => {
    const property = fc.asyncProperty(documents, changes, fc.array(fc.nat()), async (whole, made, turns) => {
      const bytes = made.reduce(changed, encoded(codec, whole))
      const block = { cid: idOf(codec.code), bytes }
      let decoded: unknown
      try {
        decoded = codec.decode(bytes)
      } catch {
        assert.throws(() => documentLinksNow(block))
        return
      }
      const links = documentLinksNow(block).map(({ Hash }) => Hash.toString())
      assert.deepEqual(links.sort(), linksIn(decoded).sort())
      const { path, end } = walk(decoded, turns)
      if (path.length === 0) return
      const step = await stepIntoDocument(block, path, atOnce)
      if (end instanceof CID) {
        assert.ok(typeof step === 'object')
        assert.deepEqual([step.link.Hash.bytes, step.used], [end.bytes, path.length])
      } else assert.equal(step, end)
    })
    await fc.assert(property, runs(150))
  })
}

test('non-minimal numbers in a CID → refused as by the library', () => {
  for (const hash of ['12808080808080808000', '92808080808080808000', '9280808080808080808000', '9200', '928000', '12'])
    for (const tail of ['00', '0100', '8000', '']) {
      const cid = Buffer.from(`000155${hash}${tail}`, 'hex')
      const bytes = Buffer.concat([Buffer.from([0xd8, 0x2a, 0x40 + cid.byteLength]), cid])
      let isRead = true
      try {
        dagCbor.decode(bytes)
      } catch {
        isRead = false
      }
      const links = () => documentLinksNow({ cid: idOf(dagCbor.code), bytes }).map(({ Hash }) => Hash.toString())
      if (isRead) assert.equal(links().length, 1, `${hash}${tail}`)
      else assert.throws(links, /no CID/, `${hash}${tail}`)
    }
})

test('tag of more bits than a number has → refused', () => {
  const bytes = Buffer.concat([Buffer.from('dbffffffffffffffff45', 'hex'), Buffer.of(0, 1, 0x55, 0, 0)])
  assert.throws(() => documentLinksNow({ cid: idOf(dagCbor.code), bytes }), /none of a link/)
})

test('dag-json beyond JSON → read as by the library', () => {
  const cid = 'bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku'
  const bytesOf = (text: string) => Buffer.from(text, 'latin1')
  const forms = [
    ...[
      '',
      ' ',
      '1',
      '1 ',
      ' 1',
      '[] ',
      '[1,]',
      '{"a":1,}',
      '{"a":1,,}',
      '{,}',
      '{"a":1 "b":2}',
      '[,1]',
      '{"a"}',
      '{a:1}',
    ],
    ...[
      '-',
      '-0',
      '01',
      '1.',
      '1.e',
      '0.1.2',
      '1.2.3',
      '0e1',
      '1e',
      '1e+',
      '-.5',
      '+1',
      '.5',
      '1E5',
      '9e999',
      '-a',
      '- 1',
    ],
    ...[
      '"\\\'"',
      '"\\a"',
      '"\\u00e9"',
      '"\\u00E9"',
      '"\\u00g9"',
      '"\\u12"',
      '"\\u123',
      '"\t"',
      '"a',
      '"\xe2"',
      '"\xf0"',
      '["\xf0"]',
    ],
    ...['nul', 'nulll', 'true', 'truefalse', '[null,false]', 'undefined', '{"a":1,"a":2}', '{"a":1,"\\u0061":2}'],
    ...['{"\xff":1,"\xfe":2}', '{"\xc3\xa9":1,"\\u00e9":2}', '{"__proto__":1}', '{"__proto__":1,"__proto__":2}'],
    ...[
      `{"/":"${cid}"}`,
      `{"/":"${cid}",}`,
      `{"/":"${cid}","a":1}`,
      `{"\\u002f":"${cid}"}`,
      `{"/":"${cid}"} `,
      `[{ "/" : "${cid}" }]`,
    ],
    ...[
      `{"a":1,"/":"${cid}"}`,
      `{"/":{"/":"${cid}"}}`,
      `{"/":{"a":{"/":"${cid}"}}}`,
      '{"/":"x"}',
      '{"/":1}',
      '{"/":{}}',
      '{"/":[]}',
    ],
    ...[
      '{"/":{"bytes":"AA"}}',
      '{"/":{"bytes":"AA==="}}',
      '{"/":{"bytes":"AB"}}',
      '{"/":{"bytes":"A"}}',
      '{"/":{"bytes":"-_"}}',
    ],
    ...[
      '{"/":{"bytes":"AA","a":1}}',
      '{"/":{"bytes":"AA"},"a":1}',
      '{"/":{"bytes":"AA",},}',
      '{"/":{"bytes":1}}',
      '{"/":{"bytes":{}}}',
    ],
    ...[
      '{"/":{"bytes":""}}',
      '{"/":{"a":"AA"}}',
      '{"/":{"bytes":"\\u0041A"}}',
      '{"/":{"bytes":{"/":"x"}}}',
      '[{"/":{"bytes":"AA"}},1]',
    ],
    ...["\\u00e9\\'\\\\", '\xc3\xa9', '\xff\\n', '\\a', '\n', '\\u00g9'].flatMap((text) => [
      `["${text.repeat(20_000)}",{"/":"${cid}"}]`,
      `["${text.repeat(20_000)}\\"`,
    ]),
    `{"/":{"bytes":"${'AA'.repeat(20_000)}=="}}`,
    `{x${'a'.repeat(20_000)}":1}`,
  ]
  for (const form of forms) {
    const block = { cid: idOf(dagJson.code), bytes: bytesOf(form) }
    let wanted: string[] | undefined
    try {
      wanted = linksIn(dagJson.decode(block.bytes))
    } catch {}
    let got: string[] | undefined
    try {
      got = documentLinksNow(block).map(({ Hash }) => Hash.toString())
    } catch {}
    assert.deepEqual(got, wanted, form)
  }
})

const full = 640 * 1024
const list = (count: number, item: Uint8Array): Uint8Array => {
  const head = Buffer.of(0x9a, 0, 0, 0, 0)
  head.writeUInt32BE(count, 1)
  return Buffer.concat([head, Buffer.alloc(count * item.byteLength, item)])
}
const text = (item: string): Uint8Array => Buffer.from(`[${`${item},`.repeat(full / (item.length + 1) - 1)}${item}]`)

test('large block → scanned in slices; hostile CID → refused', async () => {
  const base58 = `{"/":"z${'1a'.repeat(full / 2)}"}`
  const blocks: [number, Uint8Array][] = [
    [dagCbor.code, list(full - 5, Buffer.of(0x80))],
    [dagCbor.code, list((full >> 3) - 1, Buffer.of(0xd8, 0x2a, 0x45, 0, 1, 0x55, 0, 0))],
    [dagJson.code, text('{}')],
    [dagJson.code, text('{"/":"QmYjtig7VJQ6XsnUjqqJvj7QaMcCAwtrgNdahSiFofrE7o"}')],
    [dagJson.code, Buffer.from(base58)],
  ]
  for (const [code, bytes] of blocks) {
    let stops = 0
    const yieldIfDue = () => void stops++
    await documentLinks({ cid: idOf(code), bytes }, yieldIfDue).catch((error: unknown) =>
      assert.match(String(error), /a CID that is too long/),
    )
    assert.ok(stops > 5 || bytes.at(-1) === 0x7d, `${stops} stops`)
  }
})

test('large block → at most 1,000 CIDs per slice', async () => {
  const bytes = list((full >> 3) - 1, Buffer.of(0xd8, 0x2a, 0x45, 0, 1, 0x55, 0, 0))
  let [all, turn, most] = [0, 0, 0]
  const each = (): void => {
    all++
    most = Math.max(most, ++turn)
  }
  await eachLinkInSlices({ cid: idOf(dagCbor.code), bytes }, each, () => void (turn = 0))
  assert.equal(all, (full >> 3) - 1)
  assert.ok(most <= 1000, `${most} in one turn`)
})

test('traversal → identity CIDs replaced, each block once', async () => {
  const empty = CID.createV1(0x55, create(0, new Uint8Array()))
  const [left, right] = [1, 2].map((seed) => CID.createV1(0x55, create(0x12, new Uint8Array(32).fill(seed)))) as [
    CID,
    CID,
  ]
  const inline = CID.createV1(dagCbor.code, create(0, dagCbor.encode([empty, right])))
  const bytes = dagCbor.encode([...Array(3000).fill(empty), left, left, inline, ...Array(3000).fill(left)])
  const seen = new Set<string>()
  const isNew = (cid: CID): boolean => seen.size < seen.add(cid.toString()).size
  const below = await blocksBelow({ cid: idOf(dagCbor.code), bytes }, isNew)
  assert.deepEqual(below.map(String), [left, right].map(String))
})

test('visitor gets names; excessive nesting → refused', async () => {
  const told: string[] = []
  const structure = {
    open: (isList: boolean) => void told.push(isList ? '[' : '{'),
    close: () => void told.push('end'),
    key: (name: string) => void told.push(name),
    scalar: (value: unknown) => void told.push(typeof value),
  }
  const visitor = { link: () => void told.push('link'), structure }
  const value = { a: [1, 'b', Uint8Array.of(1)], '/': { c: idOf(0x55) } }
  for (const codec of codecs) {
    told.length = 0
    await visitDocument({ cid: idOf(codec.code), bytes: codec.encode(value) }, visitor, atOnce)
    const a = ['a', '[', 'number', 'string', 'object', 'end']
    const slash = ['/', '{', 'c', 'link', 'end']
    assert.deepEqual(told.join(' '), ['{', ...slash, ...a, 'end'].join(' '))
  }
  const deep = Buffer.alloc(100_000, 0x81)
  assert.throws(() => documentLinksNow({ cid: idOf(dagCbor.code), bytes: deep }), /nested too deep/)
})
