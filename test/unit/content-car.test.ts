// CARs: what a client that trusts nothing gets to check. Read back by the ecosystem's own reader, and by its exporter over
// nothing but the blocks of the CAR.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { before, describe, test } from 'node:test'
import { CarReader } from '@ipld/car'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import * as dagPb from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { exporter } from 'ipfs-unixfs-exporter'
import { createUnsafe } from 'multiformats/block'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { car, hintOf, parseEntityBytes, placeEntityBytes } from '../../src/content/formats/car.ts'
import { parsePath, resolve } from '../../src/content/resolve.ts'
import { blockKey, proves } from '../../src/core/cid.ts'
import { type FailureKind, isFailure } from '../../src/core/failure.ts'
import {
  addBlock,
  addCbor,
  addDirectory,
  addNode,
  type BlockMap,
  deepChunk,
  type Fixtures,
  fixtures,
  text,
} from '../support/fixtures.ts'
import { memorySession } from '../support/memory-session.ts'

let all: Fixtures
before(async () => {
  all = await fixtures()
})

const rejects = (work: Promise<unknown>, kind: FailureKind) => assert.rejects(work, (error) => isFailure(error, kind))
const asked = (query = '', parameters: Record<string, string> = {}) => ({
  query: new URLSearchParams(query),
  parameters,
})

async function render(path: string, query = '', blocks: BlockMap = all.blocks, parameters = {}) {
  const session = memorySession(blocks)
  const request = asked(query, parameters)
  const resolution = await resolve(session, parsePath(path), car.wants(request))
  const rendering = await car.render(session, resolution, request)
  assert.ok(rendering)
  return { rendering, session, resolution }
}

async function carOf(path: string, query = '', blocks: BlockMap = all.blocks) {
  const { rendering } = await render(path, query, blocks)
  const reader = await CarReader.fromIterable(rendering.read(0, 0))
  const sent = await Array.fromAsync(reader.blocks())
  for (const { cid, bytes } of sent) assert.ok(proves(cid, bytes), `${cid} is false`)
  return { roots: (await reader.getRoots()).map(String), cids: sent.map(({ cid }) => cid.toString()), sent }
}

/** A store that holds what the CAR holds and nothing else. */
function storeOf(sent: readonly { cid: CID; bytes: Uint8Array }[]) {
  const held = new Map(sent.map(({ cid, bytes }) => [blockKey(cid), bytes]))
  return {
    get: async function* (cid: CID) {
      const bytes = cid.multihash.code === 0 ? cid.multihash.digest : held.get(blockKey(cid))
      if (!bytes) throw new Error(`the CAR lacks ${cid}`)
      yield bytes
    },
  } as never
}

async function contentOf(cid: CID, sent: readonly { cid: CID; bytes: Uint8Array }[], options = {}) {
  const entry = await exporter(cid, storeOf(sent))
  if (entry.type !== 'file' && entry.type !== 'raw') assert.fail(entry.type)
  return Buffer.concat(await Array.fromAsync(entry.content(options)))
}

const decoders: Record<number, (bytes: Uint8Array) => unknown> = {
  [dagPb.code]: dagPb.decode,
  [dagCbor.code]: dagCbor.decode,
  [dagJson.code]: dagJson.decode,
}

/** Each block below and including this one, depth first, duplicates included: written without the code under test. */
function descend(cid: CID, blocks: BlockMap): string[] {
  const bytes = blocks.get(blockKey(cid))
  assert.ok(bytes)
  const block = createUnsafe({ cid, value: decoders[cid.code]?.(bytes) ?? null, bytes })
  return [cid.toString(), ...[...block.links()].flatMap(([, link]) => descend(link, blocks))]
}

describe('content of a CAR', () => {
  test('every file layout → readable from its CAR alone', async () => {
    for (const [name, { cid, bytes }] of Object.entries(all.files)) {
      for (const scope of ['entity', 'all']) {
        const { sent, roots } = await carOf(cid.toString(), `dag-scope=${scope}`)
        assert.deepEqual(roots, [cid.toString()])
        assert.ok((await contentOf(cid, sent)).equals(bytes), `${name}, ${scope}`)
      }
    }
  })
  test('path blocks first, then those below, in order', async () => {
    const { cids } = await carOf(`${all.directory}/sub/big.bin`)
    const { resolution } = await render(`${all.directory}/sub/big.bin`)
    const { entity, roots } = resolution
    assert.deepEqual(cids, [...roots.slice(0, -1).map(String), ...descend(entity.cid, all.blocks)])
    assert.ok(cids.length > 4)
  })
  test('HAMT path → only the shards on it', async () => {
    const { sent, cids } = await carOf(`${all.hamt}/file-777.txt`, 'dag-scope=block')
    const everyShard = (await carOf(`${all.hamt}`, 'dag-scope=entity')).cids
    assert.ok(cids.length >= 3 && cids.length < everyShard.length, `${cids.length} of ${everyShard.length}`)
    const again = memorySession(new Map(sent.map(({ cid, bytes }) => [blockKey(cid), bytes])))
    const { entity } = await resolve(again, parsePath(`${all.hamt}/file-777.txt`))
    assert.equal(Buffer.from(entity.block).toString(), 'content 777')
  })
  test('scope block → the last block only', async () => {
    assert.deepEqual((await carOf(`${all.directory}`, 'dag-scope=block')).cids, [all.directory.toString()])
    assert.equal((await carOf(`${all.directory}/sub/big.bin`, 'dag-scope=block')).cids.length, 3)
  })
  test('scope entity, flat directory → one block', async () => {
    assert.deepEqual((await carOf(`${all.directory}`, 'dag-scope=entity')).cids, [all.directory.toString()])
  })
  test('scope entity, HAMT → its shards, no files', async () => {
    const { sent } = await carOf(`${all.hamt}`, 'dag-scope=entity')
    assert.ok(sent.every(({ cid }) => cid.code === 0x70))
    const entry = await exporter(all.hamt, {
      get: async function* (cid: CID) {
        const found = sent.find((block) => block.cid.equals(cid))?.bytes ?? all.blocks.get(blockKey(cid))
        if (!sent.some((block) => block.cid.equals(cid)) && cid.code === 0x70) assert.fail(`the CAR lacks ${cid}`)
        yield found
      },
    } as never)
    if (entry.type !== 'directory') assert.fail(entry.type)
    assert.equal((await Array.fromAsync(entry.entries())).length, 1500)
  })
  test('scope all, directory → everything below', async () => {
    const { cids } = await carOf(`${all.hamt}`)
    assert.deepEqual(new Set(cids), new Set(descend(all.hamt, all.blocks)))
  })
  test('document links → followed only with scope all', async () => {
    assert.deepEqual((await carOf(`${all.cbor}`, 'dag-scope=entity')).cids, [all.cbor.toString()])
    assert.deepEqual((await carOf(`${all.cbor}`)).cids, descend(all.cbor, all.blocks))
    assert.deepEqual((await carOf(`${all.cbor}/inside/file`)).cids, [
      all.cbor.toString(),
      all.files.hello.cid.toString(),
    ])
    assert.deepEqual((await carOf(`${all.cbor}/inside/number`)).cids, [all.cbor.toString()])
  })
  test('identity blocks → never sent', async () => {
    const { cids, roots } = await carOf(all.identity.toString(), 'car-dups=y')
    assert.deepEqual([cids, roots], [[], [all.identity.toString()]])
    const blocks: BlockMap = new Map()
    const root = addCbor(blocks, { inside: all.identity })
    assert.deepEqual((await carOf(root.toString(), '', blocks)).cids, [root.toString()])
  })
  for (const code of [0x70, 0x71, 0x129])
    test(`undecodable block of codec 0x${code.toString(16)} → sent, every scope`, async () => {
      const blocks: BlockMap = new Map()
      const cid = addBlock(blocks, code, text('{garbage'))
      for (const scope of ['block', 'entity', 'all'])
        assert.deepEqual((await carOf(cid.toString(), `dag-scope=${scope}`, blocks)).cids, [cid.toString()])
    })
  test('child that does not decode → sent, with its siblings', async () => {
    const blocks: BlockMap = new Map()
    const [bad, good] = [addBlock(blocks, 0x71, text('garbage')), addBlock(blocks, 0x55, text('good'))]
    const root = addCbor(blocks, [bad, good])
    assert.deepEqual((await carOf(root.toString(), '', blocks)).cids, [root, bad, good].map(String))
  })
  for (const codec of [dagCbor, dagJson])
    test(`path to a value in ${codec.name} → everything below that value`, async () => {
      const blocks: BlockMap = new Map()
      const leaves = ['before', 'one', 'two', 'three', 'after'].map((name) => addBlock(blocks, 0x55, text(name)))
      const [before, one, two, three, after] = leaves
      const below = addCbor(blocks, { two })
      const value = { before, x: { list: [1, { one }, below], scalar: 5, y: three }, z: after }
      const root = addBlock(blocks, codec.code, codec.encode(value))
      const cidsAt = async (path: string, query?: string) => (await carOf(`${root}${path}`, query, blocks)).cids
      assert.deepEqual(await cidsAt('/x/list'), [root, one, below, two].map(String))
      assert.deepEqual(new Set(await cidsAt('/x')), new Set([root, one, below, two, three].map(String)))
      assert.deepEqual(await cidsAt('/x/list/1'), [root, one].map(String))
      for (const [path, query] of [
        ['/x/scalar', ''],
        ['/x', 'dag-scope=entity'],
        ['/x', 'dag-scope=block'],
      ] as const)
        assert.deepEqual(await cidsAt(path, query), [String(root)])
    })
  test('document links → in order and complete, at any length', async () => {
    const blocks: BlockMap = new Map()
    const [one, two, three] = ['1', '2', '3'].map((name) => addBlock(blocks, 0x55, text(name)))
    const numbers = new Array(300_000).fill(1)
    const root = addCbor(blocks, { a: one, b: { c: [two, ...numbers] }, d: three })
    assert.deepEqual((await carOf(root.toString(), '', blocks)).cids, [root, one, two, three].map(String))
  })
})

test('document links → stored order, even with numeric keys', async () => {
  const blocks: BlockMap = new Map()
  const leaves = ['one', 'two', 'three', 'four'].map((word) => addBlock(blocks, 0x55, text(word)))
  const [one, two, three, four] = leaves
  const cbor = addCbor(blocks, { a: one, 10: two, '7x': [three, { 0: four }] })
  const link = (leaf: CID | undefined) => `{"/":"${leaf}"}`
  const bytes = { '/': { bytes: 'AQID' } }
  const json = addBlock(
    blocks,
    dagJson.code,
    text(
      `{ "a": ${link(one)}, "10": ${link(two)}, "b": ["/", "${one}", ${JSON.stringify(bytes)}, ${link(three)}, {"0" : ${link(four)} }]} `,
    ),
  )
  for (const document of [cbor, json]) {
    const { cids } = await carOf(document.toString(), 'dag-scope=all', blocks)
    assert.deepEqual(cids, [document, ...leaves].map(String))
  }
})

describe('duplicates', () => {
  const same = async () => {
    const blocks: BlockMap = new Map()
    const bytes = new Uint8Array(2_500_000).fill(7)
    const root = await addDirectory(blocks, { 'a.bin': bytes, 'b.bin': bytes })
    return { blocks, root }
  }
  test('dups=n → each block once', async () => {
    const { blocks, root } = await same()
    const { cids } = await carOf(root.toString(), 'car-dups=n', blocks)
    assert.equal(cids.length, new Set(cids).size)
    assert.deepEqual(new Set(cids), new Set(descend(root, blocks)))
  })
  test('dups=y → each occurrence', async () => {
    const { blocks, root } = await same()
    const { cids } = await carOf(root.toString(), 'car-dups=y', blocks)
    assert.deepEqual(cids, descend(root, blocks))
    assert.ok(cids.length > new Set(cids).size)
  })
  test('dups=n with a range → partly sent parts are revisited', async () => {
    const blocks: BlockMap = new Map()
    const leaf = (name: string) => ({ Name: '', Hash: addBlock(blocks, 0x55, text(name)), Tsize: 4 })
    const file = (size: bigint, links: ReturnType<typeof leaf>[]) =>
      addNode(blocks, { Data: new UnixFS({ type: 'file', blockSizes: links.map(() => size) }).marshal(), Links: links })
    const inner = file(4n, [leaf('abcd'), leaf('efgh')])
    const twice = { Name: '', Hash: inner, Tsize: 8 }
    const root = file(8n, [twice, twice])
    const { cids, sent } = await carOf(root.toString(), 'entity-bytes=4:15', blocks)
    assert.equal(cids.length, 4)
    assert.equal((await contentOf(root, sent, { offset: 4, length: 12 })).toString(), 'efghabcdefgh')
  })
})

describe('entity-bytes', () => {
  test('only links into the range are created', async (t) => {
    const blocks: BlockMap = new Map()
    // Of a hash that the library reads, so that its calls can be counted.
    const Links = Array.from({ length: 5000 }, (_, at) => {
      const bytes = Uint8Array.of(at >> 8, at & 255)
      const Hash = CID.createV1(0x55, createDigest(0x13, createHash('sha512').update(bytes).digest()))
      blocks.set(blockKey(Hash), bytes)
      return { Name: '', Hash, Tsize: 2 }
    })
    const Data = new UnixFS({ type: 'file', blockSizes: Links.map(() => 2n) }).marshal()
    const root = addNode(blocks, { Data, Links })
    const made = t.mock.method(CID, 'decode')
    const { rendering } = await render(root.toString(), 'dag-scope=entity&entity-bytes=7001:7004', blocks)
    await Array.fromAsync(rendering.read(0, 0))
    const calls = made.mock.callCount()
    assert.ok(calls >= 3 && calls < 10, `${calls} links`)
    made.mock.restore()
    const { cids } = await carOf(root.toString(), 'dag-scope=entity&entity-bytes=7001:7004', blocks)
    assert.deepEqual(cids, [root, ...Links.slice(3500, 3503).map(({ Hash }) => Hash)].map(String))
  })
  const size = 1026
  const placed: [text: string, from: number, to: number][] = [
    ['0:*', 0, 1026],
    ['0:0', 0, 1],
    ['512:*', 512, 1026],
    ['512:1023', 512, 1024],
    ['512:-256', 512, 771],
    ['-5:*', 1021, 1026],
    ['-9999:*', 0, 1026],
    ['-9999:-3', 0, 1024],
    ['1000:99999', 1000, 1026],
    ['0:9223372036854775807', 0, 1026],
    ['-1:-1', 1025, 1026],
  ]
  for (const [value, from, to] of placed) {
    test(`${value} of ${size} bytes → its range`, () =>
      assert.deepEqual(placeEntityBytes(parseEntityBytes(value), size), { from, to }))
  }
  for (const value of ['1026:*', '9999:10000', '0:-2000', '800:-900']) {
    test(`range ${value} of ${size} bytes → empty`, () =>
      assert.equal(placeEntityBytes(parseEntityBytes(value), size), undefined))
  }
  for (const value of ['', '5', ':', '5:', ':5', '*:5', 'a:b', '1:2:3', '10:5', '-1:-5', '1e3:*', '0x1:*', ' 1:2']) {
    test(`${JSON.stringify(value)} → malformed`, () =>
      assert.throws(
        () => parseEntityBytes(value),
        (error) => isFailure(error, 'malformed'),
      ))
  }
  test('cold file → range hint for upstreams', () => {
    assert.deepEqual(hintOf(parseEntityBytes('5:*')), { from: 5 })
    assert.deepEqual(hintOf(parseEntityBytes('5:9')), { from: 5, to: 9 })
    assert.deepEqual(hintOf(parseEntityBytes('5:-9')), { from: 5 })
    assert.equal(hintOf(parseEntityBytes('-5:*')), undefined)
  })

  test('sends the fewest blocks that prove the range', async () => {
    const { cid, bytes } = all.files.deepV0
    for (const [from, to] of [
      [0, 0],
      [deepChunk - 1, deepChunk],
      [1_500_000, 1_500_010],
      [bytes.length - 1, bytes.length - 1],
    ] as const) {
      const { sent } = await carOf(cid.toString(), `entity-bytes=${from}:${to}`)
      assert.ok(sent.length <= 5, `${sent.length} blocks for ${from}:${to}`)
      const read = await contentOf(cid, sent, { offset: from, length: to - from + 1 })
      assert.deepEqual(new Uint8Array(read), bytes.slice(from, to + 1))
    }
  })
  test('missing block outside the range → ignored', async () => {
    const { cid } = all.files.chunkedV0
    const [, first, second] = descend(cid, all.blocks)
    const blocks = new Map(all.blocks)
    blocks.delete(blockKey(CID.parse(second as string)))
    const before = await carOf(cid.toString(), 'dag-scope=entity&entity-bytes=0:1000', blocks)
    assert.deepEqual(before.cids, [cid.toString(), first])
    const after = await carOf(cid.toString(), `dag-scope=entity&entity-bytes=${2 * 256 * 1024}:*`, blocks)
    assert.equal(after.cids.length, 2)
    await rejects(carOf(cid.toString(), '', blocks), 'not-found')
  })
  test('empty range → the root proves it', async () => {
    const { cid } = all.files.chunkedV0
    assert.deepEqual((await carOf(cid.toString(), 'entity-bytes=99999999:*')).cids, [cid.toString()])
  })
  test('not a file → ignored', async () => {
    const { cids } = await carOf(all.hamt.toString(), 'entity-bytes=0:1')
    assert.deepEqual(cids, (await carOf(all.hamt.toString(), 'dag-scope=entity')).cids)
  })
  test('cold path → one request with path, scope and range', async () => {
    const session = memorySession(new Map())
    await rejects(
      resolve(session, parsePath(`${all.directory}/sub/big.bin`), car.wants(asked('entity-bytes=5:9'))),
      'not-found',
    )
    assert.deepEqual(session.asked[0]?.around, {
      cid: all.directory,
      segments: ['sub', 'big.bin'],
      scope: 'entity',
      range: { from: 5, to: 9 },
    })
  })
})

describe('parameters and headers', () => {
  const refused = ['car-version=2', 'car-order=bfs', 'car-dups=maybe', 'dag-scope=half', 'entity-bytes=x']
  for (const query of refused) {
    test(`${query} → malformed`, () =>
      assert.throws(
        () => car.wants(asked(query)),
        (error) => isFailure(error, 'malformed') && error.source === 'client',
      ))
  }
  test('order and dups are echoed; query overrides Accept', async () => {
    const { cid } = all.files.hello
    const typeOf = async (query: string, parameters = {}) =>
      (await render(cid.toString(), query, all.blocks, parameters)).rendering.type
    assert.equal(await typeOf(''), 'application/vnd.ipld.car; version=1; order=dfs; dups=n')
    assert.match(await typeOf('', { order: 'unk', dups: 'y' }), /order=unk; dups=y/)
    assert.match(await typeOf('car-order=dfs&car-dups=y', { order: 'unk', dups: 'n' }), /order=dfs; dups=y/)
  })
  test('different bytes → different ETags', async () => {
    const cid = all.files.chunkedV0.cid.toString()
    const queries = [
      '',
      'dag-scope=entity',
      'dag-scope=block',
      'entity-bytes=0:9',
      'entity-bytes=0:*',
      'car-dups=y',
      'car-order=unk',
    ]
    const tags = await Promise.all(queries.map(async (query) => (await render(cid, query)).rendering.etag))
    assert.equal(new Set(tags).size, queries.length)
    const byPath = (await render(`${all.directory}/sub/big.bin`)).rendering.etag
    const { entity } = (await render(`${all.directory}/sub/big.bin`)).resolution
    assert.notEqual((await render(entity.cid.toString())).rendering.etag, byPath)
  })
  test('nothing is fetched before reading', async () => {
    const { session } = await render(all.files.deepV0.cid.toString())
    assert.equal(session.asked.length, 1)
  })
  test('reader leaves → traversal stops', async () => {
    const { rendering, session } = await render(all.files.deepV0.cid.toString())
    for await (const _ of rendering.read(0, 0)) if (session.asked.length > 10) break
    assert.ok(session.asked.length < 15)
  })
})

describe('hostile DAGs', () => {
  const link = (Hash: CID) => ({ Name: '', Hash, Tsize: 1 })
  const file = (sizes: bigint[]) => new UnixFS({ type: 'file', blockSizes: sizes }).marshal()

  function exponential(blocks: BlockMap) {
    let cid = addBlock(blocks, 0x55, new Uint8Array(1024))
    let size = 1024n
    for (let level = 0; level < 4; level++) {
      cid = addNode(blocks, {
        Data: file(Array.from({ length: 1024 }, () => size)),
        Links: Array.from({ length: 1024 }, () => link(cid)),
      })
      size *= 1024n
    }
    return cid
  }
  test('2^50 bytes in five blocks → five blocks', async () => {
    const blocks: BlockMap = new Map()
    const cid = exponential(blocks)
    assert.equal((await carOf(cid.toString(), '', blocks)).cids.length, 5)
    assert.equal((await carOf(cid.toString(), 'dag-scope=entity', blocks)).cids.length, 5)
  })
  test('2^50 bytes, range → only its edges revisited', async () => {
    const blocks: BlockMap = new Map()
    const { rendering, session } = await render(
      exponential(blocks).toString(),
      `entity-bytes=1500:${2 ** 49 + 5000}`,
      blocks,
    )
    assert.equal((await Array.fromAsync((await CarReader.fromIterable(rendering.read(0, 0))).cids())).length, 5)
    assert.ok(session.asked.length < 30, `${session.asked.length} blocks`)
  })
  test('duplicates requested → streamed, never buffered', async () => {
    const blocks: BlockMap = new Map()
    const { rendering } = await render(exponential(blocks).toString(), 'car-dups=y', blocks)
    let pieces = 0
    for await (const _ of rendering.read(0, 0)) if (++pieces > 10_000) break
    assert.equal(pieces, 10_001)
  })
  test('chain deeper than the limit → refused', async () => {
    const blocks: BlockMap = new Map()
    let cid = addBlock(blocks, 0x55, text('end'))
    for (let level = 0; level < 5_000; level++) cid = addNode(blocks, { Data: file([3n]), Links: [link(cid)] })
    await rejects(carOf(cid.toString(), '', blocks), 'malformed')
  })
  test('range over parts with wrong sizes → refused', async () => {
    const blocks: BlockMap = new Map()
    const inner = addNode(blocks, { Data: file([4n]), Links: [link(addBlock(blocks, 0x55, text('four')))] })
    const root = addNode(blocks, { Data: file([400n]), Links: [link(inner)] })
    await rejects(carOf(root.toString(), 'entity-bytes=0:5', blocks), 'malformed')
  })
  test('large blocks, deep, many siblings → memory limit', async () => {
    const blocks: BlockMap = new Map()
    const leaf = link(addBlock(blocks, 0x55, text('x')))
    let cid = leaf.Hash
    for (let level = 0; level < 40; level++) {
      cid = addNode(blocks, { Data: new Uint8Array(2_000_000).fill(level), Links: [link(cid), leaf] })
    }
    await rejects(carOf(cid.toString(), '', blocks), 'too-large')
  })
})
