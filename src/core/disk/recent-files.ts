// Which files of a folder this process read or wrote lately, as many as may well be in the page cache still.
import type { Clock } from '../clock.ts'

/** `usedMs`: the use that is noted on the file. */
export type RecentFile = { readonly bytes: number; readonly usedMs: number }

export interface RecentFiles {
  note(key: string, file: RecentFile): void
  /** Keeps it for longer, too. */
  find(key: string): RecentFile | undefined
  usedMs(key: string): number | undefined
  forget(key: string): void
}

// What of the page cache one folder may count on: others need it too.
const shareOfMemory = 1 / 4
const mostFiles = 32_768
const mostAgeMs = 300_000

export function createRecentFiles(clock: Clock): RecentFiles {
  // Two generations: what is not read in the time of one is forgotten with the next.
  let young = new Map<string, RecentFile>()
  let old = new Map<string, RecentFile>()
  let youngBytes = 0
  let mostBytes = 0
  let bornAt = Number.NEGATIVE_INFINITY

  function age(now: number): void {
    old = now - bornAt > 2 * mostAgeMs ? new Map() : young
    young = new Map()
    youngBytes = 0
    bornAt = now
    mostBytes = (process.availableMemory() * shareOfMemory) / 2
  }

  function note(key: string, file: RecentFile): void {
    const now = clock.monotonic()
    if (youngBytes + file.bytes > mostBytes || young.size >= mostFiles || now - bornAt > mostAgeMs) age(now)
    youngBytes += file.bytes - (young.get(key)?.bytes ?? 0)
    young.set(key, file)
  }

  return {
    note,
    find(key) {
      const known = young.get(key)
      if (known) return known
      const older = old.get(key)
      if (older) note(key, older)
      return older
    },
    usedMs: (key) => young.get(key)?.usedMs,
    forget(key) {
      young.delete(key)
      old.delete(key)
    },
  }
}
