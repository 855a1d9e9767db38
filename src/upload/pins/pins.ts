// The life of a pin after its upload: listed, deleted, looked after, and brought to providers that came later. A pin is an
// accepted upload: its record in the journal, or its open entry while some provider is still to get it.
import { CID } from 'multiformats/cid'
import type { LocalStore, Provider } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Claims } from '../claims.ts'
import type { Confirmation } from '../confirm/confirm.ts'
import { cidOf, type Journal, type JournalEntry, nameOf } from '../spool/journal.ts'
import { createAskAgain, type WaitingList } from './ask-again.ts'
import { createPinCount, type PinCount } from './count.ts'
import { type Asked, listPins, pinOf } from './list.ts'
import type { UploadsOnTheirWay } from './on-their-way.ts'
import { createInTime } from './provider-calls.ts'
import { createRemove } from './remove.ts'
import type { Brought, Page, Pin, Removal, Verification } from './told.ts'
import { createVerify } from './verify.ts'

export interface Pins {
  list(asked: Asked, signal: AbortSignal): Promise<Page>
  find(cid: CID): Promise<Pin | undefined>
  /** Deletes it at every provider that has it, also one that no record names. `busy`: it is being uploaded now. */
  remove(cid: CID): Promise<Removal | 'busy' | 'unknown'>
  /** Hashes what lies here and asks the other providers. The record does not name those any more that lost it. */
  verify(cid: CID, signal: AbortSignal): Promise<Verification | 'unknown'>
  /** Brings it to configured providers that lack it. `not-here`: its blocks are not on this machine. */
  bring(cid: CID): Promise<Brought | 'unknown' | 'not-here'>
  /** The last count; undefined before the first one is over. */
  count(): PinCount | undefined
}

export type PinsOptions = {
  readonly providers: readonly Provider[]
  readonly stores: readonly LocalStore[]
  readonly journal: Journal
  readonly confirmation: Pick<Confirmation, 'open' | 'bring'>
  readonly onTheirWay: UploadsOnTheirWay
  /** Throws a Failure for a CID that this gateway must not keep. */
  readonly admit: (cid: CID) => void
  readonly claims: Claims
  /** Providers that are asked again, of every gateway over the folder. */
  readonly waitingList?: WaitingList
  readonly clock: Clock
  readonly log: Log
  readonly closing: AbortSignal
}

/** What is brought behind waits in memory. */
const mostBrought = 1000

const later = (why: string): Failure => new Failure('overloaded', why, { source: 'ours', retryAfterMs: 1000 })

/** `ended` resolves when nothing is written any more; call it once `closing` is aborted. */
export function createPins(options: PinsOptions): Pins & { ended(): Promise<unknown> } {
  const { providers, stores, journal, confirmation, onTheirWay, admit, claims, clock, log, closing } = options
  const names = providers.map(({ name }) => name)
  const working = new Set<Promise<unknown>>()

  function track<T>(work: Promise<T>): Promise<T> {
    const settled = work.catch(() => {}).finally(() => working.delete(settled))
    working.add(settled)
    return work
  }

  const isOpen = (cid: CID): boolean => onTheirWay.openOf(cid) !== undefined
  const find = async (cid: CID): Promise<JournalEntry | undefined> =>
    (await onTheirWay.find(cid)) ?? (await journal.record(cid))
  const inTime = createInTime(clock)
  const removeNow = createRemove({ providers, journal, onTheirWay, inTime, find, closing })
  const verifyNow = createVerify({ providers, journal, inTime, isOpen, log, alone })

  const askAgain = createAskAgain({
    ...{ providers, inTime, clock, log, closing },
    ...(options.waitingList && { list: options.waitingList }),
    isWanted: async (cid) => (await find(cid)) !== undefined,
    alone: (cid, work) => track(alone(cid, work)),
  })

  async function removeAndAskAgain(cid: CID): Promise<Removal | 'busy' | 'unknown'> {
    const removal = await removeNow(cid)
    if (typeof removal === 'string') return removal
    const names = removal.providers.flatMap(({ provider, outcome }) => (outcome === 'not-known' ? [provider] : []))
    if (names.length > 0) askAgain.later(CID.parse(removal.cid), names)
    return removal
  }

  /** For an upload of the same file that comes meanwhile, and must not undo what was here before. */
  async function heldLocally(cid: CID): Promise<string[]> {
    const locals = providers.filter(({ traits }) => traits.local)
    const states = await Promise.all(locals.map((one) => one.status(cid, closing).catch(() => 'pinned')))
    return locals.filter((_, index) => states[index] === 'pinned').map(({ name }) => name)
  }

  /**
   * Not run where an upload of the same file counts on what lies here; then `busy`. No upload of it begins meanwhile, and no other
   * work of this kind.
   */
  async function alone<T>(cid: CID, work: () => Promise<T>): Promise<T | 'busy'> {
    const claim = await claims.claim(nameOf(cid), () => heldLocally(cid))
    let done: T | 'busy' = 'busy'
    await claim.leave(async () => {
      done = await work()
    })
    return done
  }

  async function bringNow(cid: CID): Promise<Brought | 'unknown' | 'not-here'> {
    const open = await onTheirWay.find(cid)
    const entry = open ?? (await journal.record(cid))
    if (!entry) return 'unknown'
    admit(cid)
    // Which may have other providers, and none brings it to those of this one until it is taken over.
    if (open && !confirmation.open().some(({ id }) => id === open.id))
      throw later(`${cid} is still with the gateway before the last reload; try again soon`)
    const to = names.filter((name) => (entry.providers[name]?.state ?? 'wanted') === 'wanted')
    if (to.length === 0 || open) return { cid: cidOf(entry).toString(), to }
    if (confirmation.open().length >= mostBrought)
      throw later(`${mostBrought} uploads are on their way to providers; try again soon`)
    const here = await Promise.all(stores.map((store) => store.has(cidOf(entry)).catch(() => false)))
    if (!here.includes(true)) return 'not-here'
    await confirmation.bring(entry)
    return { cid: cidOf(entry).toString(), to }
  }

  async function bring(cid: CID): Promise<Brought | 'unknown' | 'not-here'> {
    const brought = await alone(cid, () => bringNow(cid))
    if (brought === 'busy') throw later(`${cid} is being uploaded or deleted now; try again soon`)
    return brought
  }

  const list: Pins['list'] = (asked, signal) => listPins(asked, { journal, open: onTheirWay.open, names, signal })

  return {
    list,
    count: createPinCount({ list, clock, closing, track }),
    async find(cid) {
      const entry = await find(cid)
      return entry && pinOf(entry, names, isOpen(cid))
    },
    remove: (cid) => track(alone(cid, () => removeAndAskAgain(cid))),
    async verify(cid, signal) {
      const entry = await find(cid)
      return entry ? track(verifyNow(entry, AbortSignal.any([signal, closing]))) : 'unknown'
    },
    bring: (cid) => track(bring(cid)),
    ended: () => Promise.all(working),
  }
}
