// Shares records through the shared tiers: an instance with an empty disk and no upstream finds and
// verifies them there. A record replaces only an older or invalid one, so the newest stays
// whichever instance writes last.
import type { CID } from 'multiformats/cid'
import type { StoredRecord } from '../../backends/tiers/contract.ts'
import type { Clock } from '../core/clock.ts'
import { wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { GuardedRecords } from '../retrieval/tiers/guarded-tier.ts'
import { type IpnsRecord, keyText, newest, signedRecord } from './ipns-record.ts'

export type Shelf = { readonly name: string; readonly records: GuardedRecords }

/** The reads of one lookup from all tiers. */
interface TierReads {
  /** Settles when every tier has answered or exceeded the time worth waiting. */
  readonly soon: Promise<unknown>
  /** Settles when every tier has answered or failed. */
  readonly done: Promise<unknown>
  /** Failures of tiers so far. */
  readonly failures: readonly unknown[]
  /** Queues a write of the record to each tier that had none or an older one. */
  offer(record: IpnsRecord, isNew: boolean): void
}

export interface SharedRecords {
  /**
   * Reads every tier concurrently; `bring` receives each record signed by the key, including
   * expired ones.
   */
  look(key: CID, signal: AbortSignal, bring: (record: IpnsRecord, tier: string) => void): TierReads
  /** Resolves when all queued writes are done, or after two seconds. */
  close(): Promise<void>
}

type TierRead = { isOver: boolean; held?: StoredRecord | undefined; record?: IpnsRecord | undefined }
type Job = { readonly key: CID; readonly record: IpnsRecord; readonly expected: StoredRecord | 'unknown' | undefined }

const maxWaiting = 1000
const writesAtOnce = 4
const maxTries = 3
const closeMs = 2000

export function createSharedRecords(options: {
  readonly shelves: readonly Shelf[]
  readonly clock: Clock
  readonly log: Log
}): SharedRecords {
  const { clock, log } = options
  const closing = new AbortController()
  const writers = options.shelves.map((shelf) => ({ shelf, writer: createWriter(shelf) }))

  async function proved(key: CID, held: StoredRecord | undefined): Promise<IpnsRecord | undefined> {
    return held && signedRecord(key, held.bytes).catch(() => undefined)
  }

  function createWriter({ name: tier, records }: Shelf) {
    const waiting = new Map<string, Job>()
    const writing = new Set<Promise<void>>()
    let hasComplained = false

    /** Another instance may have written in between: read again first. */
    async function write({ key, record, expected }: Job): Promise<void> {
      const name = keyText(key)
      let held = expected
      for (let tries = 0; tries < maxTries; tries++) {
        if (held === 'unknown') held = await records.read(name, closing.signal)
        const there = await proved(key, held)
        const keepMs = record.endsAt - clock.now()
        if (keepMs <= 0 || (there && newest([there, record]) === there)) return
        if (await records.replace(name, record.bytes, { expected: held, keepMs }, closing.signal)) return
        held = 'unknown'
      }
    }

    async function drain(): Promise<void> {
      for (const [name, job] of waiting) {
        waiting.delete(name)
        try {
          await write(job)
          hasComplained = false
        } catch (error) {
          // No retry is needed: the next lookup of this name finds that the tier lacks it, and
          // offers it again.
          if (!hasComplained && !closing.signal.aborted)
            log('warn', 'names.share-failed', { tier, why: wordsOf(error) })
          hasComplained = true
        }
      }
    }

    return {
      put(job: Job): void {
        const name = keyText(job.key)
        const other = waiting.get(name)
        if (closing.signal.aborted || (!other && waiting.size >= maxWaiting)) return
        if (other && newest([other.record, job.record]) === other.record) return
        waiting.set(name, job)
        if (writing.size >= writesAtOnce) return
        const run = drain().finally(() => writing.delete(run))
        writing.add(run)
      },
      idle: async (): Promise<void> => {
        while (writing.size > 0) await Promise.all(writing)
      },
    }
  }

  return {
    look(key, signal, bring) {
      const name = keyText(key)
      const failures: unknown[] = []
      const reads = writers.map(({ shelf, writer }) => {
        const state: TierRead = { isOver: false }
        const overdue = Promise.withResolvers<void>()
        const read = async (): Promise<void> => {
          state.held = await shelf.records.read(name, signal, { onSoftTimeout: () => overdue.resolve() })
          state.record = await proved(key, state.held)
          state.isOver = true
          if (state.record) bring(state.record, shelf.name)
          else if (state.held)
            log('warn', 'names.invalid-record', { upstream: shelf.name, why: 'its key did not sign it' })
        }
        const done = read().catch((error: unknown) => void failures.push(error))
        return { state, writer, done, soon: Promise.race([done, overdue.promise]) }
      })
      return {
        soon: Promise.all(reads.map(({ soon }) => soon)),
        done: Promise.all(reads.map(({ done }) => done)),
        failures,
        offer(record, isNew) {
          for (const { state, writer } of reads) {
            const { isOver, held, record: there } = state
            if (isOver && there && newest([there, record]) === there) continue
            if (isOver || isNew) writer.put({ key, record, expected: isOver ? held : 'unknown' })
          }
        },
      }
    },
    async close() {
      const late = Promise.withResolvers<void>()
      const stop = clock.after(closeMs, late.resolve)
      await Promise.race([Promise.all(writers.map(({ writer }) => writer.idle())), late.promise])
      stop()
      closing.abort()
    },
  }
}
