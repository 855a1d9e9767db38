// Reads a CARv1 stream from an upstream or a client block by block, with a bound on every length.
// The caller verifies the blocks.
import { decode as decodeCbor } from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import { type Block, maxBlockBytes } from '../block.ts'
import { cidAt } from '../cid.ts'
import { Failure } from '../failure.ts'

const maxHeaderBytes = 1024 * 1024
const maxCidBytes = 512
const maxVarintBytes = 8
// Empty sections: some writers use them to align their blocks.
const mostPadding = 4096

/** Creates the Failure for a malformed CAR. */
type Fault = (what: string, cause?: unknown) => Failure

export type CarOptions = {
  /** Default: the sender is an upstream, which is then `broken`. */
  readonly broken?: Fault
  /** Called with the roots before the first block. */
  readonly onRoots?: (roots: readonly CID[]) => void
  /** No other reader uses the chunks, so each is freed once copied into its blocks. */
  readonly ownsChunks?: boolean
}

const ofUpstream: Fault = (what, cause) =>
  new Failure('upstream-error', `the CAR ${what}`, { source: 'upstream', cause })

/** Yields blocks in the order sent; ends normally only if the stream ends between two sections. */
export async function* readCar(
  chunks: AsyncIterable<Uint8Array>,
  { broken = ofUpstream, onRoots, ownsChunks = false }: CarOptions = {},
): AsyncGenerator<Block> {
  const reader = createReader(chunks, broken, ownsChunks)
  try {
    const headerBytes = await reader.varint()
    if (headerBytes === undefined) throw broken('is empty')
    if (headerBytes > maxHeaderBytes) throw broken('has a header larger than it may be')
    const roots = rootsIn(await reader.take(headerBytes), broken)
    onRoots?.(roots)
    for (let padding = 0; ; ) {
      const length = await reader.varint()
      if (length === undefined) return
      if (length === 0) {
        if (++padding > mostPadding) throw broken('is padded without end')
        continue
      }
      if (length > maxBlockBytes + maxCidBytes) throw broken('has a block larger than it may be')
      yield await section(reader, length, broken)
    }
  } finally {
    await reader.close()
  }
}

function rootsIn(bytes: Uint8Array, broken: Fault): readonly CID[] {
  let header: unknown
  try {
    header = decodeCbor(bytes)
  } catch (cause) {
    throw broken('has a header that does not decode', cause)
  }
  const { version, roots } = (header ?? {}) as { version?: unknown; roots?: unknown }
  if (version !== 1) throw broken('is not of version 1')
  const cids = (Array.isArray(roots) ? roots : []).map((root) => CID.asCID(root))
  return cids.filter((cid) => cid !== null)
}

// Fits a CID with a digest of 64 bytes and codes of any length.
const usualCidBytes = 96

/**
 * The returned bytes have memory of their own, so that the memory tier can keep them without a
 * copy.
 */
async function section(reader: Reader, length: number, broken: Fault): Promise<Block> {
  let head = await reader.take(Math.min(length, usualCidBytes))
  const size = measured(head, broken)
  if (size > length) throw broken('has a section without a CID')
  if (size > head.byteLength) head = Buffer.concat([head, await reader.take(size - head.byteLength)])
  const bytes = Buffer.allocUnsafeSlow(length - size)
  bytes.set(head.subarray(size))
  await reader.fill(bytes, head.byteLength - size)
  return { cid: cidIn(head.subarray(0, size), broken), bytes }
}

function measured(head: Uint8Array, broken: Fault): number {
  try {
    return CID.inspectBytes(head).size
  } catch (cause) {
    throw broken('has a section without a CID', cause)
  }
}

function cidIn(bytes: Uint8Array, broken: Fault): CID {
  try {
    return cidAt(new Uint8Array(bytes), 0, bytes.byteLength)
  } catch (cause) {
    throw broken('has a section without a CID', cause)
  }
}

/**
 * Frees a chunk now. Otherwise it stays until V8 collects the complete heap, which happens more
 * often the more such memory there is. Only for a chunk that spans its buffer, since others share
 * theirs.
 */
function free({ buffer, byteLength }: Uint8Array): void {
  if (buffer instanceof ArrayBuffer && buffer.byteLength === byteLength) buffer.transfer(0)
}

type Reader = ReturnType<typeof createReader>

function createReader(chunks: AsyncIterable<Uint8Array>, broken: Fault, ownsChunks: boolean) {
  const iterator = chunks[Symbol.asyncIterator]()
  let chunk: Uint8Array | undefined
  let held: Uint8Array = new Uint8Array()

  async function more(): Promise<boolean> {
    if (chunk && ownsChunks) free(chunk)
    chunk = undefined
    for (;;) {
      const { value, done } = await iterator.next()
      if (done) return false
      if (value.byteLength === 0) continue
      held = chunk = value
      return true
    }
  }

  async function fill(piece: Uint8Array, from: number): Promise<void> {
    for (let filled = from; filled < piece.byteLength; ) {
      if (held.byteLength === 0 && !(await more())) throw broken('ends in the middle of a block')
      const part = held.subarray(0, piece.byteLength - filled)
      piece.set(part, filled)
      filled += part.byteLength
      held = held.subarray(part.byteLength)
    }
  }

  return {
    /** Undefined at a clean end. */
    async varint(): Promise<number | undefined> {
      let value = 0
      for (let count = 0; count < maxVarintBytes; count++) {
        if (held.byteLength === 0 && !(await more())) {
          if (count === 0) return undefined
          throw broken('ends in the middle of a length')
        }
        const byte = held[0] as number
        held = held.subarray(1)
        value += (byte & 0x7f) * 2 ** (7 * count)
        if (byte < 0x80) {
          if (!Number.isSafeInteger(value)) break
          return value
        }
      }
      throw broken('has a malformed length')
    },
    /** Copies into memory of its own, so that the network's buffers are freed. */
    async take(length: number): Promise<Uint8Array> {
      const piece = Buffer.allocUnsafeSlow(length)
      await fill(piece, 0)
      return piece
    },
    fill,
    close: async () => {
      await iterator.return?.()
    },
  }
}
