// POST /add?format=car: what lies in a CAR is kept as it is, where each root is proved and whole.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagPb from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { varint } from 'multiformats'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { identity } from 'multiformats/hashes/identity'
import { sha256 } from 'multiformats/hashes/sha2'
import { shapes } from '../../backends/pinning/contract.ts'
import { type Block, blockKey } from '../../src/core/cid.ts'
import { Failure } from '../../src/core/failure.ts'
import { carSection } from '../../src/ipld/car.ts'
import { importFile } from '../../src/upload/import.ts'
import { type Adding, idle, multipart, post, startAdding } from '../support/adding.ts'
import { keptIn } from '../support/kept.ts'

const never = new AbortController().signal

function car(roots: readonly CID[], blocks: readonly Block[], version = 1): Buffer {
  const header = dagCbor.encode({ roots, version })
  const length = varint.encodeTo(header.byteLength, new Uint8Array(varint.encodingLength(header.byteLength)))
  return Buffer.concat([length, header, ...blocks.flatMap((block) => [...carSection(block)])])
}

async function raw(bytes: Uint8Array = randomBytes(50)): Promise<Block> {
  return { cid: CID.createV1(0x55, await sha256.digest(bytes)), bytes }
}

async function node(value: unknown): Promise<Block> {
  const bytes = dagCbor.encode(value)
  return { cid: CID.createV1(0x71, await sha256.digest(bytes)), bytes }
}

async function directory(entries: Readonly<Record<string, CID>>, version: 0 | 1 = 1): Promise<Block> {
  const Links = Object.entries(entries).map(([Name, Hash]) => ({ Name, Hash, Tsize: 1 }))
  const bytes = dagPb.encode(dagPb.prepare({ Data: Uint8Array.of(8, 1), Links }))
  const digest = await sha256.digest(bytes)
  return { cid: version === 0 ? CID.createV0(digest) : CID.createV1(0x70, digest), bytes }
}

/** A file of several blocks, its root last. */
async function file(bytes: number): Promise<Block[]> {
  const blocks: Block[] = []
  async function* source() {
    yield randomBytes(bytes)
  }
  const shape = { ...shapes['unixfs-v1-2025'], chunkBytes: 16_384 }
  await importFile(source(), shape, async (cid, block) => void blocks.push({ cid, bytes: Uint8Array.from(block) }))
  return blocks
}

const rootOf = (blocks: readonly Block[]): CID => (blocks.at(-1) as Block).cid

describe('CAR upload', () => {
  let adding: Adding
  const denied = new Set<string>()
  before(async () => {
    adding = await startAdding({
      maxBytes: 200_000,
      admit: (cid) => {
        if (denied.has(blockKey(cid))) throw new Failure('denied', 'this is denied', { source: 'content' })
      },
    })
  })
  after(() => adding?.close())

  const send = (...cars: Uint8Array[]) =>
    post(`${adding.url}/add?format=car`, multipart(cars.map((body) => ({ fileName: 'a.car', body }))))
  const pinned = async (cid: CID) => (await adding.embedded.status(cid, never)) === 'pinned'
  const isHere = async ({ cid }: Block) => (await adding.embedded.store.get(cid)) !== undefined

  it('stored root by root in header order, then readable', async () => {
    const one = await file(70_000)
    const two = await directory({ 'a.bin': rootOf(one) })
    const three = await node({ link: two.cid, 'same again': two.cid })
    const four = await raw()
    const { status, json, body } = await send(car([three.cid, four.cid, two.cid], [four, ...one, three, two]))
    assert.equal(status, 200, body)
    assert.deepEqual(
      json['cids'],
      [three, four, two].map(({ cid }) => `/ipfs/${cid}`),
    )
    for (const block of [...one, two, three, four]) {
      assert.ok(await isHere(block))
      assert.ok(await adding.store.blocks.has(block.cid))
    }
    for (const { cid } of [two, three, four]) assert.ok(await pinned(cid))
    assert.equal(await pinned(rootOf(one)), false)
  })

  it('root → keeps its CID version; one entry per block', async () => {
    const leaf = await raw()
    const root = await directory({ leaf: leaf.cid }, 0)
    const { status, json, body } = await send(car([root.cid, root.cid.toV1()], [root, leaf]))
    assert.equal(status, 200, body)
    assert.deepEqual(json['cids'], [`/ipfs/${root.cid}`, `/ipfs/${root.cid.toV1()}`])
    assert.match(`${root.cid}`, /^Qm/)
  })

  it('unreachable blocks are dropped; identity CIDs need no block', async () => {
    const unused = await raw()
    const inline = CID.createV1(0x55, identity.digest(Buffer.from('hello')))
    const root = await node({ inline })
    const { status, body } = await send(car([root.cid], [unused, root]))
    assert.equal(status, 200, body)
    assert.equal(await isHere(root), true)
    assert.equal(await isHere(unused), false)
    assert.equal(await adding.store.blocks.has(unused.cid), false)
  })

  it('several CARs in one form → accepted', async () => {
    const [one, two] = [await raw(), await raw()]
    const { json } = await send(car([one.cid], [one]), car([two.cid], [two, one]))
    assert.deepEqual(json['cids'], [`/ipfs/${one.cid}`, `/ipfs/${two.cid}`])
  })

  it('upload of a CAR → providers get one without unrelated blocks', async () => {
    const blocks = await file(70_000)
    const cars: Buffer[] = []
    const other = await startAdding({
      withoutEmbedded: true,
      others: [
        {
          name: 'remote',
          traits: { takesBytes: true, local: false },
          async pin(upload, signal) {
            cars.push(Buffer.concat(await Array.fromAsync(upload.car(signal))))
            assert.equal(cars[0]?.byteLength, upload.carBytes)
            return upload.cid
          },
          unpin: async () => {},
          status: async () => 'missing',
          probe: async () => {},
          close: async () => {},
        },
      ],
    })
    try {
      const root = blocks.at(-1) as Block
      const body = car([root.cid], [...blocks, await raw()])
      const { status } = await post(`${other.url}/add?format=car`, multipart([{ fileName: 'a', body }]))
      assert.equal(status, 200)
      const leaves = blocks.slice(0, -1)
      assert.equal(cars[0]?.equals(car([root.cid], [root, ...leaves])), true)
    } finally {
      await other.close()
    }
  })

  it('block one byte too large → 400 says so', async () => {
    const other = await startAdding({ maxBytes: 4_000_000 })
    try {
      const bytes = randomBytes(2 * 1024 * 1024 + 1)
      const cid = CID.createV1(0x55, await sha256.digest(bytes))
      const form = multipart([{ fileName: 'a.car', body: car([cid], [{ cid, bytes }]) }])
      const { status, body } = await post(`${other.url}/add?format=car`, form)
      assert.equal(status, 400)
      assert.match(body, /has a block larger than the 2097152 bytes that one may have/)
    } finally {
      await other.close()
    }
  })

  const cases: readonly (readonly [what: string, make: () => Promise<readonly [body: Buffer, says: RegExp]>])[] = [
    [
      'lacks blocks',
      async () => {
        const blocks = await file(70_000)
        const [first, second] = blocks as [Block, Block]
        const says = new RegExp(`below its root ${rootOf(blocks)} it lacks ${first.cid}, ${second.cid}$`)
        return [car([rootOf(blocks)], blocks.slice(2)), says]
      },
    ],
    [
      'lacks a root',
      async () => {
        const [here, missing] = [await raw(), await raw()]
        return [car([here.cid, missing.cid], [here]), new RegExp(`lacks ${missing.cid}`)]
      },
    ],
    [
      'has false bytes',
      async () => {
        const one = await raw()
        return [car([one.cid], [{ ...one, bytes: randomBytes(50) }]), /do not hash to its CID/]
      },
    ],
    [
      'has a block of a hash function that is not known here',
      async () => {
        const one = await raw()
        const md5 = CID.createV1(0x55, createDigest(0xd5, randomBytes(16)))
        return [car([one.cid], [one, { cid: md5, bytes: randomBytes(50) }]), /a hash function that is not known here/]
      },
    ],
    ['has no root', async () => [car([], [await raw()]), /names no root/]],
    ['is of version 2', async () => [car([(await raw()).cid], [], 2), /not of version 1/]],
    ['is no CAR', async () => [randomBytes(1000).fill(0x20), /the CAR /]],
    [
      'is cut',
      async () => {
        const one = await raw()
        return [car([one.cid], [one]).subarray(0, -5), /ends in the middle of a block/]
      },
    ],
    [
      'has a block that is not what its codec says',
      async () => {
        const bytes = randomBytes(40).fill(0xff)
        const cid = CID.createV1(0x70, await sha256.digest(bytes))
        return [car([cid], [{ cid, bytes }]), /malformed block/]
      },
    ],
    [
      'has a block whose links cannot be known',
      async () => {
        const { bytes } = await raw()
        const cid = CID.createV1(0x78, await sha256.digest(bytes))
        return [car([cid], [{ cid, bytes }]), /another codec/]
      },
    ],
    [
      'has a root that holds its content in itself',
      async () => [car([CID.createV1(0x55, identity.digest(Buffer.from('x')))], []), /in itself/],
    ],
  ]
  for (const [what, make] of cases)
    it(`${what} → 400, nothing stored`, async () => {
      await idle(adding)
      const before = await keptIn(adding.data)
      const [body, says] = await make()
      const answer = await send(body)
      assert.equal(answer.status, 400, answer.body)
      assert.match(String(answer.json['detail']), says)
      await idle(adding)
      assert.deepEqual(await keptIn(adding.data), before)
    })

  it('denied block → refused; denied unrelated block → accepted', async () => {
    const [bad, good] = [await raw(), await raw()]
    denied.add(blockKey(bad.cid))
    const root = await node([good.cid, bad.cid])
    assert.equal((await send(car([root.cid], [root, bad, good]))).status, 410)
    assert.equal((await send(car([good.cid], [bad, good]))).status, 200)
  })

  /** A file of `count` times the same child. */
  async function repeated(child: Block, bytes: bigint, count: number): Promise<Block & { size: bigint }> {
    const blockSizes = Array.from({ length: count }, () => bytes)
    const Links = blockSizes.map(() => ({ Name: '', Hash: child.cid, Tsize: 1 }))
    const node = dagPb.encode({ Data: new UnixFS({ type: 'file', blockSizes }).marshal(), Links })
    return {
      cid: CID.createV1(0x70, await sha256.digest(node)),
      bytes: node,
      size: bytes * BigInt(count),
    }
  }

  it('few blocks that expand beyond the upload limit → refused', async () => {
    const leaf = await raw(Buffer.alloc(1000))
    let file = await repeated(leaf, 1000n, 200)
    const blocks: Block[] = [leaf, file]
    assert.equal((await send(car([file.cid], blocks))).status, 200, 'as many as it may have')
    await idle(adding)
    const before = await keptIn(adding.data)
    while (file.size < 2n ** 62n) {
      file = await repeated(file, file.size, 200)
      blocks.push(file)
      const above = [await directory({ file: file.cid }), await node({ deep: [file.cid] })] as const
      for (const root of [file, ...above]) {
        const { status, body } = await send(car([root.cid], [...blocks, ...above]))
        assert.equal(status, 413, `${file.size} bytes: ${body}`)
      }
    }
    await idle(adding)
    assert.deepEqual(await keptIn(adding.data), before)
  })

  it('declared file size 2^60, smaller parts → 413', async () => {
    const leaf = await raw(Buffer.alloc(5))
    const size = Buffer.from([0x18, ...varint.encodeTo(2 ** 60, new Uint8Array(9))])
    for (const [Data, Links] of [
      [Buffer.concat([Buffer.from([0x08, 2]), size]), []],
      [Buffer.concat([Buffer.from([0x08, 2, 0x12, 1, 65]), size]), []],
      [Buffer.concat([Buffer.from([0x08, 2]), size, Buffer.from([0x20, 5])]), [{ Name: '', Hash: leaf.cid, Tsize: 5 }]],
      [Buffer.concat([Buffer.from([0x08, 2]), size]), [{ Name: '', Hash: leaf.cid, Tsize: 5 }]],
    ] as const) {
      const bytes = dagPb.encode({ Data, Links: [...Links] })
      const root = { cid: CID.createV1(0x70, await sha256.digest(bytes)), bytes }
      const { status, body } = await send(car([root.cid], [root, leaf]))
      assert.equal(status, 413, body)
    }
  })

  it('only-hash → verified CIDs, nothing stored', async () => {
    const blocks = await file(70_000)
    await idle(adding)
    const before = await keptIn(adding.data)
    const ask = (body: Buffer) =>
      post(`${adding.url}/add?format=car&only-hash=true`, multipart([{ fileName: 'a.car', body }]))
    const { status, json, body } = await ask(car([rootOf(blocks)], blocks))
    assert.equal(status, 200, body)
    assert.deepEqual(json['cids'], [`/ipfs/${rootOf(blocks)}`])
    assert.equal((await ask(car([rootOf(blocks)], blocks.slice(1)))).status, 400)
    await idle(adding)
    assert.deepEqual(await keptIn(adding.data), before)
    for (const block of blocks) assert.equal(await adding.store.blocks.has(block.cid), false)
  })

  it('other options → refused', async () => {
    const one = await raw()
    const body = multipart([{ fileName: 'a', body: car([one.cid], [one]) }])
    for (const query of ['format=car&wrap=true', 'format=car&schema=evidence', 'format=tar', 'format=car&format=tar'])
      assert.equal((await post(`${adding.url}/add?${query}`, body)).status, 400, query)
  })
})
