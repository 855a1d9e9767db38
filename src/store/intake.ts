// The blocks of one request until it is accepted: in memory up to 64 KiB, in one CAR file beyond
// that.
import { type FileHandle, open, rm } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import type { CID } from 'multiformats/cid'
import { blockKey, blockName, isIdentity } from '../core/cid.ts'
import { isGone, makeFolder, syncFolder } from '../core/disk/files.ts'
import { carHeader, carSectionBytes, carSectionHead } from '../ipld/car.ts'
import { failureOf, markAt } from './database.ts'
import type { Accepted, Filling, Intake, StagedDag } from './store.ts'
import type { AcceptedRow, PackedBlocks } from './threads.ts'

const maxInMemory = 64 * 1024

type IntakeOptions = {
  readonly newFile: () => CarFile
  /** Blocks may serve this one: until the answer is called. */
  readonly offer: (key: string, read: () => Uint8Array | Promise<Uint8Array>) => () => void
  /** A block that was accepted. */
  readonly stored: (cid: CID) => Promise<Uint8Array | undefined>
}

/** A DAG that is whole, with the places of its blocks in its intake. */
type OwnDag = StagedDag & {
  readonly list: readonly number[]
  readonly seal: (roots: readonly CID[]) => Promise<PackedBlocks>
}

const noBlocks: PackedBlocks = { keys: new Uint8Array(), lengths: [], ats: [] }

/** A message copies the buffer behind a view, and that of a small Buffer is a pool of 64 KiB. */
const withoutPool = (bytes: Uint8Array): Uint8Array => new Uint8Array(bytes)

/** Uploads of one intake as they go to the writer, whose their CAR file is from here on. */
export async function packed(
  uploads: readonly Accepted[],
): Promise<{ readonly blocks: PackedBlocks; readonly uploads: readonly AcceptedRow[] }> {
  const [first] = uploads.map(({ staged }) => staged as OwnDag)
  const blocks = first ? await first.seal(uploads.map(({ staged }) => staged.cid)) : noBlocks
  const rows = uploads.map(({ staged, name, at, holders }): AcceptedRow => {
    const { cid, profile, bytes, carBytes, list } = staged as OwnDag
    return { cid: withoutPool(cid.toV1().bytes), name, profile, bytes, carBytes, at, holders, list }
  })
  return { blocks, uploads: rows }
}

export function createIntake({ newFile, offer, stored }: IntakeOptions): Intake {
  const indexOf = new Map<string, number>()
  const cids: CID[] = []
  const lengths: number[] = []
  const ats: number[] = []
  const withdrawals: (() => void)[] = []
  /** Undefined: they are in the file. */
  let memory: Uint8Array[] | undefined = []
  let total = 0
  let file: CarFile | undefined
  let isSealed = false
  let isDropped = false

  const find = (cid: CID): number | undefined => indexOf.get(blockKey(cid))

  function placed(cid: CID): number {
    const index = find(cid)
    if (index === undefined) throw new Error(`${cid} is not in this intake`)
    return index
  }

  function add(cid: CID, bytes: Uint8Array): void | Promise<void> {
    const index = cids.length
    indexOf.set(blockKey(cid), index)
    cids.push(cid)
    lengths.push(bytes.byteLength)
    ats.push(total)
    total += bytes.byteLength
    if (memory && total <= maxInMemory) return void memory.push(new Uint8Array(bytes))
    const moved = memory?.map((earlier, at) => append(at, earlier)) ?? []
    memory = undefined
    const written = append(index, bytes)
    return moved.length === 0 ? written : Promise.all([...moved, written]).then(() => {})
  }

  function append(index: number, bytes: Uint8Array): void | Promise<void> {
    file ??= newFile()
    const { at, written } = file.append(cids[index] as CID, bytes)
    ats[index] = at
    return written
  }

  const read = (index: number): Uint8Array | Promise<Uint8Array> =>
    memory ? (memory[index] as Uint8Array) : (file as CarFile).read(ats[index] as number, lengths[index] as number)

  async function seal(roots: readonly CID[]): Promise<PackedBlocks> {
    const keys = cids.flatMap(({ multihash: { bytes } }) => [Uint8Array.of(bytes.byteLength), bytes])
    const blocks = { keys: withoutPool(Buffer.concat(keys)), lengths, ats }
    if (!file) return { ...blocks, bytes: withoutPool(Buffer.concat(memory ?? [])) }
    const bytes = await file.seal(roots)
    isSealed = true
    return { ...blocks, car: { name: file.name, bytes } }
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
      sections += carSectionBytes(cid, lengths[index] as number)
    }

    return {
      put(cid, bytes) {
        if (isIdentity(cid)) return
        const written = find(cid) === undefined ? add(cid, bytes) : undefined
        note(cid, placed(cid))
        return written?.catch((error: unknown) => {
          throw failureOf(error, 'take an upload')
        })
      },
      has: (cid) => listed.has(find(cid) ?? -1),
      read: (cid) => read(placed(cid)),
      adopt(cid) {
        const index = placed(cid)
        note(cid, index)
        return lengths[index] as number
      },
      finish(root, profile, bytes) {
        const staged: OwnDag = {
          ...{ cid: root, profile, bytes, seal },
          list: [...listed.keys()],
          carBytes: carHeader(root).byteLength + sections,
          cids: [...listed.values()],
          async get(cid) {
            const index = isDropped ? undefined : find(cid)
            return index === undefined ? stored(cid) : read(index)
          },
          offer() {
            for (const [index, cid] of listed) withdrawals.push(offer(blockKey(cid), () => read(index)))
          },
        }
        return staged
      },
    }
  }

  return {
    dag,
    async drop() {
      if (isDropped) return
      isDropped = true
      for (const withdraw of withdrawals) withdraw()
      await file?.close()
      if (!isSealed) await file?.remove().catch(() => {})
    },
  }
}

// The file of a large request: a CARv2 around one CARv1, so that every IPFS tool reads it. Blocks
// are appended while they arrive; the header is written when the roots are known, and tells a whole
// file from one that was cut.

interface CarFile {
  readonly name: string
  /**
   * Where the bytes of the block will lie; the caller may change `bytes` when `written` is over.
   */
  append(cid: CID, bytes: Uint8Array): { readonly at: number; readonly written: void | Promise<void> }
  read(at: number, length: number): Promise<Uint8Array>
  /** Whole and on the platter when it resolves; with the bytes of the file. */
  seal(roots: readonly CID[]): Promise<number>
  /** Nothing is written any more. */
  close(): Promise<void>
  remove(): Promise<void>
}

const pragma = Buffer.from('0aa16776657273696f6e02', 'hex')
/** Behind the header, whatever the roots are: the CARv1 begins somewhere before it. */
export const firstBlockAt = 4096
const bufferBytes = 256 * 1024
/** Larger ones are written from where they are. */
const copiedBytes = 32 * 1024

/** `ready`: before that, no file may be made. */
export function createCarFile(path: string, ready: Promise<unknown>): CarFile {
  const opening = ready.then(() => openAnew(path))
  /** Writes, one after another. One that failed leaves a hole: the file is of no more use. */
  let writes: Promise<unknown> = opening
  writes.catch(() => {})
  let end = firstBlockAt
  let buffer = Buffer.allocUnsafeSlow(bufferBytes)
  let buffered = 0

  function write(pieces: readonly Uint8Array[], at: number): Promise<void> {
    const writing = writes.then(async () => writeAll(await opening, pieces, at))
    writing.catch(() => {})
    writes = writing
    return writing
  }

  function flush(): Promise<void> | undefined {
    if (buffered === 0) return undefined
    const full = buffer.subarray(0, buffered)
    buffer = Buffer.allocUnsafeSlow(bufferBytes)
    buffered = 0
    return write([full], end - full.byteLength)
  }

  async function flushed(): Promise<FileHandle> {
    void flush()
    await writes
    return opening
  }

  return {
    name: basename(path),
    append(cid, bytes) {
      const before = carSectionHead(cid, bytes.byteLength)
      const at = end + before.byteLength
      const total = before.byteLength + bytes.byteLength
      if (bytes.byteLength > copiedBytes) {
        void flush()
        const from = end
        end += total
        return { at, written: write([before, bytes], from) }
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
      await handle.datasync()
      await syncFolder(dirname(path))
      return end
    },
    async close() {
      await writes.catch(() => {})
      await opening.then((handle) => handle.close()).catch(() => {})
    },
    remove: () => rm(path, { force: true }),
  }
}

async function openAnew(path: string): Promise<FileHandle> {
  try {
    return await open(path, 'wx+')
  } catch (error) {
    if (!isGone(error)) throw error
    await makeFolder(dirname(path))
    return open(path, 'wx+')
  }
}

async function writeAll(handle: FileHandle, pieces: readonly Uint8Array[], at: number): Promise<void> {
  const { bytesWritten } = await handle.writev(pieces, at)
  if (bytesWritten === pieces.reduce((sum, { byteLength }) => sum + byteLength, 0)) return
  // A disk that takes a part says why with the rest.
  await writeAll(handle, [Buffer.concat(pieces).subarray(bytesWritten)], at + bytesWritten)
}

async function readAll(handle: FileHandle, bytes: Uint8Array, at: number): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const { bytesRead } = await handle.read(bytes, done, bytes.byteLength - done, at + done)
    if (bytesRead === 0) throw new Error('a file of uploads is cut short')
    done += bytesRead
  }
}

/** Names as many roots as fit: salvage finds the others by the links between the blocks. */
function headOf(roots: readonly CID[], end: number): Buffer {
  let inner = carHeader(...roots)
  for (let count = roots.length - 1; inner.byteLength > firstBlockAt - markAt - 1; count--)
    inner = carHeader(...roots.slice(-count))
  const head = Buffer.alloc(firstBlockAt)
  const from = firstBlockAt - inner.byteLength
  head.set(pragma)
  head.writeBigUInt64LE(BigInt(from), pragma.byteLength + 16)
  head.writeBigUInt64LE(BigInt(end - from), pragma.byteLength + 24)
  head.set(inner, from)
  return head
}
