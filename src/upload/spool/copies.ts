// The second copies of journal entries: one file beside each spool whose upload a client was told of, there before the 200. It tells
// such a spool from one of an upload that was cut, and says what lies in it where the entry itself is damaged or gone.
import { readdir, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { codeOf, createFolderSync, isGone, makeFolder, orIfGone, writeDurably } from '../../core/disk/files.ts'
import { type JournalEntry, lineOf, readEntry } from './entry-file.ts'
import { copyEnd, spoolFolder } from './spool.ts'

export interface Copies {
  /** Its copy is on the disk when this resolves. The upload counts from then on, whatever becomes of its entry. */
  keep(entry: JournalEntry): Promise<void>
  /** It is gone from the disk when this resolves. Call it before the entry goes: a copy without one is an upload to take up. */
  drop(id: string): Promise<void>
  /** Undefined where there is none, or where it is not as it was written. */
  read(id: string): Promise<JournalEntry | undefined>
  ids(): Promise<ReadonlySet<string>>
  /** By what `keep` wrote and `ids` found. */
  has(id: string): boolean
}

/** There is no such folder, or something else in its place: no spool either. */
function unlessNothing(error: unknown): undefined {
  if (!isGone(error) && codeOf(error) !== 'ENOTDIR') throw error
}

/** The copies of a data folder. All gateways over it share them. */
export function createCopies(data: string): Copies {
  const root = spoolFolder(data)
  const fileOf = (id: string): string => join(root, `${id}${copyEnd}`)
  const syncOnce = createFolderSync()
  const known = new Set<string>()
  let isListed = false

  return {
    async keep(entry) {
      known.add(entry.id)
      const write = () => writeDurably(fileOf(entry.id), lineOf(entry))
      await write().catch(async (error: unknown) => {
        if (!isGone(error)) throw error
        await makeFolder(root)
        await write()
      })
      await syncOnce(root)
    },
    async drop(id) {
      // Most uploads have none: every provider held them before their 200.
      if (isListed && !known.has(id)) return
      await rm(fileOf(id), { force: true })
        .then(() => syncOnce(root))
        .catch(unlessNothing)
      known.delete(id)
    },
    async read(id) {
      const text = await orIfGone(readFile(fileOf(id), 'utf8'), '')
      const { entry, isSure } = readEntry(text)
      return entry?.id === id && isSure ? entry : undefined
    },
    async ids() {
      const names = await readdir(root).catch(unlessNothing)
      const ids = (names ?? []).flatMap((name) => (name.endsWith(copyEnd) ? [name.slice(0, -copyEnd.length)] : []))
      for (const id of ids) known.add(id)
      isListed = true
      return new Set(ids)
    },
    has: (id) => known.has(id),
  }
}
