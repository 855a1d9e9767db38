// Reads a CARv1 stream from an upstream or a client block by block, with a bound on every length.
// The caller verifies the blocks.
import { decode as decodeCbor } from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import { type Block, cidAt, maxBlockBytes } from '../cid.ts'
import { Failure } from '../failure.ts'

const maxHeaderBytes = 1024 * 1024
const maxCidBytes = 512
const maxVarintBytes = 8
const tooLarge = `has a block larger than the ${maxBlockBytes} bytes that one may have`
// Empty sections: some writers use them to align their blocks.
const maxPadding = 4096

/** Creates the Failure for a malformed CAR. */
type Fault = (what: string, cause?: unknown) => Failure

type CarOptions = {
  /** Default: the sender is an upstream, which is then `broken`. */
  readonly broken?: Fault
  /** Called with the roots before the first block. */
  readonly onRoots?: (roots: readonly CID[]) => void
  /** No other reader uses the chunks, so each is freed once copied into its blocks. */
  readonly ownsChunks?: boolean
}

const ofUpstream: Fault = (what, cause) =>
  new Failure('upstream-error', `the CAR ${what}`, { source: 'upstream', cause })

/** Yields blocks in order. A stream that ends within a section is a failure. */
export async function* readCar(chunks: AsyncIterable<Uint8Array>, options: CarOptions = {}): AsyncGenerator<Block> {
  const parser = new CarParser(options)
  for await (const chunk of chunks) {
    parser.push(chunk)
    for (let block = parser.next(); block; block = parser.next()) yield block
    if (options.ownsChunks) free(chunk)
  }
  parser.end()
}

const nothing = Buffer.alloc(0)
// A CID with a digest of 64 bytes and codes of any length fits in.
const commonCidBytes = 96

/** Parses the chunks of a CAR to blocks. */
export class CarParser {
  readonly #broken: Fault
  readonly #onRoots: CarOptions['onRoots']
  /** The unread part of the stream. */
  readonly #chunks: Uint8Array[] = []
  #at = 0
  #state: 'length' | 'header' | 'cid' | 'block' = 'length'
  #isBegun = false
  /** The bytes read so far of a length, and their value. */
  #lengthBytes = 0
  #length = 0
  #padding = 0
  /** The buffer in progress, and its filled bytes. */
  #piece: Buffer = nothing
  #filled = 0
  #cid: CID | undefined

  constructor({ broken = ofUpstream, onRoots }: CarOptions = {}) {
    this.#broken = broken
    this.#onRoots = onRoots
  }

  /** The chunk must not change until `next` has returned undefined. */
  push(chunk: Uint8Array): void {
    if (chunk.byteLength > 0) this.#chunks.push(chunk)
  }

  /**
   * Undefined until more chunks come. The block has memory of its own, which the memory tier keeps.
   */
  next(): Block | undefined {
    for (;;) {
      if (this.#state === 'length') {
        if (!this.#readLength()) return undefined
        this.#begin()
        continue
      }
      if (!this.#fill()) return undefined
      if (this.#state === 'cid') this.#readCid()
      else if (this.#state === 'header') this.#readHeader()
      else return this.#block()
    }
  }

  /** Ends the stream. Throws if it was cut off within a section. */
  end(): undefined {
    if (this.#state !== 'length') throw this.#broken('ends in the middle of a block')
    if (this.#lengthBytes > 0) throw this.#broken('ends in the middle of a length')
    if (!this.#isBegun) throw this.#broken('is empty')
  }

  #readLength(): boolean {
    for (let [chunk] = this.#chunks; chunk; [chunk] = this.#chunks) {
      const byte = chunk[this.#at] as number
      this.#take(1)
      if (this.#lengthBytes === 0) this.#length = 0
      this.#length += (byte & 0x7f) * 2 ** (7 * this.#lengthBytes++)
      const isLast = byte < 0x80
      if (!isLast && this.#lengthBytes < maxVarintBytes) continue
      if (!isLast || !Number.isSafeInteger(this.#length)) throw this.#broken('has a malformed length')
      this.#lengthBytes = 0
      return true
    }
    return false
  }

  #begin(): void {
    const length = this.#length
    if (!this.#isBegun) {
      if (length > maxHeaderBytes) throw this.#broken('has a header larger than it may be')
      this.#isBegun = true
      return this.#expect('header', Buffer.allocUnsafeSlow(length))
    }
    if (length > maxBlockBytes + maxCidBytes) throw this.#broken(tooLarge)
    if (length > 0) return this.#expect('cid', Buffer.allocUnsafeSlow(Math.min(length, commonCidBytes)))
    if (++this.#padding > maxPadding) throw this.#broken('is padded without end')
  }

  #expect(state: 'header' | 'cid' | 'block', piece: Buffer, filled = 0): void {
    this.#state = state
    this.#piece = piece
    this.#filled = filled
  }

  #readHeader(): void {
    this.#state = 'length'
    const roots = rootsIn(this.#piece, this.#broken)
    this.#onRoots?.(roots)
  }

  #readCid(): void {
    const head = this.#piece
    const size = measured(head, this.#broken)
    if (size > this.#length) throw this.#broken('has a section without a CID')
    if (size > head.byteLength) {
      const longer = Buffer.allocUnsafeSlow(size)
      longer.set(head)
      return this.#expect('cid', longer, head.byteLength)
    }
    if (this.#length - size > maxBlockBytes) throw this.#broken(tooLarge)
    this.#cid = cidIn(head.subarray(0, size), this.#broken)
    const bytes = Buffer.allocUnsafeSlow(this.#length - size)
    bytes.set(head.subarray(size))
    this.#expect('block', bytes, head.byteLength - size)
  }

  #block(): Block {
    const block = { cid: this.#cid as CID, bytes: this.#piece }
    this.#state = 'length'
    this.#piece = nothing
    return block
  }

  /** False until more chunks come. */
  #fill(): boolean {
    const piece = this.#piece
    while (this.#filled < piece.byteLength) {
      const [chunk] = this.#chunks
      if (!chunk) return false
      const part = Math.min(piece.byteLength - this.#filled, chunk.byteLength - this.#at)
      piece.set(chunk.subarray(this.#at, this.#at + part), this.#filled)
      this.#filled += part
      this.#take(part)
    }
    return true
  }

  #take(bytes: number): void {
    this.#at += bytes
    if (this.#at < (this.#chunks[0]?.byteLength ?? 0)) return
    this.#chunks.shift()
    this.#at = 0
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
