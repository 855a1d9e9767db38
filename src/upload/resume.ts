// Resumes what the last process, or the gateway before this one, left in the journal: also what is damaged there.
import type { Log } from '../core/log.ts'
import type { Claims } from './claims.ts'
import { diskFailure } from './failures.ts'
import type { Damaged, Journal, JournalEntry } from './spool/journal.ts'
import type { Mended, Mending } from './spool/mend.ts'
import type { Spools } from './spool/spool.ts'

export type ResumeOptions = {
  readonly journal: Pick<Journal, 'load'>
  readonly spools: Pick<Spools, 'sweep'>
  readonly claims: Pick<Claims, 'abandoned'>
  readonly mending: Pick<Mending, 'begin'>
  /** Resolves when accepted ones can be read. */
  readonly takeUpAll: (entries: readonly JournalEntry[]) => Promise<void>
  readonly log: Log
  readonly closing: AbortSignal
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

type Found = { readonly id: string; readonly entry?: JournalEntry; readonly damaged?: Damaged }

/** Resolves when every accepted upload can be read. */
export function createResume(options: ResumeOptions): () => Promise<void> {
  const { journal, spools, claims, mending, takeUpAll, log, closing, track } = options

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

  /** One after another: each reads its spool through. What lies in it can be read meanwhile. */
  async function takeUpLater(later: Mended['later']): Promise<void> {
    for (const mend of later)
      await mend()
        .then(takeUpAll)
        .catch((error: unknown) => {
          if (!closing.aborted) log('error', 'journal.mend', { error: String(error) })
        })
  }

  return async () => {
    const found = await claims.abandoned(find)
    const damaged = found.flatMap((one) => one.damaged ?? [])
    const { entries, later } = await mending.begin(damaged, closing)
    void track(takeUpLater(later))
    await takeUpAll([...found.flatMap(({ entry }) => entry ?? []), ...entries])
  }
}
