// Files: what an error of the file system means, and writing that survives a power cut (bytes onto the platter, then a
// rename, then the folder that holds the name).
import { randomBytes } from 'node:crypto'
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

/** What is in a folder, one name after another; nothing where there is no folder. */
export async function* namesIn(folder: string): AsyncGenerator<string> {
  const opened = await opendir(folder).catch((error: unknown) => {
    if (isGone(error) || codeOf(error) === 'ENOTDIR') return undefined
    throw error
  })
  if (opened) for await (const { name } of opened) yield name
}

/** In the names of unfinished files: what a process that died left is told from what is being written. */
const ours = randomBytes(6).toString('hex')

export const isLeftOver = (name: string): boolean => name.endsWith('.tmp') && !name.startsWith(`.${ours}-`)

/** Beside, onto the platter, into place: whole or not at all. The caller syncs the folder. */
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

/** A new file, on the platter when this resolves. */
export async function writeSynced(file: string, bytes: Uint8Array | string): Promise<void> {
  const handle = await open(file, 'wx')
  try {
    await handle.writeFile(bytes)
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/** Makes what was created, renamed or linked in this folder last. Some file systems cannot, and need not. */
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

/** The folder, and those above it that had to be made, lasting. */
export async function makeFolder(path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true })
  if (first === undefined) return
  for (let made = path; made.length >= first.length; made = dirname(made)) await syncFolder(dirname(made))
}

/** Whether it can be written into now, made where it has to be. */
export async function tryToWrite(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true })
  const file = join(folder, `.${ours}-${randomBytes(6).toString('hex')}.tmp`)
  await writeSynced(file, ours).finally(() => rm(file, { force: true }))
}
