// The embedded store's way to the disk: new files are written in one folder and renamed into place once they are on the
// platter. Syncs of a folder that come at the same time are one.
import { randomBytes } from 'node:crypto'
import { mkdir, open, readdir, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'

export interface Disk {
  /** Makes a folder that lasts. */
  folder(path: string): Promise<void>
  /** Drops what a process that died left unfinished; once, and never what is being written by this one. */
  tidy(): Promise<void>
  /** A name for a file that is not in place yet. */
  temporary(): Promise<string>
  /** Whole, and on the platter but for its name: `sync` the folder for that. */
  write(file: string, bytes: Uint8Array): Promise<void>
  sync(path: string): Promise<void>
}

/** In the names of unfinished files: two gateways of one process work over one folder while one takes over from the other. */
const ours = randomBytes(6).toString('hex')

export function createDisk(root: string): Disk {
  const temporaries = join(root, 'tmp')
  const made = new Map<string, Promise<void>>()
  const syncing = new Map<string, { running: Promise<void>; next: Promise<void> | undefined }>()
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

  async function temporary(): Promise<string> {
    await folder(temporaries)
    return join(temporaries, `${ours}-${randomBytes(8).toString('hex')}`)
  }

  async function tidyNow(): Promise<void> {
    const names = await readdir(temporaries).catch(() => [])
    for (const name of names)
      if (!name.startsWith(`${ours}-`)) await rm(join(temporaries, name), { force: true }).catch(() => {})
  }

  /** A sync that began before a rename may not hold it: whoever comes meanwhile shares the one after. */
  function sync(path: string): Promise<void> {
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

  return {
    folder,
    tidy() {
      tidied ??= tidyNow()
      return tidied
    },
    temporary,
    sync,
    async write(file, bytes) {
      const beside = await temporary()
      try {
        const handle = await open(beside, 'wx')
        try {
          await handle.writeFile(bytes)
          await handle.sync()
        } finally {
          await handle.close()
        }
        await folder(dirname(file))
        await rename(beside, file)
      } catch (error) {
        await rm(beside, { force: true }).catch(() => {})
        throw error
      }
    },
  }
}

/** With those above it that had to be made; each name is on the platter when its folder is. */
async function makeFolder(path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true })
  if (first === undefined) return
  for (let made = path; made.length >= first.length; made = dirname(made)) await syncFolder(dirname(made))
}

async function syncFolder(path: string): Promise<void> {
  const handle = await open(path, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
