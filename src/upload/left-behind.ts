// Finds uploads that a change of the configuration left behind: only providers that are no longer configured hold them, or
// were to hold them. It reads the upload records in the data folder and changes none.
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { CID } from 'multiformats/cid'
import { makeFolder, namesIn, orIfGone, writeDurably } from '../core/disk/files.ts'
import { readEntry } from './spool/entry-file.ts'
import type { JournalEntry } from './spool/journal.ts'

export type LeftBehind = {
  readonly provider: string
  /** Uploads that this provider holds and no configured provider does. */
  readonly alone: number
  /** Uploads that were to be brought to it. */
  readonly waiting: number
}

export type LookBehind = {
  readonly data: string
  /** Names of the providers that are configured. */
  readonly providers: readonly string[]
  /** Whether a local store of this machine has it. */
  readonly isHere: (cid: CID) => Promise<boolean>
  readonly signal?: AbortSignal
}

/** The messages for the operator. */
export const wordsOf = ({ provider, alone, waiting }: LeftBehind): string[] => [
  ...(alone === 0
    ? []
    : [
        `${uploads(alone)} held by ${provider} alone, and no provider of that name is configured: they are read only where an upstream has them`,
      ]),
  ...(waiting === 0
    ? []
    : [
        `${uploads(waiting)} to be brought to ${provider}, and no provider of that name is configured: configure it, or give up on it (DELETE /uploads/<cid>/${provider})`,
      ]),
]

const uploads = (count: number): string => (count === 1 ? '1 upload is' : `${count} uploads are`)

/** Reads every record, but only if the operator removed a provider since the last look that found nothing. */
export async function lookBehind(look: LookBehind): Promise<readonly LeftBehind[]> {
  const known = await readNames(look.data)
  if (known?.every((name) => look.providers.includes(name))) return []
  const counts = new Map<string, { alone: number; waiting: number }>()
  const countOf = (name: string) => {
    const count = counts.get(name) ?? { alone: 0, waiting: 0 }
    counts.set(name, count)
    return count
  }
  for await (const { cid, providers } of entriesIn(look.data, look.signal)) {
    const inState = (wanted: string) =>
      Object.entries(providers).flatMap(([name, { state }]) => (state === wanted ? [name] : []))
    const isGone = (name: string) => !look.providers.includes(name)
    for (const name of inState('wanted').filter(isGone)) countOf(name).waiting++
    const holders = inState('held')
    if (holders.length === 0 || !holders.every(isGone) || (await look.isHere(CID.parse(cid)))) continue
    for (const name of holders) countOf(name).alone++
  }
  return [...counts].map(([provider, count]) => ({ provider, ...count }))
}

/**
 * The same for the gateway that owns the folder: it notes which provider names the records may hold, so that the next look
 * reads no record unless the operator removed a provider.
 */
export async function lookBehindAndNote(look: LookBehind): Promise<readonly LeftBehind[]> {
  const known = await readNames(look.data)
  // Noted before a new provider can hold anything. Without a list, the records themselves give the names.
  if (known) await writeNames(look.data, [...known, ...look.providers])
  const left = await lookBehind(look)
  await writeNames(look.data, [...left.map(({ provider }) => provider), ...look.providers])
  return left
}

const namesFile = (data: string): string => join(data, 'journal', 'providers.json')

async function readNames(data: string): Promise<readonly string[] | undefined> {
  try {
    const names: unknown = JSON.parse(await readFile(namesFile(data), 'utf8'))
    return Array.isArray(names) && names.every((name) => typeof name === 'string') ? names : undefined
  } catch {
    return undefined
  }
}

async function writeNames(data: string, names: readonly string[]): Promise<void> {
  const said = [...new Set(names)].sort()
  const before = await readNames(data)
  if (JSON.stringify(before ?? []) === JSON.stringify(said)) return
  await makeFolder(join(data, 'journal'))
  await writeDurably(namesFile(data), Buffer.from(JSON.stringify(said)))
}

/** How many uploads in this folder are not yet at all their providers. */
export async function countWaiting(data: string): Promise<number> {
  let count = 0
  for await (const _ of filesBelow(join(data, 'journal', 'open'))) count++
  return count
}

/** Open entries and finished records, read only: another process may be using the folder. */
async function* entriesIn(data: string, signal: AbortSignal | undefined): AsyncGenerator<JournalEntry> {
  // An open entry may be finished a moment later, belong to a repeated upload, or be listed twice while it is rewritten.
  const open = new Set<string>()
  for await (const file of filesBelow(join(data, 'journal', 'open'))) {
    signal?.throwIfAborted()
    const entry = await entryIn(file)
    if (!entry || open.has(entry.cid)) continue
    open.add(entry.cid)
    yield entry
  }
  for await (const shard of namesIn(join(data, 'journal', 'done')))
    for await (const file of filesBelow(join(data, 'journal', 'done', shard))) {
      signal?.throwIfAborted()
      const entry = await entryIn(file)
      if (entry && !open.has(entry.cid)) yield entry
    }
}

const entryIn = async (file: string): Promise<JournalEntry | undefined> =>
  readEntry(await orIfGone(readFile(file, 'utf8'), '')).entry

async function* filesBelow(folder: string): AsyncGenerator<string> {
  for await (const name of namesIn(folder)) if (name.endsWith('.json')) yield join(folder, name)
}
