// Tells if a host has a DNSLink. Asked for every request to it, so no request waits for DNS twice.
import { LRUCache } from 'lru-cache'
import { upTo } from '../core/cache.ts'
import { type Clock, orAborted } from '../core/clock.ts'
import { isDomain } from './dnslink.ts'

/** False also if no server responded, so that requests to other hosts are served. */
export type HasLink = (domain: string, signal: AbortSignal) => Promise<boolean>

export type NoLinkMemory = LRUCache<string, true>
export const createNoLinkMemory = (most: number): NoLinkMemory => new LRUCache(upTo(most))

const againMs = 250 // after a missing link or a timeout, the host waits only this long the next time

export function createSites(options: {
  /** Coalesces callers for the same domain, and has a deadline. */
  readonly resolve: (domain: string, signal: AbortSignal) => Promise<unknown>
  readonly most: number
  /** Domains that recently had no link. Default: empty. */
  readonly without?: NoLinkMemory | undefined
  readonly clock: Clock
}): HasLink {
  const { resolve, clock, without = createNoLinkMemory(options.most) } = options
  const never = new AbortController().signal

  return async (domain, signal) => {
    signal.throwIfAborted()
    if (!isDomain(domain)) return false
    // Independent of a caller's signal: the answer is cached even if the client leaves.
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
