// The decoder of dag-pb: the same as that of the ecosystem for every block, whole or broken, and it makes no CID that is
// not asked for.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as dagPb from '@ipld/dag-pb'
import fc from 'fast-check'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { decodePb, type PbLink } from '../../src/ipld/dag-pb.ts'
import { declaredSize, readNode, startsOf } from '../../src/ipld/unixfs.ts'
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
const links = fc.array(fc.record({ Hash: cids, Name: fc.option(anyText(), { nil: undefined }), Tsize: fc.nat() }), {
  maxLength: 5,
})
const blocks = fc
  .record({ Data: fc.option(fc.uint8Array({ maxLength: 20 }), { nil: undefined }), Links: links })
  .map(({ Data, Links }) => dagPb.encode(dagPb.prepare({ ...(Data && { Data }), Links })))

type Decoded = { readonly Data?: Uint8Array | undefined; readonly Links: Iterable<PbLink | dagPb.PBLink> }

function outcome(decode: (block: Uint8Array) => Decoded, block: Uint8Array): unknown {
  try {
    const { Data, Links } = decode(block)
    const plain = Array.from(Links, ({ Hash, Name, Tsize }) => [Hash.version, Hash.code, [...Hash.bytes], Name, Tsize])
    return { data: Data && [...Data], links: plain }
  } catch {
    return 'no dag-pb'
  }
}

test('every block, also mutated → agrees with @ipld/dag-pb', () => {
  fc.assert(
    fc.property(blocks, anyChanges(), (whole, made) => {
      const block = made.reduce(changed, whole)
      assert.deepEqual(
        outcome((bytes) => decodePb(bytes), block),
        outcome(dagPb.decode, block),
      )
    }),
    runs(1500),
  )
})

test('link lookup by decoded name, first match', () => {
  const Hash = CID.parse('bafkqaaa')
  const mark = Buffer.of(0xef, 0xbb, 0xbf)
  const names = [
    undefined,
    '',
    'a',
    'b',
    'b',
    'é',
    mark,
    Buffer.concat([mark, Buffer.from('a')]),
    Buffer.of(0xff),
    '\ufffd',
  ]
  const link = (name: string | Uint8Array | undefined): Buffer => {
    const own =
      name === undefined
        ? Buffer.alloc(0)
        : Buffer.concat([Buffer.of(0x12, Buffer.byteLength(name)), Buffer.from(name)])
    const fields = Buffer.concat([Buffer.of(0x0a, Hash.bytes.length), Hash.bytes, own])
    return Buffer.concat([Buffer.of(0x12, fields.length), fields])
  }
  for (let from = 0; from < names.length; from++) {
    const { Links } = decodePb(Buffer.concat(names.slice(from).map(link)))
    const read = Array.from(Links, ({ Name }) => Name ?? '')
    for (const name of ['', 'a', 'b', 'c', 'é', '\ufeffa', '\ufffd'])
      assert.equal(Links.named(name), Links.at(read.indexOf(name) < 0 ? read.length : read.indexOf(name)), name)
  }
})

test('many links → CIDs created on access, once', (t) => {
  const Data = new UnixFS({ type: 'directory' }).marshal()
  // Of a hash that the library reads, so that its calls can be counted.
  const Hash = CID.createV1(0x55, create(0x13, new Uint8Array(64)))
  const Links = Array.from({ length: 3000 }, (_, at) => ({ Name: String(at).padStart(4, '0'), Hash, Tsize: 1 }))
  const block = dagPb.encode({ Data, Links })
  const made = t.mock.method(CID, 'decode')
  const { links } = readNode(Hash, block)
  assert.equal(made.mock.callCount(), 0)
  const found = links.named('2999')
  assert.ok(found?.Hash.equals(Hash) && found.Hash.equals(Hash))
  assert.equal(made.mock.callCount(), 1)
  assert.equal(found?.Hash, found?.Hash)
})

test('far more sizes than links → not UnixFS, no numbers created', (t) => {
  const big = t.mock.method(UnixFS, 'unmarshal')
  const sizes = Buffer.alloc(20_000).fill(Buffer.of(0x20, 1))
  const cid = CID.parse('bafybeihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku')
  const block = dagPb.encode({ Data: Buffer.concat([Buffer.of(8, 2), sizes]), Links: [] })
  assert.equal(readNode(cid, block).unixfs, undefined)
  assert.equal(big.mock.callCount(), 0)
})

test('few or many sizes → same result', () => {
  const Hash = CID.parse('bafkqaaa')
  for (const count of [2, 5000]) {
    const unixfs = new UnixFS({
      type: 'file',
      data: Buffer.from('own'),
      blockSizes: Array.from({ length: count }, (_, at) => BigInt(at) * 1000n),
    })
    const Links = Array.from({ length: count }, () => ({ Name: '', Hash, Tsize: 1 }))
    const node = readNode(Hash, dagPb.encode({ Data: unixfs.marshal(), Links }))
    assert.equal(node.sizes?.length, count > 2 ? count : undefined)
    assert.equal(declaredSize(Hash, node), Number(unixfs.fileSize()))
    assert.deepEqual([...startsOf(node, 10)].slice(0, 3), [13, 13, 1013])
    assert.equal(startsOf(node, 10).at(-1), 10 + Number(unixfs.fileSize()))
    assert.equal(node.unixfs?.type, 'file')
    const fewer = readNode(Hash, dagPb.encode({ Data: unixfs.marshal(), Links: Links.slice(1) }))
    if (count === 2) assert.throws(() => declaredSize(Hash, fewer), /do not match/)
    else assert.equal(fewer.unixfs, undefined)
  }
})

test('thousands of unknown fields → not UnixFS', (t) => {
  const big = t.mock.method(UnixFS, 'unmarshal')
  const cid = CID.parse('bafybeihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku')
  const fields = Buffer.alloc(20_000).fill(Buffer.of(0x28, 1))
  assert.equal(
    readNode(cid, dagPb.encode({ Data: Buffer.concat([Buffer.of(8, 2), fields]), Links: [] })).unixfs,
    undefined,
  )
  assert.equal(big.mock.callCount(), 0)
})

test('size with an endless varint → refused', () => {
  const Hash = CID.parse('bafkqaaa')
  const endless = Buffer.concat([Buffer.of(0x20), Buffer.alloc(160, 0x80), Buffer.of(0)])
  for (const count of [2, 5000]) {
    const Data = Buffer.concat([Buffer.of(8, 2), ...Array<Buffer>(count - 1).fill(Buffer.of(0x20, 1)), endless])
    const node = readNode(
      Hash,
      dagPb.encode({ Data, Links: Array.from({ length: count }, () => ({ Name: '', Hash, Tsize: 0 })) }),
    )
    assert.equal(node.unixfs, undefined)
    assert.equal(declaredSize(Hash, node), 0)
  }
})
