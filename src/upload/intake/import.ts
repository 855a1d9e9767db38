// Turns bytes into blocks in one pass, as they arrive. The shape alone decides the DAG and so the CID (IPIP-499). An upload
// of any size holds a few chunks in memory: their buffers are reused.
import { hash as digestOf } from 'node:crypto'
import { encode as encodePb } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { type BufferImporter, importer } from 'ipfs-unixfs-importer'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import type { Shape } from '../../../backends/pinning/contract.ts'
import { codec, hash } from '../../core/cid.ts'
import { balancedLayout } from './layout.ts'

/** `dagBytes`: bytes of all its blocks; a block that occurs twice counts twice. */
export type Imported = { readonly cid: CID; readonly dagBytes: number }

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

const leastBytes = 4 * 1024

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
    const bytes = isFirst ? Math.min(size, Math.max(leastBytes, 2 * least)) : size
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
