// What may stop an event loop: blocks that are much work for their bytes, or stand for more than anybody has.
import { createHash } from 'node:crypto'
import { encode, type PBLink, prepare } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { blockKey } from '../../../../src/core/cid.ts'
import { addBlock, addDirectory, addFile, addNode, type BlockMap, noise, text } from '../../../support/fixtures.ts'

const mib = 1024 * 1024
const sha256 = (bytes: Uint8Array, code = 0x70): CID =>
  CID.createV1(code, createDigest(0x12, createHash('sha256').update(bytes).digest()))
const inline = (code: number, bytes: Uint8Array): CID => CID.createV1(code, createDigest(0, bytes))
const range = <Made>(count: number, make: (at: number) => Made): Made[] =>
  Array.from({ length: count }, (_, at) => make(at))
const digits = (at: number, count: number): string => at.toString(16).toUpperCase().padStart(count, '0')

const directory = new UnixFS({ type: 'directory' }).marshal()
const shard = (fanout: number, more: { readonly mtime?: { readonly secs: bigint } } = {}): Uint8Array =>
  new UnixFS({ type: 'hamt-sharded-directory', hashType: 0x22n, fanout: BigInt(fanout), ...more }).marshal()

/** 31 blocks, of which each but the last has the next one under a hundred names. */
export function addUnfolding(blocks: BlockMap): CID {
  let below = addBlock(blocks, 0x55, text('x'))
  for (let depth = 0; depth < 30; depth++) {
    const Hash = below
    const Links = range(100, (at) => ({ Name: `n${String(at).padStart(2, '0')}`, Hash, Tsize: 1 }))
    below = addNode(blocks, { Data: directory, Links })
  }
  return below
}

/** 2 MiB of dag-cbor: a list of empty lists. */
export function addEmptyLists(blocks: BlockMap): CID {
  const head = Buffer.of(0x9a, 0, 0, 0, 0)
  head.writeUInt32BE(2 * mib - 5, 1)
  return addBlock(blocks, 0x71, Buffer.concat([head, Buffer.alloc(2 * mib - 5, 0xa0)]))
}

const addFolder = (blocks: BlockMap): Promise<CID> =>
  addDirectory(blocks, Object.fromEntries(range(20_000, (at) => [`file ${at}.bin`, noise(1024, at + 1)])), {
    sharded: true,
  })

async function addJson(blocks: BlockMap): Promise<CID[]> {
  const most = 8 * mib
  const forms: readonly ((room: number) => string)[] = [
    (room) => `[${'{"a":0},'.repeat(Math.floor(room / 8) - 1)}0]`,
    (room) => '['.repeat(room / 2) + ']'.repeat(room / 2),
    (room) => `[${'1,'.repeat(room / 2 - 1)}1]`,
    (room) => `["${'\\u00e9'.repeat(Math.floor(room / 6) - 1)}"]`,
  ]
  const cids: CID[] = []
  // White space before it makes it another one.
  for (let copy = 0; copy < 3; copy++)
    for (const form of forms) cids.push((await addFile(blocks, text(' '.repeat(copy) + form(most - 8)))).cid)
  return cids
}

/** As many as a reader takes: a leaf of a megabyte for each 15,000. */
function addTinyLeaves(blocks: BlockMap): CID {
  const leaves = range(256, (at) => addBlock(blocks, 0x55, Uint8Array.of(at)))
  const file = (parts: readonly (readonly [cid: CID, bytes: number])[]): CID =>
    addNode(blocks, {
      Data: new UnixFS({ type: 'file', blockSizes: parts.map(([, bytes]) => BigInt(bytes)) }).marshal(),
      Links: parts.map(([Hash, Tsize]) => ({ Name: '', Hash, Tsize })),
    })
  const tiny = range(15, (node) => [file(range(1000, (at) => [leaves[(at + node) % 256] as CID, 1])), 1000] as const)
  const group = (seed: number): CID => file([[addBlock(blocks, 0x55, noise(mib, seed)), mib], ...tiny])
  return file(range(8, (at) => [group(at + 1), mib + 15_000] as const))
}

const addFlat = (blocks: BlockMap): CID =>
  addNode(blocks, {
    Data: directory,
    Links: range(36_000, (at) => ({ Name: `f${String(at).padStart(5, '0')}`, Hash: sha256(text(`${at}`)), Tsize: 1 })),
  })

const empty = inline(0x55, new Uint8Array())

/** The smallest links that have names, a block full of them. */
const addManyLinks = (blocks: BlockMap): CID =>
  addNode(blocks, { Data: directory, Links: range(180_000, () => ({ Name: 'n', Hash: empty })) as PBLink[] })

/** A file whose leaves lie in its links, a block full of them. */
const addInlineLeaves = (blocks: BlockMap): CID =>
  addNode(blocks, {
    Data: new UnixFS({ type: 'file', blockSizes: range(170_000, () => 1n) }).marshal(),
    Links: range(170_000, (at) => ({ Hash: inline(0x55, Uint8Array.of(at % 256)) })) as PBLink[],
  })

/** A page of them is sorted by their names, which differ at their end. */
const addLongNames = (blocks: BlockMap): CID =>
  addNode(
    blocks,
    prepare({
      Data: directory,
      Links: range(4900, (at) => ({ Name: `${'a2'.repeat(190)} ${(at * 7919) % 4900}`, Hash: empty, Tsize: 1 })),
    }),
  )

const addSameLeaf = (blocks: BlockMap): CID => {
  const Hash = addBlock(blocks, 0x55, text('x'))
  return addNode(blocks, {
    Data: directory,
    Links: range(36_000, (at) => ({ Name: `f${String(at).padStart(5, '0')}`, Hash, Tsize: 1 })),
  })
}

/** Thirty directories in each other, and 40,000 names in each that lead to what was sent before; a thousand more in the last one. */
function addKnownSiblings(blocks: BlockMap): CID {
  const leaf = addBlock(blocks, 0x55, text('x'))
  let below = leaf
  for (let depth = 0; depth < 900; depth++)
    below = addNode(blocks, { Data: directory, Links: [{ Name: 'a', Hash: below, Tsize: 1 }] })
  for (let depth = 0; depth < 30; depth++) {
    const known = range(44_000, () => ({ Name: 'c', Hash: leaf }) as PBLink)
    const Links = [{ Name: 'a', Hash: leaf }, { Name: 'b', Hash: below }, ...known] as PBLink[]
    below = addNode(blocks, { Data: directory, Links })
  }
  return below
}

/** Thirty shards in each other, and 150,000 entries in each, behind the one that leads on. */
function addEntriesBehindShards(blocks: BlockMap): CID {
  const Links = range(150_000, () => ({ Name: '01n', Hash: empty }) as PBLink)
  let below = addNode(blocks, { Data: shard(256), Links })
  for (let depth = 0; depth < 30; depth++)
    below = addNode(blocks, { Data: shard(256), Links: [{ Name: '00', Hash: below } as PBLink, ...Links] })
  return below
}

const emptyShard = (at: number): Uint8Array => encode({ Data: shard(256, { mtime: { secs: BigInt(at) } }), Links: [] })

/** 16,384 shards without an entry, each a block of its own. */
function addEmptyShards(blocks: BlockMap): CID {
  const below = (node: number): CID => {
    const Links = range(256, (at) => ({
      Name: digits(at, 2),
      Hash: addBlock(blocks, 0x70, emptyShard(node * 256 + at)),
    }))
    return addNode(blocks, prepare({ Data: shard(256), Links }))
  }
  return addNode(
    blocks,
    prepare({ Data: shard(256), Links: range(256, (at) => ({ Name: digits(at, 2), Hash: below(at) })) }),
  )
}

/** The same in one block, whose links hold the shards themselves. */
const addInlineShards = (blocks: BlockMap): CID =>
  addNode(
    blocks,
    prepare({
      Data: shard(256),
      Links: range(40_000, (at) => ({ Name: '00', Hash: inline(0x70, emptyShard(at)) })),
    }),
  )

const fanout = 1024
const perShard = (name: (at: number) => string, below: CID): PBLink[] =>
  range(fanout, (at) => ({ Name: digits(at, 3) + name(at), Hash: below, Tsize: 1 }))

/** Ten and a half million entries in four blocks: each shard stands in the one above it a thousand times. */
function addRepeated(blocks: BlockMap): CID {
  const leaf = addBlock(blocks, 0x55, text('x'))
  const lowest = addNode(blocks, { Data: shard(fanout), Links: perShard((at) => `entry ${at}`, leaf) })
  const middle = addNode(blocks, prepare({ Data: shard(fanout), Links: perShard(() => '', lowest) }))
  return addNode(blocks, prepare({ Data: shard(fanout), Links: perShard(() => '', middle).slice(0, 10) }))
}

/** Shards that are made when they are asked for: all of them would be more than half a gigabyte. */
class ManyShards extends Map<string, Uint8Array> {
  private readonly numbers = new Map<string, number>()
  private readonly make: (at: number) => Uint8Array

  constructor(count: number, make: (at: number) => Uint8Array) {
    super()
    this.make = make
    this.cids = range(count, (at) => {
      const cid = sha256(make(at))
      this.numbers.set(blockKey(cid), at)
      return cid
    })
  }

  readonly cids: readonly CID[]

  override get(key: string): Uint8Array | undefined {
    const at = this.numbers.get(key)
    return at === undefined ? super.get(key) : this.make(at)
  }

  override has(key: string): boolean {
    return this.numbers.has(key) || super.has(key)
  }
}

/** Ten and a half million entries, and no shard is like another. */
function manyEntries(): { readonly blocks: BlockMap; readonly root: CID } {
  const leaf = new Map<string, Uint8Array>()
  const Hash = addBlock(leaf, 0x55, text('x'))
  const mark = 'the name'
  const one = Buffer.from(
    encode({ Data: shard(fanout), Links: perShard((at) => (at === 0 ? mark : `entry ${at}`), Hash) }),
  )
  const markAt = one.indexOf(mark)
  const blocks = new ManyShards(10 * fanout, (at) => {
    const made = Buffer.from(one)
    made.write(digits(at, mark.length), markAt, 'latin1')
    return made
  })
  for (const [key, bytes] of leaf) blocks.set(key, bytes)
  const middle = range(10, (node) => {
    const Links = range(fanout, (at) => ({ Name: digits(at, 3), Hash: blocks.cids[node * fanout + at] as CID }))
    return addNode(blocks, prepare({ Data: shard(fanout), Links }))
  })
  const Links = middle.map((Hash, at) => ({ Name: digits(at, 3), Hash }))
  return { blocks, root: addNode(blocks, prepare({ Data: shard(fanout), Links })) }
}

export type Content = {
  readonly blocks: BlockMap
  readonly roots: readonly CID[]
  /** It would be unfolded for a CAR: single blocks alone are given out. */
  readonly isBlocksOnly?: boolean
  /** Blocks that do not exist, of which nothing is heard. */
  readonly isLost?: boolean
}

const of =
  (add: (blocks: BlockMap) => CID | readonly CID[] | Promise<CID | readonly CID[]>, isBlocksOnly = false) =>
  async (): Promise<Content> => {
    const blocks: BlockMap = new Map()
    const roots = await add(blocks)
    return { blocks, roots: [roots].flat(), isBlocksOnly }
  }

const lost = 2000

export const contents = {
  nothing: of(() => []),
  folder: of(addFolder),
  json: of(addJson),
  tinyLeaves: of(addTinyLeaves),
  flat: of(addFlat),
  manyLinks: of(addManyLinks),
  inlineLeaves: of(addInlineLeaves),
  longNames: of(addLongNames),
  sameLeaf: of(addSameLeaf, true),
  knownSiblings: of(addKnownSiblings, true),
  entriesBehindShards: of(addEntriesBehindShards, true),
  document: of(addEmptyLists),
  unfolding: of(addUnfolding, true),
  emptyShards: of(addEmptyShards),
  inlineShards: of(addInlineShards),
  repeated: of(addRepeated, true),
  manyEntries: async (): Promise<Content> => {
    const { blocks, root } = manyEntries()
    return { blocks, roots: [root], isBlocksOnly: true }
  },
  lost: async (): Promise<Content> => ({
    blocks: new Map(),
    roots: range(lost, (at) => sha256(text(`nobody has ${at}`), at % 2 ? 0x55 : 0x70)),
    isLost: true,
  }),
} satisfies Record<string, () => Promise<Content>>

export type ContentName = keyof typeof contents
