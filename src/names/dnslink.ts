// Resolves a domain's DNSLink, the TXT record of `_dnslink.<name>`. Cached for its TTL, and served
// stale while no DNS server responds.

import { LRUCache } from 'lru-cache'
import { upTo } from '../core/cache.ts'
import { type Clock, orAborted } from '../core/clock.ts'
import { Failure, isFailure } from '../core/failure.ts'
import { createSemaphore } from '../core/semaphore.ts'
import type { Attempt } from '../observe/requests.ts'
import type { TxtServer } from './dns-query.ts'
import {
  createLookups,
  type LookupAnswer,
  type LookupMemory,
  type LookupRequest,
  type LookupResult,
} from './lookups.ts'

const staleMs = 86_400_000 // how long a result is served stale after its TTL while no server responds
const fixedFreshMs = 60_000
const unavailableMs = 5_000
const maxConcurrent = 100 // concurrent lookups, since a client can invent any host name
const maxWaiting = 400
const waitMs = 1_000

/** True if DNS could have this name; checked before any server is asked. */
export const isDomain = (name: string): boolean =>
  name.length <= 244 && // so that with _dnslink. in front it is still a valid name
  /^(?=.*\.)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.?$/i.test(name)

/** Normalizes a domain. */
const spelled = (name: string): string => name.toLowerCase().replace(/\.$/, '')

const isPath = (text: string): boolean => /^\/ip[fn]s\/[^/]/.test(text)

const tooMany = (): Failure =>
  new Failure('overloaded', 'too many domains are being looked up; retry in a second', {
    source: 'ours',
    retryAfterMs: 1000,
  })

export function createDnsLinks(options: {
  readonly servers: readonly TxtServer[]
  /** Static links that override DNS. */
  readonly fixed: Readonly<Record<string, string>>
  readonly deadlineMs: number
  readonly ttl: { readonly minMs: number; readonly maxMs: number }
  readonly notFoundMs: number
  readonly maxEntries: number
  /** Default: empty. */
  readonly memory?: LookupMemory<string> | undefined
  readonly clock: Clock
}) {
  const { servers, ttl, clock } = options
  const fixed = new Map(Object.entries(options.fixed).map(([name, value]) => [spelled(name), value]))

  // A flood of invented names uses a bounded number of sockets and bytes; further lookups are
  // refused at once.
  const gate = createSemaphore({
    max: maxConcurrent,
    maxQueued: maxWaiting,
    full: tooMany,
    queueTimeout: { ms: waitMs, clock },
  })

  async function ask(
    name: string,
    signal: AbortSignal,
    note: (attempt: Attempt) => void,
  ): Promise<LookupResult<string>> {
    let last: unknown
    for (const server of servers) {
      const began = clock.monotonic()
      const end = (outcome: string) =>
        note({ upstream: server.name, outcome, ms: Math.round(clock.monotonic() - began) })
      try {
        const { texts, ttlMs } = await server.lookup(`_dnslink.${name}`, signal)
        // Sorted, so that every instance picks the same link, whatever the order of the records.
        const links = texts.flatMap((text) =>
          text.startsWith('dnslink=') ? [text.slice('dnslink='.length).trim()] : [],
        )
        const value = links.filter(isPath).sort()[0]
        if (value === undefined) {
          end('not-found')
          throw absent(name)
        }
        end('record')
        const freshForMs = Math.min(ttl.maxMs, Math.max(ttl.minMs, ttlMs))
        return { value, freshForMs, endsAt: clock.now() + freshForMs + staleMs, via: server.name }
      } catch (error) {
        signal.throwIfAborted()
        if (isFailure(error, 'not-found')) throw error
        end(isFailure(error) ? error.kind : 'internal')
        last = error
      }
    }
    throw new Failure('unavailable', `${name} cannot be resolved: no DNS server could be reached`, {
      source: 'upstream',
      cause: last,
    })
  }

  const lookups = createLookups<string, string>({
    ...options,
    unavailableMs,
    look: (name, _known, { signal, note }) => gate.run(() => ask(name, signal, note), signal),
    invalidates: (error) => isFailure(error, 'not-found'),
    late: (name) =>
      new Failure('timeout', `${name} cannot be resolved: no DNS server answered in time`, { source: 'upstream' }),
  })

  return {
    /**
     * Resolves with `/ipfs/…` or `/ipns/…`, as in the record. Rejects with `not-found` for a name
     * without a DNSLink.
     */
    async resolve(raw: string, wants: LookupRequest): Promise<LookupAnswer<string>> {
      const name = spelled(raw)
      const value = fixed.get(name)
      if (value !== undefined)
        return { value, freshMs: fixedFreshMs, endsAt: Number.POSITIVE_INFINITY, via: 'configuration' }
      if (isDomain(name)) return lookups.get(name, name, wants)
      throw new Failure('malformed', `${JSON.stringify(raw)} is neither a key nor a domain name`, { source: 'client' })
    },
    stats: lookups.stats,
    async close(): Promise<void> {
      lookups.close()
      await Promise.all(servers.map((server) => server.close()))
    },
  }
}

function absent(name: string): Failure {
  const what = `${name} has no DNSLink: there is no TXT record "dnslink=/ipfs/…" at _dnslink.${name}`
  return new Failure('not-found', what, { source: 'upstream' })
}

/** False also if no server responded, so that requests to other hosts are served. */
export type HasLink = (domain: string, signal: AbortSignal) => Promise<boolean>

export type NoLinkMemory = LRUCache<string, true>
export const createNoLinkMemory = (maxEntries: number): NoLinkMemory => new LRUCache(upTo(maxEntries))

const againMs = 250 // after a missing link or a timeout, the host waits only this long the next time

export function createSites(options: {
  /** Coalesces callers for the same domain, and has a deadline. */
  readonly resolve: (domain: string, signal: AbortSignal) => Promise<unknown>
  readonly maxEntries: number
  /** Domains that recently had no link. Default: empty. */
  readonly without?: NoLinkMemory | undefined
  readonly clock: Clock
}): HasLink {
  const { resolve, clock, without = createNoLinkMemory(options.maxEntries) } = options
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
    const giveUp = Promise.withResolvers<false>()
    const stop = clock.after(againMs, () => giveUp.resolve(false))
    try {
      return await orAborted(signal, Promise.race([answer, giveUp.promise]))
    } finally {
      stop()
    }
  }
}
