// The blocks of one request until it is accepted: in memory up to 64 KiB, in one CAR file beyond that.

import { closeSync, fdatasync, open as openFile, read as readFile, write as writeFile, writev } from 'node:fs'
import { rm } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { promisify } from 'node:util'
import { encode } from '@ipld/dag-cbor'
import { varint } from 'multiformats'
import type { CID } from 'multiformats/cid'
import { blockKey, blockName, isIdentity } from '../core/cid.ts'
import { isGone, makeFolder, syncFolder } from '../core/disk/files.ts'
import { carHeader, carSectionBytes } from '../ipld/car.ts'
import { failureOf } from './engine.ts'
import type { Accepted, Filling, Intake, StagedDag } from './store.ts'
import type { AcceptedRow, PackedBlocks } from './writer.ts'

const maxInMemory = 64 * 1024

/** Takes a block where the room for it is. */
interface BlockPile {
  readonly cids: readonly CID[]
  /** The place of a block in `cids`. */
  find(key: string): number | undefined
  add(cid: CID, bytes: Uint8Array): { readonly index: number; readonly written: void | Promise<void> }
  lengthOf(index: number): number
  read(index: number): Uint8Array | Promise<Uint8Array>
  /** Files are on the platter when it resolves. */
  seal(roots: readonly CID[]): Promise<PackedBlocks>
  readonly file: CarFile | undefined
}

export function createBlockPile(newFile: () => CarFile): BlockPile {
  const indexOf = new Map<string, number>()
  const cids: CID[] = []
  const lengths: number[] = []
  const ats: number[] = []
  let memory: Uint8Array[] | undefined = []
  let total = 0
  let file: CarFile | undefined

  function toFile(): Promise<void> {
    const opened = newFile()
    file = opened
    const before = memory ?? []
    memory = undefined
    const writes = before.map((bytes, index) => {
      const { at, written } = opened.append(cids[index] as CID, bytes)
      ats[index] = at
      return written
    })
    return Promise.all(writes).then(() => {})
  }

  return {
    cids,
    find: (key) => indexOf.get(key),
    add(cid, bytes) {
      const index = cids.length
      const { byteLength } = bytes
      const isOver = memory !== undefined && total + byteLength > maxInMemory
      const moved = isOver ? toFile() : undefined
      indexOf.set(blockKey(cid), index)
      cids.push(cid)
      lengths.push(byteLength)
      total += byteLength
      if (memory) {
        memory.push(new Uint8Array(bytes))
        ats.push(total - byteLength)
        return { index, written: undefined }
      }
      const { at, written } = (file as CarFile).append(cid, bytes)
      ats.push(at)
      return { index, written: isOver ? Promise.all([moved, written]).then(() => {}) : written }
    },
    lengthOf: (index) => lengths[index] as number,
    read(index) {
      if (memory) return memory[index] as Uint8Array
      return (file as CarFile).read(ats[index] as number, lengths[index] as number)
    },
    async seal(roots) {
      const packed = { keys: packKeys(cids), lengths: Uint32Array.from(lengths), ats: Float64Array.from(ats) }
      if (!file) return { ...packed, bytes: Buffer.concat(memory ?? []) }
      return { ...packed, car: { name: file.name, bytes: await file.seal(roots) } }
    },
    get file() {
      return file
    },
  }
}

function packKeys(cids: readonly CID[]): Uint8Array {
  const packed = new Uint8Array(cids.reduce((sum, { multihash }) => sum + 1 + multihash.bytes.byteLength, 0))
  let at = 0
  for (const { multihash } of cids) {
    packed[at] = multihash.bytes.byteLength
    packed.set(multihash.bytes, at + 1)
    at += 1 + multihash.bytes.byteLength
  }
  return packed
}

type IntakeOptions = {
  readonly newFile: () => CarFile
  /** Blocks may serve this one: until the answer is called. */
  readonly offer: (key: string, read: () => Uint8Array | Promise<Uint8Array>) => () => void
  /** A block that was accepted. */
  readonly stored: (cid: CID) => Promise<Uint8Array | undefined>
}

/** An intake as the store sees it. */
interface OwnIntake extends Intake {
  /** Its CAR file is no longer the intake's to delete. */
  pack(uploads: readonly Accepted[]): Promise<{ readonly blocks: PackedBlocks; readonly rows: readonly AcceptedRow[] }>
  readonly cids: readonly CID[]
}

/** A DAG that is whole, with the places of its blocks. */
type OwnStagedDag = StagedDag & { readonly intake: OwnIntake; readonly list: readonly number[] }

export const intakeOf = (staged: StagedDag): OwnIntake => (staged as OwnStagedDag).intake

export const noBlocks: PackedBlocks = { keys: new Uint8Array(), lengths: new Uint32Array(), ats: new Float64Array() }

export function createIntake({ newFile, offer, stored }: IntakeOptions): Intake {
  const pile = createBlockPile(newFile)
  const withdrawals: (() => void)[] = []
  let isPacked = false
  let isDropped = false

  async function get(cid: CID): Promise<Uint8Array | undefined> {
    const index = isDropped ? undefined : pile.find(blockKey(cid))
    return index === undefined ? stored(cid) : pile.read(index)
  }

  function dag(): Filling {
    const listed = new Map<number, CID>()
    const counted = new Set<string>()
    let sections = 0

    function note(cid: CID, index: number): void {
      listed.set(index, cid)
      const name = blockName(cid)
      if (counted.has(name)) return
      counted.add(name)
      sections += carSectionBytes(cid, pile.lengthOf(index))
    }

    const indexIn = (cid: CID): number => {
      const index = pile.find(blockKey(cid))
      if (index === undefined) throw new Error(`${cid} is not in this intake`)
      return index
    }

    return {
      put(cid, bytes) {
        if (isIdentity(cid)) return
        const known = pile.find(blockKey(cid))
        if (known !== undefined) return note(cid, known)
        const { index, written } = pile.add(cid, bytes)
        note(cid, index)
        return written?.catch((error: unknown) => {
          throw failureOf(error, 'take an upload')
        })
      },
      has: (cid) => listed.has(pile.find(blockKey(cid)) ?? -1),
      read: (cid) => pile.read(indexIn(cid)),
      adopt(cid) {
        const index = indexIn(cid)
        note(cid, index)
        return pile.lengthOf(index)
      },
      finish(root, profile, bytes) {
        const list = [...listed.keys()]
        const staged: OwnStagedDag = {
          intake,
          list,
          cid: root,
          profile,
          bytes,
          carBytes: carHeader(root).byteLength + sections,
          cids: [...listed.values()],
          get,
          offer() {
            for (const index of list) {
              const key = blockKey(pile.cids[index] as CID)
              withdrawals.push(offer(key, () => pile.read(index)))
            }
          },
        }
        return staged
      },
    }
  }

  const intake: OwnIntake = {
    dag,
    async pack(uploads) {
      const blocks = await pile.seal(uploads.map(({ staged }) => staged.cid))
      isPacked = true
      const rows = uploads.map(({ staged, name, at, holders }): AcceptedRow => {
        const { cid, profile, bytes, carBytes } = staged
        const list = Uint32Array.from((staged as OwnStagedDag).list)
        return { cid: cid.toV1().bytes, name, profile, bytes, carBytes, at, holders, list }
      })
      return { blocks, rows }
    },
    cids: pile.cids,
    async drop() {
      if (isDropped) return
      isDropped = true
      for (const withdraw of withdrawals) withdraw()
      const { file } = pile
      if (!file) return
      await file.close()
      if (!isPacked) await file.remove().catch(() => {})
    },
  }
  return intake
}

// The file of a large request: a CARv2 around one CARv1, so that every IPFS tool reads it. Blocks are appended while they
// arrive; the header is written when the roots are known, and tells a whole file from one that was cut.

export interface CarFile {
  readonly name: string
  /** Where the bytes of the block will lie; the caller may change `bytes` when `written` is over. */
  append(cid: CID, bytes: Uint8Array): { readonly at: number; readonly written: void | Promise<void> }
  read(at: number, length: number): Promise<Uint8Array>
  /** Whole and on the platter when it resolves; with the bytes of the file. */
  seal(roots: readonly CID[]): Promise<number>
  /** Nothing is written any more. */
  close(): Promise<void>
  remove(): Promise<void>
}

const open = promisify(openFile)
const read = promisify(readFile)
const write = promisify(writeFile)
const writeMany = promisify(writev)
const sync = promisify(fdatasync)

const pragma = Buffer.from('0aa16776657273696f6e02', 'hex')
const headerBytes = pragma.byteLength + 40
/** Room for the header, whatever the roots are: the CARv1 begins somewhere in it. */
const reservedBytes = 4096
const bufferBytes = 256 * 1024
/** Larger ones are written from where they are. */
const copiedBytes = 32 * 1024

/** `ready`: before that, no file may be made. */
export function createCarFile(path: string, ready: Promise<unknown>): CarFile {
  const opening = ready.then(() => openAnew(path))
  opening.catch(() => {})
  const writes = new Set<Promise<unknown>>()
  let failed: unknown
  let end = reservedBytes
  let buffer = Buffer.allocUnsafeSlow(bufferBytes)
  let buffered = 0

  /** A write that failed leaves a hole: the file is of no more use. */
  function tracked(work: (handle: number) => Promise<unknown>): Promise<void> {
    const writing = opening.then(work).then(
      () => void writes.delete(writing),
      (error: unknown) => {
        failed ??= error
        writes.delete(writing)
        throw error
      },
    )
    writing.catch(() => {})
    writes.add(writing)
    return writing
  }

  function flush(): Promise<void> | undefined {
    if (buffered === 0) return undefined
    const [full, at] = [buffer.subarray(0, buffered), end - buffered]
    buffer = Buffer.allocUnsafeSlow(bufferBytes)
    buffered = 0
    return tracked((handle) => writeAll(handle, [full], at))
  }

  async function flushed(): Promise<number> {
    void flush()
    await Promise.all(writes)
    if (failed) throw failed
    return opening
  }

  return {
    name: basename(path),
    append(cid, bytes) {
      const before = sectionHead(cid, bytes.byteLength)
      const at = end + before.byteLength
      const total = before.byteLength + bytes.byteLength
      if (bytes.byteLength > copiedBytes) {
        void flush()
        const from = end
        end += total
        return { at, written: tracked((handle) => writeAll(handle, [before, bytes], from)) }
      }
      const full = buffered + total > bufferBytes ? flush() : undefined
      buffer.set(before, buffered)
      buffer.set(bytes, buffered + before.byteLength)
      buffered += total
      end += total
      return { at, written: full }
    },
    async read(at, length) {
      const bytes = Buffer.allocUnsafeSlow(length)
      await readAll(await flushed(), bytes, at)
      return bytes
    },
    async seal(roots) {
      const handle = await flushed()
      await writeAll(handle, [headOf(roots, end)], 0)
      await sync(handle)
      await syncFolder(dirname(path))
      return end
    },
    async close() {
      await Promise.allSettled(writes)
      await opening.then(closeSync).catch(() => {})
    },
    remove: () => rm(path, { force: true }),
  }
}

async function openAnew(path: string): Promise<number> {
  try {
    return await open(path, 'wx+')
  } catch (error) {
    if (!isGone(error)) throw error
    await makeFolder(dirname(path))
    return open(path, 'wx+')
  }
}

async function writeAll(handle: number, pieces: readonly Uint8Array[], at: number): Promise<void> {
  const total = pieces.reduce((sum, { byteLength }) => sum + byteLength, 0)
  const { bytesWritten } = await writeMany(handle, pieces, at)
  if (bytesWritten === total) return
  // A disk that takes a part says why with the rest.
  const rest = Buffer.concat(pieces).subarray(bytesWritten)
  for (let done = 0; done < rest.byteLength; ) {
    const more = await write(handle, rest, done, rest.byteLength - done, at + bytesWritten + done)
    done += more.bytesWritten
  }
}

async function readAll(handle: number, bytes: Uint8Array, at: number): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const { bytesRead } = await read(handle, bytes, done, bytes.byteLength - done, at + done)
    if (bytesRead === 0) throw new Error('a file of uploads is cut short')
    done += bytesRead
  }
}

function sectionHead(cid: CID, length: number): Buffer {
  const { bytes } = cid
  const total = bytes.byteLength + length
  const size = varint.encodingLength(total)
  const head = Buffer.allocUnsafe(size + bytes.byteLength)
  varint.encodeTo(total, head)
  head.set(bytes, size)
  return head
}

/** As many roots as there is room for: salvage finds the others by the links between the blocks. */
function headOf(roots: readonly CID[], end: number): Buffer {
  const room = reservedBytes - headerBytes
  let inner = innerHead(roots)
  for (let count = roots.length - 1; inner.byteLength > room; count--) inner = innerHead(roots.slice(-count))
  const head = Buffer.alloc(reservedBytes)
  const from = reservedBytes - inner.byteLength
  head.set(pragma)
  head.writeBigUInt64LE(BigInt(from), pragma.byteLength + 16)
  head.writeBigUInt64LE(BigInt(end - from), pragma.byteLength + 24)
  head.set(inner, from)
  return head
}

function innerHead(roots: readonly CID[]): Buffer {
  const header = encode({ roots: [...roots], version: 1 })
  return Buffer.concat([
    varint.encodeTo(header.byteLength, new Uint8Array(varint.encodingLength(header.byteLength))),
    header,
  ])
}
