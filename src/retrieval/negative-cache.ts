// The negative cache remembers briefly what no upstream had, and a background search goes on after
// each 404 meanwhile: one round per period of the cache, so that an upstream is asked no more often
// than clients would have it asked.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { upTo } from '../core/cache.ts'
import { blockKey } from '../core/cid.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { cancelled, Failure, isFailure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Attempt } from '../observe/request-record.ts'
import type { Attempts } from './upstreams/attempts.ts'

/** A Failure without its cause and its stack. */
export type Absence = Pick<Failure, 'kind' | 'message' | 'source' | 'facts'>

export type CachedAbsence = {
  readonly absence: Absence
  readonly attempts: readonly Attempt[]
  /** The rest of its lifetime. */
  readonly forMs: number
}

/** Keyed by root and path. */
export interface NegativeCache {
  find(cid: CID, path: string): CachedAbsence | undefined
  /**
   * A lifetime doubles from `initialTtl` to `maxTtl`; of an absence that is not sure it is
   * `initialTtl`.
   */
  remember(cid: CID, path: string, absence: Absence, attempts: readonly Attempt[]): CachedAbsence
  /**
   * During a search an entry does not expire: no request waits for a CID that is searched for
   * anyway.
   */
  hold(cid: CID, path: string, isHeld: boolean): void
  /** Forgets all paths below this root. */
  forget(cid: CID): void
  readonly size: number
}

type Entry = {
  readonly path: string
  readonly absence: Absence
  readonly attempts: readonly Attempt[]
  readonly ttlMs: number
  readonly until: number
  isHeld: boolean
  /** `arrivalOf` at that time. */
  readonly arrival: number
}

const maxRoots = 10_000
const maxPathsPerRoot = 64
const jitter = 0.1
/** The lifetime that an entry has at least during a search. */
const heldMs = 1000

export function createNegativeCache(options: {
  readonly initialTtlMs: number
  readonly maxTtlMs: number
  readonly clock: Clock
  readonly random?: () => number
  /** Changes when another process of this gateway accepts an upload with this block. */
  readonly arrivalOf?: ((cid: CID) => number) | undefined
}): NegativeCache {
  const { initialTtlMs, maxTtlMs, clock, random = Math.random, arrivalOf = () => 0 } = options
  // Most roots have one path, and a Map of paths takes as much memory as all the rest of an entry.
  const roots = new LRUCache<string, Entry[]>(upTo(maxRoots))
  const entryOf = (key: string, path: string) => roots.get(key)?.find((one) => one.path === path)
  const leftMs = ({ until, isHeld }: Entry) => Math.max(isHeld ? heldMs : 0, until - clock.monotonic())
  const cached = (entry: Entry): CachedAbsence => ({
    absence: entry.absence,
    attempts: entry.attempts,
    forMs: leftMs(entry),
  })

  return {
    find(cid, path) {
      const key = blockKey(cid)
      const entry = entryOf(key, path)
      if (entry && entry.arrival !== arrivalOf(cid)) return void roots.delete(key)
      return entry && leftMs(entry) > 0 ? cached(entry) : undefined
    },
    remember(cid, path, failure, attempts) {
      const key = blockKey(cid)
      const before = entryOf(key, path)
      const doubles = failure.facts.sure === true && before && before.until + maxTtlMs > clock.monotonic()
      const ttlMs = doubles ? Math.min(maxTtlMs, before.ttlMs * 2) : initialTtlMs
      const entry: Entry = {
        path,
        absence: lean(failure),
        attempts: attempts.slice(),
        ttlMs,
        until: clock.monotonic() + Math.min(maxTtlMs, ttlMs * (1 + jitter * random())),
        isHeld: before?.isHeld ?? false,
        arrival: arrivalOf(cid),
      }
      const others = roots.get(key)?.filter((one) => one !== before) ?? []
      roots.set(key, others.slice(1 - maxPathsPerRoot).concat(entry))
      return cached(entry)
    },
    hold(cid, path, isHeld) {
      const entry = entryOf(blockKey(cid), path)
      if (entry) entry.isHeld = isHeld
    },
    forget(cid) {
      roots.delete(blockKey(cid))
    },
    get size() {
      return roots.size
    },
  }
}

/**
 * V8 keeps a concatenated string as its pieces, thirty for a CID: many times the size of the string
 * itself.
 */
const lean = ({ kind, message, source, facts }: Absence): Absence => ({
  kind,
  message: Buffer.from(message).toString(),
  source,
  facts,
})

/** One round of a search: resolves when the content is in the tiers, rejects with a Failure. */
export type SearchRound = {
  readonly done: Promise<void>
  readonly attempts: Attempts
  /** Ends the round, unless a request wants it. */
  stop(): void
}

/** `client`: its address. `running`: a round that is still under way. */
export type SearchOptions = { readonly client: string; readonly running?: SearchRound | undefined }

export interface Searches {
  /**
   * Begins a search unless one runs for this root and path; without a remembered absence it is the
   * running round alone. At the limit, the client with the most searches loses its newest one, if
   * that leaves it with as many as this client.
   */
  begin(cid: CID, path: string, look: () => SearchRound, how: SearchOptions): void
  readonly size: number
  close(): void
}

/** Failures that answer "is it there?", and so may be cached and followed by a search. */
export const isAbsence = (failure: Failure): boolean => failure.kind === 'not-found' || failure.kind === 'timeout'

const maxSearches = 256
// An upstream that drips would keep a round, and the absence with it, until the search ends.
const maxRoundMs = 30_000
const tooLong = () => new Failure('timeout', 'a round of the search took too long', { source: 'ours' })

export function createSearches(options: {
  readonly durationMs: number
  readonly negativeCache: NegativeCache
  readonly clock: Clock
  readonly log: Log
}): Searches {
  const { durationMs, negativeCache, clock, log } = options
  /** By root and path; the newest last. */
  const searching = new Map<string, { readonly client: string; readonly ending: AbortController }>()
  let isClosed = false

  /** False if no client has so many more searches that one of them has to end for this client. */
  function makeRoom(client: string): boolean {
    if (searching.size < maxSearches) return true
    const byClient = Map.groupBy(searching, ([, search]) => search.client)
    const all = [...byClient.values()].reduce((one, other) => (other.length > one.length ? other : one))
    const newest = all.at(-1)
    if (!newest || all.length <= (byClient.get(client)?.length ?? 0) + 1) return false
    searching.delete(newest[0])
    newest[1].ending.abort(cancelled('other clients need its place'))
    return true
  }

  /**
   * Waits for the round, at most `ms`; then leaves it, and a request that wants it goes on with it.
   */
  const inTime = (round: SearchRound, ms: number, signal: AbortSignal): Promise<void> =>
    withDeadline({ ms: Math.max(0, ms), clock, signal, late: tooLong }, () => round.done).finally(round.stop)

  async function search(
    cid: CID,
    path: string,
    look: () => SearchRound,
    { signal, running }: { readonly signal: AbortSignal; readonly running: SearchRound | undefined },
  ): Promise<void> {
    const giveUpAt = clock.monotonic() + durationMs
    const leftMs = () => giveUpAt - clock.monotonic()
    for (let round = running; ; round = look()) {
      try {
        if (round) {
          await inTime(round, Math.min(maxRoundMs, leftMs()), signal)
          log('info', 'search.found', { cid: cid.toString(), path })
          return negativeCache.forget(cid)
        }
      } catch (error) {
        if (!isFailure(error) || error.kind === 'cancelled') return
        // A round in which no upstream could be asked says nothing new: the older absence stays.
        const known = negativeCache.find(cid, path)
        const absence = isAbsence(error) ? error : known?.absence
        if (known && absence) negativeCache.remember(cid, path, absence, round?.attempts.list() ?? [])
      }
      const known = negativeCache.find(cid, path)
      // Forgotten meanwhile: an upload or another request made the search pointless.
      if (!known || known.forMs > leftMs()) return
      await clock.sleep(known.forMs, signal)
      if (!negativeCache.find(cid, path)) return
    }
  }

  return {
    begin(cid, path, look, { client, running }) {
      // If another search runs, or none is wanted, nobody waits for the end of this round.
      running?.done.catch(() => {})
      const key = `${blockKey(cid)}/${path}`
      if (durationMs <= 0 || isClosed || searching.has(key) || !makeRoom(client)) return running?.stop()
      const own = { client, ending: new AbortController() }
      const { signal } = own.ending
      searching.set(key, own)
      negativeCache.hold(cid, path, true)
      search(cid, path, look, { signal, running })
        .catch((error: unknown) => {
          if (!signal.aborted) log('error', 'search.error', { error: String(error) })
        })
        .finally(() => {
          // Another one may have begun since this one had to end.
          if (searching.has(key) && searching.get(key) !== own) return
          searching.delete(key)
          negativeCache.hold(cid, path, false)
        })
    },
    get size() {
      return searching.size
    },
    close() {
      isClosed = true
      for (const { ending } of searching.values()) ending.abort(cancelled('the gateway is closing'))
    },
  }
}
