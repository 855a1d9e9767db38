// Caches lookups: serves fresh results from memory, coalesces lookups of one name, and serves the
// last valid result stale while no server responds.

import { LRUCache } from 'lru-cache'
import { upTo } from '../core/cache.ts'
import { type Clock, orAborted, withDeadline } from '../core/clock.ts'
import { Failure, isFailure } from '../core/failure.ts'
import { createFlights } from '../core/flights.ts'
import type { Attempt, RequestRecord } from '../observe/requests.ts'

export type LookupRequest = {
  readonly signal: AbortSignal
  readonly requestRecord?: RequestRecord | undefined
  /** Asks the servers even if the result is fresh. */
  readonly noCache?: boolean | undefined
  /**
   * Asks no server: stale results are used, and an unknown name rejects with `not-found` (facts: {
   * onlyIfCached: true }).
   */
  readonly onlyIfCached?: boolean | undefined
}

export type LookupResult<T> = {
  readonly value: T
  readonly freshForMs: number
  /** Milliseconds since the epoch, after which it is never served. */
  readonly endsAt: number
  /** The upstream, server or tier of the result. */
  readonly via: string
  /** `via` is a tier of this gateway; no upstream was asked. */
  readonly isTier?: boolean
}

type Recalled<T> = Pick<LookupResult<T>, 'value' | 'endsAt' | 'via'>

export type LookupAnswer<T> = {
  readonly value: T
  readonly freshMs: number
  /** Milliseconds since the epoch. */
  readonly endsAt: number
  readonly via: string
}

/** The context of a lookup. */
export type LookupContext<T> = {
  readonly signal: AbortSignal
  /** Records an upstream's answer. */
  note(attempt: Attempt): void
  /**
   * Reports a valid result that is newer than the known one: it is served stale to clients that
   * have waited long enough, while the lookup goes on.
   */
  recalled(known: Recalled<T>): void
}

export type LookupOptions<Subject, T> = {
  /** Resolves with the newest result, which may be `known`. */
  readonly look: (subject: Subject, known: T | undefined, under: LookupContext<T>) => Promise<LookupResult<T>>
  /** Reads and verifies the result of an earlier process. */
  readonly restore?: ((subject: Subject) => Promise<Recalled<T> | undefined>) | undefined
  /**
   * Reads the result of other instances, for clients with `only-if-cached`; for others `look` does.
   */
  readonly recall?: ((subject: Subject, signal: AbortSignal) => Promise<Recalled<T> | undefined>) | undefined
  /** True if this failure invalidates the known result, so that it is not served stale. */
  readonly invalidates: (error: unknown) => boolean
  readonly late: (subject: Subject) => Failure
  readonly deadlineMs: number
  /** The lifetime of a failure in the negative cache. */
  readonly notFoundMs: number
  /** The lifetime of `unavailable`, which says nothing about the name. Default: not cached. */
  readonly unavailableMs?: number | undefined
  readonly maxEntries: number
  /** Results of earlier lookups. Default: empty. */
  readonly memory?: LookupMemory<T> | undefined
  readonly clock: Clock
}

/** Results and failures of lookups. Kept across reloads. */
export type LookupMemory<T> = {
  readonly held: LRUCache<string, RememberedLookup<T>>
  readonly failed: LRUCache<string, Failed>
}

export const createLookupMemory = <T>(maxEntries: number): LookupMemory<T> => ({
  held: new LRUCache(upTo(maxEntries)),
  failed: new LRUCache(upTo(maxEntries)),
})

const staleAfterMs = 1_000 // a client waits until the lookup is this old, then gets the stale result
const againMs = 10_000 // after serving stale, the next lookup starts after this
const minAgeMs = 1_000 // a younger result is fresh even for `no-cache`

type RememberedLookup<T> = LookupResult<T> & { readonly at: number }
type Failed = { readonly error: unknown; readonly at: number; readonly until: number }
type LookupInFlight<T> = {
  readonly done: Promise<RememberedLookup<T>>
  /** Resolves once a stale result is available. */
  readonly known: Promise<void>
  readonly attempts: readonly Attempt[]
  readonly at: number
}

export function createLookups<Subject, T>(options: LookupOptions<Subject, T>) {
  const {
    look,
    restore,
    recall,
    invalidates,
    late,
    deadlineMs,
    notFoundMs,
    unavailableMs = 0,
    maxEntries,
    clock,
  } = options
  const { held, failed } = options.memory ?? createLookupMemory<T>(maxEntries)
  const flights = createFlights<LookupInFlight<T>>()
  let served = 0

  const kept = (key: string): RememberedLookup<T> | undefined => {
    const one = held.get(key)
    if (one && one.endsAt <= clock.now()) held.delete(key)
    return one && one.endsAt > clock.now() ? one : undefined
  }
  const age = ({ at }: { at: number }): number => clock.monotonic() - at
  const isFresh = (one: RememberedLookup<T>, noCache = false): boolean =>
    age(one) < (noCache ? minAgeMs : one.freshForMs)
  const fresh = (one: RememberedLookup<T>, via: string): LookupAnswer<T> => ({
    value: one.value,
    freshMs: Math.max(0, Math.min(one.freshForMs - age(one), one.endsAt - clock.now())),
    endsAt: one.endsAt,
    via,
  })
  const stale = (one: RememberedLookup<T>): LookupAnswer<T> => {
    served++
    const { value, endsAt } = one
    return { value, freshMs: Math.min(againMs, endsAt - clock.now()), endsAt, via: 'stale' }
  }

  function keep(key: string, old: Recalled<T> | undefined): RememberedLookup<T> | undefined {
    if (old && old.endsAt > clock.now() && !kept(key)) held.set(key, { ...old, freshForMs: 0, at: clock.monotonic() })
    return kept(key)
  }

  function remember(key: string, error: unknown): void {
    // Neither failure says anything about the name or the servers.
    if (isFailure(error, 'cancelled') || isFailure(error, 'overloaded')) return
    if (invalidates(error)) held.delete(key)
    const ms = kept(key) ? againMs : isFailure(error, 'unavailable') ? unavailableMs : notFoundMs
    failed.set(key, { error, at: clock.monotonic(), until: clock.monotonic() + ms })
  }

  function start(key: string, subject: Subject, known: T | undefined, signal: AbortSignal): LookupInFlight<T> {
    const attempts: Attempt[] = []
    const any = Promise.withResolvers<void>()
    if (known !== undefined) any.resolve()
    const under = {
      note: (attempt: Attempt) => void attempts.push(attempt),
      recalled(value: Recalled<T>) {
        held.set(key, { ...value, freshForMs: 0, at: clock.monotonic() })
        any.resolve()
      },
    }
    const run = async (): Promise<RememberedLookup<T>> => {
      try {
        const found = await withDeadline({ ms: deadlineMs, clock, signal, late: () => late(subject) }, (own) =>
          look(subject, known, { ...under, signal: own }),
        )
        const one = { ...found, at: clock.monotonic() }
        held.set(key, one)
        failed.delete(key)
        return one
      } catch (error) {
        remember(key, error)
        throw error
      } finally {
        flights.land(key, work)
      }
    }
    // Starts in a later microtask, so that the flight is registered before it can end.
    const work: LookupInFlight<T> = {
      done: Promise.resolve().then(run),
      known: any.promise,
      attempts,
      at: clock.monotonic(),
    }
    work.done.catch(() => {})
    return work
  }

  async function fly(
    key: string,
    subject: Subject,
    known: T | undefined,
    wants: LookupRequest,
  ): Promise<LookupAnswer<T>> {
    const { signal, requestRecord } = wants
    const flight = flights.join(key, (own) => start(key, subject, known, own))
    const waited = Promise.withResolvers<void>()
    const stop = clock.after(Math.max(0, staleAfterMs - age(flight.work)), waited.resolve)
    const giveUp = Promise.all([waited.promise, flight.work.known]).then(() => undefined)
    let isOver = true
    try {
      const inTime = await orAborted(signal, Promise.race([flight.work.done, giveUp]))
      const old = inTime ? undefined : kept(key)
      if (old) {
        isOver = false
        return stale(old)
      }
      const found = inTime ?? (await orAborted(signal, flight.work.done))
      if (found.isTier) requestRecord?.tierHit(found.via)
      else requestRecord?.fetched(found.via)
      return fresh(found, found.via)
    } catch (error) {
      signal.throwIfAborted()
      const still = kept(key)
      if (still) return stale(still)
      throw error
    } finally {
      stop()
      for (const attempt of flight.work.attempts) requestRecord?.attempt(attempt)
      flight.leave({ keep: !isOver })
    }
  }

  return {
    async get(key: string, subject: Subject, wants: LookupRequest): Promise<LookupAnswer<T>> {
      const { signal, noCache, onlyIfCached } = wants
      signal.throwIfAborted()
      const here = kept(key)
      if (here && isFresh(here, noCache)) return fresh(here, 'memory')
      const known = here ?? keep(key, await orAborted(signal, Promise.resolve(restore?.(subject))))
      // Another request may have looked it up while the store was read.
      if (!here && known && isFresh(known, noCache)) return fresh(known, 'memory')
      if (onlyIfCached) {
        const any = known ?? keep(key, await recall?.(subject, signal))
        if (any) return stale(any)
        throw new Failure(
          'not-found',
          `${key} is not in the cache, and Cache-Control: only-if-cached asks for nothing else`,
          {
            source: 'tier',
            facts: { onlyIfCached: true },
          },
        )
      }
      const last = failed.get(key)
      if (last && clock.monotonic() < last.until && !(noCache && age(last) >= minAgeMs)) {
        if (known) return stale(known)
        throw again(last.error, last.until - clock.monotonic())
      }
      return fly(key, subject, known?.value, wants)
    },
    stats: () => ({ kept: held.size, flights: flights.size, stale: served }),
    close: (): void => flights.close(),
  }
}

/** A copy of the cached failure, for a later caller. */
function again(error: unknown, retryAfterMs: number): unknown {
  if (!isFailure(error)) return error
  const { kind, source, facts, cause } = error
  return new Failure(kind, error.message, { source, facts, cause, retryAfterMs })
}
