// Notes on damaged journal entries: what was found, and what became of the upload. One small file for each in the data folder, so
// that the operator hears of it after a restart too, until the file is removed.
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../core/clock.ts'
import { isUnfinished, makeFolder, orIfGone, syncFolder, writeDurably } from '../../core/disk/files.ts'
import type { Log } from '../../core/log.ts'
import { type Damaged, journalFolder } from './journal.ts'

export type DamagedEntry = {
  /** The name of its entry, and of its spool. */
  readonly id: string
  /** When it was found. */
  readonly at: string
  /** `missing`: there is no such file any more. `damaged`: an older line of it, or one with a wrong checksum, could be read. */
  readonly found: 'missing' | 'unreadable' | 'damaged'
  readonly became: Became
  readonly cids: readonly string[]
  /** What the file says. */
  readonly text?: string
}

export type Became =
  | 'read' // by an older line of its file
  | 'copied' // by its copy
  | 'rebuilt' // by the blocks of its spool
  | 'incomplete' // the blocks of its spool are kept and readable, and make no whole upload
  | 'unfinished' // the same, but this disk kept it from being taken up
  | 'nothing' // it has no spool: no client was told of it, or every provider held it

const folderIn = (data: string): string => join(journalFolder(data), 'damaged')
/** Each is a file that an operator looks at. */
const mostRead = 1000
const mostText = 16 * 1024

async function noteDamaged(data: string, note: DamagedEntry): Promise<void> {
  const folder = folderIn(data)
  const { text } = note
  await makeFolder(folder)
  const cut = text === undefined ? note : { ...note, text: text.slice(0, mostText) }
  await writeDurably(join(folder, `${note.id}.json`), Buffer.from(`${JSON.stringify(cut, undefined, 2)}\n`))
  await syncFolder(folder)
}

export async function readDamaged(data: string): Promise<readonly DamagedEntry[]> {
  const folder = folderIn(data)
  const names = (await orIfGone(readdir(folder), [])).filter((name) => name.endsWith('.json') && !isUnfinished(name))
  const notes = await Promise.all(names.slice(0, mostRead).map((name) => readNote(join(folder, name))))
  return notes.flatMap((note) => note ?? [])
}

async function readNote(file: string): Promise<DamagedEntry | undefined> {
  try {
    const note = JSON.parse(await readFile(file, 'utf8')) as DamagedEntry
    return note.became in words ? note : undefined
  } catch {
    return undefined
  }
}

const words: Readonly<Record<Became, string>> = {
  read: 'taken up by an older line of its file',
  copied: 'taken up by its copy',
  rebuilt: 'taken up by the blocks of its spool',
  incomplete: 'lacks blocks: what is there is kept and readable, upload it again',
  unfinished:
    'could not be taken up: what is there is kept and readable, the log says why, and the next start tries again',
  nothing: 'has no blocks here: every provider held it, or no client was told of it',
}

/** Undefined: none was damaged. */
export function wordsOfDamaged(notes: readonly DamagedEntry[]): string | undefined {
  if (notes.length === 0) return undefined
  const kinds = (Object.keys(words) as Became[]).flatMap((kind) => {
    const count = notes.filter(({ became }) => became === kind).length
    return count === 0 ? [] : [`${count} ${words[kind]}`]
  })
  const what = notes.length === 1 ? '1 journal entry was' : `${notes.length} journal entries were`
  return `${what} damaged: ${kinds.join('; ')}. journal/damaged in the data folder says which; remove the files in it when you have read them`
}

export interface DamagedNotes {
  /** Call it before the entry is mended: a crash in between tells it twice, and not never. Does not reject. */
  note(damaged: Damaged, became: Became, cids: readonly string[]): Promise<void>
  /** For the operator; undefined: no entry was damaged. */
  words(): string | undefined
  /** Looks which notes the operator has not removed yet. Does not reject. */
  look(): Promise<void>
}

const isTakenUp: ReadonlySet<Became> = new Set(['read', 'copied', 'rebuilt'])

export function createDamagedNotes({
  data,
  clock,
  log,
}: {
  readonly data: string
  readonly clock: Clock
  readonly log: Log
}): DamagedNotes {
  let notes: readonly DamagedEntry[] = []

  return {
    async note({ id, found, text }, became, cids) {
      const at = new Date(clock.now()).toISOString()
      if (isTakenUp.has(became)) log('error', 'journal.mended', { id, found, became, cids })
      else log('error', 'journal.lost', { id, found, became })
      const one = { id, found, became, cids, at, ...(text !== '' && { text }) }
      notes = [...notes.filter((other) => other.id !== id), one]
      await noteDamaged(data, one).catch((error: unknown) => log('error', 'journal.note', { id, error: String(error) }))
    },
    words: () => wordsOfDamaged(notes),
    async look() {
      try {
        notes = await readDamaged(data)
      } catch (error) {
        log('error', 'journal.note', { error: String(error) })
      }
    },
  }
}
