// Files that anything may have taken the place of: a folder, a device, a file of any size. Only a regular file that is not
// larger than it may be is read, and a rename takes the place of whatever is there.
import { constants, type Stats, stat as statFile } from 'node:fs'
import { type FileHandle, open, rm } from 'node:fs/promises'
import { promisify } from 'node:util'
import { codeOf, rename } from './files.ts'

/** Flags for a file that is expected to be regular: no link is followed, and a pipe that has no writer is not waited for. */
export const asRegular = (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0)

const stat = promisify(statFile)

const noFile: ReadonlySet<string> = new Set(['EISDIR', 'ENXIO', 'ENODEV'])

/** Undefined for what is no regular file, or a larger one. Rejects where nothing is there. */
export async function statRegular(file: string, mostBytes: number): Promise<Stats | undefined> {
  const found = await stat(file).catch((error: unknown) => {
    // A link in a circle.
    if (codeOf(error) !== 'ELOOP') throw error
  })
  return found?.isFile() && found.size <= mostBytes ? found : undefined
}

/** Undefined for what is no regular file, or a larger one. Rejects where nothing is there. The caller closes the handle. */
export async function openRegular(
  file: string,
  mostBytes: number,
): Promise<{ readonly handle: FileHandle; readonly bytes: number; readonly mtimeMs: number } | undefined> {
  const handle = await open(file, constants.O_RDONLY | asRegular).catch(async (error: unknown) => {
    if (noFile.has(codeOf(error) ?? '')) return undefined
    if (codeOf(error) !== 'ELOOP') throw error
    // A link. A device that it leads to is not even opened.
    return (await statRegular(file, mostBytes)) && open(file, constants.O_RDONLY)
  })
  if (!handle) return undefined
  try {
    const found = await handle.stat()
    if (found.isFile() && found.size <= mostBytes) return { handle, bytes: found.size, mtimeMs: found.mtimeMs }
  } catch (error) {
    await handle.close()
    throw error
  }
  await handle.close()
  return undefined
}

/** What the file has, and no more than it had when it was opened. */
export async function readOpened(handle: FileHandle, bytes: number): Promise<Buffer> {
  const block = Buffer.allocUnsafeSlow(bytes)
  let at = 0
  while (at < bytes) {
    const { bytesRead } = await handle.read(block, at, bytes - at, at)
    if (bytesRead === 0) break
    at += bytesRead
  }
  return block.subarray(0, at)
}

/** Undefined for what is no regular file, or a larger one. Rejects where nothing is there. */
export async function readRegular(file: string, mostBytes: number): Promise<Buffer | undefined> {
  const opened = await openRegular(file, mostBytes)
  if (!opened) return undefined
  try {
    return await readOpened(opened.handle, opened.bytes)
  } finally {
    await opened.handle.close()
  }
}

/** Renames a file over whatever has that name: a folder in its place is removed with all that it holds. */
export async function renameOver(from: string, to: string): Promise<void> {
  try {
    await rename(from, to)
  } catch (error) {
    if (!inTheWay.has(codeOf(error) ?? '')) throw error
    await rm(to, { recursive: true, force: true })
    await rename(from, to)
  }
}

/** What systems say of a folder in the place of a file. */
const inTheWay: ReadonlySet<string> = new Set(['EISDIR', 'ENOTEMPTY', 'EEXIST'])
