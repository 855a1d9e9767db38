// What a reader may not be made to do by content that somebody else wrote: read for ever, keep everything, fetch what is
// not needed, or say less than was asked without saying so.
import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { UnixFS } from 'ipfs-unixfs'
import { importer } from 'ipfs-unixfs-importer'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { createMemoryBound, createPending } from '../../src/content/dag/pending.ts'
import { entriesToBegin, listDirectory } from '../../src/content/directory.ts'
import { readFile } from '../../src/content/file.ts'
import { parsePath, resolve } from '../../src/content/resolve.ts'
import { blockKey } from '../../src/core/cid.ts'
import { type FailureKind, isFailure } from '../../src/core/failure.ts'
import { hashTypeOf } from '../../src/ipld/unixfs.ts'
import { addBlock, addCbor, addNode, type BlockMap, type Fixtures, fixtures, text } from '../support/fixtures.ts'
import { memorySession } from '../support/memory-session.ts'

let all: Fixtures
before(async () => {
  all = await fixtures()
})

const is = (kind: FailureKind) => (error: unknown) => isFailure(error, kind)
const rejects = (work: Promise<unknown>, kind: FailureKind) => assert.rejects(work, is(kind))
const open = (path: string, blocks = all.blocks) => resolve(memorySession(blocks), parsePath(path))
const link = (Hash: CID, Name = '') => ({ Name, Hash, Tsize: 1 })
const file = (sizes: bigint[], data?: Uint8Array) =>
  new UnixFS({ type: 'file', blockSizes: sizes, ...(data && { data }) }).marshal()

describe('paths', () => {
  const cid = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
  for (const rest of ['a\\b', '..\\x', 'a#b', '\ud800']) {
    test(`${JSON.stringify(rest)} → refused`, () => assert.throws(() => parsePath(`${cid}/${rest}`), is('malformed')))
  }
  test('same segments, percent-encoded → names', () => {
    assert.deepEqual(parsePath(`${cid}/a%5Cb/a%23b/a b`).segments, ['a\\b', 'a#b', 'a b'])
  })
  test('length of a list → no name in it', async () => {
    const blocks: BlockMap = new Map()
    const document = addCbor(blocks, { list: [addBlock(blocks, 0x55, text('first')), 2] })
    await rejects(open(`${document}/list/length`, blocks), 'path-not-found')
    assert.equal(Buffer.from((await open(`${document}/list/0`, blocks)).entity.block).toString(), 'first')
    assert.deepEqual((await open(`${document}/list/1`, blocks)).remainder, ['list', '1'])
  })
  test('link with an unverifiable CID → not followed', async () => {
    const blocks: BlockMap = new Map()
    const short = createDigest(0x12, parsePath(cid).cid.multihash.digest.subarray(0, 4))
    const root = addNode(blocks, {
      Data: new UnixFS({ type: 'directory' }).marshal(),
      Links: [link(CID.createV1(0x55, short), 'x')],
    })
    await rejects(open(`${root}/x`, blocks), 'malformed')
  })
})

describe('files', () => {
  const read = async (cid: CID, blocks: BlockMap, ...range: number[]) => {
    const { entity } = await open(cid.toString(), blocks)
    return Buffer.concat(await Array.fromAsync(readFile(memorySession(blocks), entity, ...range)))
  }
  test('declared pebibyte → refused before the first byte', async () => {
    const blocks: BlockMap = new Map()
    const root = addNode(blocks, { Data: file([2n ** 50n]), Links: [link(addBlock(blocks, 0x55, text('x')))] })
    const { entity } = await open(root.toString(), blocks)
    assert.throws(() => readFile(memorySession(blocks), entity), is('too-large'))
  })
  test("caller's own limit → applies", async () => {
    const { entity } = await open(all.files.deepV0.cid.toString())
    assert.throws(() => readFile(memorySession(all.blocks), entity, 0, 10, { maxBytes: 1000 }), is('too-large'))
  })
  test('part larger than its parent declared → none of it sent', async () => {
    const blocks: BlockMap = new Map()
    const [two, other] = [addBlock(blocks, 0x55, text('ab')), addBlock(blocks, 0x55, text('cd'))]
    const inner = addNode(blocks, { Data: file([2n, 2n]), Links: [link(two), link(other)] })
    const root = addNode(blocks, { Data: file([2n, 2n]), Links: [link(inner), link(other)] })
    const { entity } = await open(root.toString(), blocks)
    await rejects(readFile(memorySession(blocks), entity).next(), 'malformed')
  })
  test('parts without bytes → not fetched', async () => {
    const blocks: BlockMap = new Map()
    const absent = addBlock(new Map(), 0x55, text('nobody has this'))
    const root = addNode(blocks, {
      Data: file([1n, 0n, 1n]),
      Links: [link(addBlock(blocks, 0x55, text('a'))), link(absent), link(addBlock(blocks, 0x55, text('b')))],
    })
    assert.equal((await read(root, blocks)).toString(), 'ab')
  })
  test('long chains above single bytes → too much work, refused', async () => {
    const blocks: BlockMap = new Map()
    let cid = addBlock(blocks, 0x55, text('x'))
    for (let level = 0; level < 200; level++) cid = addNode(blocks, { Data: file([1n]), Links: [link(cid)] })
    const root = addNode(blocks, {
      Data: file(Array.from({ length: 100 }, () => 1n)),
      Links: Array.from({ length: 100 }, () => link(cid)),
    })
    const session = memorySession(blocks)
    const { entity } = await resolve(session, parsePath(root.toString()))
    await rejects(Array.fromAsync(readFile(session, entity)), 'malformed')
    assert.ok(session.asked.length < 1100)
  })
  test('large blocks, deep, many siblings → memory limit', async () => {
    const blocks: BlockMap = new Map()
    const leaf = addBlock(blocks, 0x55, text('x'))
    const padding = new Uint8Array(2_000_000)
    let cid = leaf
    let size = 1n
    for (let level = 0; level < 40; level++) {
      cid = addNode(blocks, { Data: file([size, 1n], padding), Links: [link(cid), link(leaf)] })
      size += 1n + BigInt(padding.byteLength)
    }
    await rejects(read(cid, blocks), 'too-large')
  })
  test('pieces → views of blocks', async () => {
    const { entity } = await open(all.files.chunkedV1.cid.toString())
    for await (const piece of readFile(memorySession(all.blocks), entity, 10, 2_000_000)) {
      assert.ok(
        [...all.blocks.values()].some(
          (block) => block.buffer === piece.buffer && piece.byteLength < block.byteLength + 1,
        ),
      )
      break
    }
  })
  test('read → one block ahead, ends with the reader', async () => {
    const session = memorySession(all.blocks)
    const { entity } = await resolve(session, parsePath(all.files.deepV0.cid.toString()))
    const pieces = readFile(session, entity)
    for (let count = 1; count <= 5; count++) {
      await pieces.next()
      await new Promise(setImmediate)
      // The root, the one node below it, what was given and one more.
      assert.ok(session.asked.length <= count + 3, `${session.asked.length} blocks after ${count} pieces`)
    }
    await pieces.return(undefined)
  })
  test('documents and symlinks → read as files; directories refused', async () => {
    await rejects(read(all.linked, all.blocks), 'malformed')
    assert.equal((await read(all.symlink, all.blocks)).toString(), 'hello.txt')
    assert.equal((await read(all.symlink, all.blocks, 0, 5)).toString(), 'hello')
    assert.ok((await read(all.cbor, all.blocks)).equals(all.blocks.get(blockKey(all.cbor)) as Uint8Array))
    assert.equal((await read(all.cbor, all.blocks, 5, 3)).byteLength, 0)
  })
})

describe('HAMT directories', () => {
  async function sharded(fanoutBits: number, count: number) {
    const blocks: BlockMap = new Map()
    const store = {
      put: async (cid: CID, bytes: Uint8Array) => {
        blocks.set(blockKey(cid), bytes)
        return cid
      },
    } as never
    const source = Array.from({ length: count }, (_, index) => ({
      path: `root/name-${index}`,
      content: (async function* () {
        yield text(`${index}`)
      })(),
    }))
    let root: CID | undefined
    const options = {
      shardSplitThresholdBytes: 1,
      shardFanoutBits: fanoutBits,
      cidVersion: 1,
      rawLeaves: true,
    } as const
    for await (const { cid } of importer(source, store, options)) root = cid
    assert.ok(root)
    return { blocks, root }
  }
  for (const fanoutBits of [3, 4, 10]) {
    test(`fan-out of ${2 ** fanoutBits} → every name found`, async () => {
      const { blocks, root } = await sharded(fanoutBits, 300)
      for (const index of [0, 1, 150, 299]) {
        const { entity } = await open(`${root}/name-${index}`, blocks)
        assert.equal(Buffer.from(entity.block).toString(), `${index}`)
      }
      const { entity } = await open(root.toString(), blocks)
      const names = (await Array.fromAsync(listDirectory(memorySession(blocks), entity))).map(({ name }) => name)
      assert.equal(new Set(names).size, 300)
    })
  }
  const shard = (links: ReturnType<typeof link>[], hashType = 0x22n) => ({
    Data: new UnixFS({ type: 'hamt-sharded-directory', data: new Uint8Array([1]), fanout: 256n, hashType }).marshal(),
    Links: links,
  })
  test('unknown hash function → refused', async () => {
    const blocks: BlockMap = new Map()
    const leaf = addBlock(blocks, 0x55, text('x'))
    const root = addNode(blocks, shard([link(leaf, 'FFx')], 0x12n))
    await rejects(open(`${root}/x`, blocks), 'malformed')
    const { entity } = await open(root.toString(), blocks)
    await rejects(Array.fromAsync(listDirectory(memorySession(blocks), entity)), 'malformed')
  })
  test('hash function → found anywhere in the message', () => {
    assert.equal(hashTypeOf(shard([]).Data), 0x22)
    assert.equal(hashTypeOf(file([1n])), undefined)
    assert.equal(hashTypeOf(new Uint8Array([0x12, 0xff, 0xff, 0xff, 0xff])), undefined)
    assert.equal(hashTypeOf(new Uint8Array([0x80])), undefined)
  })
  test('link without a prefix, or malformed shard → refused', async () => {
    const blocks: BlockMap = new Map()
    const leaf = addBlock(blocks, 0x55, text('x'))
    for (const root of [
      addNode(blocks, shard([link(leaf, 'F')])),
      addNode(blocks, shard([link(leaf, 'FF')])),
      addNode(
        blocks,
        shard([link(addNode(blocks, { Data: new UnixFS({ type: 'directory' }).marshal(), Links: [] }), 'FF')]),
      ),
    ]) {
      const { entity } = await open(root.toString(), blocks)
      await rejects(Array.fromAsync(listDirectory(memorySession(blocks), entity)), 'malformed')
    }
  })
  test('deeper than the hash → refused', async () => {
    const blocks: BlockMap = new Map()
    let cid = addNode(blocks, shard([]))
    for (let level = 0; level < 40; level++) {
      cid = addNode(
        blocks,
        shard(Array.from({ length: 256 }, (_, at) => link(cid, at.toString(16).toUpperCase().padStart(2, '0')))),
      )
    }
    await rejects(open(`${cid}/name`, blocks), 'malformed')
  })
})

describe('memory of a traversal', () => {
  test('end of a traversal → reserved memory released', () => {
    const held = createMemoryBound(10)
    held.take(6)
    assert.throws(() => held.take(5), is('too-large'))
    held.give(5)
    held.give(6)
    held.take(10)
  })
  test('chain of any length → one block in memory', () => {
    const held = createMemoryBound(100)
    const pending = createPending<number>(held)
    pending.push([0], 60)
    for (let at = 1; at < 1000; at++) {
      assert.deepEqual([...pending.upcoming()], [at - 1])
      assert.equal(pending.pop(), at - 1)
      pending.push([at], 60)
    }
  })
  test('upcoming items → created once, on demand, bounded', () => {
    const made: number[] = []
    const pending = createPending<number>()
    const at = (index: number) => {
      made.push(index)
      return index
    }
    for (let level = 0; level < 3; level++) pending.push({ length: 100_000, at }, 1)
    const ahead = [...pending.upcoming()].length
    assert.ok(ahead > 64 && ahead < 1000, `${ahead} were looked at`)
    for (let index = 0; index < 10; index++) {
      assert.equal(pending.pop(), index)
      for (const _ of pending.upcoming());
    }
    assert.deepEqual(made, [...Array(ahead + 10).keys()])
  })
  test('order → depth first', () => {
    const pending = createPending<string>()
    pending.push(['a', 'b', 'c'], 1)
    const order: string[] = []
    for (let part = pending.pop(); part; part = pending.pop()) {
      order.push(part)
      if (part === 'a') pending.push(['a1', 'a2'], 1)
    }
    assert.deepEqual(order, ['a', 'a1', 'a2', 'b', 'c'])
  })
})

describe('listings', () => {
  const files = (count: number, blocks: BlockMap) => {
    const child = (index: number) =>
      addNode(blocks, { Data: new UnixFS({ type: 'file', data: text(`${index}`) }).marshal(), Links: [] })
    const Links = Array.from({ length: count }, (_, index) => link(child(index), `n${String(index).padStart(4, '0')}`))
    return addNode(blocks, { Data: new UnixFS({ type: 'directory' }).marshal(), Links })
  }
  test('listing → read in order, in parallel, bounded', async () => {
    const blocks: BlockMap = new Map()
    const root = files(600, blocks)
    const { entity } = await open(root.toString(), blocks)
    const memory = memorySession(blocks)
    let looking = 0
    let most = 0
    let looks = 0
    const session = {
      ...memory,
      async has(cid: CID) {
        looks++
        most = Math.max(most, ++looking)
        await new Promise(setImmediate)
        looking--
        return memory.has(cid)
      },
    }
    const entries = await Array.fromAsync(listDirectory(session, entity))
    assert.deepEqual(
      entries.map(({ name }) => name),
      entries.map((_, index) => `n${String(index).padStart(4, '0')}`),
    )
    assert.equal(entries.filter(({ type }) => type === 'file').length, 256)
    assert.equal(entries.filter(({ type }) => type === 'unknown').length, 344)
    assert.ok(looks === 256 && most > 1 && most <= 16, `${looks} looks, ${most} at once`)
  })
  test('large listing → yields at each entry', async () => {
    const blocks: BlockMap = new Map()
    const { entity } = await open(files(300, blocks).toString(), blocks)
    let turns = 0
    const yieldIfDue = async () => {
      await new Promise(setImmediate)
      turns++
    }
    const entries = await Array.fromAsync(listDirectory({ ...memorySession(blocks), yieldIfDue }, entity))
    assert.equal(entries.length, 300)
    assert.ok(turns >= 300, `${turns} turns`)
  })
  test('large directory → past the first-byte deadline; small → not', async () => {
    for (const [count, expected] of [
      [entriesToBegin - 1, []],
      [entriesToBegin + 100, [entriesToBegin - 1]],
    ] as const) {
      const blocks: BlockMap = new Map()
      const { entity } = await open(files(count, blocks).toString(), blocks)
      const begunAt: number[] = []
      let listed = 0
      const session = { ...memorySession(blocks), has: async () => false, begun: () => void begunAt.push(listed) }
      for await (const _ of listDirectory(session, entity, { maxEntries: 1_000_000, maxTypeLookups: 0 })) listed++
      assert.equal(listed, count)
      assert.deepEqual(begunAt, expected)
    }
  })
  test('unreachable tier → listing complete', async () => {
    const blocks: BlockMap = new Map()
    const { entity } = await open(files(3, blocks).toString(), blocks)
    const session = { ...memorySession(blocks), has: () => Promise.reject(new Error('away')) }
    const entries = await Array.fromAsync(listDirectory(session, entity))
    assert.deepEqual(
      entries.map(({ type }) => type),
      ['unknown', 'unknown', 'unknown'],
    )
  })
})
