// The embedded store's way to the disk: new files are written in one folder and renamed into place once they are on the
// platter. Syncs of a folder that come at the same time are one. A folder that was removed meanwhile is made again.
import { randomBytes, randomUUID } from 'node:crypto'
import { link, readdir, rename, rm } from 'node:fs/promises'
import { dirname, join, sep } from 'node:path'
import { codeOf, createFolderSync, isGone, makeFolder, writeSynced } from '../../../src/core/disk/files.ts'
import { renameOver } from '../../../src/core/disk/regular.ts'

export interface Disk {
  /** Makes a folder that lasts. */
  folder(path: string): Promise<void>
  /** Drops what a process that died left unfinished; once, and never what is being written by this one. */
  tidy(): Promise<void>
  /** Whole, and on the platter but for its name: `sync` the folder for that. Takes the place of what is there. */
  write(file: string, bytes: Uint8Array): Promise<void>
  /** The same with a second name for a file that is on the platter. */
  link(source: string, file: string): Promise<void>
  /** Its new name is on the platter; `sync` the folder of the old one. */
  move(source: string, file: string): Promise<void>
  sync(path: string): Promise<void>
}

/** In the names of unfinished files: two gateways of one process work over one folder while one takes over from the other. */
const ours = randomBytes(6).toString('hex')

export function createDisk(root: string): Disk {
  const temporaries = join(root, 'tmp')
  const made = new Map<string, Promise<void>>()
  const sync = createFolderSync()
  let tidied: Promise<void> | undefined

  function folder(path: string): Promise<void> {
    const known = made.get(path)
    if (known !== undefined) return known
    const making = makeFolder(path).catch((error: unknown) => {
      made.delete(path)
      throw error
    })
    made.set(path, making)
    return making
  }

  /** Under a temporary name first, then in the place of `file`. */
  async function place(file: string, make: (beside: string) => Promise<void>): Promise<void> {
    const beside = `${temporaries}${sep}${ours}-${randomUUID()}`
    try {
      await folder(temporaries)
      await make(beside)
      await folder(dirname(file))
      await renameOver(beside, file)
    } catch (error) {
      await rm(beside, { force: true }).catch(() => {})
      throw error
    }
  }

  async function placeLink(source: string, file: string): Promise<void> {
    await folder(dirname(file))
    try {
      await link(source, file)
    } catch (error) {
      if (codeOf(error) !== 'EEXIST') throw error
      let name = ''
      await place(file, (beside) => link(source, (name = beside)))
      // Renaming a name of a file over another name of it does nothing, and leaves both.
      await rm(name, { force: true })
    }
  }

  async function moveOnce(source: string, file: string): Promise<void> {
    await folder(dirname(file))
    await rename(source, file)
    await sync(dirname(file))
  }

  async function againIfGone(work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      if (!isGone(error)) throw error
      made.clear()
      await work()
    }
  }

  async function tidyNow(): Promise<void> {
    const names = await readdir(temporaries).catch(() => [])
    for (const name of names)
      if (!name.startsWith(`${ours}-`)) await rm(join(temporaries, name), { force: true }).catch(() => {})
  }

  return {
    folder,
    tidy() {
      tidied ??= tidyNow()
      return tidied
    },
    sync,
    write: (file, bytes) => againIfGone(() => place(file, (beside) => writeSynced(beside, bytes))),
    link: (source, file) => againIfGone(() => placeLink(source, file)),
    move: (source, file) => againIfGone(() => moveOnce(source, file)),
  }
}
