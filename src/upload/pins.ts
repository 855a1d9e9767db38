// The life of a pin after its upload: listed, deleted, looked after, and brought to providers that came later.
import type { CID } from 'multiformats/cid'
import type { LocalStore, Provider } from '../../backends/pinning/contract.ts'
import { proves } from '../core/cid.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import { dagBlocks } from '../ipld/block-links.ts'
import type { Asked, Entry, Standing, Waiting } from '../store/store.ts'
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
import { type UploadContext, wantedNow } from './provider-requests.ts'
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
  /** Hashes the blocks of this machine and asks the other providers. Those that lost it get it again. */
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

type PinsOptions = Omit<UploadContext, 'retrieval'> & {
  /** Some holder is still to get an upload. */
  readonly wake: () => void
  /** Throws a Failure for a CID that this gateway must not keep. */
  readonly admit: (cid: CID) => void
}

/** A count never takes more than a fiftieth of a core. */
const restOfCount = 50
const minRestMs = 5000

const notConfigured = 'no provider of that name is configured'
const mayPinLater =
  'it was being sent it, says that it has none now, and may pin it later; repeat the request in some minutes'
const pinned: Standing = { kind: 'provider', state: 'pinned', tries: 0 }

export function createPins(options: PinsOptions): Pins {
  const { providers, own, store, registry, requests, wake, admit, clock, log, closing, track } = options
  const { ledger } = store
  const names = providers.map(({ name }) => name)
  const isConfigured = (name: string): boolean => names.includes(name)
  const exclusive = <T>(cid: CID, work: () => Promise<T>) => track(registry.exclusive(nameOf(cid), work))
  const operatorActs = (what: string) => new Failure('cancelled', `an operator ${what}`, { source: 'ours' })

  // Entries of the ledger as an operator sees them: the store of this gateway counts as the provider that keeps uploads in it,
  // whatever its name was when they came.

  const nameFor = (name: string, kind: Standing['kind']): string => (kind === 'here' && own ? own.name : name)

  /** The providers that hold it or are to get it. */
  const statesOf = ({ holders }: Entry): Record<string, ProviderState> =>
    Object.fromEntries(
      Object.entries(holders).flatMap(([name, { kind, ...state }]) =>
        kind === 'tier' ? [] : [[nameFor(name, kind), state as ProviderState]],
      ),
    )
  const isHeldBy = (entry: Entry | undefined, name: string): boolean =>
    entry !== undefined && statesOf(entry)[name]?.state === 'pinned'
  /** Holders that are not configured any more. */
  const othersOf = (entry: Entry | undefined): string[] =>
    Object.keys(entry ? statesOf(entry) : {}).filter((name) => isHeldBy(entry, name) && !isConfigured(name))
  const summaryOf = ({ cid, bytes, at }: Entry) => ({ cid: cid.toString(), bytes, at: new Date(at).toISOString() })

  function pinOf(entry: Entry): Pin {
    const missing = Object.fromEntries(names.map((name) => [name, { state: 'missing', tries: 0 } as const]))
    return {
      ...summaryOf(entry),
      ...(entry.name !== undefined && { name: entry.name }),
      isOpen: Object.values(entry.holders).some(({ state }) => state === 'pending'),
      providers: { ...missing, ...statesOf(entry) },
    }
  }

  const waitingOf = (entry: Entry): WaitingUpload => ({
    ...summaryOf(entry),
    cid: nameOf(entry.cid),
    providers: statesOf(entry),
    pendingTiers: Object.entries(entry.holders).flatMap(([name, { kind }]) => (kind === 'tier' ? [name] : [])),
  })

  /** It is to get the upload, at once. */
  const wanted = (name: string, why?: string): Standing => ({
    ...wantedNow,
    ...(why !== undefined && { why }),
    kind: name === own?.name ? 'here' : 'provider',
  })

  async function removeAt(provider: Provider, cid: CID, entry: Entry | undefined): Promise<Removed> {
    const { name, traits } = provider
    const standing = entry && statesOf(entry)[name]
    // A provider that did not answer may have received everything: only a refusal proves that it keeps nothing.
    const mayCome = !traits.local && standing?.state === 'pending' && (standing.class ?? 'transient') === 'transient'
    try {
      if ((await requests.status(provider, cid, closing)) === 'missing')
        return mayCome
          ? { provider: name, outcome: 'not-known', why: mayPinLater }
          : { provider: name, outcome: 'missing' }
      await requests.unpin(provider, cid, closing)
      if ((await requests.status(provider, cid, closing)) !== 'pinned') return { provider: name, outcome: 'removed' }
      return { provider: name, outcome: 'still-pinned', why: 'it was asked to delete it, and says that it holds it' }
    } catch (error) {
      closing.throwIfAborted()
      return { provider: name, outcome: 'failed', why: wordsOf(error) }
    }
  }

  /** No upload of the same file may begin meanwhile. */
  async function removeNow(cid: CID): Promise<Removal | 'unknown'> {
    const entry = await ledger.find(cid)
    await registry.abort(nameOf(cid), operatorActs('deletes this upload'))
    const root = entry?.cid ?? cid
    // The ledger goes last, and the store of this gateway with it.
    const remote = providers.filter((one) => one !== own)
    const asked = await Promise.all(remote.map((one) => removeAt(one, root, entry)))
    const others = othersOf(entry)
    const failing = asked.flatMap(({ provider, outcome }) =>
      outcome === 'still-pinned' || (outcome === 'failed' && isHeldBy(entry, provider)) ? [provider] : [],
    )
    const holding = [...failing, ...others]
    // An upload that is still held stays as the record of that, without its blocks.
    const now = Object.keys(entry?.holders ?? {}).map((name) => [name, holding.includes(name) ? pinned : undefined])
    if (entry && holding.length === 0) await store.remove(cid)
    else if (entry) await store.update(cid, Object.fromEntries(now))
    const wasHere = Object.values(entry?.holders ?? {}).some(({ kind }) => kind === 'here')
    const here: Removed[] = own ? [{ provider: own.name, outcome: wasHere ? 'removed' : 'missing' }] : []
    const all = names.flatMap((name) => [...here, ...asked].find(({ provider }) => provider === name) ?? [])
    if (!entry && all.every(({ outcome }) => outcome === 'missing')) return 'unknown'
    const isGone = others.length === 0 && all.every(({ outcome }) => outcome === 'removed' || outcome === 'missing')
    const notAsked = others.map((provider) => ({ provider, outcome: 'not-asked' as const, why: notConfigured }))
    return { cid: root.toString(), isGone, providers: [...all, ...notAsked] }
  }

  async function verifyAt(provider: Provider, cid: CID, signal: AbortSignal): Promise<Verified> {
    const { name, store: local } = provider
    try {
      const state = await requests.status(provider, cid, signal)
      if (!local || state !== 'pinned') return { provider: name, state }
      const { damaged, ...read } = await rehash(cid, local, signal)
      return { provider: name, ...read, ...(damaged.length > 0 ? { state: 'damaged', damaged } : { state }) }
    } catch (error) {
      signal.throwIfAborted()
      return { provider: name, state: 'unknown', why: wordsOf(error) }
    }
  }

  async function verifyNow(entry: Entry, signal: AbortSignal): Promise<Verification> {
    const { cid } = entry
    const found = await Promise.all(providers.map((one) => verifyAt(one, cid, signal)))
    const isLost = ({ state }: Verified): boolean => state === 'missing' || state === 'damaged'
    if (found.some((one) => isLost(one) && isHeldBy(entry, one.provider))) {
      await exclusive(cid, async () => {
        const now = await ledger.find(cid)
        const lost = found.filter((one) => isLost(one) && isHeldBy(now, one.provider))
        const again = lost.map(({ provider, state }) => [provider, wanted(provider, `${state} when it was verified`)])
        if (again.length > 0) await store.update(cid, Object.fromEntries(again))
      })
      wake()
    }
    const isSound = ({ provider, state }: Verified): boolean =>
      state === 'pinned' || (state !== 'damaged' && !isHeldBy(entry, provider))
    const isWell = found.some(({ state }) => state === 'pinned') && found.every(isSound)
    if (!isWell) {
      const seen = Object.fromEntries(found.map(({ provider, state }) => [provider, state]))
      log('warn', 'pin.missing', { cid: nameOf(cid), providers: seen })
    }
    const notAsked = othersOf(entry).map((provider) => ({ provider, state: 'not-asked' as const, why: notConfigured }))
    return { cid: cid.toString(), isWell, providers: [...found, ...notAsked] }
  }

  async function bringNow(cid: CID): Promise<Brought | 'unknown' | 'not-here'> {
    const entry = await ledger.find(cid)
    if (!entry) return 'unknown'
    admit(cid)
    const states = pinOf(entry).providers
    const to = names.filter((name) => states[name]?.state === 'missing' || states[name]?.state === 'pending')
    const now = to.filter((name) => states[name]?.state === 'missing' || states[name]?.notBefore === undefined)
    if (to.length > 0 && !entry.isHere && !(await isElsewhereHere(entry))) return 'not-here'
    if (now.length > 0) await store.update(cid, Object.fromEntries(now.map((name) => [name, wanted(name)])))
    wake()
    return { cid: entry.cid.toString(), to }
  }

  /** An embedded provider in a folder of its own has the bytes. */
  async function isElsewhereHere({ cid }: Entry): Promise<boolean> {
    const found = await Promise.all(providers.map((one) => one.store?.has(cid).catch(() => false)))
    return found.includes(true)
  }

  /** No provider holds it, and no other one that is configured is to get it. */
  const isLast = ({ holders }: Entry, name: string): boolean =>
    !Object.entries(holders).some(
      ([other, { kind, state }]) =>
        kind !== 'tier' && other !== name && (state === 'pinned' || (state === 'pending' && isConfigured(other))),
    )

  async function giveUpNow(cid: CID, name: string, losing: boolean): Promise<'abandoned' | 'unknown' | 'only-copy'> {
    const entry = await ledger.find(cid)
    const standing = entry?.holders[name]
    if (!entry || standing?.state !== 'pending') return 'unknown'
    if (standing.kind !== 'tier' && isLast(entry, name)) {
      if (!losing) return 'only-copy'
      await registry.abort(nameOf(cid), operatorActs('gave up on it'))
      await store.remove(cid)
      return 'abandoned'
    }
    registry.supersede(nameOf(cid), name)
    await store.update(cid, { [name]: standing.kind === 'tier' ? undefined : { ...standing, state: 'abandoned' } })
    return 'abandoned'
  }

  /** A provider of an earlier configuration is known while an upload names it. */
  async function refuseUnknown({ holder, after }: Asked): Promise<void> {
    if (holder === undefined || after !== undefined || isConfigured(holder)) return
    if ((await ledger.others(names)).some((other) => other.holder === holder)) return
    const why = `provider=${holder.slice(0, 100)} is not one of ${names.join(', ')}, and no upload names it`
    throw new Failure('malformed', why, { source: 'client' })
  }

  let lastCount: PinCount | undefined
  let isCounting = false
  let countAt = Number.NEGATIVE_INFINITY

  async function countNow(): Promise<void> {
    const began = clock.monotonic()
    isCounting = true
    try {
      const { uploads: pins, bytes, holders } = await ledger.counts()
      const held = new Map<string, number>()
      for (const { holder, kind, state, uploads } of holders) {
        const name = nameFor(holder, kind)
        if (state === 'pinned') held.set(name, (held.get(name) ?? 0) + uploads)
      }
      lastCount = { pins, bytes, pinned: held }
    } finally {
      isCounting = false
      const now = clock.monotonic()
      countAt = now + Math.max(minRestMs, (now - began) * restOfCount)
    }
  }

  return {
    async list(asked) {
      await refuseUnknown(asked)
      const { entries, next } = await ledger.page({ ...asked, configured: names })
      return { pins: entries.map(pinOf), next: next === undefined ? undefined : String(next) }
    },
    async find(cid) {
      const entry = await ledger.find(cid)
      return entry && pinOf(entry)
    },
    remove: (cid) => exclusive(cid, () => removeNow(cid)),
    async verify(cid, signal) {
      const entry = await ledger.find(cid)
      return entry ? track(verifyNow(entry, AbortSignal.any([signal, closing]))) : 'unknown'
    },
    async bring(cid) {
      const brought = await exclusive(cid, () => bringNow(cid))
      if (brought !== 'busy') return brought
      const why = `${cid} is being uploaded now; try again soon`
      throw new Failure('overloaded', why, { source: 'ours', retryAfterMs: 1000 })
    },
    count() {
      // A count that fails is tried again.
      if (!isCounting && !closing.aborted && clock.monotonic() >= countAt) track(countNow()).catch(() => {})
      return lastCount
    },
    waiting: ledger.waiting,
    waitingPage: async (limit) => (await ledger.waitingPage(limit)).map(waitingOf),
    giveUp: (cid, name, losing = false) => track(giveUpNow(cid, name, losing)),
  }
}

// Reads every block of a pin from one store of this machine and hashes it: disks rot, and say nothing.

type Rehashed = {
  readonly blocks: number
  readonly bytes: number
  /** Blocks that are missing or not what they should be, the first of them. Blocks below such a block are not known. */
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
