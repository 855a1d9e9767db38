// The delivery of one upload to its providers, from the moment when it is whole here until every provider holds it. Only this
// file changes its state and its journal entry: other parts tell it what happened.
import type { Upload } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { diskFailure } from '../failures.ts'
import type { Journal, JournalEntry } from '../spool/journal.ts'
import type { ProviderState } from '../spool/provider-state.ts'
import { providerState } from './quorum.ts'
import { firstState, type Happening, meanings, next, type PinState } from './states.ts'

export interface Delivery {
  readonly upload: Upload
  /** The journal entry, written or about to be written. */
  readonly entry: JournalEntry
  readonly state: PinState
  readonly isAwaited: boolean
  readonly isOver: boolean
  /** Resolves when the client may get its 200, or at once when no client waits. */
  readonly confirmed: Promise<void>
  /** Resolves when enough providers hold it, even if another upload of the request fails. Rejects like `confirmed`. */
  readonly enough: Promise<void>
  /** Aborts the questions to providers. */
  readonly stop: AbortController
  /** What is under way: questions to providers, and its end. */
  readonly asks: Set<Promise<unknown>>
  /** Names of the providers being asked now. */
  readonly asking: Set<string>
  /** Throws if its state does not allow this event. */
  happened(what: Happening): void
  standing(provider: string): ProviderState
  stand(provider: string, now: ProviderState): void
  /** Takes effect with the next `write`. */
  change(change: Partial<Pick<JournalEntry, 'heldBefore' | 'owed'>>): void
  /** Resolves when the current entry is synced to the disk; with `copied`, its copy beside the spool, too. */
  write(how?: 'copied'): Promise<void>
  /** Runs changes of its entry and its spool one after the other, and none once it is over. */
  inTurn(work: () => Promise<void>): Promise<void>
  /** Resolves when all begun turns are done. Does not reject. */
  atRest(): Promise<unknown>
  /** Runs `work` after `ms`; replaces the work planned for this provider before. */
  later(provider: string, ms: number, work: () => void): void
  /** Cancels all planned work. */
  rest(): void
}

export type DeliveryOptions = {
  readonly upload: Upload
  readonly entry: JournalEntry
  /** A client waits for it. */
  readonly isAsked: boolean
  /** Begins the confirmation; called in the next microtask. */
  readonly confirm: (delivery: Delivery) => Promise<void>
  readonly journal: Pick<Journal, 'write'>
  readonly clock: Clock
  readonly log: Log
}

export function createDelivery(options: DeliveryOptions): Delivery {
  const { upload, isAsked, journal, clock, log } = options
  const timers = new Map<string, () => void>()
  const enough = Promise.withResolvers<void>()
  let { entry } = options
  let state = firstState(entry.accepted, isAsked)
  let written: Promise<unknown> = Promise.resolve()

  function inTurn(work: () => Promise<void>): Promise<void> {
    const turn = written.then(() => (meanings[state].isOver ? undefined : work()))
    written = turn.catch((error: unknown) => log('error', 'journal.write', { cid: entry.cid, error: String(error) }))
    return turn
  }

  function rest(): void {
    for (const cancel of timers.values()) cancel()
    timers.clear()
  }

  const delivery: Delivery = {
    upload,
    get entry() {
      return entry
    },
    get state() {
      return state
    },
    get isAwaited() {
      return meanings[state].isAwaited
    },
    get isOver() {
      return meanings[state].isOver
    },
    confirmed: Promise.resolve().then(() => options.confirm(delivery)),
    enough: enough.promise,
    stop: new AbortController(),
    asks: new Set(),
    asking: new Set(),
    happened(what) {
      state = next(state, what)
      if (what === 'enough') enough.resolve()
      if (meanings[state].counts && !entry.accepted) entry = { ...entry, accepted: true }
      if (meanings[state].isOver) rest()
    },
    standing: (provider) => providerState(entry, provider),
    stand(provider, now) {
      entry = { ...entry, providers: { ...entry.providers, [provider]: now } }
    },
    change(change) {
      entry = { ...entry, ...change }
    },
    write: (how) =>
      inTurn(() =>
        journal.write(entry, how).catch((error: unknown) => {
          throw diskFailure(error, 'write the journal')
        }),
      ),
    inTurn,
    atRest: () => written,
    later(provider, ms, work) {
      timers.get(provider)?.()
      const cancel = clock.after(ms, () => {
        timers.delete(provider)
        work()
      })
      timers.set(provider, cancel)
    },
    rest,
  }
  enough.promise.catch(() => {})
  delivery.confirmed.catch(enough.reject)
  return delivery
}
