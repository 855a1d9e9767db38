// The negative cache remembers briefly what no upstream had, and a background search goes on after
// each 404 meanwhile: one round per period of the cache, so that an upstream is asked no more often
// than clients would have it asked.

import { LRUCache } from 'lru-cache'
import { CID } from 'multiformats/cid'
import { upTo } from '../core/cache.ts'
import { blockKey } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { Failure, isFailure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Attempt } from '../observe/requests.ts'
import type { Flight, FlightReader } from './flight/flight.ts'
import type { DagWant } from './session.ts'
import type { AskKind, Wanting } from './upstreams/attempts.ts'

/** A Failure without its cause and its stack. */
export type Absence = Pick<Failure, 'kind' | 'message' | 'source' | 'facts'>

/** Failures that answer "is it there?", and so may be cached and followed by a search. */
export const isAbsence = (failure: Failure): boolean => failure.kind === 'not-found' || failure.kind === 'timeout'

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

/** `forMs`: the rest of its lifetime. */
type CachedAbsence = Pick<Entry, 'absence' | 'attempts'> & { readonly forMs: number }

export type NegativeCache = ReturnType<typeof createNegativeCache>

const maxRoots = 10_000
const maxPathsPerRoot = 64

/** Keyed by root and path. */
export function createNegativeCache(options: {
  readonly initialTtlMs: number
  readonly maxTtlMs: number
  readonly clock: Clock
  /** Changes when another process of this gateway accepts an upload with this block. */
  readonly arrivalOf?: ((cid: CID) => number) | undefined
}) {
  const { initialTtlMs, maxTtlMs, clock, arrivalOf = () => 0 } = options
  // Most roots have one path, and a Map of paths takes as much memory as all the rest of an entry.
  const roots = new LRUCache<string, Entry[]>(upTo(maxRoots))
  const entryOf = (cid: CID, path: string) => roots.get(blockKey(cid))?.find((one) => one.path === path)
  const cached = ({ absence, attempts, until, isHeld }: Entry): CachedAbsence => {
    return { absence, attempts, forMs: Math.max(isHeld ? initialTtlMs : 0, until - clock.monotonic()) }
  }

  return {
    find(cid: CID, path: string): CachedAbsence | undefined {
      const entry = entryOf(cid, path)
      if (entry && entry.arrival !== arrivalOf(cid)) return void roots.delete(blockKey(cid))
      const found = entry && cached(entry)
      return found && found.forMs > 0 ? found : undefined
    },
    /**
     * A lifetime doubles from `initialTtl` to `maxTtl`; of an absence that is not sure it is
     * `initialTtl`.
     */
    remember(cid: CID, path: string, absence: Absence, attempts: readonly Attempt[]): CachedAbsence {
      const now = clock.monotonic()
      const before = entryOf(cid, path)
      const doubles = absence.facts.sure === true && before && before.until + maxTtlMs > now
      const ttlMs = doubles ? Math.min(maxTtlMs, before.ttlMs * 2) : initialTtlMs
      const entry: Entry = {
        path,
        absence: lean(absence),
        attempts: attempts.slice(),
        ttlMs,
        until: now + ttlMs,
        isHeld: before?.isHeld ?? false,
        arrival: arrivalOf(cid),
      }
      const key = blockKey(cid)
      const others = roots.get(key)?.filter((one) => one !== before) ?? []
      roots.set(key, others.slice(1 - maxPathsPerRoot).concat(entry))
      return cached(entry)
    },
    /**
     * During a search an entry does not expire: no request waits for a CID that is searched for
     * anyway.
     */
    hold(cid: CID, path: string, isHeld: boolean): void {
      const entry = entryOf(cid, path)
      if (entry) entry.isHeld = isHeld
    },
    /** Forgets all paths below this root. */
    forget(cid: CID): void {
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
  ...{ kind, source, facts },
  message: Buffer.from(message).toString(),
})

export const pathOf = (want: DagWant | undefined): string => want?.segments.map(encodeURIComponent).join('/') ?? ''

export type Searches = ReturnType<typeof createSearches>

const maxSearches = 256
// It never comes: a reader of it gets what the flight brings within its bounds.
const noBlock = CID.parse('bafkqaaa')
const tooLong = new Failure('timeout', 'a round of the search took too long', { source: 'ours' })

/** A background search is a reader without a client, and each of its rounds a flight. */
export function createSearches(options: {
  readonly durationMs: number
  readonly negativeCache: NegativeCache
  readonly clock: Clock
  readonly log: Log
  /** Joins the flight that brings this, or starts it. */
  readonly flight: (kind: AskKind, want: DagWant, asker: Wanting) => Flight
}) {
  const { durationMs, negativeCache, clock, log, flight } = options
  /** By root and path; the newest last. */
  const searches = new Map<string, { readonly client: string; readonly end: () => void }>()
  let isClosed = false

  /** False if no client has so many more searches that one of them has to end for this client. */
  function makeRoom(client: string): boolean {
    if (searches.size < maxSearches) return true
    const byClient = Map.groupBy(searches.values(), (search) => search.client)
    const all = [...byClient.values()].reduce((one, other) => (other.length > one.length ? other : one))
    if (all.length <= (byClient.get(client)?.length ?? 0) + 1) return false
    all.at(-1)?.end()
    return true
  }

  /** One search, which begins with a round, or with the wait for one. */
  function search(cid: CID, around: DagWant | undefined, asker: Wanting, onEnd: () => void) {
    const path = pathOf(around)
    const endsAt = clock.monotonic() + durationMs
    let stop = () => {}
    negativeCache.hold(cid, path, true)

    function end(): void {
      stop()
      onEnd()
      negativeCache.hold(cid, path, false)
    }
    function follow(round: Flight): void {
      const reader: FlightReader = { settle: found, passed: found, fail: (error) => missed(error, round) }
      // An upstream that drips would keep a round, and the absence with it, until the search ends.
      const ms = Math.max(0, Math.min(durationMs / 2, endsAt - clock.monotonic()))
      const stopTimer = clock.after(ms, () => reader.fail(tooLong))
      stop = () => {
        stopTimer()
        round.leave(reader)
      }
      round.join(noBlock, undefined, reader)
    }
    function found(): void {
      log('info', 'search.found', { cid: cid.toString(), path })
      negativeCache.forget(cid)
      end()
    }
    function missed(error: unknown, { attempts }: Flight): void {
      stop()
      if (!isFailure(error) || error.kind === 'cancelled') return end()
      // A round in which no upstream could be asked says nothing new: the older absence stays.
      const known = negativeCache.find(cid, path)
      const absence = isAbsence(error) ? error : known?.absence
      if (known && absence) negativeCache.remember(cid, path, absence, attempts.list())
      wait()
    }
    function wait(): void {
      const known = negativeCache.find(cid, path)
      // Forgotten meanwhile: an upload or another request made the search pointless.
      if (!known || known.forMs > endsAt - clock.monotonic()) return end()
      stop = clock.after(known.forMs, () => {
        if (!negativeCache.find(cid, path)) return end()
        follow(around ? flight('dag', around, asker) : flight('block', { cid, segments: [], scope: 'block' }, asker))
      })
    }
    return { follow, wait, end }
  }

  return {
    /**
     * Begins a search unless one runs for this root and path. `around`: undefined for a single
     * block. `client`: its address. `running`: a flight that goes on after the client's time, as the
     * first round; without a remembered absence it is the only one. At the limit, the client with
     * the most searches loses its newest one, if that leaves it with as many as this client.
     */
    begin(cid: CID, around: DagWant | undefined, client: string, running?: Flight): void {
      const key = `${blockKey(cid)}/${pathOf(around)}`
      if (durationMs <= 0 || isClosed || searches.has(key) || !makeRoom(client)) return
      const asker = { client, hasBegun: false, isSearch: true, root: cid }
      const { follow, wait, end } = search(cid, around, asker, () => searches.delete(key))
      searches.set(key, { client, end })
      if (running) follow(running)
      else wait()
    },
    get size() {
      return searches.size
    },
    close() {
      isClosed = true
      for (const { end } of searches.values()) end()
    },
  }
}
