// Files: what errors of the file system mean, and writing that survives a power cut (sync the bytes, rename, sync the
// folder that holds the name).
import { randomBytes, randomUUID } from 'node:crypto'
import { close, constants, fdatasync, fstat, open as openFile, write } from 'node:fs'
import { mkdir, open, opendir, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'

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
const temporaryIn = (folder: string): string => join(folder, `.${ours}-${randomUUID()}.tmp`)

export const isLeftOver = (name: string): boolean => name.endsWith('.tmp') && !name.startsWith(`.${ours}-`)

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
  await writing(file, 'wx', typeof bytes === 'string' ? Buffer.from(bytes) : bytes, false)
}

/** The same, and its time of change: a file that still has it was not written to since. */
export const writeStamped = (file: string, bytes: Uint8Array): Promise<number> => writing(file, 'wx', bytes, true)

/** Adds to a file that is there, synced to the disk when this resolves. Where it rejects, a part may have been added. */
export async function appendSynced(file: string, bytes: Uint8Array): Promise<void> {
  await writing(file, constants.O_WRONLY | constants.O_APPEND, bytes, false)
}

/**
 * Resolves with the time of change if it is wanted, by calls that a thread makes: a handle of `fs/promises` and its promises
 * cost the main thread half as much again. A sync of the data brings what is needed to read it, the size too.
 */
function writing(file: string, flags: string | number, bytes: Uint8Array, isStamped: boolean): Promise<number> {
  return new Promise((resolve, reject) => {
    openFile(file, flags, (failed, handle) => {
      if (failed) return reject(failed)
      const end = (error: unknown, changedMs = 0) =>
        close(handle, (late) => {
          if (error ?? late) reject(error ?? late)
          else resolve(changedMs)
        })
      const sync = () =>
        fdatasync(handle, (error) => {
          if (error || !isStamped) end(error)
          else fstat(handle, (unknown, found) => end(unknown, found?.mtimeMs))
        })
      const goOn = (from: number): void => {
        if (from === bytes.byteLength) return sync()
        write(handle, bytes, from, bytes.byteLength - from, null, (error, written) =>
          error ? end(error) : goOn(from + written),
        )
      }
      goOn(0)
    })
  })
}

/** Makes what was created, renamed or linked in this folder durable. Some file systems cannot, and need not. */
export async function syncFolder(path: string): Promise<void> {
  const handle = await open(path, 'r')
  try {
    await handle.sync()
  } catch (error) {
    if (!['EINVAL', 'EPERM', 'EISDIR'].includes(codeOf(error) ?? '')) throw error
  } finally {
    await handle.close()
  }
}

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

/** Makes the folder and its missing parents, durably. */
export async function makeFolder(path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true })
  if (first === undefined) return
  for (let made = path; made.length >= first.length; made = dirname(made)) await syncFolder(dirname(made))
}

/** Tries to write into the folder, and makes it where it is missing. */
export async function tryToWrite(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true })
  const file = temporaryIn(folder)
  await writeSynced(file, ours).finally(() => rm(file, { force: true }))
}
