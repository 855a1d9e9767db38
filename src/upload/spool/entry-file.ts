// The file of one journal entry: a line of JSON for each of its states, the last one counts. A change is appended and synced: no new
// file, no rename and no sync of the folder. A checksum ends each line. Earlier versions left one line without an end, and
// lines without a checksum.
import { crc32 } from 'node:zlib'
import { CID } from 'multiformats/cid'
import { type Profile, profiles } from '../../../backends/pinning/contract.ts'
import { appendSynced, isGone, writeDurably } from '../../core/disk/files.ts'
import type { ProviderState } from './provider-state.ts'

export type JournalEntry = {
  /** The name of its spool, too. */
  readonly id: string
  readonly cid: string
  readonly profile: Profile
  readonly bytes: number
  readonly carBytes: number
  readonly at: string
  /** The client got its 200. Otherwise the upload is undone if it cannot be finished. */
  readonly accepted: boolean
  /** Providers of this machine that held it before it came. */
  readonly heldBefore?: readonly string[]
  readonly providers: Readonly<Record<string, ProviderState>>
  /** Shared tiers that lack blocks of it. */
  readonly owed?: readonly string[]
}

/** One name for a file, for v0 and v1 of its CID. */
export const nameOf = (cid: CID): string => cid.toV1().toString()

export interface EntryFiles {
  /** Whole or not at all. The caller syncs the folder. */
  write(file: string, entry: JournalEntry): Promise<void>
  /** False where the file has to be written anew. */
  append(file: string, entry: JournalEntry): Promise<boolean>
  /** Nothing is appended any more. */
  forget(file: string): void
}

/** The file of an upload that waits for a provider for weeks stays small. */
const mostLines = 32

export function createEntryFiles(): EntryFiles {
  /** How many lines they have: of files that this process wrote, and that have no torn end. */
  const lines = new Map<string, number>()

  return {
    async write(file, entry) {
      lines.delete(file)
      await writeDurably(file, lineOf(entry))
      lines.set(file, 1)
    },
    async append(file, entry) {
      const count = lines.get(file) ?? mostLines
      // Until it is there, its end is not known.
      lines.delete(file)
      if (count >= mostLines) return false
      try {
        await appendSynced(file, lineOf(entry))
      } catch (error) {
        if (isGone(error)) return false
        throw error
      }
      lines.set(file, count + 1)
      return true
    },
    forget: (file) => void lines.delete(file),
  }
}

export function lineOf(entry: JournalEntry): Buffer {
  const text = JSON.stringify(entry)
  return Buffer.from(`${text.slice(0, -1)},"crc":"${sumOf(text)}"}\n`)
}

const sumOf = (text: string): string => crc32(text).toString(16).padStart(8, '0')
const withSum = /^(.*),"crc":"([0-9a-f]{8})"\}$/s

/** `isSure`: it is as it was written, or an earlier version wrote it. One flipped bit can make another CID that is valid, too. */
function readLine(line: string): { readonly entry: JournalEntry | undefined; readonly isSure: boolean } {
  const [, text, sum] = withSum.exec(line) ?? []
  // A text is the last thing in a line only where that is its checksum: here it was damaged itself.
  if (text === undefined) return { entry: untimed(line), isSure: !line.trimEnd().endsWith('"}') }
  const isSure = sumOf(`${text}}`) === sum
  return { entry: isSure ? parseEntry(`${text}}`) : untimed(`${text}}`), isSure }
}

function untimed(text: string): JournalEntry | undefined {
  const entry = parseEntry(text)
  return entry && withoutTimes(entry)
}

/** A damaged date would put the next try off by years, and be shown. Without one the providers are asked at once. */
export function withoutTimes(entry: JournalEntry): JournalEntry {
  const providers = Object.entries(entry.providers).map(([name, { notBefore: _, ...rest }]) => [name, rest])
  return { ...entry, providers: Object.fromEntries(providers) as JournalEntry['providers'] }
}

export type ReadEntry = {
  readonly entry: JournalEntry | undefined
  /** Its line is as it was written, or an earlier version wrote it. */
  readonly isSure: boolean
  /** Bytes behind it, of a write that was cut short and that no client was told of. After a power cut there may be zeros. */
  readonly torn: number
  /** Bytes behind it, of whole lines that the disk damaged. */
  readonly damaged: number
}

/**
 * The last line that is an entry, before any whose checksum is wrong. A client may have been told of a line that the disk damaged: then
 * the entry counts as accepted, so that it is never undone, and the providers that the line named are asked again.
 */
export function readEntry(text: string): ReadEntry {
  const lines = text.split('\n')
  const rest = lines.pop() ?? ''
  const last = readLine(rest)
  if (last.entry && last.isSure) return { ...last, torn: 0, damaged: 0 }
  // A write that was cut short has no checksum: where there is one, the end of the line was damaged.
  const isTorn = !hasSum.test(rest)
  if (!isTorn) lines.push(rest)
  let torn = isTorn ? rest.length : 0
  let damaged = 0
  let unsure: JournalEntry | undefined
  for (let line = lines.pop(); line !== undefined; line = lines.pop()) {
    const { entry, isSure } = readLine(line)
    if (entry && isSure) return { entry: damaged > 0 ? { ...entry, accepted: true } : entry, isSure, torn, damaged }
    const within = damaged === 0 ? lastWithin(line) : undefined
    if (within) return { entry: within, isSure: true, torn, damaged: 1 }
    unsure ??= entry
    // One alone is a byte that was damaged.
    if (line.includes('\0\0')) torn += line.length + 1
    else damaged += line.length + 1
  }
  return { entry: unsure && { ...unsure, accepted: true }, isSure: false, torn, damaged }
}

const hasSum = /,"crc":"[0-9a-f]{8}"\}/

/** The last state of lines whose ends were damaged: it is as it was written, and nothing but such an end is behind it. */
function lastWithin(line: string): JournalEntry | undefined {
  const found = [...line.matchAll(/\{"id":.*?,"crc":"[0-9a-f]{8}"\}/gs)].at(-1)
  if (!found || found.index + found[0].length < line.length - 1) return undefined
  const { entry, isSure } = readLine(found[0])
  return isSure ? entry : undefined
}

const standings: ReadonlySet<string> = new Set(['wanted', 'held', 'given-up'])
const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0

/** Checks every field: an operator may have edited the file, or the disk may have damaged it. */
function parseEntry(text: string): JournalEntry | undefined {
  try {
    const entry = JSON.parse(text) as JournalEntry
    const { id, cid, profile, bytes, carBytes, at, heldBefore, owed, providers } = entry
    const isWhole =
      [id, at].every((one) => typeof one === 'string') &&
      nameOf(CID.parse(cid)) === cid &&
      profiles.includes(profile) &&
      [bytes, carBytes].every(isCount) &&
      [heldBefore, owed].every((one) => one === undefined || Array.isArray(one)) &&
      Object.values(providers).every(({ state }) => standings.has(state))
    return isWhole ? entry : undefined
  } catch {
    return undefined
  }
}
