// Turns bytes into blocks in one pass, as they arrive. The shape alone decides the DAG and so the CID (IPIP-499). An upload
// of any size holds a few chunks in memory: their buffers are reused.
import { hash as hashOf } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { encode as encodePb, prepare } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { varint } from 'multiformats'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import type { Shape } from '../../backends/pinning/contract.ts'
import { placeOf } from '../content/dag/hamt.ts'
import { codec, hash } from '../core/cid.ts'
import { malformed } from '../core/failure.ts'
import { createInFlight } from '../core/in-flight.ts'

/** `dagBytes`: bytes of all its blocks; a block that occurs twice counts twice. */
export type ImportedFile = { readonly cid: CID; readonly fileBytes: number; readonly dagBytes: number }

/** `bytes` may be reused once it returns or resolves. */
export type Put = (cid: CID, bytes: Uint8Array) => void | Promise<void>

/**
 * Waits for `put`, so a slow disk slows the client down. The root of a file of one leaf is that leaf. The first buffer grows
 * as bytes arrive, so a small upload costs little.
 */
export async function importFile(
  source: AsyncIterable<Uint8Array>,
  shape: Shape,
  put: Put,
  free: FreeBuffers = [],
): Promise<ImportedFile> {
  const size = shape.chunkBytes
  const writing = createInFlight(writesAtOnce(shape))
  /** Nodes without a parent, the leaves first. */
  const levels: ImportedFile[][] = [[]]
  let chunk: Uint8Array = nothing
  let filled = 0
  let isFirst = true

  function grow(needed: number): void {
    const bytes = isFirst ? Math.min(size, Math.max(minBytes, 2 * needed)) : size
    const reused = free.pop()
    const larger = new Uint8Array(reused?.byteLength === size ? reused : new ArrayBuffer(bytes))
    larger.set(chunk.subarray(0, filled))
    chunk = larger
  }

  async function addLeaf(): Promise<void> {
    const bytes = chunk.subarray(0, filled)
    const { cid, block } = leafOf(bytes, shape)
    const written = put(cid, block)
    const release = () => {
      if (free.length < maxFree) free.push(bytes.buffer as ArrayBuffer)
    }
    chunk = nothing
    filled = 0
    isFirst = false
    if (written instanceof Promise) await writing.add(written.then(release))
    else release()
    await add({ cid, fileBytes: bytes.byteLength, dagBytes: block.byteLength }, 0)
  }

  /** Balanced: a node gets its parent when it has as many siblings as a parent has links. */
  async function add(part: ImportedFile, depth: number): Promise<void> {
    const level = (levels[depth] ??= [])
    if (level.length === shape.width) await close(depth)
    level.push(part)
  }

  async function close(depth: number): Promise<void> {
    const parts = (levels[depth] as ImportedFile[]).splice(0)
    const { block, ...sizes } = parentOf(parts)
    const cid = cidOfNode(block, shape.cidVersion)
    await put(cid, block)
    await add({ cid, ...sizes }, depth + 1)
  }

  try {
    for await (const piece of source) {
      for (let at = 0; at < piece.byteLength; ) {
        const taken = Math.min(piece.byteLength - at, size - filled)
        if (filled + taken > chunk.byteLength) grow(filled + taken)
        chunk.set(piece.subarray(at, at + taken), filled)
        filled += taken
        at += taken
        if (filled === size) await addLeaf()
      }
    }
    if (filled > 0 || isFirst) await addLeaf()
  } finally {
    await writing.end()
  }
  for (let depth = 0; ; depth++) {
    const [root, ...others] = levels[depth] as ImportedFile[]
    if (root && others.length === 0 && depth === levels.length - 1) return root
    await close(depth)
  }
}

const nothing = new Uint8Array()

function leafOf(chunk: Uint8Array, { isRaw, cidVersion }: Shape): { readonly cid: CID; readonly block: Uint8Array } {
  const block = isRaw ? chunk : encodePb({ Data: new UnixFS({ type: 'file', data: chunk }).marshal(), Links: [] })
  return isRaw ? { cid: CID.createV1(codec.raw, digestOf(block)), block } : { cid: cidOfNode(block, cidVersion), block }
}

const digestOf = (block: Uint8Array) => createDigest(hash.sha256, hashOf('sha256', block, 'buffer'))

const cidOfNode = (block: Uint8Array, cidVersion: 0 | 1): CID => CID.create(cidVersion, codec.dagPb, digestOf(block))

/** Enough writes to keep a disk busy while the next blocks arrive. */
const writesAtOnce = ({ chunkBytes }: Shape): number =>
  Math.min(8, Math.max(2, Math.floor((2 * 1024 * 1024) / chunkBytes)))

/**
 * Buffers of chunks that are free to be reused, by the next upload too: new ones for each would have V8 mark the heap once for
 * each large upload.
 */
export type FreeBuffers = ArrayBuffer[]

const maxFree = 8

const minBytes = 4 * 1024

/**
 * A node above the leaves of a file. It writes its UnixFS itself because the protobuf writer below `ipfs-unixfs` (protons-runtime
 * 7 and 8.0) writes a number from 2^31 up to 2^32 as one byte: the root of a file of 2 to 4 GiB would be unreadable, and its CID
 * would differ from that of every other implementation.
 */
export function parentOf(parts: readonly ImportedFile[]): { block: Uint8Array; fileBytes: number; dagBytes: number } {
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

type WrittenFolder = DirectoryNode & { readonly path: string }

const maxNodesInFlight = 8

/** Every directory of the tree, the root last. Each file of it has its entry. */
export async function putTree(root: Folder, rules: Rules): Promise<WrittenFolder[]> {
  // A node is on its way to the disk while the next is made.
  const writing = createInFlight(maxNodesInFlight)
  const put: Rules['put'] = (cid, bytes) => writing.add(rules.put(cid, bytes))
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
    await writing.end()
  }
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
const maxNodeBytes = 256 * 1024
const fanout = 256
/** The event loop gets its turn after as many. */
const hashesAtOnce = 512
const type = { directory: 1, shard: 5 } as const
/** Field 2 of the message, with a length: which places of a shard are taken. */
const bitsTag = 0x12

export async function putDirectory(entries: readonly Entry[], rules: Rules): Promise<DirectoryNode> {
  const links = entries.map(({ name, cid, dagBytes }) => ({ Name: name, Hash: cid, Tsize: dagBytes }))
  const bytes = entries.reduce((sum, { name, cid }) => sum + Buffer.byteLength(name) + cid.bytes.byteLength, 0)
  if (bytes <= maxNodeBytes) {
    const block = encodePb(prepare({ Data: Uint8Array.from(field(1, type.directory)), Links: links }))
    if (rules.directorySize === 'links' || block.byteLength <= maxNodeBytes) return putNode(block, entries, rules)
  }
  const placed: Placed[] = []
  for (const entry of entries) {
    placed.push({ ...entry, place: await placeOf(entry.name) })
    if (placed.length % hashesAtOnce === 0) await setImmediate()
  }
  return putShard(placed, 0, rules)
}

type Placed = Entry & { readonly place: Uint8Array }

/** Each level of the HAMT takes one byte of the hash: a slot has one name, or a shard with several. */
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
