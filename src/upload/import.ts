// Turns bytes into blocks in one pass, as they arrive. The shape alone decides the DAG and so the CID (IPIP-499). An upload
// of any size holds a few chunks in memory: their buffers are reused.
import { createHash, hash as digestOf } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { encode as encodePb, prepare } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { type BufferImporter, importer } from 'ipfs-unixfs-importer'
import type { FileLayout } from 'ipfs-unixfs-importer/layout'
import { varint } from 'multiformats'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import type { Shape } from '../../backends/pinning/contract.ts'
import { placeOf } from '../content/dag/hamt.ts'
import { codec, hash } from '../core/cid.ts'
import { malformed } from './failures.ts'

/** `dagBytes`: bytes of all its blocks; a block that occurs twice counts twice. */
type Imported = { readonly cid: CID; readonly dagBytes: number }

/** `bytes` may be reused once it returns or resolves. */
type Put = (cid: CID, bytes: Uint8Array) => void | Promise<void>

type Importing = { readonly shape: Shape; readonly put: Put; readonly room: FreeBuffers }

/** Waits for `put`, so a slow disk slows the client down. A file of one leaf is that leaf: it needs no importer. */
export async function importFile(
  source: AsyncIterable<Uint8Array>,
  shape: Shape,
  put: Put,
  room: FreeBuffers = [],
): Promise<Imported> {
  const pieces = chunks(source, shape.chunkBytes, room)
  const first = (await pieces.next()).value as Uint8Array
  const second = await pieces.next()
  if (!second.done) return importLeaves(after(first, second.value, pieces), { shape, put, room })
  const { cid, block } = leafOf(first, shape)
  await put(cid, block)
  return { cid, dagBytes: block.byteLength }
}

async function* after(
  first: Uint8Array,
  second: Uint8Array,
  rest: AsyncIterable<Uint8Array>,
): AsyncGenerator<Uint8Array> {
  yield first
  yield second
  yield* rest
}

function leafOf(chunk: Uint8Array, { isRaw, cidVersion }: Shape): { readonly cid: CID; readonly block: Uint8Array } {
  const block = isRaw ? chunk : encodePb({ Data: new UnixFS({ type: 'file', data: chunk }).marshal(), Links: [] })
  const digest = createDigest(hash.sha256, digestOf('sha256', block, 'buffer'))
  return { cid: isRaw ? CID.createV1(codec.raw, digest) : CID.create(cidVersion, codec.dagPb, digest), block }
}

async function importLeaves(content: AsyncIterable<Uint8Array>, { shape, put, room }: Importing): Promise<Imported> {
  const blockstore = {
    async put(cid: CID, bytes: Uint8Array) {
      await put(cid, bytes)
      return cid
    },
  }
  const options = {
    chunker: (bytes: AsyncIterable<Uint8Array>) => bytes,
    bufferImporter: leafImporter({ shape, room, put }),
    layout: balancedLayout({ ...shape, put: async (cid, bytes) => put(cid, bytes) }),
    blockWriteConcurrency: writesAtOnce(shape),
    fileImportConcurrency: 1,
    wrapWithDirectory: false,
    reduceSingleLeafToSelf: true,
  }
  let root: Imported | undefined
  for await (const { cid, size } of importer([{ content }], blockstore, options)) root = { cid, dagBytes: Number(size) }
  if (!root) throw new Error('the importer made nothing of a file')
  return root
}

/** Enough writes to keep a disk busy while the next blocks arrive. */
const writesAtOnce = ({ chunkBytes }: Shape): number =>
  Math.min(8, Math.max(2, Math.floor((2 * 1024 * 1024) / chunkBytes)))

/** The importer's own keeps the bytes of up to 174 leaves until their parent is made; this one keeps their sizes. */
function leafImporter({ shape, room, put }: Importing): BufferImporter {
  return async function* leaf(file) {
    for await (const chunk of file.content as AsyncIterable<Uint8Array>) {
      yield async () => {
        const { cid, block } = leafOf(chunk, shape)
        await put(cid, block)
        if (room.length < maxFree) room.push(chunk.buffer as ArrayBuffer)
        const result = { cid, size: BigInt(block.byteLength), block: noBytes }
        if (shape.isRaw) return result
        return { ...result, unixfs: new UnixFS({ type: 'file', blockSizes: [BigInt(chunk.byteLength)] }) }
      }
    }
  }
}

const noBytes = new Uint8Array()

/**
 * Buffers of chunks that are free to be reused, by the next upload too: new ones for each would have V8 mark the heap once for
 * each large upload.
 */
export type FreeBuffers = ArrayBuffer[]

const maxFree = 8

const minBytes = 4 * 1024

/** Pieces of exactly `size` bytes, and the rest. The first buffer grows as bytes arrive, so a small upload costs little. */
export async function* chunks(
  source: AsyncIterable<Uint8Array>,
  size: number,
  room: FreeBuffers = [],
): AsyncGenerator<Uint8Array> {
  let chunk = new Uint8Array()
  let filled = 0
  let isFirst = true
  const grow = (least: number): void => {
    const bytes = isFirst ? Math.min(size, Math.max(minBytes, 2 * least)) : size
    const free = room.pop()
    const larger = new Uint8Array(free?.byteLength === size ? free : new ArrayBuffer(bytes))
    larger.set(chunk.subarray(0, filled))
    chunk = larger
  }
  for await (const piece of source) {
    for (let at = 0; at < piece.byteLength; ) {
      const taken = Math.min(piece.byteLength - at, size - filled)
      if (filled + taken > chunk.byteLength) grow(filled + taken)
      chunk.set(piece.subarray(at, at + taken), filled)
      filled += taken
      at += taken
      if (filled < size) continue
      yield chunk
      isFirst = false
      chunk = new Uint8Array()
      filled = 0
    }
  }
  if (filled > 0 || isFirst) yield chunk.subarray(0, filled)
}

// Builds the nodes above the leaves of a file: balanced, a fixed number of links to a node. It writes their UnixFS itself because
// the protobuf writer below `ipfs-unixfs` (protons-runtime 7 and 8.0) writes a number from 2^31 up to 2^32 as one byte: the root
// of a file of 2 to 4 GiB would be unreadable, and its CID would differ from that of every other implementation.

export type Part = { readonly cid: CID; readonly fileBytes: number; readonly dagBytes: number }

type Layout = {
  readonly width: number
  readonly cidVersion: 0 | 1
  readonly put: (cid: CID, bytes: Uint8Array) => Promise<unknown>
}

function balancedLayout(layout: Layout): FileLayout {
  return async (leaves, reduce) => {
    const parents: Part[] = []
    const parts: Part[] = []
    for await (const leaf of leaves) {
      // The root of a file with one leaf is that leaf.
      if ('single' in leaf && leaf.single) return reduce([leaf])
      if (parts.length === layout.width) parents.push(await putParent(parts.splice(0), layout))
      const { cid, size, unixfs } = leaf
      parts.push({ cid, fileBytes: Number(unixfs?.fileSize() ?? size), dagBytes: Number(size) })
    }
    parents.push(await putParent(parts, layout))
    let level = parents
    while (level.length > 1) {
      const above: Part[] = []
      for (let at = 0; at < level.length; at += layout.width) {
        above.push(await putParent(level.slice(at, at + layout.width), layout))
      }
      level = above
    }
    const [root = parents[0]] = level
    if (!root) throw new Error('a file without a leaf')
    return { cid: root.cid, size: BigInt(root.dagBytes) }
  }
}

async function putParent(parts: readonly Part[], { cidVersion, put }: Layout): Promise<Part> {
  const { block, ...sizes } = parentOf(parts)
  const cid = cidOfNode(block, cidVersion)
  await put(cid, block)
  return { cid, ...sizes }
}

function cidOfNode(block: Uint8Array, cidVersion: 0 | 1): CID {
  const digest = createDigest(hash.sha256, createHash('sha256').update(block).digest())
  return cidVersion === 0 ? CID.createV0(digest) : CID.createV1(codec.dagPb, digest)
}

export function parentOf(parts: readonly Part[]): { block: Uint8Array; fileBytes: number; dagBytes: number } {
  const fileBytes = parts.reduce((sum, part) => sum + part.fileBytes, 0)
  const fields = [...field(1, 2), ...field(3, fileBytes), ...parts.flatMap((part) => field(4, part.fileBytes))]
  const links = parts.map(({ cid, dagBytes }) => ({ Name: '', Hash: cid, Tsize: dagBytes }))
  const block = encodePb(prepare({ Data: Uint8Array.from(fields), Links: links }))
  return { block, fileBytes, dagBytes: parts.reduce((sum, part) => sum + part.dagBytes, block.byteLength) }
}

/** UnixFS `Data`: field 1 is the type (2: a file), 3 the size of the file, 4 the bytes below each link. */
export function field(number: number, value: number): number[] {
  const bytes = new Uint8Array(varint.encodingLength(value))
  varint.encodeTo(value, bytes)
  return [number << 3, ...bytes]
}

// Writes the directories of a tree as blocks, those below first: a link needs the CID of what it leads to.

export type WrittenFolder = DirectoryNode & { readonly path: string }

const nodesAtOnce = 8

/** Every directory of the tree, the root last. Each file of it has its entry. */
export async function putTree(root: Folder, rules: Rules): Promise<WrittenFolder[]> {
  const writing = new Set<Promise<unknown>>()
  const failed = new AbortController()
  /** A node is on its way to the disk while the next is made. */
  const put: Rules['put'] = async (cid, bytes) => {
    failed.signal.throwIfAborted()
    const one = rules
      .put(cid, bytes)
      .catch((error: unknown) => failed.abort(error))
      .finally(() => writing.delete(one))
    writing.add(one)
    if (writing.size >= nodesAtOnce) await Promise.race(writing)
  }
  const written: WrittenFolder[] = []
  async function putFolder({ path, entries }: Folder): Promise<DirectoryNode> {
    const links = []
    for (const [name, below] of entries) {
      const node = 'entries' in below ? await putFolder(below) : below.entry
      if (!node) throw new Error(`${path}/${name} has no blocks`)
      links.push({ ...node, name })
    }
    const node = await putDirectory(links, { ...rules, put })
    written.push({ ...node, path })
    return node
  }
  try {
    await putFolder(root)
  } finally {
    await Promise.all(writing)
  }
  failed.signal.throwIfAborted()
  return written
}

// The nodes of a UnixFS directory, as Kubo writes them: one block with all the links, or a HAMT where that block would be
// large. The names alone decide the nodes, in whatever order they came.

/** `dagBytes`: bytes of all blocks below it; a block that occurs twice counts twice. */
export type Entry = { readonly name: string; readonly cid: CID; readonly dagBytes: number }
export type DirectoryNode = Omit<Entry, 'name'>

export type Rules = Pick<Shape, 'cidVersion' | 'directorySize'> & {
  readonly put: (cid: CID, bytes: Uint8Array) => Promise<unknown>
}

/** A directory that is larger is sharded. */
const mostBytes = 256 * 1024
const fanout = 256
/** Other requests get their turn after as many. */
const hashesAtOnce = 512
const type = { directory: 1, shard: 5 } as const
/** Field 2 of the message, with a length: which places of a shard are taken. */
const bitsTag = 0x12

export async function putDirectory(entries: readonly Entry[], rules: Rules): Promise<DirectoryNode> {
  const links = entries.map(({ name, cid, dagBytes }) => ({ Name: name, Hash: cid, Tsize: dagBytes }))
  const bytes = entries.reduce((sum, { name, cid }) => sum + Buffer.byteLength(name) + cid.bytes.byteLength, 0)
  if (bytes <= mostBytes) {
    const block = encodePb(prepare({ Data: Uint8Array.from(field(1, type.directory)), Links: links }))
    if (rules.directorySize === 'links' || block.byteLength <= mostBytes) return putNode(block, entries, rules)
  }
  const placed: Placed[] = []
  for (const entry of entries) {
    placed.push({ ...entry, place: await placeOf(entry.name) })
    if (placed.length % hashesAtOnce === 0) await setImmediate()
  }
  return putShard(placed, 0, rules)
}

type Placed = Entry & { readonly place: Uint8Array }

/** One level of the HAMT takes one byte of the hash: a place of its own for a single name, a shard below for several. */
async function putShard(entries: readonly Placed[], depth: number, rules: Rules): Promise<DirectoryNode> {
  const at = Map.groupBy(entries, ({ place }) => place[depth])
  const taken = Buffer.alloc(fanout / 8)
  const links: Entry[] = []
  for (let slot = 0; slot < fanout; slot++) {
    const [only, ...more] = at.get(slot) ?? []
    if (!only) continue
    if (depth >= only.place.byteLength) throw malformed('too many names of the directory have the same hash')
    const digits = slot.toString(16).toUpperCase().padStart(2, '0')
    if (more.length === 0) links.push({ ...only, name: `${digits}${only.name}` })
    else links.push({ ...(await putShard([only, ...more], depth + 1, rules)), name: digits })
    const byte = taken.byteLength - 1 - (slot >> 3)
    taken[byte] = (taken[byte] as number) | (1 << (slot & 7))
  }
  const bits = taken.subarray(taken.findIndex((byte) => byte !== 0))
  const data = [
    ...field(1, type.shard),
    ...[bitsTag, bits.byteLength, ...bits],
    ...field(5, hash.murmur3x64),
    ...field(6, fanout),
  ]
  const Links = links.map(({ name, cid, dagBytes }) => ({ Name: name, Hash: cid, Tsize: dagBytes }))
  return putNode(encodePb(prepare({ Data: Uint8Array.from(data), Links })), links, rules)
}

async function putNode(
  block: Uint8Array,
  links: readonly DirectoryNode[],
  { cidVersion, put }: Rules,
): Promise<DirectoryNode> {
  const cid = cidOfNode(block, cidVersion)
  await put(cid, block)
  return { cid, dagBytes: links.reduce((sum, { dagBytes }) => sum + dagBytes, block.byteLength) }
}

// The relative file names of a directory upload: checked, and put together as a tree. A name that could lead out of the
// directory, or that two parts claim, is refused before its bytes are read.

/** Files of one upload, and directories. Each costs a small file on the disk. */
export const maxEntries = 16_384
const maxDepth = 64
const maxPathBytes = 4096
/** Limits of file systems: a directory that was uploaded can be saved again. */
const maxNameBytes = 255

export type Folder = { readonly path: string; readonly entries: Map<string, Folder | FileInTree> }
/** Its entry is set once its bytes have become blocks. */
export type FileInTree = { entry: Omit<Entry, 'name'> | undefined }

interface Tree {
  readonly root: Folder
  /** Reserves the path of a file. Throws a Failure for a path that cannot be taken. */
  file(path: string): FileInTree
  /** A directory of its own, which may stay empty. */
  folder(path: string): void
}

/** The only entry of a tree; undefined if there are several. */
export function onlyEntry({ entries }: Folder): Folder | FileInTree | undefined {
  const [first, ...more] = entries.values()
  return more.length === 0 ? first : undefined
}

export function createTree(): Tree {
  const root: Folder = { path: '', entries: new Map() }
  let count = 0

  function add<Node extends Folder | FileInTree>(to: Folder, name: string, node: Node): Node {
    if (++count > maxEntries) throw malformed(`more than ${maxEntries} files and directories in one upload`)
    to.entries.set(name, node)
    return node
  }

  function enter(names: readonly string[], path: string): Folder {
    let folder = root
    for (const name of names) {
      const below = folder.path === '' ? name : `${folder.path}/${name}`
      const next = folder.entries.get(name) ?? add(folder, name, { path: below, entries: new Map() })
      if (!('entries' in next)) throw refused(path, `${JSON.stringify(below)} is a file in the same upload`)
      folder = next
    }
    return folder
  }

  return {
    root,
    file(path) {
      const names = namesIn(path)
      const name = names.pop() as string
      const folder = enter(names, path)
      if (folder.entries.has(name)) throw refused(path, 'another part of the upload has the same path')
      return add(folder, name, { entry: undefined })
    },
    folder: (path) => void enter(namesIn(path), path),
  }
}

/** The names in a relative path. `find .` and some clients begin it with `./`. */
function namesIn(path: string): string[] {
  if (Buffer.byteLength(path) > maxPathBytes) throw refused(path, `it is longer than ${maxPathBytes} bytes`)
  const names = path.replace(/^\.\//, '').split('/')
  if (names.length > maxDepth) throw refused(path, `it is more than ${maxDepth} levels deep`)
  for (const name of names) {
    if (name === '') throw refused(path, 'it is not relative, or has an empty name in it')
    if (name === '.' || name === '..') throw refused(path, `it has ${name} in it`)
    if (hasControls(name)) throw refused(path, 'it has a control character in it')
    if (name.includes('\\')) throw refused(path, 'it has a backslash in it; directories are parted by /')
    if (Buffer.byteLength(name) > maxNameBytes) throw refused(path, `a name in it has more than ${maxNameBytes} bytes`)
  }
  return names
}

const hasControls = (name: string): boolean => [...name].some((one) => one < ' ' || one === '\u007f')

const maxShown = 200

const refused = (path: string, why: string) =>
  malformed(`the path ${JSON.stringify(path.slice(0, maxShown))} cannot be in a directory: ${why}`)
