// The quorum: how many providers have to hold an upload before its client gets a 200. The store of this gateway holds what is
// accepted, so its own provider counts without being asked.
import type { Provider } from '../../backends/pinning/contract.ts'
import { Failure, type Outcome } from '../core/failure.ts'
import type { ProviderAttempt } from './asks.ts'

export type QuorumOptions = {
  readonly providers: readonly Provider[]
  /** The provider that keeps uploads in the store of this gateway. */
  readonly own: Provider | undefined
  readonly confirm: number | 'all'
  /** Accept an upload that too few providers hold if the failures may pass: keep it here and retry. */
  readonly queue: boolean
}

export interface Quorum {
  /** Providers that are asked: all but the own one. */
  readonly asked: readonly Provider[]
  /** Whether a provider has the bytes, so that one that fetches by CID can get them. */
  hasBytes(held: ReadonlySet<string>): boolean
  isEnough(held: ReadonlySet<string>): boolean
  /** Whether `more` further holders would be enough. */
  canBeEnough(held: ReadonlySet<string>, more: number): boolean
  /** True if every missing provider may still succeed and every local provider holds it. */
  canQueue(attempts: readonly ProviderAttempt[]): boolean
  unconfirmed(attempts: readonly ProviderAttempt[]): Failure
}

export function createQuorum({ providers, own, confirm, queue }: QuorumOptions): Quorum {
  const needed = confirm === 'all' ? providers.length : confirm
  const asked = providers.filter((one) => one !== own)
  const locals = new Set(asked.filter(({ traits }) => traits.local).map(({ name }) => name))
  const takers = asked.filter(({ traits }) => traits.takesBytes).map(({ name }) => name)
  const ours = own ? 1 : 0

  const hasBytes = (held: ReadonlySet<string>): boolean => ours > 0 || takers.some((name) => held.has(name))
  const canBeEnough = (held: ReadonlySet<string>, more: number): boolean => held.size + ours + more >= needed

  return {
    asked,
    hasBytes,
    canBeEnough,
    isEnough: (held) => canBeEnough(held, 0) && hasBytes(held),
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
        isFull ? 'disk-full' : 'upstream-error',
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
      ? { provider: name, outcome: 'pinned', ms }
      : { provider: name, outcome: attempt.class, detail: attempt.why, ms }
  })
}
