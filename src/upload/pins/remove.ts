// Deletes a pin: at every provider that has it, also one that no record names, and in the journal.
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../../backends/pinning/contract.ts'
import { wordsOf } from '../../core/failure.ts'
import { cidOf, type Journal, type JournalEntry } from '../spool/journal.ts'
import type { UploadsOnTheirWay } from './on-their-way.ts'
import { type InTime, notConfigured } from './provider-calls.ts'
import type { Removal, Removed } from './told.ts'

export type RemoveOptions = {
  readonly providers: readonly Provider[]
  readonly journal: Pick<Journal, 'amend'>
  readonly onTheirWay: Pick<UploadsOnTheirWay, 'drop'>
  readonly inTime: InTime
  readonly find: (cid: CID) => Promise<JournalEntry | undefined>
  readonly closing: AbortSignal
}

/** `busy`: it is being uploaded now. */
export function createRemove(options: RemoveOptions): (cid: CID) => Promise<Removal | 'busy' | 'unknown'> {
  const { providers, journal, onTheirWay, inTime, find, closing } = options

  async function removeAt(provider: Provider, cid: CID, mayCome: boolean): Promise<Removed> {
    const { name } = provider
    const status = () => inTime(provider, closing, (own) => provider.status(cid, own))
    try {
      if ((await status()) === 'absent') {
        // A process that was killed in the middle of a pin has left blocks without one.
        if (provider.traits.local) await inTime(provider, closing, (own) => provider.unpin(cid, own))
        return mayCome
          ? { provider: name, outcome: 'not-known', why: mayPinLater }
          : { provider: name, outcome: 'absent' }
      }
      await inTime(provider, closing, (own) => provider.unpin(cid, own))
      if ((await status()) !== 'pinned') return { provider: name, outcome: 'removed' }
      return { provider: name, outcome: 'still-held', why: 'it was asked to delete it, and says that it holds it' }
    } catch (error) {
      closing.throwIfAborted()
      return { provider: name, outcome: 'failed', why: wordsOf(error) }
    }
  }

  return async (cid) => {
    const entry = await find(cid)
    if (!(await onTheirWay.drop(cid))) return 'busy'
    const root = entry ? cidOf(entry) : cid
    const asked = await Promise.all(providers.map((one) => removeAt(one, root, mayPin(one, entry))))
    if (!entry && asked.every(({ outcome }) => outcome === 'absent')) return 'unknown'
    const isHeldBy = (name: string): boolean => entry?.providers[name]?.state === 'held'
    const isConfigured = (name: string): boolean => providers.some((one) => one.name === name)
    const others = Object.keys(entry?.providers ?? {}).filter((name) => isHeldBy(name) && !isConfigured(name))
    const left = asked.flatMap(({ provider, outcome }) =>
      outcome === 'still-held' || (outcome === 'failed' && isHeldBy(provider)) ? [provider] : [],
    )
    if (entry) {
      const kept = [...left, ...others].map((name) => [name, { state: 'held', tries: 0 }])
      await journal.amend({ ...entry, owed: [], providers: Object.fromEntries(kept) as JournalEntry['providers'] })
    }
    const isGone = others.length === 0 && asked.every(({ outcome }) => outcome === 'removed' || outcome === 'absent')
    const untold = others.map((provider) => ({ provider, outcome: 'not-asked' as const, why: notConfigured }))
    return { cid: root.toString(), isGone, providers: [...asked, ...untold] }
  }
}

const mayPinLater =
  'it was being sent it, says that it has none now, and may pin it later; it is asked again, and so it is by a repeated request'

/** It may have got all of it although it did not say so: only a refusal says that it keeps nothing. */
function mayPin({ name, traits }: Provider, entry: JournalEntry | undefined): boolean {
  const standing = entry?.providers[name]
  return !traits.local && standing?.state === 'wanted' && (standing.class ?? 'transient') === 'transient'
}
