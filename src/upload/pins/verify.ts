// Looks after a pin: hashes what lies on this machine, and asks the other providers whether they still hold it.

import type { CID } from 'multiformats/cid'
import type { Provider } from '../../../backends/pinning/contract.ts'
import { wordsOf } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { cidOf, type Journal, type JournalEntry } from '../spool/journal.ts'
import { type InTime, notConfigured } from './provider-calls.ts'
import { rehash } from './rehash.ts'
import type { Verification, Verified } from './told.ts'

export type VerifyOptions = {
  readonly providers: readonly Provider[]
  readonly journal: Pick<Journal, 'record' | 'amend'>
  readonly inTime: InTime
  readonly isOpen: (cid: CID) => boolean
  readonly log: Log
  /** Runs this while no other work changes the pin, or not at all. */
  readonly alone: (cid: CID, work: () => Promise<void>) => Promise<unknown>
}

export function createVerify(options: VerifyOptions) {
  const { providers, journal, inTime, isOpen, log, alone } = options

  async function verifyAt(provider: Provider, cid: CID, signal: AbortSignal): Promise<Verified> {
    const { name, store } = provider
    try {
      const state = await inTime(provider, signal, (own) => provider.status(cid, own))
      if (!store || state !== 'pinned') return { provider: name, state: state === 'pinned' ? 'held' : state }
      const { blocks, bytes, damaged } = await rehash(cid, store, signal)
      if (damaged.length === 0) return { provider: name, state: 'held', blocks, bytes }
      return { provider: name, state: 'damaged', blocks, bytes, damaged }
    } catch (error) {
      signal.throwIfAborted()
      return { provider: name, state: 'unknown', why: wordsOf(error) }
    }
  }

  /** A record must not say that a provider holds what it lost: `sync` looks there. */
  async function note(entry: JournalEntry, found: readonly Verified[]): Promise<void> {
    const cid = cidOf(entry)
    const isHeldIn = ({ providers }: JournalEntry, name: string): boolean => providers[name]?.state === 'held'
    const lost = found.filter(
      ({ provider, state }) => (state === 'absent' || state === 'damaged') && isHeldIn(entry, provider),
    )
    if (lost.length === 0) return
    await alone(cid, async () => {
      // An open entry is written by its delivery alone. One that was deleted meanwhile stays so.
      const now = isOpen(cid) ? undefined : await journal.record(cid)
      if (!now) return
      const changed = lost.flatMap(({ provider, state }) =>
        isHeldIn(now, provider)
          ? [[provider, { state: 'wanted', tries: 0, why: `${state} when it was verified` }]]
          : [],
      )
      if (changed.length === 0) return
      const providers = { ...now.providers, ...(Object.fromEntries(changed) as JournalEntry['providers']) }
      await journal.amend({ ...now, providers })
    })
  }

  return async (entry: JournalEntry, signal: AbortSignal): Promise<Verification> => {
    const found = await Promise.all(providers.map((one) => verifyAt(one, cidOf(entry), signal)))
    await note(entry, found)
    const isHeldBy = (name: string): boolean => entry.providers[name]?.state === 'held'
    const others = Object.keys(entry.providers).filter(
      (name) => isHeldBy(name) && providers.every((one) => one.name !== name),
    )
    const isSound = ({ provider, state }: Verified): boolean =>
      state === 'held' || (state !== 'damaged' && !isHeldBy(provider))
    const isWell = found.some(({ state }) => state === 'held') && found.every(isSound)
    if (!isWell) {
      const states = Object.fromEntries(found.map(({ provider, state }) => [provider, state]))
      log('warn', 'pin.not-held', { cid: entry.cid, providers: states })
    }
    const untold = others.map((provider) => ({ provider, state: 'not-asked' as const, why: notConfigured }))
    return { cid: cidOf(entry).toString(), isWell, providers: [...found, ...untold] }
  }
}
