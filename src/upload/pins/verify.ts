// Looks after a pin: hashes what lies on this machine, and asks the other providers whether they still hold it.
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../../backends/pinning/contract.ts'
import { wordsOf } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Entry, Standing, Store } from '../../store/store.ts'
import { type InTime, notConfigured } from '../asks.ts'
import { nameOf } from '../stored-upload.ts'
import { rehash } from './rehash.ts'
import type { Verification, Verified } from './told.ts'
import type { View } from './view.ts'

export type VerifyOptions = {
  readonly providers: readonly Provider[]
  readonly own: Provider | undefined
  readonly store: Pick<Store, 'ledger' | 'update'>
  readonly view: View
  readonly inTime: InTime
  readonly log: Log
  /** Runs this while no other work changes the pin, or not at all. */
  readonly alone: (cid: CID, work: () => Promise<void>) => Promise<unknown>
}

export function createVerify({ providers, own, store, view, inTime, log, alone }: VerifyOptions) {
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

  /** The ledger must not say that a provider holds what it lost: `sync` looks there. */
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
    if (found.some(isLost)) await alone(cid, () => note(cid, found))
    const others = Object.keys(states).filter((name) => isHeldBy(name) && providers.every((one) => one.name !== name))
    const isSound = ({ provider, state }: Verified): boolean =>
      state === 'pinned' || (state !== 'damaged' && !isHeldBy(provider))
    const isWell = found.some(({ state }) => state === 'pinned') && found.every(isSound)
    if (!isWell) {
      const seen = Object.fromEntries(found.map(({ provider, state }) => [provider, state]))
      log('warn', 'pin.missing', { cid: nameOf(cid), providers: seen })
    }
    const untold = others.map((provider) => ({ provider, state: 'not-asked' as const, why: notConfigured }))
    return { cid: cid.toString(), isWell, providers: [...found, ...untold] }
  }
}
