// Reads open entries of the journal from their files, and where one is not as it was written, its copy.
import { readFile } from 'node:fs/promises'
import { orIfGone } from '../../core/disk/files.ts'
import type { Log } from '../../core/log.ts'
import type { Copies } from './copies.ts'
import { type JournalEntry, type ReadEntry, readEntry, withoutTimes } from './entry-file.ts'

/** An entry that is not as it was written. */
export type Damaged = {
  readonly id: string
  readonly found: 'missing' | 'unreadable' | 'damaged'
  /** What its file says; empty where it is gone. */
  readonly text: string
  /** By an older line of it, or by its copy: as it was written. */
  readonly entry?: { readonly by: 'line' | 'copy'; readonly entry: JournalEntry } | undefined
  /** By its last line, whose checksum is wrong. */
  readonly unsure?: JournalEntry | undefined
}

export interface EntryReader {
  /** Undefined where there is none that can be read. The name tells its CID: what the disk damaged may read as another one. */
  readRecord(file: string, name: string): Promise<JournalEntry | undefined>
  copyOf(id: string): Promise<Damaged['entry']>
  /** Without those that are gone since their names were read. */
  readAll(ids: Iterable<string>): Promise<(JournalEntry | Damaged)[]>
}

const readsAtOnce = 32

export function createEntryReader({
  fileOf,
  copies,
  log,
}: {
  readonly fileOf: (id: string) => string
  readonly copies: Pick<Copies, 'read'>
  readonly log: Log
}): EntryReader {
  /** Undefined where there is no such file. */
  async function parse(file: string): Promise<{ readonly text: string; readonly read: ReadEntry } | undefined> {
    const text = await orIfGone(readFile(file, 'utf8'), undefined)
    if (text === undefined) return undefined
    const read = readEntry(text)
    const { entry, torn, damaged } = read
    if (!entry) log('error', 'journal.unreadable', { file })
    else if (damaged > 0) log('error', 'journal.damaged', { file, bytes: damaged })
    else if (torn > 0) log('warn', 'journal.torn', { file, bytes: torn })
    return { text, read }
  }

  async function readRecord(file: string, name: string): Promise<JournalEntry | undefined> {
    const entry = (await parse(file))?.read.entry
    return entry && entry.cid !== name ? { ...entry, cid: name } : entry
  }

  async function readOne(id: string): Promise<JournalEntry | Damaged | undefined> {
    const parsed = await parse(fileOf(id))
    // It was finished or deleted since its name was read.
    if (!parsed) return undefined
    const { text, read } = parsed
    const own = read.entry?.id === id ? read.entry : undefined
    if (own && read.isSure && read.damaged === 0) return own
    const older = own && read.isSure ? ({ by: 'line', entry: own } as const) : undefined
    return { id, found: own ? 'damaged' : 'unreadable', text, entry: older ?? (await copyOf(id)), unsure: own }
  }

  async function copyOf(id: string): Promise<Damaged['entry']> {
    const entry = await copies.read(id)
    return entry && { by: 'copy', entry: { ...withoutTimes(entry), accepted: true } }
  }

  async function readAll(ids: Iterable<string>): Promise<(JournalEntry | Damaged)[]> {
    const all: (JournalEntry | Damaged)[] = []
    const rest = [...ids]
    const read = async () => {
      for (let id = rest.pop(); id !== undefined; id = rest.pop()) {
        const one = await readOne(id)
        if (one) all.push(one)
      }
    }
    await Promise.all(Array.from({ length: readsAtOnce }, read))
    return all
  }

  return { readRecord, copyOf, readAll }
}
