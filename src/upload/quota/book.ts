// What each token uploaded today (UTC), in memory and in one small file of the data folder, so that a restart forgets nothing but
// the last second. All gateways over a folder share one book.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { isGone, makeFolder, syncFolder, writeDurably } from '../../core/disk/files.ts'

export type Used = { uploads: number; bytes: number }

export interface QuotaBook {
  readonly file: string
  /** Why the file of an earlier process could not be read. */
  readonly unreadable: unknown
  /** What was used on this day: it counts anew with each later day. */
  used(token: string, day: number): Readonly<Used>
  add(token: string, day: number, more: Used): void
  /** When it counts anew. Where the clock was set back over midnight, the day that is counted is tomorrow. */
  endsAt(day: number): number
  /** What uploads that are under way have taken, of any day. */
  readonly underWay: Map<string, Used>
  /** Resolves when all that was added before the call is on the disk. One write at a time. */
  save(): Promise<void>
}

const dayMs = 86_400_000
const dateOf = (day: number): string => new Date(day * dayMs).toISOString().slice(0, 10)

export const dayOf = (now: number): number => Math.floor(now / dayMs)

export function createQuotaBook(folder: string): QuotaBook {
  const file = join(folder, 'quotas.json')
  const read = readBook(file)
  let { day } = read
  const tokens = new Map(read.tokens)
  let isSaved = true
  let saving: Promise<void> | undefined

  /** A clock that was set back some hours does not begin a day anew; one that was years ahead is not waited for. */
  function turnTo(today: number): void {
    if (today === day || today === day - 1) return
    day = today
    tokens.clear()
    isSaved = false
  }

  async function write(): Promise<void> {
    isSaved = true
    const text = JSON.stringify({ day: dateOf(day), tokens: Object.fromEntries(tokens) })
    try {
      await makeFolder(folder)
      await writeDurably(file, Buffer.from(`${text}\n`))
      await syncFolder(folder)
    } catch (error) {
      isSaved = false
      throw error
    }
  }

  return {
    file,
    unreadable: read.error,
    underWay: new Map(),
    used(token, today) {
      turnTo(today)
      return tokens.get(token) ?? { uploads: 0, bytes: 0 }
    },
    add(token, today, { uploads, bytes }) {
      turnTo(today)
      const used = tokens.get(token) ?? { uploads: 0, bytes: 0 }
      tokens.set(token, { uploads: used.uploads + uploads, bytes: used.bytes + bytes })
      isSaved = false
    },
    endsAt(today) {
      turnTo(today)
      return (day + 1) * dayMs
    },
    async save() {
      while (!isSaved || saving !== undefined) {
        saving ??= write().finally(() => {
          saving = undefined
        })
        await saving
      }
    },
  }
}

type ReadBook = {
  readonly day: number
  readonly tokens: readonly (readonly [string, Used])[]
  readonly error?: unknown
}

/** Read at once, since it is one line: no upload may come before it. */
function readBook(file: string): ReadBook {
  const none = { day: 0, tokens: [] }
  try {
    const { day, tokens } = JSON.parse(readFileSync(file, 'utf8')) as { day: string; tokens: Record<string, Used> }
    const at = dayOf(Date.parse(day))
    const read = Object.entries(tokens)
    const isWhole = read.every(([, { uploads, bytes }]) => Number.isSafeInteger(uploads) && Number.isSafeInteger(bytes))
    if (Number.isNaN(at) || !isWhole) throw new Error('it is not what was written')
    return { day: at, tokens: read }
  } catch (error) {
    return isGone(error) ? none : { ...none, error }
  }
}
