// The quorum: how many providers have to hold an upload, and whether a running one has reached it or still can.
import type { Provider } from '../../../backends/pinning/contract.ts'
import { Failure, type Outcome } from '../../core/failure.ts'
import type { JournalEntry } from '../spool/journal.ts'
import type { ProviderState } from '../spool/provider-state.ts'
import type { ProviderAttempt } from './attempt.ts'

export type QuorumOptions = {
  readonly providers: readonly Provider[]
  readonly confirm: number | 'all'
  /** Accept an upload that too few providers hold if the failures may pass: keep it here and retry. */
  readonly queue: boolean
}

export interface Quorum {
  holders(entry: JournalEntry): Provider[]
  /** Whether a provider of this machine that is read like a tier holds it. */
  isKeptHere(entry: JournalEntry): boolean
  /** Whether a provider holds the bytes, so that one that fetches by CID can get them. */
  hasBytes(entry: JournalEntry): boolean
  isEnough(entry: JournalEntry): boolean
  /** Whether `more` further holders would be enough. */
  canBeEnough(entry: JournalEntry, more: number): boolean
  /** True if every missing provider may still succeed and every local provider holds it. */
  canQueue(attempts: readonly ProviderAttempt[]): boolean
  unconfirmed(attempts: readonly ProviderAttempt[]): Failure
}

export const providerState = (entry: JournalEntry, name: string): ProviderState =>
  entry.providers[name] ?? { state: 'wanted', tries: 0 }

export function createQuorum({ providers, confirm, queue }: QuorumOptions): Quorum {
  const needed = confirm === 'all' ? providers.length : confirm
  const locals = new Set(providers.filter(({ traits }) => traits.local).map(({ name }) => name))

  const holders = (entry: JournalEntry): Provider[] =>
    providers.filter(({ name }) => providerState(entry, name).state === 'held')
  const hasBytes = (entry: JournalEntry): boolean => holders(entry).some(({ traits }) => traits.takesBytes)
  const canBeEnough = (entry: JournalEntry, more: number): boolean => holders(entry).length + more >= needed

  return {
    holders,
    isKeptHere: (entry) => holders(entry).some(({ traits, store }) => traits.local && store !== undefined),
    hasBytes,
    canBeEnough,
    isEnough: (entry) => canBeEnough(entry, 0) && hasBytes(entry),
    canQueue(attempts) {
      if (!queue) return false
      const failed = attempts.filter((attempt) => !attempt.isHeld)
      const never = failed.filter((attempt) => attempt.class === 'content').length
      const isHere = !failed.some(({ provider }) => locals.has(provider))
      return isHere && providers.length - never >= needed
    },
    unconfirmed(attempts) {
      const holding = attempts.filter(({ isHeld }) => isHeld).length
      const isFull = attempts.length > 0 && attempts.every((attempt) => !attempt.isHeld && attempt.isNoRoom)
      const waits = attempts.flatMap((attempt) => (attempt.isHeld ? [] : [attempt.retryAfterMs ?? 0]))
      return new Failure(
        isFull ? 'no-room' : 'broken',
        `only ${holding} of ${needed} providers confirmed the upload, and nothing of it was kept; retry, or see the outcome of each provider`,
        {
          source: isFull ? 'ours' : 'provider',
          retryAfterMs: Math.max(0, ...waits) || undefined,
          facts: { outcomes: outcomes(providers, attempts) },
        },
      )
    },
  }
}

function outcomes(providers: readonly Provider[], attempts: readonly ProviderAttempt[]): Outcome[] {
  const asked = new Map(attempts.map((attempt) => [attempt.provider, attempt]))
  return providers.map(({ name }) => {
    const attempt = asked.get(name)
    if (!attempt) return { provider: name, outcome: 'not waited for' }
    const { isHeld, ms } = attempt
    return isHeld
      ? { provider: name, outcome: 'held', ms }
      : { provider: name, outcome: attempt.class, detail: attempt.why, ms }
  })
}
