// Asks every useful provider once, side by side, until enough hold the upload or enough cannot be reached any more.
import type { Provider } from '../../../backends/pinning/contract.ts'
import type { JournalEntry } from '../spool/journal.ts'
import type { ProviderAttempt } from './attempt.ts'
import { providerState, type Quorum } from './quorum.ts'

export type AskAllOptions = {
  readonly providers: readonly Provider[]
  readonly quorum: Quorum
  /** The journal entry as it is at that moment. */
  readonly entry: () => JournalEntry
  /** Notes the result in the entry. Rejects only when all asking is aborted. */
  readonly ask: (provider: Provider) => Promise<ProviderAttempt>
  /** Called with each question, also with those that begin after this has resolved. */
  readonly onBegun: (work: Promise<unknown>) => void
}

export async function askAll({
  providers,
  quorum,
  entry,
  ask,
  onBegun,
}: AskAllOptions): Promise<readonly ProviderAttempt[]> {
  const attempts: ProviderAttempt[] = []
  const waiting = new Set(providers.filter(({ name }) => providerState(entry(), name).state === 'wanted'))
  const broken = Promise.withResolvers<never>()
  const settled = Promise.withResolvers<void>()
  broken.promise.catch(() => {})
  let asking = 0

  // A local provider is asked once the remote ones have answered, so that a remote failure leaves nothing to undo here. A
  // provider that fetches by CID is asked once another one has the bytes.
  const mayAsk = ({ traits }: Provider): boolean => {
    if (!traits.local) return traits.takesBytes || quorum.hasBytes(entry())
    const locals = [...waiting].filter((one) => one.traits.local).length
    // If only providers that fetch by CID are left, they need the bytes from our own disk.
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
  // Before it is queued for remote providers, the upload must be on our own disk.
  else if (quorum.canQueue(attempts)) await Promise.all(start(({ traits }) => traits.local))
  return attempts
}
