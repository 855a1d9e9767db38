// Files: what errors of the file system mean, and writing that survives a power cut (sync the bytes, rename, sync the
// folder that holds the name).
import { randomBytes, randomUUID } from 'node:crypto'
import {
  access,
  close,
  closeSync,
  constants,
  fdatasync,
  fstat,
  fsync,
  open as openFile,
  rename as renameFile,
  write,
} from 'node:fs'
import { mkdir, opendir, rm } from 'node:fs/promises'
import { dirname, sep } from 'node:path'
import { promisify } from 'node:util'

export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined
}

export const isNoRoom = (error: unknown): boolean => ['ENOSPC', 'EDQUOT'].includes(codeOf(error) ?? '')

export const isGone = (error: unknown): boolean => codeOf(error) === 'ENOENT'

/** `otherwise` for what is not there. */
export async function orIfGone<T>(work: Promise<T>, otherwise: T): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (isGone(error)) return otherwise
    throw error
  }
}

/** For what is mostly not there: reading it makes an error with its stack. True where that cannot be told. */
export function isThere(path: string): Promise<boolean> {
  return new Promise((resolve) => access(path, (error) => resolve(error?.code !== 'ENOENT')))
}

/** The names in a folder, one after another; none where the folder does not exist. */
export async function* namesIn(folder: string): AsyncGenerator<string> {
  const opened = await opendir(folder).catch((error: unknown) => {
    if (isGone(error) || codeOf(error) === 'ENOTDIR') return undefined
    throw error
  })
  if (opened) for await (const { name } of opened) yield name
}

/** Part of the names of unfinished files: tells files that a dead process left from files being written. */
const ours = randomBytes(6).toString('hex')
export const temporaryIn = (folder: string): string => `${folder}${sep}.${ours}-${randomUUID()}.tmp`

export const isUnfinished = (name: string): boolean => name.endsWith('.tmp')
export const isLeftOver = (name: string): boolean => isUnfinished(name) && !name.startsWith(`.${ours}-`)

/** By callback: for each call of `fs/promises` Node makes a promise and two arrays of numbers as well. */
export const rename = promisify(renameFile)

/** Writes beside `file`, syncs, then renames: whole or not at all. The caller syncs the folder. */
export async function writeDurably(file: string, bytes: Uint8Array): Promise<void> {
  const temporary = temporaryIn(dirname(file))
  try {
    await writeSynced(temporary, bytes)
    await rename(temporary, file)
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {})
    throw error
  }
}

/** Writes a new file, synced to the disk when this resolves. */
export async function writeSynced(file: string, bytes: Uint8Array | string): Promise<void> {
  await writing(file, newFile, typeof bytes === 'string' ? Buffer.from(bytes) : bytes, false)
}

/** The same, and its time of change: a file that still has it was not written to since. */
export const writeStamped = (file: string, bytes: Uint8Array): Promise<number> => writing(file, newFile, bytes, true)

/** Adds to a file that is there, synced to the disk when this resolves. Where it rejects, a part may have been added. */
export async function appendSynced(file: string, bytes: Uint8Array): Promise<void> {
  await writing(file, toItsEnd, bytes, false)
}

/** Where a write comes back when its bytes are on the platter, it needs no sync of its own: a call less. On macOS it comes back before. */
const dataSync = process.platform === 'linux' ? (constants.O_DSYNC ?? 0) : 0
const newFile = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | dataSync
const toItsEnd = constants.O_WRONLY | constants.O_APPEND | dataSync

/**
 * Resolves with the time of change if it is wanted, by calls that a thread makes: a handle of `fs/promises` and its promises
 * cost the main thread half as much again. A sync of the data brings what is needed to read it, the size too. A close may ask a
 * server as well: over NFS and FUSE.
 */
function writing(file: string, flags: number, bytes: Uint8Array, isStamped: boolean): Promise<number> {
  return new Promise((resolve, reject) => {
    openFile(file, flags, (failed, handle) => {
      if (failed) return reject(failed)
      const end = (error: unknown, changedMs = 0) =>
        close(handle, (late) => {
          if (error ?? late) reject(error ?? late)
          else resolve(changedMs)
        })
      const stamp = (error: unknown) => {
        if (error || !isStamped) end(error)
        else fstat(handle, (unknown, found) => end(unknown, found?.mtimeMs))
      }
      const goOn = (from: number): void => {
        if (from === bytes.byteLength) return dataSync ? stamp(undefined) : fdatasync(handle, stamp)
        write(handle, bytes, from, bytes.byteLength - from, null, (error, written) =>
          error ? end(error) : goOn(from + written),
        )
      }
      goOn(0)
    })
  })
}

/** Makes what was created, renamed or linked in this folder durable. Some file systems cannot, and need not. */
export function syncFolder(path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    openFile(path, 'r', (failed, handle) => {
      if (failed) return reject(failed)
      fsync(handle, (error) => {
        // Nothing was written by it: no server is asked, and no thread.
        try {
          closeSync(handle)
        } catch {}
        if (error && !cannotSync.has(codeOf(error) ?? '')) reject(error)
        else resolve()
      })
    })
  })
}

const cannotSync: ReadonlySet<string> = new Set(['EINVAL', 'EPERM', 'EISDIR'])

/** Syncs folders. A sync that began before a rename may not include it: callers that come meanwhile share the next one. */
export function createFolderSync(): (path: string) => Promise<void> {
  const syncing = new Map<string, { running: Promise<void>; next: Promise<void> | undefined }>()

  return function sync(path: string): Promise<void> {
    const current = syncing.get(path)
    if (!current) {
      const running = syncFolder(path).finally(() => {
        if (syncing.get(path)?.running === running) syncing.delete(path)
      })
      syncing.set(path, { running, next: undefined })
      return running
    }
    current.next ??= current.running
      .catch(() => {})
      .then(() => {
        syncing.delete(path)
        return sync(path)
      })
    return current.next
  }
}

/**
 * Makes the folder and its missing parents; resolves with the first one made. On a read-only disk Node says ENOENT, which would be
 * taken for a folder that is gone: what it says of one folder alone is true.
 */
export async function makeFolders(path: string, make: typeof mkdir = mkdir): Promise<string | undefined> {
  try {
    return await make(path, { recursive: true })
  } catch (error) {
    if (isGone(error)) await tellTruth(path, make)
    throw error
  }
}

async function tellTruth(path: string, make: typeof mkdir): Promise<void> {
  for (let at = path; at !== dirname(at); at = dirname(at)) {
    try {
      return await make(at)
    } catch (error) {
      // One that is there: another call has made it meanwhile.
      if (codeOf(error) === 'EEXIST') return
      if (!isGone(error)) throw error
    }
  }
}

/** Makes the folder and its missing parents, durably. */
export async function makeFolder(path: string): Promise<void> {
  const first = await makeFolders(path)
  if (first === undefined) return
  for (let made = path; made.length >= first.length; made = dirname(made)) await syncFolder(dirname(made))
}

/** Tries to write into the folder, and makes it where it is missing. */
export async function tryToWrite(folder: string): Promise<void> {
  await makeFolders(folder)
  const file = temporaryIn(folder)
  await writeSynced(file, ours).finally(() => rm(file, { force: true }))
}
