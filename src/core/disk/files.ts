// Errors of the file system with their remedies, and folders that survive a power cut.
import { randomUUID } from 'node:crypto'
import { closeSync, constants, fsync, open as openFile } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'

/**
 * Flags for opening an expected regular file: symlinks are not followed, and a pipe without a
 * writer does not block.
 */
export const asRegular = (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0)

export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined
}

export const isDiskFull = (error: unknown): boolean => ['ENOSPC', 'EDQUOT'].includes(codeOf(error) ?? '')

/** There is no such file: also where a file is in the place of a folder above it. */
export const isGone = (error: unknown): boolean => ['ENOENT', 'ENOTDIR'].includes(codeOf(error) ?? '')

/** Resolves with `otherwise` if the file does not exist. */
export async function orIfGone<T>(work: Promise<T>, otherwise: T): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (isGone(error)) return otherwise
    throw error
  }
}

/**
 * Makes files that were created, renamed or linked in this folder durable. Some file systems
 * cannot, and need not.
 */
export function syncFolder(path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    openFile(path, 'r', (failed, handle) => {
      if (failed) return reject(failed)
      fsync(handle, (error) => {
        // Closing is synchronous: nothing was written, so no server is asked.
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

/**
 * Makes the folder and its missing parents; resolves with the first one made. A recursive mkdir
 * reports ENOENT on a read-only disk, which would look like a missing folder; mkdir of a single
 * folder reports the true error.
 */
export async function makeFolders(path: string, make: typeof mkdir = mkdir): Promise<string | undefined> {
  try {
    return await make(path, { recursive: true })
  } catch (error) {
    if (isGone(error)) await reportTrueError(path, make)
    throw error
  }
}

async function reportTrueError(path: string, make: typeof mkdir): Promise<void> {
  for (let at = path; at !== dirname(at); at = dirname(at)) {
    try {
      return await make(at)
    } catch (error) {
      // Another call has made the folder meanwhile.
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

/** Tests that the folder is writable; makes it if missing. */
export async function tryToWrite(folder: string): Promise<void> {
  await makeFolders(folder)
  const file = join(folder, `.probe-${randomUUID()}`)
  await writeFile(file, '.', { flag: 'wx', flush: true }).finally(() => rm(file, { force: true }))
}

const remedies: Readonly<Record<string, string>> = {
  EEXIST: 'there is a file in the place of the folder',
  EACCES: 'let this user read and write there',
  EPERM: 'let this user read and write there',
  EROFS: 'it is mounted read-only',
  EMFILE: 'raise the limit of open files (ulimit -n)',
  ENFILE: 'the system has too many open files',
  ENOTDIR: 'there is a file in the place of the folder',
  EFBIG: 'this process may write no file that large (ulimit -f), or the file system keeps none',
}

export const remedyOf = (error: unknown): string => remedies[codeOf(error) ?? ''] ?? 'check the disk'

export interface SharedFolders {
  /**
   * `part` returns the same object to all backends of this folder, created by `make` on first use.
   */
  enter(path: string): { part<Part extends object>(make: (path: string) => Part): Part; leave(): void }
}

export interface FolderRole {
  /** True in the one process that does periodic work on the folder. */
  readonly isOwner: boolean
}

/**
 * Makes one thing for several users, and closes it with the last of them. `before` resolves when
 * the one before is closed.
 */
export function createShared<Options, One>(
  make: (options: Options, before: Promise<void>) => One,
  close: (one: One) => Promise<void>,
): (options: Options) => { readonly one: One; leave(): Promise<void> } {
  let users = 0
  let current: One | undefined
  let closing: Promise<void> = Promise.resolve()

  return (options) => {
    users++
    current ??= make(options, closing)
    const one = current
    const leaveOnce = async (): Promise<void> => {
      if (--users > 0) return
      current = undefined
      closing = close(one)
      await closing
    }
    let left: Promise<void> | undefined
    return { one, leave: () => (left ??= leaveOnce()) }
  }
}
