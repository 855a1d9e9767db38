// The deliveries under way, by CID: begins each one and connects its parts.
import type { CID } from 'multiformats/cid'
import type { LocalStore, Provider, Upload } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Trace } from '../../core/wire/trace.ts'
import type { Claims } from '../claims.ts'
import type { Journal, JournalEntry } from '../spool/journal.ts'
import type { Spools } from '../spool/spool.ts'
import type { ProviderAttempt } from './attempt.ts'
import { type Behind, createBehind } from './behind.ts'
import { createCleanup } from './cleanup.ts'
import { createConfirming } from './confirming.ts'
import { createDelivery, type Delivery } from './delivery.ts'
import type { Owed } from './owed.ts'
import type { Quorum } from './quorum.ts'
import { createRetries, type Retries } from './retries.ts'

export type DeliveriesOptions = {
  readonly providers: readonly Provider[]
  /** Local stores with the blocks of pins. */
  readonly stores: readonly LocalStore[]
  readonly quorum: Quorum
  readonly journal: Journal
  readonly spools: Spools
  readonly claims: Claims
  readonly clock: Clock
  readonly log: Log
  readonly pinMs: number
  readonly admit: (cid: CID) => void
  readonly random: () => number
  /**
   * Fills the tiers once enough providers hold it, before the 200. Returns the shared tiers that lack it. Does not reject.
   * `isKept`: a store of this machine has it.
   */
  readonly onConfirmed: (upload: Upload, signal: AbortSignal, isKept: boolean) => Promise<readonly string[]>
  readonly owed: Owed
  /** Called with each answer of a provider. */
  readonly onAttempt?: ((attempt: ProviderAttempt) => void) | undefined
  readonly trace?: Trace | undefined
  readonly closing: AbortSignal
  /** Registers work that goes on after the answer; `close` awaits it. */
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

/** `isAsked`: a client waits for it. `others`: resolves when enough providers hold each upload of the same request. */
export type Beginning = { readonly others?: () => Promise<unknown>; readonly isAsked?: boolean }

export interface Deliveries {
  readonly all: ReadonlyMap<string, Delivery>
  readonly behind: Behind
  begin(upload: Upload, entry: JournalEntry, how?: Beginning): Delivery
}

export function createDeliveries(options: DeliveriesOptions): Deliveries {
  const { journal, claims, clock, log, track } = options
  const all = new Map<string, Delivery>()
  const cleanup = createCleanup({ ...options, deliveries: all })
  const retries: Retries = createRetries({ ...options, onSettled: (delivery) => behind.settled(delivery) })
  const behind = createBehind({ ...options, cleanup, retries })
  const confirm = createConfirming({ ...options, cleanup, retries })

  return {
    all,
    behind,
    begin(upload, entry, how = {}) {
      const { others = async () => {}, isAsked = !entry.accepted } = how
      const delivery = createDelivery({
        upload,
        entry,
        isAsked,
        confirm: (one) => (isAsked ? confirm(one, others) : cleanup.offer(one)),
        journal,
        clock,
        log,
      })
      claims.begin(entry.id)
      all.set(entry.cid, delivery)
      const goOn = () => behind.goOn(delivery)
      void track(delivery.confirmed).then(goOn, goOn)
      return delivery
    },
  }
}
