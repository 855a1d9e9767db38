// What a domain's DNSLink points at: the TXT record of `_dnslink.<name>`, kept for its TTL; what is known is served
// stale while no DNS server answers.
import { LRUCache } from 'lru-cache'
import type { Clock } from '../clock.ts'
import { Failure } from '../failure.ts'
import type { TxtLookup } from './dns-query.ts'

export type DnsLink = {
  /** `/ipfs/…` or `/ipns/…`, as the record says. */
  readonly value: string
  readonly freshMs: number
}

export interface DnsLinks {
  /** Rejects with `not-found` for a name without a DNSLink, `timeout` when no server could say. */
  resolve(name: string, signal: AbortSignal): Promise<DnsLink>
}

type Held = { readonly value: string | undefined; readonly until: number; readonly at: number }

const mostKept = 10_000
const leastTtlMs = 1_000
const mostTtlMs = 86_400_000
const staleMs = 86_400_000 // how old an answer may be that is served because nobody answers
const againMs = 5_000

/** A name DNS could have; looked at before anything is asked. */
export const isDomain = (name: string): boolean =>
  name.length <= 253 &&
  /^(?=.*\.)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.?$/i.test(name)

export function createDnsLinks(options: {
  readonly lookups: readonly TxtLookup[]
  readonly clock: Clock
  /** Fixed answers, for names the operator (or a test) pins. */
  readonly fixed?: Readonly<Record<string, string>>
}): DnsLinks {
  const { lookups, clock, fixed = {} } = options
  const held = new LRUCache<string, Held>({ max: mostKept })
  const flights = new Map<string, Promise<Held>>()

  async function ask(name: string): Promise<Held> {
    const known = held.get(name)
    const own = AbortSignal.timeout(5_000)
    let last: unknown
    for (const lookup of lookups) {
      try {
        const { texts, ttlMs } = await lookup(`_dnslink.${name}`, own)
        const value = texts.find((text) => /^dnslink=\/ip[fn]s\/[^/]/.test(text))?.slice('dnslink='.length)
        const until = clock.monotonic() + Math.min(mostTtlMs, Math.max(leastTtlMs, ttlMs))
        return { value, until, at: clock.monotonic() }
      } catch (error) {
        last = error
      }
    }
    if (known && clock.monotonic() - known.at < staleMs) return { ...known, until: clock.monotonic() + againMs }
    throw new Failure('timeout', `no DNS server could say where ${name} points`, { source: 'upstream', cause: last })
  }

  return {
    async resolve(raw, signal) {
      const name = raw.toLowerCase().replace(/\.$/, '')
      const pinned = fixed[name]
      if (pinned !== undefined) return { value: pinned, freshMs: againMs }
      if (!isDomain(name))
        throw new Failure('malformed', `${raw} is neither a key nor a domain name`, { source: 'client' })
      signal.throwIfAborted()
      let entry = held.get(name)
      if (!entry || entry.until <= clock.monotonic()) {
        let flight = flights.get(name)
        if (!flight) {
          flight = ask(name)
          flights.set(name, flight)
          flight
            .then((found) => held.set(name, found))
            .catch(() => {})
            .finally(() => flights.delete(name))
        }
        entry = await flight
        signal.throwIfAborted()
      }
      if (entry.value === undefined) {
        throw new Failure(
          'not-found',
          `${name} has no DNSLink: there is no TXT record "dnslink=…" at _dnslink.${name}`,
          {
            source: 'upstream',
            retryAfterMs: Math.max(0, entry.until - clock.monotonic()),
          },
        )
      }
      return { value: entry.value, freshMs: Math.max(0, entry.until - clock.monotonic()) }
    },
  }
}
