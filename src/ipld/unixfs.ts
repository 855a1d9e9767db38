// Reads a dag-pb block as UnixFS, with limits so that a small block cannot cost much. The only file
// that uses the UnixFS libraries.
import { UnixFS } from 'ipfs-unixfs'
import type { CID } from 'multiformats/cid'
import { maxBlockBytes } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'
import { decodePb, decodePbInSlices, type PbLinks, type PbNode } from './dag-pb.ts'
import type { YieldIfDue } from './documents.ts'

export type Node = {
  readonly links: PbLinks
  /** Undefined if the dag-pb is not UnixFS. */
  readonly unixfs: UnixFS | undefined
  /** The encoded message of `unixfs`. */
  readonly data: Uint8Array | undefined
  /** The sizes of the parts of a file, if they are too many to be in `unixfs`. */
  readonly sizes?: Float64Array | undefined
}

export const wrongContent = (cid: CID, what: string, cause?: unknown): Failure =>
  new Failure('malformed', `${cid} is malformed: ${what}`, { source: 'content', cause })

export function readNode(cid: CID, block: Uint8Array): Node {
  if (block.byteLength > maxBlockBytes) throw tooLarge(cid)
  try {
    return nodeOf(decodePb(block))
  } catch (cause) {
    throw notPb(cid, cause)
  }
}

/** As above, but yields to the event loop between slices: for a block that may be full of links. */
export async function readNodeInSlices(cid: CID, block: Uint8Array, yieldIfDue: YieldIfDue): Promise<Node> {
  if (block.byteLength > maxBlockBytes) throw tooLarge(cid)
  try {
    const decoded = await decodePbInSlices(block, yieldIfDue)
    const isLarge = decoded.Data !== undefined && decoded.Data.byteLength >= 2 * freeSizes
    if (isLarge) await yieldIfDue()
    const node = nodeOf(decoded)
    if (isLarge) await yieldIfDue()
    return node
  } catch (cause) {
    throw notPb(cid, cause)
  }
}

const tooLarge = (cid: CID): Failure => wrongContent(cid, 'it is larger than a block may be')
const notPb = (cid: CID, cause: unknown): Failure => wrongContent(cid, 'it is not a dag-pb block', cause)

function nodeOf({ Data, Links }: PbNode): Node {
  if (Data && Data.byteLength >= 2 * freeSizes) return { links: Links, data: Data, ...readLarge(Data, Links.length) }
  return { links: Links, unixfs: Data && readUnixfs(Data), data: Data }
}

// Above this number of sizes the library's array of bigints takes too long: a hundred thousand took
// a tenth of a second with garbage collection.
const freeSizes = 4096

/** The wire type that the library expects of each field. */
const wires: Readonly<Record<number, number>> = { 1: 0, 2: 2, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0, 8: 2 }

/** Reads many sizes into a typed array, and gives the library the message without them. */
function readLarge(message: Uint8Array, links: number): Pick<Node, 'unixfs' | 'sizes'> {
  try {
    return readSizesApart(message, links)
  } catch {
    return { unixfs: undefined }
  }
}

function readSizesApart(message: Uint8Array, links: number): Pick<Node, 'unixfs' | 'sizes'> {
  let count = 0
  let others = 0
  let isCommon = true
  eachField(message, (field, _value, wire) => {
    if (field === blockSizesField) count++
    else others++
    isCommon &&= (wires[field] ?? wire) === wire
  })
  if (others > freeSizes) return { unixfs: undefined }
  if (count <= freeSizes) return { unixfs: readUnixfs(message) }
  if (count > links || !isCommon) return { unixfs: undefined }
  const sizes = new Float64Array(count)
  const rest: Uint8Array[] = []
  count = 0
  eachField(message, (field, value, _wire, from, to) => {
    if (field === blockSizesField) sizes[count++] = value ?? 0
    else rest.push(message.subarray(from, to))
  })
  return { unixfs: readUnixfs(Buffer.concat(rest)), sizes }
}

function readUnixfs(data: Uint8Array): UnixFS | undefined {
  try {
    return UnixFS.unmarshal(data)
  } catch {
    return undefined
  }
}

/** The declared size of a file node; the sum of its children's sizes is checked while reading. */
export function declaredSize(cid: CID, node: Node): number {
  const { unixfs, links, sizes } = node
  if (!unixfs) return 0
  const size = sizeIn(node)
  // Negated, so that NaN is refused too.
  if (!(size <= Number.MAX_SAFE_INTEGER)) throw wrongContent(cid, 'it declares more bytes than there can be')
  if (links.length !== (sizes ?? unixfs.blockSizes).length)
    throw wrongContent(cid, 'its links and their sizes do not match')
  return size
}

/** The declared size without validation; it may be more than a number can hold. */
function sizeIn({ unixfs, sizes }: Node): number {
  const size = Number(unixfs?.fileSize() ?? 0n)
  return sizes === undefined || unixfs?.isDirectory() ? size : sizes.reduce((sum, one) => sum + one, size)
}

/** The larger of the sum of the parts and the declared total, which readers ignore. */
export function claimedSize(node: Node): number {
  let claimed = sizeIn(node)
  if (!node.unixfs || !node.data) return claimed
  try {
    eachField(node.data, (field, value) => {
      if (field === fileSizeField) claimed = Math.max(claimed, value ?? 0)
    })
    return claimed
  } catch {
    return Number.POSITIVE_INFINITY
  }
}

/** The offset of each part of a file, after the bytes of the node itself, and last the end. */
export function startsOf({ unixfs, links, sizes }: Node, from: number): Float64Array {
  const starts = new Float64Array(links.length + 1)
  let at = from + (unixfs?.data?.byteLength ?? 0)
  for (let index = 0; index < links.length; index++) {
    starts[index] = at
    at += sizes?.[index] ?? Number(unixfs?.blockSizes[index] ?? 0n)
  }
  starts[links.length] = at
  return starts
}

const fileSizeField = 3
const blockSizesField = 4
const hashTypeField = 5
const modeField = 7

/** The hash function of a HAMT, which the library does not expose. */
export const hashTypeOf = (message: Uint8Array): number | undefined => numberIn(message, hashTypeField)

/** The stored mode; undefined if there is none, where the library returns a default. */
export const modeOf = (message: Uint8Array): number | undefined => numberIn(message, modeField)

function numberIn(message: Uint8Array, wanted: number): number | undefined {
  let found: number | undefined
  try {
    eachField(message, (field, value) => {
      if (field === wanted) found = value
    })
  } catch {
    // Stops at a malformed field, since the library tolerates some that are unknown to it.
  }
  return found
}

// The maximum of a varint of ten bytes.
const longestNumber = 128 ** 9

/** Calls back for each field of a message with its key and end; `value` is set for a number. */
function eachField(
  message: Uint8Array,
  each: (field: number, value: number | undefined, wire: number, from: number, to: number) => void,
): void {
  let at = 0
  const varint = (): number => {
    let value = 0
    for (let factor = 1; at < message.length; factor *= 128) {
      if (factor > longestNumber) throw new Error('a number is too long')
      const byte = message[at++] as number
      value += (byte & 127) * factor
      if (byte < 128) break
    }
    return value
  }
  while (at < message.length) {
    const from = at
    const tag = varint()
    const wire = tag & 7
    if (wire === 0) {
      const value = varint()
      each(tag >> 3, value, wire, from, at)
    } else {
      const length = wire === 2 ? varint() : wire === 1 ? 8 : wire === 5 ? 4 : message.length
      at += length
      each(tag >> 3, undefined, wire, from, at)
    }
  }
}
