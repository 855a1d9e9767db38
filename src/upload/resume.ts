// Resumes what the last process, or the gateway before this one, left in the journal: also what is damaged there.
import { CID } from 'multiformats/cid'
import type { Log } from '../core/log.ts'
import type { Claims } from './claims.ts'
import { diskFailure } from './failures.ts'
import type { Damaged, Journal, JournalEntry } from './spool/journal.ts'
import type { Mended, Mending } from './spool/mend.ts'
import type { Spools } from './spool/spool.ts'

export type ResumeOptions = {
  readonly journal: Pick<Journal, 'load' | 'remove'>
  readonly spools: Pick<Spools, 'sweep' | 'drop'>
  readonly claims: Pick<Claims, 'abandoned' | 'tryToBegin' | 'end'>
  readonly mending: Pick<Mending, 'begin'>
  /** Resolves when accepted ones can be read. */
  readonly takeUpAll: (entries: readonly JournalEntry[]) => Promise<void>
  readonly log: Log
  readonly closing: AbortSignal
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

type Found = { readonly id: string; readonly entry?: JournalEntry; readonly damaged?: Damaged }

export interface Resume {
  /** Resolves when every accepted upload can be read. */
  resume(): Promise<void>
  /** An operator deletes it: an entry of it that is being mended is not taken up, either. */
  unwanted(name: string): void
  /** A client sends it. */
  wanted(name: string): void
}

/** `drop` ends what goes on behind an accepted upload. */
export function createResume(options: ResumeOptions, drop: (cid: CID) => Promise<unknown>): Resume {
  const { journal, spools, claims, mending, takeUpAll, log, closing, track } = options
  /** What was deleted while entries were mended: until then their CIDs are not known. */
  const deleted = new Set<string>()
  let isMending = false

  async function find(): Promise<Found[]> {
    const loaded = await journal.load().catch((error: unknown) => {
      throw diskFailure(error, 'read the journal')
    })
    await spools.sweep(loaded.ids)
    return [
      ...loaded.entries.map((entry) => ({ id: entry.id, entry })),
      ...loaded.damaged.map((damaged) => ({ id: damaged.id, damaged })),
    ]
  }

  async function forget(entry: JournalEntry): Promise<void> {
    if (!claims.tryToBegin(entry.id)) return
    await journal.remove(entry)
    await spools.drop(entry.id)
    claims.end(entry.id)
  }

  async function takeUpMended(entries: readonly JournalEntry[]): Promise<void> {
    for (const entry of entries) if (deleted.has(entry.cid)) await forget(entry)
    await takeUpAll(entries.filter(({ cid }) => !deleted.has(cid)))
    // Deleted since then, and before there was a delivery to end.
    for (const { cid } of entries) if (deleted.has(cid)) await drop(CID.parse(cid))
  }

  /** One after another: each reads its spool through. What lies in it can be read meanwhile. */
  async function takeUpLater(later: Mended['later']): Promise<void> {
    for (const mend of later)
      await mend()
        .then(takeUpMended)
        .catch((error: unknown) => {
          if (!closing.aborted) log('error', 'journal.mend', { error: String(error) })
        })
    isMending = false
    deleted.clear()
  }

  return {
    async resume() {
      isMending = true
      const found = await claims.abandoned(find).catch((error: unknown) => {
        isMending = false
        throw error
      })
      const damaged = found.flatMap((one) => one.damaged ?? [])
      const { entries, later } = await mending.begin(damaged, closing)
      const taken = [takeUpAll(found.flatMap(({ entry }) => entry ?? [])), takeUpMended(entries)]
      void track(Promise.allSettled(taken).then(() => takeUpLater(later)))
      await Promise.all(taken)
    },
    unwanted(name) {
      if (isMending) deleted.add(name)
    },
    wanted: (name) => void deleted.delete(name),
  }
}
