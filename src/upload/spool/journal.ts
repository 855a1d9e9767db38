// The journal of uploads: one small file per upload, with the state of each provider. A file under `open` is work to do, also
// for the next process; when every provider holds the upload, the file moves to `done` and is only a record. A change is a line
// more (`entry-file.ts`). What waits in a spool after its 200 has a second copy of its entry there (`copies.ts`).
import { readdir, rm } from 'node:fs/promises'
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
} from '../../core/disk/files.ts'
import type { Log } from '../../core/log.ts'
import type { Copies } from './copies.ts'
import { createEntryFiles, type JournalEntry, lineOf, nameOf } from './entry-file.ts'
import { createEntryReader, type Damaged } from './read-entries.ts'
import type { SpoolRecord } from './spool.ts'

export { type JournalEntry, nameOf } from './entry-file.ts'
export type { Damaged } from './read-entries.ts'

export type Loaded = {
  /** The open entries, the oldest first. */
  readonly entries: readonly JournalEntry[]
  /** The ids of all open entries, also of damaged ones: their spools hold uploads of clients and must stay. */
  readonly ids: ReadonlySet<string>
  readonly damaged: readonly Damaged[]
}

export interface Journal {
  load(): Promise<Loaded>
  /** The open entries of this upload. */
  openOf(cid: CID): Promise<readonly JournalEntry[]>
  /** Resolves when the entry is synced to the disk; with `copied`, its copy beside the spool, too. */
  write(entry: JournalEntry, how?: 'copied'): Promise<void>
  /** An accepted entry of an earlier version has no copy yet. */
  isCopied(id: string): boolean
  /** Makes a record of the entry; writes it again only if it changed since the last `write`. */
  finish(entry: JournalEntry): Promise<void>
  remove(entry: Pick<JournalEntry, 'id'>): Promise<void>
  /** The record of an upload that every provider held. */
  record(cid: CID): Promise<JournalEntry | undefined>
  records(): AsyncIterable<JournalEntry>
  /** The names of the records after this one, in the order of `inOrder`. Only one folder of names is in memory. */
  names(after?: string): AsyncIterable<string>
  /** Writes a record whose providers changed; without any it is removed. */
  amend(entry: JournalEntry): Promise<void>
}

export const journalFolder = (data: string): string => join(data, 'journal')

export function createJournal(root: string, log: Log, copies: Copies): Journal {
  const open = join(root, 'open')
  const done = join(root, 'done')
  const syncOnce = createFolderSync()
  /** As they lie in their files, synced. An entry is never changed, only replaced. */
  const asWritten = new WeakSet<JournalEntry>()
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

  const { readRecord, copyOf, readAll } = createEntryReader({ fileOf, copies, log })

  return {
    async load() {
      const ids = new Set<string>()
      await makeFolder(open)
      const names = await readdir(open)
      for (const file of names) {
        if (isLeftOver(file)) await rm(join(open, file), { force: true })
        for (const id of idIn(file)) ids.add(id)
      }
      // Read after the names: an entry that is deleted goes after its copy.
      const copied = await copies.ids()
      const all = await readAll(ids)
      const entries: JournalEntry[] = []
      const damaged: Damaged[] = []
      for (const one of all) {
        if ('found' in one) damaged.push(copied.has(one.id) ? asAccepted(one) : one)
        // Its last line may not have come to the disk; the copy was there before its client was told.
        else entries.push(copied.has(one.id) ? { ...one, accepted: true } : one)
      }
      for (const id of copied) {
        if (ids.has(id)) continue
        ids.add(id)
        damaged.push({ id, found: 'missing', text: '', entry: await copyOf(id) })
      }
      return { entries: entries.sort((one, other) => one.at.localeCompare(other.at)), ids, damaged }
    },
    async openOf(cid) {
      const all = await readAll((await orIfGone(readdir(open), [])).flatMap(idIn))
      const entries = all.flatMap((one) => ('found' in one ? (one.entry?.entry ?? one.unsure ?? []) : one))
      return entries.filter((entry) => entry.cid === nameOf(cid))
    },
    async write(entry, how) {
      const file = fileOf(entry.id)
      const write = async () => {
        if (await files.append(file, entry)) return
        await inFolder(open, () => files.write(file, entry))
        await syncOnce(open)
      }
      // Neither is still being written when this is over.
      const written = await Promise.allSettled([write(), how === 'copied' ? copies.keep(entry) : undefined])
      for (const one of written) if (one.status === 'rejected') throw one.reason
      asWritten.add(entry)
    },
    isCopied: copies.has,
    async finish(entry) {
      await copies.drop(entry.id)
      const record = recordOf(entry.cid)
      const file = fileOf(entry.id)
      if (!asWritten.has(entry) && !(await files.append(file, entry))) await files.write(file, entry)
      files.forget(file)
      await inFolder(dirname(record), () => rename(file, record))
    },
    async remove(entry) {
      await copies.drop(entry.id)
      files.forget(fileOf(entry.id))
      await rm(fileOf(entry.id), { force: true })
      await syncOnce(open)
    },
    record: (cid) => readRecord(recordOf(nameOf(cid)), nameOf(cid)),
    async *records() {
      for await (const shard of namesIn(done))
        for await (const file of namesIn(join(done, shard)))
          for (const name of idIn(file)) {
            const entry = await readRecord(recordOf(name), name)
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

const asAccepted = ({ entry, ...damaged }: Damaged): Damaged => ({
  ...damaged,
  entry: entry && { ...entry, entry: { ...entry.entry, accepted: true } },
})

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
