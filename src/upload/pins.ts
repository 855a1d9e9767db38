// The life of a pin after its upload: listed, deleted, looked after, and brought to providers that came later.
import type { CID } from 'multiformats/cid'
import type { LocalStore, Provider } from '../../backends/pinning/contract.ts'
import { proves } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { dagBlocks } from '../ipld/block-links.ts'
import type { Asked, Entry, Standing as HolderStanding, Standing, Store, Waiting } from '../store/store.ts'
import type {
  Brought,
  Page,
  Pin,
  ProviderState,
  Removal,
  Removed,
  Verification,
  Verified,
  WaitingUpload,
} from './api-types.ts'
import { createInTime, type InTime, notConfigured, type SharedUploads, wantedNow } from './provider-requests.ts'
import { nameOf } from './stored-upload.ts'

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
  /** Hashes what lies here and asks the other providers. Those that lost it get it again. */
  verify(cid: CID, signal: AbortSignal): Promise<Verification | 'unknown'>
  /** Brings it to configured providers that lack it. `not-here`: its blocks are not on this machine. */
  bring(cid: CID): Promise<Brought | 'unknown' | 'not-here'>
  /** The last count; undefined before the first one is over. Begins the next one when it is time for that. */
  count(): PinCount | undefined
  /** Counts uploads that some provider or shared tier is still to get. */
  waiting(): Promise<Waiting>
  /** The same, the oldest first. */
  waitingPage(limit: number): Promise<readonly WaitingUpload[]>
  /**
   * An operator gives up: this provider, or this shared tier, need not get the upload any more. The last copy of an accepted
   * upload goes only with `losing`.
   */
  giveUp(cid: CID, holder: string, losing?: boolean): Promise<'abandoned' | 'unknown' | 'only-copy'>
}

type PinsOptions = {
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
  const verifyNow = createVerify({ providers, own, store, view, inTime, log, alone, wake })
  const count = createCount(options)

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

  /** A provider of an earlier configuration is known while an upload names it. */
  async function refuseUnknown({ holder, after }: Asked, configured: readonly string[]): Promise<void> {
    if (holder === undefined || after !== undefined || configured.includes(holder)) return
    if ((await ledger.others(configured)).some((other) => other.holder === holder)) return
    const why = `provider=${holder.slice(0, 100)} is not one of ${configured.join(', ')}, and no upload names it`
    throw new Failure('malformed', why, { source: 'client' })
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
      const configured = providers.map(({ name }) => name)
      await refuseUnknown(asked, configured)
      const { entries, next } = await ledger.page({ ...asked, configured })
      return { pins: entries.map(view.pinOf), next: next === undefined ? undefined : String(next) }
    },
    count,
    async find(cid) {
      const entry = await ledger.find(cid)
      return entry && view.pinOf(entry)
    },
    remove: (cid) => alone(cid, () => removeNow(cid)),
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
    // A count that fails is tried again.
    if (!isCounting && !closing.aborted && clock.monotonic() >= dueAt) track(countOnce()).catch(() => {})
    return last
  }
}

// Entries of the ledger as an operator sees them: each provider by its name, the store of this gateway as the provider that keeps
// uploads in it, whatever its name was when they came.

export type View = {
  /** The providers that hold it or are to get it, by name. */
  providersOf(entry: Entry): Record<string, ProviderState>
  /** With `missing` for each configured provider that neither holds it nor is to get it. */
  pinOf(entry: Entry): Pin
  waitingOf(entry: Entry): WaitingUpload
}

export const isWanted = ({ holders }: Entry): boolean => Object.values(holders).some(({ state }) => state === 'pending')

function createView(providers: readonly Provider[], own: Provider | undefined): View {
  const absent = providers.map(({ name }) => [name, { state: 'missing', tries: 0 }] as const)

  const nameFor = (name: string, { kind }: HolderStanding): string => (kind === 'here' && own ? own.name : name)

  const providersOf: View['providersOf'] = ({ holders }) =>
    Object.fromEntries(
      Object.entries(holders).flatMap(([name, { kind: _, ...standing }]) => {
        const holder = holders[name] as HolderStanding
        return holder.kind === 'tier' ? [] : [[nameFor(name, holder), standing as ProviderState]]
      }),
    )
  const summaryOf = ({ cid, bytes, at }: Entry) => ({ cid: cid.toString(), bytes, at: new Date(at).toISOString() })

  return {
    providersOf,
    pinOf: (entry) => ({
      ...summaryOf(entry),
      ...(entry.name !== undefined && { name: entry.name }),
      isOpen: isWanted(entry),
      providers: { ...Object.fromEntries(absent), ...providersOf(entry) },
    }),
    waitingOf: (entry) => ({
      ...summaryOf(entry),
      cid: nameOf(entry.cid),
      providers: providersOf(entry),
      owed: Object.entries(entry.holders).flatMap(([name, { kind }]) => (kind === 'tier' ? [name] : [])),
    }),
  }
}

// Deletes a pin: at every provider that has it, also one that no record names, and in the ledger.

type RemoveOptions = {
  readonly providers: readonly Provider[]
  readonly own: Provider | undefined
  readonly store: Pick<Store, 'ledger' | 'update' | 'remove'>
  readonly view: View
  readonly shared: Pick<SharedUploads, 'stop' | 'changed'>
  readonly inTime: InTime
  readonly closing: AbortSignal
}

/** No upload of the same file may begin meanwhile. */
function createRemove(options: RemoveOptions): (cid: CID) => Promise<Removal | 'unknown'> {
  const { providers, own, store, view, shared, inTime, closing } = options

  async function removeAt(provider: Provider, cid: CID, mayCome: boolean): Promise<Removed> {
    const { name } = provider
    const status = () => inTime(provider, closing, (signal) => provider.status(cid, signal))
    try {
      if ((await status()) === 'missing')
        return mayCome
          ? { provider: name, outcome: 'not-known', why: mayPinLater }
          : { provider: name, outcome: 'missing' }
      await inTime(provider, closing, (signal) => provider.unpin(cid, signal))
      if ((await status()) !== 'pinned') return { provider: name, outcome: 'removed' }
      return { provider: name, outcome: 'still-pinned', why: 'it was asked to delete it, and says that it holds it' }
    } catch (error) {
      closing.throwIfAborted()
      return { provider: name, outcome: 'failed', why: wordsOf(error) }
    }
  }

  /** The upload stays as the record of those that still hold it, without its blocks. */
  async function forget(cid: CID, { holders }: Entry, left: readonly string[]): Promise<void> {
    if (left.length === 0) return void (await store.remove(cid))
    const now = Object.keys(holders).map((name) => [name, left.includes(name) ? pinned : undefined] as const)
    await store.update(cid, Object.fromEntries(now))
  }

  return async (cid) => {
    const entry = await store.ledger.find(cid)
    shared.changed()
    await shared.stop(nameOf(cid), new Failure('cancelled', 'an operator deletes this upload', { source: 'ours' }))
    const root = entry?.cid ?? cid
    const states: Readonly<Record<string, ProviderState>> = entry ? view.providersOf(entry) : {}
    // The ledger goes last, and the store of this gateway with it.
    const remote = providers.filter((one) => one !== own)
    const asked = await Promise.all(remote.map((one) => removeAt(one, root, mayPin(one, states[one.name]))))
    const isHeldBy = (name: string): boolean => states[name]?.state === 'pinned'
    const isConfigured = (name: string): boolean => providers.some((one) => one.name === name)
    const others = Object.keys(states).filter((name) => isHeldBy(name) && !isConfigured(name))
    const left = asked.flatMap(({ provider, outcome }) =>
      outcome === 'still-pinned' || (outcome === 'failed' && isHeldBy(provider)) ? [provider] : [],
    )
    if (entry) await forget(cid, entry, [...left, ...others])
    shared.changed()
    const wasHere = Object.values(entry?.holders ?? {}).some(({ kind }) => kind === 'here')
    const here: Removed[] = own ? [{ provider: own.name, outcome: wasHere ? 'removed' : 'missing' }] : []
    const all = providers.flatMap(({ name }) => [...here, ...asked].find(({ provider }) => provider === name) ?? [])
    if (!entry && all.every(({ outcome }) => outcome === 'missing')) return 'unknown'
    const isGone = others.length === 0 && all.every(({ outcome }) => outcome === 'removed' || outcome === 'missing')
    const notAsked = others.map((provider) => ({ provider, outcome: 'not-asked' as const, why: notConfigured }))
    return { cid: root.toString(), isGone, providers: [...all, ...notAsked] }
  }
}

const pinned: Standing = { kind: 'provider', state: 'pinned', tries: 0 }

const mayPinLater =
  'it was being sent it, says that it has none now, and may pin it later; repeat the request in some minutes'

/** It may have got all of it although it did not say so: only a refusal says that it keeps nothing. */
const mayPin = ({ traits }: Provider, standing: ProviderState | undefined): boolean =>
  !traits.local && standing?.state === 'pending' && (standing.class ?? 'transient') === 'transient'

// Looks after a pin: hashes what lies on this machine, and asks the other providers whether they still hold it.

type VerifyOptions = {
  readonly providers: readonly Provider[]
  readonly own: Provider | undefined
  readonly store: Pick<Store, 'ledger' | 'update'>
  readonly view: View
  readonly inTime: InTime
  readonly log: Log
  /** Runs this while no other work changes the pin, or not at all. */
  readonly alone: (cid: CID, work: () => Promise<void>) => Promise<unknown>
  readonly wake: () => void
}

function createVerify({ providers, own, store, view, inTime, log, alone, wake }: VerifyOptions) {
  async function verifyAt(provider: Provider, cid: CID, signal: AbortSignal): Promise<Verified> {
    const { name, store: local } = provider
    try {
      const state = await inTime(provider, signal, (each) => provider.status(cid, each))
      if (!local || state !== 'pinned') return { provider: name, state: state === 'pinned' ? 'pinned' : state }
      const { blocks, bytes, damaged } = await rehash(cid, local, signal)
      if (damaged.length === 0) return { provider: name, state: 'pinned', blocks, bytes }
      return { provider: name, state: 'damaged', blocks, bytes, damaged }
    } catch (error) {
      signal.throwIfAborted()
      return { provider: name, state: 'unknown', why: wordsOf(error) }
    }
  }

  /** A provider that lost it is to get it again. */
  async function note(cid: CID, found: readonly Verified[]): Promise<void> {
    const entry = await store.ledger.find(cid)
    if (!entry) return
    const states = view.providersOf(entry)
    const lost = found.filter(
      ({ provider, state }) => (state === 'missing' || state === 'damaged') && states[provider]?.state === 'pinned',
    )
    const now = lost.map(({ provider, state }): [string, Standing] => [
      provider,
      {
        kind: provider === own?.name ? 'here' : 'provider',
        state: 'pending',
        tries: 0,
        why: `${state} when it was verified`,
      },
    ])
    if (now.length > 0) await store.update(cid, Object.fromEntries(now))
  }

  return async (entry: Entry, signal: AbortSignal): Promise<Verification> => {
    const { cid } = entry
    const found = await Promise.all(providers.map((one) => verifyAt(one, cid, signal)))
    const states = view.providersOf(entry)
    const isHeldBy = (name: string): boolean => states[name]?.state === 'pinned'
    const isLost = ({ provider, state }: Verified) => (state === 'missing' || state === 'damaged') && isHeldBy(provider)
    if (found.some(isLost)) {
      await alone(cid, () => note(cid, found))
      wake()
    }
    const others = Object.keys(states).filter((name) => isHeldBy(name) && providers.every((one) => one.name !== name))
    const isSound = ({ provider, state }: Verified): boolean =>
      state === 'pinned' || (state !== 'damaged' && !isHeldBy(provider))
    const isWell = found.some(({ state }) => state === 'pinned') && found.every(isSound)
    if (!isWell) {
      const seen = Object.fromEntries(found.map(({ provider, state }) => [provider, state]))
      log('warn', 'pin.missing', { cid: nameOf(cid), providers: seen })
    }
    const notAsked = others.map((provider) => ({ provider, state: 'not-asked' as const, why: notConfigured }))
    return { cid: cid.toString(), isWell, providers: [...found, ...notAsked] }
  }
}

// Reads every block of a pin from one store of this machine and hashes it: disks rot, and say nothing.

type Rehashed = {
  readonly blocks: number
  readonly bytes: number
  /** Blocks that are missing or not what they should be, the first of them. What lies below such a block is not known. */
  readonly damaged: readonly string[]
}

const maxNamed = 20

async function rehash(root: CID, store: LocalStore, signal: AbortSignal): Promise<Rehashed> {
  const damaged: string[] = []
  let blocks = 0
  let bytes = 0
  const read = async (cid: CID): Promise<Uint8Array | undefined> => {
    signal.throwIfAborted()
    const found = await store.get(cid)
    return found && proves(cid, found) ? found : undefined
  }
  for await (const { cid, bytes: found } of dagBlocks(root, read)) {
    if (!found) {
      if (damaged.length < maxNamed) damaged.push(cid.toString())
      continue
    }
    blocks++
    bytes += found.byteLength
  }
  return { blocks, bytes, damaged }
}
