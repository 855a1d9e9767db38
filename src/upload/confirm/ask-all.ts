// Everybody asked once, side by side, as far as it is of use: over when enough hold the upload, or when that cannot come
// about any more.
import type { Provider } from '../../../backends/pinning/contract.ts'
import type { Entry } from '../spool/journal.ts'
import type { Attempt } from './attempt.ts'
import { providerState, type Quorum } from './quorum.ts'

export type AskAllOptions = {
  readonly providers: readonly Provider[]
  readonly quorum: Quorum
  /** As it stands at that moment. */
  readonly entry: () => Entry
  /** Notes in the entry what came of it. Rejects only where the round is broken off. */
  readonly ask: (provider: Provider) => Promise<Attempt>
  /** Each one that is asked, also behind the end of the round. */
  readonly onBegun: (work: Promise<unknown>) => void
}

export async function askAll({ providers, quorum, entry, ask, onBegun }: AskAllOptions): Promise<readonly Attempt[]> {
  const attempts: Attempt[] = []
  const waiting = new Set(providers.filter(({ name }) => providerState(entry(), name).state === 'wanted'))
  const broken = Promise.withResolvers<never>()
  const settled = Promise.withResolvers<void>()
  broken.promise.catch(() => {})
  let asking = 0

  // Our own disk does not fail for reasons of others: it is asked once the others have done their part, so that there is
  // nothing to undo here. One that fetches by CID is asked when somebody has the bytes.
  const mayAsk = ({ traits }: Provider): boolean => {
    if (!traits.local) return traits.takesBytes || quorum.hasBytes(entry())
    const locals = [...waiting].filter((one) => one.traits.local).length
    // Where only those are left that fetch by CID, they count on ours.
    const isUpToUs = asking === 0 && [...waiting].every((one) => one.traits.local || !one.traits.takesBytes)
    return quorum.canBeEnough(entry(), isUpToUs ? waiting.size : locals)
  }
  const start = (which: (provider: Provider) => boolean): Promise<void>[] =>
    [...waiting].filter(which).map((provider) => {
      waiting.delete(provider)
      asking++
      const work = ask(provider).then((attempt) => {
        asking--
        attempts.push(attempt)
        look()
      })
      work.catch(broken.reject)
      onBegun(work)
      return work
    })
  const look = (): void => {
    if (quorum.isEnough(entry())) return settled.resolve()
    void start(mayAsk)
    if (asking === 0 || !quorum.canBeEnough(entry(), asking + waiting.size)) settled.resolve()
  }

  look()
  await Promise.race([settled.promise, broken.promise])
  if (quorum.isEnough(entry())) void start(() => true)
  // Here first: what is on its way elsewhere must lie on our own disk.
  else if (quorum.canQueue(attempts)) await Promise.all(start(({ traits }) => traits.local))
  return attempts
}
