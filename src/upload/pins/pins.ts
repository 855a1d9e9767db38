// The life of a pin after its upload: listed, deleted, looked after, and brought to providers that came later.
import { CID } from 'multiformats/cid'
import type { Provider } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Asked, Entry, Standing, Store, Waiting } from '../../store/store.ts'
import { createInTime, wantedNow } from '../asks.ts'
import type { SharedUploads } from '../shared.ts'
import { nameOf } from '../stored-upload.ts'
import { createAskAgain } from './ask-again.ts'
import { createRemove } from './remove.ts'
import type { Brought, Page, Pin, Removal, Verification, WaitingUpload } from './told.ts'
import { createVerify } from './verify.ts'
import { createView } from './view.ts'

export type PinCount = {
  readonly pins: number
  readonly bytes: number
  /** Those that each provider holds. */
  readonly pinned: ReadonlyMap<string, number>
}

export interface Pins {
  list(asked: Asked): Promise<Page>
  find(cid: CID): Promise<Pin | undefined>
  /** Deletes it at every provider that has it, also one that no record names. `busy`: it is being uploaded now. */
  remove(cid: CID): Promise<Removal | 'busy' | 'unknown'>
  /** Hashes what lies here and asks the other providers. The record does not name those any more that lost it. */
  verify(cid: CID, signal: AbortSignal): Promise<Verification | 'unknown'>
  /** Brings it to configured providers that lack it. `not-here`: its blocks are not on this machine. */
  bring(cid: CID): Promise<Brought | 'unknown' | 'not-here'>
  /** The last count; undefined before the first one is over. Begins the next one when it is time for that. */
  count(): PinCount | undefined
  /** What some provider or shared tier is still to get. */
  waiting(): Promise<Waiting>
  /** The same, the oldest first. */
  waitingPage(limit: number): Promise<readonly WaitingUpload[]>
  /**
   * An operator gives up: this provider, or this shared tier, need not get the upload any more. The last copy of an accepted
   * upload goes only with `losing`.
   */
  giveUp(cid: CID, holder: string, losing?: boolean): Promise<'abandoned' | 'unknown' | 'only-copy'>
}

export type PinsOptions = {
  readonly providers: readonly Provider[]
  /** The provider that keeps uploads in the store of this gateway. */
  readonly own: Provider | undefined
  readonly store: Pick<Store, 'ledger' | 'blocks' | 'update' | 'remove'>
  readonly shared: SharedUploads
  /** Some holder is still to get an upload. */
  readonly wake: () => void
  /** Throws a Failure for a CID that this gateway must not keep. */
  readonly admit: (cid: CID) => void
  readonly clock: Clock
  readonly log: Log
  readonly closing: AbortSignal
  /** Registers work that writes; `close` awaits it. */
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

/** A count never takes more than a fiftieth of a core. */
const restOfCount = 50
const minRestMs = 5000

export function createPins(options: PinsOptions): Pins {
  const { providers, own, store, shared, wake, admit, clock, log, closing, track } = options
  const { ledger } = store
  const view = createView(providers, own)
  const inTime = createInTime(clock)
  const removeNow = createRemove({ providers, own, store, view, shared, inTime, closing })
  const alone = <T>(cid: CID, work: () => Promise<T>) => track(shared.alone(nameOf(cid), work))
  const verifyNow = createVerify({ providers, own, store, view, inTime, log, alone })
  const askAgain = createAskAgain({
    ...{ providers, inTime, clock, log, closing, alone },
    list: shared.waitingList,
    isWanted: async (cid) => (await ledger.find(cid)) !== undefined,
  })
  const count = createCount(options)

  async function removeAndAskAgain(cid: CID): Promise<Removal | 'unknown'> {
    const removal = await removeNow(cid)
    if (removal === 'unknown') return removal
    const names = removal.providers.flatMap(({ provider, outcome }) => (outcome === 'not-known' ? [provider] : []))
    if (names.length > 0) askAgain.later(CID.parse(removal.cid), names)
    return removal
  }

  async function bringNow(cid: CID): Promise<Brought | 'unknown' | 'not-here'> {
    const entry = await ledger.find(cid)
    if (!entry) return 'unknown'
    admit(cid)
    const states = view.pinOf(entry).providers
    const to = providers.filter(({ name }) => states[name]?.state === 'missing' || states[name]?.state === 'pending')
    const now = to.filter(({ name }) => states[name]?.state === 'missing' || states[name]?.notBefore === undefined)
    if (to.length > 0 && !entry.isHere && !(await isElsewhereHere(entry))) return 'not-here'
    const wanted = now.map((one) => [one.name, one === own ? { ...wantedNow, kind: 'here' } : wantedNow] as const)
    if (wanted.length > 0) await store.update(cid, Object.fromEntries(wanted) as Record<string, Standing>)
    wake()
    return { cid: entry.cid.toString(), to: to.map(({ name }) => name) }
  }

  /** An embedded provider in a folder of its own has the bytes. */
  async function isElsewhereHere({ cid }: Entry): Promise<boolean> {
    const found = await Promise.all(providers.map(({ store }) => store?.has(cid).catch(() => false)))
    return found.includes(true)
  }

  async function giveUpNow(cid: CID, name: string, losing: boolean): Promise<'abandoned' | 'unknown' | 'only-copy'> {
    const entry = await ledger.find(cid)
    const standing = entry?.holders[name]
    if (!entry || standing?.state !== 'pending') return 'unknown'
    shared.changed()
    if (standing.kind === 'tier') await store.update(cid, { [name]: undefined })
    else if (isLast(entry, name)) {
      if (!losing) return 'only-copy'
      await shared.stop(nameOf(cid), new Failure('cancelled', 'an operator gave up on it', { source: 'ours' }))
      await store.remove(cid)
    } else await store.update(cid, { [name]: { ...standing, state: 'abandoned' } })
    shared.changed()
    return 'abandoned'
  }

  /** No provider holds it, and no other one that is configured is to get it. */
  const isLast = ({ holders }: Entry, name: string): boolean =>
    !Object.entries(holders).some(
      ([other, { kind, state }]) =>
        kind !== 'tier' &&
        other !== name &&
        (state === 'pinned' || (state === 'pending' && providers.some((one) => one.name === other))),
    )

  return {
    async list(asked) {
      const { entries, next } = await ledger.page({ ...asked, configured: providers.map(({ name }) => name) })
      return { pins: entries.map(view.pinOf), next: next === undefined ? undefined : String(next) }
    },
    count,
    async find(cid) {
      const entry = await ledger.find(cid)
      return entry && view.pinOf(entry)
    },
    remove: (cid) => alone(cid, () => removeAndAskAgain(cid)),
    async verify(cid, signal) {
      const entry = await ledger.find(cid)
      return entry ? track(verifyNow(entry, AbortSignal.any([signal, closing]))) : 'unknown'
    },
    async bring(cid) {
      const brought = await alone(cid, () => bringNow(cid))
      if (brought !== 'busy') return brought
      const why = `${cid} is being uploaded now; try again soon`
      throw new Failure('overloaded', why, { source: 'ours', retryAfterMs: 1000 })
    },
    waiting: ledger.waiting,
    waitingPage: async (limit) => (await ledger.waitingPage(limit)).map(view.waitingOf),
    giveUp: (cid, name, losing = false) => track(giveUpNow(cid, name, losing)),
  }
}

function createCount({ store, own, clock, closing, track }: PinsOptions): Pins['count'] {
  let last: PinCount | undefined
  let isCounting = false
  let dueAt = Number.NEGATIVE_INFINITY

  async function countOnce(): Promise<void> {
    const began = clock.monotonic()
    isCounting = true
    try {
      const { uploads: pins, bytes, holders } = await store.ledger.counts()
      const pinned = new Map<string, number>()
      for (const { holder, kind, state, uploads } of holders) {
        const name = kind === 'here' && own ? own.name : holder
        if (state === 'pinned') pinned.set(name, (pinned.get(name) ?? 0) + uploads)
      }
      last = { pins, bytes, pinned }
    } finally {
      isCounting = false
      const now = clock.monotonic()
      dueAt = now + Math.max(minRestMs, (now - began) * restOfCount)
    }
  }

  return () => {
    // What cannot be read is not counted, and tried again.
    if (!isCounting && !closing.aborted && clock.monotonic() >= dueAt) track(countOnce()).catch(() => {})
    return last
  }
}
