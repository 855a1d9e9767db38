// Files: what errors of the file system mean, and writing that survives a power cut (sync the bytes, rename, sync the
// folder that holds the name).
import { randomBytes } from 'node:crypto'
import { type FileHandle, mkdir, open, opendir, rename, rm } from 'node:fs/promises'
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

export const isLeftOver = (name: string): boolean => name.endsWith('.tmp') && !name.startsWith(`.${ours}-`)

/** Writes beside `file`, syncs, then renames: whole or not at all. The caller syncs the folder. */
export async function writeDurably(file: string, bytes: Uint8Array): Promise<void> {
  const temporary = join(dirname(file), `.${ours}-${randomBytes(6).toString('hex')}.tmp`)
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
  await writing(file, bytes, async () => {})
}

/** The same, and its time of change: a file that still has it was not written to since. */
export const writeStamped = (file: string, bytes: Uint8Array): Promise<number> =>
  writing(file, bytes, async (handle) => (await handle.stat()).mtimeMs)

async function writing<T>(file: string, bytes: Uint8Array | string, then: (handle: FileHandle) => Promise<T>) {
  const handle = await open(file, 'wx')
  try {
    await handle.writeFile(bytes)
    await handle.sync()
    return await then(handle)
  } finally {
    await handle.close()
  }
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
  const file = join(folder, `.${ours}-${randomBytes(6).toString('hex')}.tmp`)
  await writeSynced(file, ours).finally(() => rm(file, { force: true }))
}
