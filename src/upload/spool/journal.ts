// The journal of uploads: one small file per upload, with the state of each provider. A file under `open` is work to do, also
// for the next process; when every provider holds the upload, the file moves to `done` and is only a record. A change is a line
// more (`entry-file.ts`).
import { readdir, readFile, rm } from 'node:fs/promises'
import { dirname, join, sep } from 'node:path'
import { CID } from 'multiformats/cid'
import { codec, hash } from '../../core/cid.ts'
import {
  createFolderSync,
  isGone,
  isLeftOver,
  makeFolder,
  namesIn,
  orIfGone,
  rename,
  writeDurably,
} from '../../core/files.ts'
import type { Log } from '../../core/log.ts'
import { createEntryFiles, type JournalEntry, lineOf, nameOf, readEntry } from './entry-file.ts'
import type { SpoolRecord } from './spool.ts'

export { type JournalEntry, nameOf } from './entry-file.ts'

export type Loaded = {
  /** The open entries, the oldest first. */
  readonly entries: readonly JournalEntry[]
  /** The ids of all open entries, also of unreadable ones: their spools hold uploads of clients and must stay. */
  readonly ids: ReadonlySet<string>
}

export interface Journal {
  load(): Promise<Loaded>
  /** The open entries of this upload. */
  openOf(cid: CID): Promise<readonly JournalEntry[]>
  /** Resolves when the entry is synced to the disk. */
  write(entry: JournalEntry): Promise<void>
  /** Makes a record of the entry; writes it again only if it changed since the last `write`. */
  finish(entry: JournalEntry): Promise<void>
  remove(entry: JournalEntry): Promise<void>
  /** The record of an upload that every provider held. */
  record(cid: CID): Promise<JournalEntry | undefined>
  records(): AsyncIterable<JournalEntry>
  /** The names of the records after this one, in the order of `inOrder`. Only one folder of names is in memory. */
  names(after?: string): AsyncIterable<string>
  /** Writes a record whose providers changed; without any it is removed. */
  amend(entry: JournalEntry): Promise<void>
}

export const journalFolder = (data: string): string => join(data, 'journal')

const readsAtOnce = 32

export function createJournal(root: string, log: Log): Journal {
  const open = join(root, 'open')
  const done = join(root, 'done')
  const syncOnce = createFolderSync()
  /** As they lie in their files, synced. An entry is never changed, only replaced. */
  const written = new WeakSet<JournalEntry>()
  const files = createEntryFiles()
  const fileOf = (id: string): string => `${open}${sep}${id}.json`
  const recordOf = (name: string): string => `${done}${sep}${name.slice(-2)}${sep}${name}.json`

  /** Makes the folder only where it is missing: mostly it is there. */
  async function inFolder(folder: string, work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      if (!isGone(error)) throw error
      await makeFolder(folder)
      await work()
    }
  }

  async function parse(file: string): Promise<JournalEntry | undefined> {
    const text = await orIfGone(readFile(file, 'utf8'), undefined)
    if (text === undefined) return undefined
    const { entry, torn, damaged } = readEntry(text)
    if (!entry) log('error', 'journal.unreadable', { file })
    else if (damaged > 0) log('error', 'journal.damaged', { file, bytes: damaged })
    else if (torn > 0) log('warn', 'journal.torn', { file, bytes: torn })
    return entry
  }

  async function readAll(ids: Iterable<string>): Promise<JournalEntry[]> {
    const entries: JournalEntry[] = []
    const rest = [...ids]
    const read = async () => {
      for (let id = rest.pop(); id !== undefined; id = rest.pop()) {
        const entry = await parse(fileOf(id))
        if (entry?.id === id) entries.push(entry)
      }
    }
    await Promise.all(Array.from({ length: readsAtOnce }, read))
    return entries
  }

  return {
    async load() {
      const ids = new Set<string>()
      await makeFolder(open)
      const names = await readdir(open)
      for (const file of names) {
        if (isLeftOver(file)) await rm(join(open, file), { force: true })
        for (const id of idIn(file)) ids.add(id)
      }
      const entries = await readAll(ids)
      return { entries: entries.sort((one, other) => one.at.localeCompare(other.at)), ids }
    },
    async openOf(cid) {
      const entries = await readAll((await orIfGone(readdir(open), [])).flatMap(idIn))
      return entries.filter((entry) => entry.cid === nameOf(cid))
    },
    async write(entry) {
      const file = fileOf(entry.id)
      if (!(await files.append(file, entry))) {
        await inFolder(open, () => files.write(file, entry))
        await syncOnce(open)
      }
      written.add(entry)
    },
    async finish(entry) {
      const record = recordOf(entry.cid)
      const file = fileOf(entry.id)
      if (!written.has(entry) && !(await files.append(file, entry))) await files.write(file, entry)
      files.forget(file)
      await inFolder(dirname(record), () => rename(file, record))
    },
    async remove(entry) {
      files.forget(fileOf(entry.id))
      await rm(fileOf(entry.id), { force: true })
      await syncOnce(open)
    },
    record: (cid) => parse(recordOf(nameOf(cid))),
    async *records() {
      for await (const shard of namesIn(done))
        for await (const file of namesIn(join(done, shard))) {
          const entry = file.endsWith('.json') ? await parse(join(done, shard, file)) : undefined
          if (entry) yield entry
        }
    },
    async *names(after = '') {
      const shards = await orIfGone(readdir(done), [])
      for (const shard of shards.sort()) {
        if (shard < after.slice(-2)) continue
        const files = await orIfGone(readdir(join(done, shard)), [])
        const names = files.flatMap(idIn)
        for (const name of names.sort(inOrder)) if (inOrder(after, name) < 0) yield name
      }
    },
    async amend(entry) {
      const record = recordOf(entry.cid)
      if (Object.keys(entry.providers).length === 0) await rm(record, { force: true })
      else await inFolder(dirname(record), () => writeDurably(record, lineOf(entry)))
      await syncOnce(dirname(record)).catch((error: unknown) => {
        if (!isGone(error)) throw error
      })
    },
  }
}

/** The order of records by the names of their files: the folder first, which the last two letters name. */
export function inOrder(one: string, other: string): number {
  const [a, b] = [one.slice(-2) + one, other.slice(-2) + other]
  return a < b ? -1 : a > b ? 1 : 0
}

/** None in a file that is not an entry. */
const idIn = (file: string): string[] => (file.endsWith('.json') ? [file.slice(0, -'.json'.length)] : [])

/** The CID that the client was told: v0 under the v0 profile, except for a raw block or another hash. */
export function cidOf({ cid, profile }: Pick<JournalEntry, 'cid' | 'profile'>): CID {
  const parsed = CID.parse(cid)
  const isV0 = profile === 'unixfs-v0-2015' && parsed.code === codec.dagPb && parsed.multihash.code === hash.sha256
  return isV0 ? parsed.toV0() : parsed
}

/** The record of its spool. */
export const recordOf = (entry: JournalEntry): SpoolRecord => {
  const { id, profile, bytes, carBytes } = entry
  return { id, cid: cidOf(entry), profile, bytes, carBytes }
}

/** Whether any provider holds it, also one that is no longer configured. */
export const isHeld = ({ providers }: JournalEntry): boolean =>
  Object.values(providers).some(({ state }) => state === 'held')
