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

type Put = (cid: CID, bytes: Uint8Array) => Promise<void>

/** The importer awaits `put`, so a slow disk slows the client down; `bytes` may be reused once it resolves. */
export async function importFile(source: AsyncIterable<Uint8Array>, shape: Shape, put: Put): Promise<Imported> {
  const room: FreeBuffers = []
  const blockstore = {
    async put(cid: CID, bytes: Uint8Array) {
      await put(cid, bytes)
      return cid
    },
  }
  const options = {
    chunker: (bytes: AsyncIterable<Uint8Array>) => chunks(bytes, shape.chunkBytes, room),
    bufferImporter: leafImporter(shape, room, put),
    layout: balancedLayout({ ...shape, put }),
    blockWriteConcurrency: writesAtOnce(shape),
    fileImportConcurrency: 1,
    wrapWithDirectory: false,
    reduceSingleLeafToSelf: true,
  }
  let root: Imported | undefined
  for await (const { cid, size } of importer([{ content: source }], blockstore, options))
    root = { cid, dagBytes: Number(size) }
  if (!root) throw new Error('the importer made nothing of a file')
  return root
}

/** Enough writes to keep a disk busy while the next blocks arrive. */
const writesAtOnce = ({ chunkBytes }: Shape): number =>
  Math.min(8, Math.max(2, Math.floor((2 * 1024 * 1024) / chunkBytes)))

/** The importer's own keeps the bytes of up to 174 leaves until their parent is made; this one keeps their sizes. */
function leafImporter({ isRaw, cidVersion }: Shape, room: FreeBuffers, put: Put): BufferImporter {
  return async function* leaf(file) {
    for await (const chunk of file.content as AsyncIterable<Uint8Array>) {
      yield async () => {
        const size = BigInt(chunk.byteLength)
        const block = isRaw ? chunk : encodePb({ Data: new UnixFS({ type: 'file', data: chunk }).marshal(), Links: [] })
        const digest = createDigest(hash.sha256, digestOf('sha256', block, 'buffer'))
        const cid = isRaw ? CID.createV1(codec.raw, digest) : CID.create(cidVersion, codec.dagPb, digest)
        await put(cid, block)
        room.push(chunk.buffer as ArrayBuffer)
        const result = { cid, size: BigInt(block.byteLength), block: noBytes }
        return isRaw ? result : { ...result, unixfs: new UnixFS({ type: 'file', blockSizes: [size] }) }
      }
    }
  }
}

const noBytes = new Uint8Array()

/** Buffers that are free to be reused. */
type FreeBuffers = ArrayBuffer[]

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
