// Deletes a pin: at every provider that has it, also one that no record names, and in the ledger.
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../../backends/pinning/contract.ts'
import { Failure, wordsOf } from '../../core/failure.ts'
import type { Entry, Standing, Store } from '../../store/store.ts'
import { type InTime, notConfigured } from '../asks.ts'
import type { SharedUploads } from '../shared.ts'
import { nameOf } from '../stored-upload.ts'
import type { ProviderState, Removal, Removed } from './told.ts'
import type { View } from './view.ts'

export type RemoveOptions = {
  readonly providers: readonly Provider[]
  readonly own: Provider | undefined
  readonly store: Pick<Store, 'ledger' | 'update' | 'remove'>
  readonly view: View
  readonly shared: Pick<SharedUploads, 'stop' | 'changed'>
  readonly inTime: InTime
  readonly closing: AbortSignal
}

/** No upload of the same file may begin meanwhile. */
export function createRemove(options: RemoveOptions): (cid: CID) => Promise<Removal | 'unknown'> {
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
    const untold = others.map((provider) => ({ provider, outcome: 'not-asked' as const, why: notConfigured }))
    return { cid: root.toString(), isGone, providers: [...all, ...untold] }
  }
}

const pinned: Standing = { kind: 'provider', state: 'pinned', tries: 0 }

const mayPinLater =
  'it was being sent it, says that it has none now, and may pin it later; it is asked again, and so it is by a repeated request'

/** It may have got all of it although it did not say so: only a refusal says that it keeps nothing. */
const mayPin = ({ traits }: Provider, standing: ProviderState | undefined): boolean =>
  !traits.local && standing?.state === 'pending' && (standing.class ?? 'transient') === 'transient'
