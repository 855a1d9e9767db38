// The file of a large request: a CARv2 around one CARv1, so that every IPFS tool reads it. Blocks are appended while they
// arrive; the header is written when the roots are known, and tells a whole file from one that was cut.
import { closeSync, fdatasync, open as openFile, read as readFile, write as writeFile, writev } from 'node:fs'
import { basename, dirname } from 'node:path'
import { promisify } from 'node:util'
import { encode } from '@ipld/dag-cbor'
import { varint } from 'multiformats'
import type { CID } from 'multiformats/cid'
import { isGone, makeFolder, syncFolder } from '../core/disk/files.ts'

export interface CarFile {
  readonly name: string
  /** Where the bytes of the block will lie; the caller may change `bytes` when `written` is over. */
  append(cid: CID, bytes: Uint8Array): { readonly at: number; readonly written: void | Promise<void> }
  read(at: number, length: number): Promise<Uint8Array>
  /** Whole and on the platter when it resolves; with the bytes of the file. */
  seal(roots: readonly CID[]): Promise<number>
  /** Nothing is written any more. */
  close(): Promise<void>
}

const open = promisify(openFile)
const read = promisify(readFile)
const write = promisify(writeFile)
const writeMany = promisify(writev)
const sync = promisify(fdatasync)

const pragma = Buffer.from('0aa16776657273696f6e02', 'hex')
const headerBytes = pragma.byteLength + 40
/** Room for the header, whatever the roots are: the CARv1 begins somewhere in it. */
export const reservedBytes = 4096
const bufferBytes = 256 * 1024
/** Larger ones are written from where they are. */
const copiedBytes = 32 * 1024

export function createCarFile(path: string): CarFile {
  const opening = openAnew(path)
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
