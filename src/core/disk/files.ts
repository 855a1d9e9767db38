// Files: what errors of the file system mean, and folders that survive a power cut.
import { randomUUID } from 'node:crypto'
import { closeSync, constants, fsync, open as openFile } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'

/** Flags for a file that is expected to be regular: no link is followed, and a pipe that has no writer is not waited for. */
export const asRegular = (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0)

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
  const file = join(folder, `.probe-${randomUUID()}`)
  await writeFile(file, '.', { flag: 'wx', flush: true }).finally(() => rm(file, { force: true }))
}
