// Whether a host has a DNSLink: asked for every request to it, so no request waits for DNS twice.
import { LRUCache } from 'lru-cache'
import type { Clock } from '../core/clock.ts'
import { orAborted } from '../core/deadline.ts'
import { upTo } from '../core/lru.ts'
import { isDomain } from './dnslink.ts'

/** False also when no server could say, so that other hosts go on. */
export type HasLink = (domain: string, signal: AbortSignal) => Promise<boolean>

export type NoLinkMemory = LRUCache<string, true>
export const createNoLinkMemory = (most: number): NoLinkMemory => new LRUCache(upTo(most))

const againMs = 250 // a host without a link, or with no answer, waits only this long the next time

export function createSites(options: {
  /** Shared with all who ask for the same domain, and bounded in time. */
  readonly resolve: (domain: string, signal: AbortSignal) => Promise<unknown>
  readonly most: number
  /** Domains that had no link lately. By default none is known. */
  readonly without?: NoLinkMemory | undefined
  readonly clock: Clock
}): HasLink {
  const { resolve, clock, without = createNoLinkMemory(options.most) } = options
  const never = new AbortController().signal

  return async (domain, signal) => {
    signal.throwIfAborted()
    if (!isDomain(domain)) return false
    // Not on a caller's signal: the answer is remembered even when the client leaves.
    const answer = resolve(domain, never).then(
      () => {
        without.delete(domain)
        return true
      },
      () => {
        without.set(domain, true)
        return false
      },
    )
    if (!without.has(domain)) return orAborted(signal, answer)
    const impatient = Promise.withResolvers<false>()
    const stop = clock.after(againMs, () => impatient.resolve(false))
    try {
      return await orAborted(signal, Promise.race([answer, impatient.promise]))
    } finally {
      stop()
    }
  }
}
