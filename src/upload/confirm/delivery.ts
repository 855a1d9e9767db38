// One upload on its way to its providers, from the moment when it lies here whole until every one of them holds it. How far
// it is, and what the journal says of it, is changed here alone: others tell it what happened.
import type { Upload } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { diskFailure } from '../failures.ts'
import type { Entry, Journal, ProviderState } from '../spool/journal.ts'
import { providerState } from './quorum.ts'
import { firstState, type Happening, meanings, next, type State } from './states.ts'

export interface Delivery {
  readonly upload: Upload
  /** As the journal has it, or is about to. */
  readonly entry: Entry
  readonly state: State
  readonly isAwaited: boolean
  readonly isOver: boolean
  /** Resolves when the client may be told, or when there is none. */
  readonly confirmed: Promise<void>
  /** Enough hold it, whatever becomes of those it came with. Rejects with what `confirmed` rejects with. */
  readonly enough: Promise<void>
  /** Ends what is asked of providers for the sake of the client. */
  readonly stop: AbortController
  /** What providers were asked for the sake of the client. */
  readonly asks: Promise<unknown>[]
  /** Providers that are being asked just now. */
  readonly asking: Set<string>
  /** Throws where this cannot happen to one in its state. */
  happened(what: Happening): void
  standing(provider: string): ProviderState
  stand(provider: string, now: ProviderState): void
  /** Noted for the next time that the entry is written. */
  change(change: Partial<Pick<Entry, 'heldBefore' | 'owed'>>): void
  /** The entry as it is now is on the platter when it resolves. */
  write(): Promise<void>
  /** What is done to its entry and its spool takes turns; nothing is, once it is over. */
  inTurn(work: () => Promise<void>): Promise<void>
  /** Every turn that was taken is done. Does not reject. */
  atRest(): Promise<unknown>
  /** In so long; takes the place of what was to be done for this provider. */
  later(provider: string, ms: number, work: () => void): void
  /** Nothing more is done later. */
  rest(): void
}

export type DeliveryOptions = {
  readonly upload: Upload
  readonly entry: Entry
  /** A client waits for it. */
  readonly isAsked: boolean
  /** On its way to be confirmed, from the next moment on. */
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
    asks: [],
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
    write: () =>
      inTurn(() =>
        journal.write(entry).catch((error: unknown) => {
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
