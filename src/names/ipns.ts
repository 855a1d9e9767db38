// Resolves an IPNS key to the newest valid record of several upstreams, the shared tiers, and the
// cache. An older valid record never replaces a newer one, even after the newer one has expired.

import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { upTo } from '../core/cache.ts'
import { blockKey } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { Failure, type FailureKind, type FailureSource, isFailure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Attempt } from '../observe/requests.ts'
import { Attempts } from '../retrieval/upstreams/attempts.ts'
import type { Member, Pool } from '../retrieval/upstreams/pool.ts'
import { type IpnsRecord, keyText, newest, provedRecord, type RecordStore, signedRecord } from './ipns-record.ts'
import {
  createLookupMemory,
  createLookups,
  type LookupContext,
  type LookupMemory,
  type LookupOptions,
  type LookupRequest,
  type LookupResult,
} from './lookups.ts'
import type { SharedRecords } from './shared-records.ts'

export type RecordSource = {
  readonly name: string
  /** Fetches the record of this key; the bytes are unverified. */
  record(key: CID, signal: AbortSignal): Promise<Uint8Array>
  /** Reports that the upstream sent something other than a record of the key. */
  invalid(failure: Failure): void
}

type Sources = (key: CID) => { readonly ready: readonly RecordSource[]; readonly skipped: readonly Attempt[] }

const againMs = 10_000 // a record that only a tier had, no upstream, is looked up again after this
const graceMs = 400 // after the first valid record, the other sources have this long to return a newer one

type Brought = { readonly record: IpnsRecord; readonly via: string; readonly isTier: boolean }

/** The known records. A reload keeps them, so that no name reverts to an older record. */
export type RecordMemory = {
  readonly lookups: LookupMemory<IpnsRecord>
  /** The highest sequence seen for each key. The store keeps it across restarts. */
  readonly highest: LRUCache<string, bigint>
}

export const createRecordMemory = (maxEntries: number): RecordMemory => ({
  lookups: createLookupMemory(maxEntries),
  highest: new LRUCache(upTo(maxEntries)),
})

export function createIpnsNames(options: {
  readonly sources: Sources
  readonly store: RecordStore
  /** Default: empty. */
  readonly memory?: RecordMemory | undefined
  readonly shared: SharedRecords
  readonly deadlineMs: number
  readonly ttl: { readonly minMs: number; readonly maxMs: number }
  readonly notFoundMs: number
  readonly maxEntries: number
  readonly clock: Clock
}) {
  const { sources, store, shared, ttl, maxEntries, clock } = options
  const { highest, lookups: memory } = options.memory ?? createRecordMemory(maxEntries)
  const height = createHeight(highest)
  const { isOutdone, seen } = height
  const isArchive = (key: CID): boolean => Object.values(sources(key)).every(({ length }) => length === 0)

  const found = (value: IpnsRecord, via: string, isTier: boolean, maxMs = ttl.maxMs): LookupResult<IpnsRecord> => ({
    value,
    freshForMs: Math.min(maxMs, ttl.maxMs, Math.max(ttl.minMs, value.ttlMs)),
    endsAt: value.endsAt,
    via,
    isTier,
  })

  async function look(
    key: CID,
    known: IpnsRecord | undefined,
    { signal, note, recalled }: LookupContext<IpnsRecord>,
  ): Promise<LookupResult<IpnsRecord>> {
    const { ready, skipped } = sources(key)
    for (const attempt of skipped) note(attempt)
    const own = new AbortController()
    const leave = () => own.abort(signal.reason)
    signal.addEventListener('abort', leave, { once: true })
    const brought: Brought[] = []
    const failures: unknown[] = []
    if (known) seen(key, known)
    const enough = Promise.withResolvers<void>()
    let stopGrace: (() => void) | undefined
    let isOver = false
    // A record in a tier may be old, so upstreams keep all their time to return a newer one.
    const reads = shared.look(key, own.signal, (record, via) => {
      if (isOver) return
      const isOlder = isOutdone(key, record)
      // An expired record still proves which records are older.
      seen(key, record)
      if (isOlder || record.endsAt <= clock.now()) return
      brought.push({ record, via, isTier: true })
      if (!known || newest([known, record]) === record) recalled({ value: record, endsAt: record.endsAt, via })
    })
    const ask = async (source: RecordSource): Promise<void> => {
      const began = clock.monotonic()
      const end = (outcome: string) => {
        if (!isOver) note({ upstream: source.name, outcome, ms: Math.round(clock.monotonic() - began) })
      }
      try {
        const record = await provedRecord(key, await source.record(key, own.signal), clock.now())
        const isOlder = isOutdone(key, record)
        end(isOlder ? 'older' : 'record')
        brought.push({ record, via: source.name, isTier: false })
        if (known || !isOlder) stopGrace ??= clock.after(graceMs, enough.resolve)
      } catch (error) {
        failures.push(error)
        end(isFailure(error) ? error.kind : 'internal')
        if (isFailure(error, 'hash-mismatch')) source.invalid(error)
      }
    }
    const isKnownValid = known !== undefined && known.endsAt > clock.now()
    const all = Promise.all(ready.map(ask))
    try {
      await Promise.race([Promise.all([all, reads.soon]), enough.promise])
      // No upstream has a record: wait for the slow tiers too.
      if (brought.length === 0 && !isKnownValid) await reads.done
    } finally {
      isOver = true
      stopGrace?.()
      signal.removeEventListener('abort', leave)
      own.abort(new Failure('cancelled', 'a record was found', { source: 'ours' }))
    }
    if (brought.length === 0 && isKnownValid) reads.offer(known, false)
    signal.throwIfAborted()
    if (brought.length === 0)
      throw isArchive(key) ? await inArchive(key, reads.failures, store) : verdict(key, failures)
    // If two records are equal, the one from an upstream counts.
    const sorted = brought.toSorted((one, other) => Number(one.isTier) - Number(other.isTier))
    const records = [...(isKnownValid ? [known] : []), ...sorted.map(({ record }) => record)]
    const best = newest(records.filter((record) => !isOutdone(key, record)))
    if (!best) throw outdone(key)
    seen(key, best)
    if (best !== known) store.write(key, best.bytes)
    reads.offer(best, best !== known)
    const { via, isTier } = sorted.find(({ record }) => record === best) ?? (sorted[0] as Brought)
    const isAlone = sorted.every((one) => one.isTier) && !isArchive(key)
    return found(best, via, isTier, isAlone ? againMs : undefined)
  }

  const lookups = createLookups<CID, IpnsRecord>({
    ...options,
    memory,
    look,
    ...createRecall(store, shared, height),
    // A signed record defines its own lifetime: upstreams that lost it do not invalidate it.
    invalidates: () => false,
    late: (key) => (isArchive(key) ? storeFailed(key) : late(key)),
  })

  return {
    /** `key` must be in its canonical form. */
    resolve: (key: CID, wants: LookupRequest) => lookups.get(keyText(key), key, wants),
    stats: lookups.stats,
    close: lookups.close,
  }
}

/** Refuses sequences below the highest one seen for a key. */
function createHeight(highest: RecordMemory['highest']) {
  const isOutdone = (key: CID, { sequence }: IpnsRecord): boolean => sequence < (highest.get(keyText(key)) ?? 0n)

  return {
    isOutdone,
    seen(key: CID, record: IpnsRecord): void {
      if (!isOutdone(key, record)) highest.set(keyText(key), record.sequence)
    },
  }
}

function createRecall(
  store: RecordStore,
  shared: SharedRecords,
  { isOutdone, seen }: ReturnType<typeof createHeight>,
): Pick<LookupOptions<CID, IpnsRecord>, 'restore' | 'recall'> {
  return {
    async restore(key) {
      // The store has logged its failure; upstreams and other tiers are asked.
      const bytes = await store.read(key).catch(() => undefined)
      if (!bytes) return undefined
      try {
        // Keep an expired record: it proves which records are older.
        const value = await signedRecord(key, bytes)
        if (isOutdone(key, value)) return undefined
        seen(key, value)
        return { value, endsAt: value.endsAt, via: 'disk' }
      } catch {
        store.remove(key)
        return undefined
      }
    },
    async recall(key, signal) {
      const brought: Brought[] = []
      await shared.look(key, signal, (record, via) => brought.push({ record, via, isTier: true })).done
      signal.throwIfAborted()
      for (const { record } of brought) seen(key, record)
      const value = newest(brought.flatMap(({ record }) => (isOutdone(key, record) ? [] : [record])))
      const via = brought.find(({ record }) => record === value)?.via
      return value && via !== undefined ? { value, endsAt: value.endsAt, via } : undefined
    },
  }
}

const unresolved = (kind: FailureKind, key: CID, why: string, source: FailureSource, cause?: unknown): Failure =>
  new Failure(kind, `/ipns/${keyText(key)} cannot be resolved: ${why}`, { source, cause })

const outdone = (key: CID): Failure =>
  unresolved(
    'not-found',
    key,
    'every IPNS record that upstreams have is older than one seen before, which has expired',
    'upstream',
  )

const storeFailed = (key: CID, cause?: unknown): Failure =>
  unresolved(
    'unavailable',
    key,
    'its IPNS record may be in a store that failed or timed out, and there is no upstream to ask; retry, and check the tiers and the disk if it goes on',
    'tier',
    cause,
  )

/**
 * Without upstreams only the stores can be asked: if all of them responded, the record is absent;
 * if one failed, its absence is unknown.
 */
async function inArchive(key: CID, tierFailures: readonly unknown[], store: RecordStore): Promise<Failure> {
  const failed = tierFailures[0] ?? (await store.read(key).then(() => undefined, String))
  if (failed !== undefined) return storeFailed(key, failed)
  return unresolved('not-found', key, 'no IPNS record is stored here, and no upstream is configured', 'tier')
}

const late = (key: CID, cause?: unknown): Failure =>
  unresolved('timeout', key, 'no upstream sent an IPNS record in time', 'upstream', cause)

function verdict(key: CID, failures: readonly unknown[]): Failure {
  const first = (kind: FailureKind) => failures.find((failure) => isFailure(failure, kind))
  const missing = first('not-found')
  if (missing) return unresolved('not-found', key, 'no upstream has a valid IPNS record', 'upstream', missing)
  const mismatch = first('hash-mismatch')
  if (mismatch)
    return unresolved('hash-mismatch', key, 'the IPNS records that upstreams sent are not valid', 'upstream', mismatch)
  const timeout = first('timeout')
  if (timeout) return late(key, timeout)
  const why = 'no IPNS record is stored here, and no upstream could be reached'
  return unresolved('unavailable', key, why, 'upstream', failures[0])
}

const invalidMs = 600_000
const unjudged = new Failure('cancelled', 'a record was asked for, no block', { source: 'ours' })

/**
 * A router that stores records. Its failures here do not affect its health: a name says nothing
 * about its other answers.
 */
export type RecordRouter = {
  readonly name: string
  record(key: CID, signal: AbortSignal): Promise<Uint8Array>
}

export function recordSources(options: {
  readonly pool: Pool
  readonly routers?: readonly RecordRouter[] | undefined
  readonly clock: Clock
  readonly log: Log
}): Sources {
  const { pool, routers = [], clock, log } = options
  // Keyed by upstream and name: one record that this gateway cannot read must not cost the upstream
  // all other names.
  const invalidUntil = new LRUCache<string, number>(upTo(10_000))

  const sourceOf = (member: Member, spentOn: string): RecordSource => ({
    name: member.upstream.name,
    async record(key, signal) {
      const { upstream, health } = member
      if (!upstream.record) throw new Failure('not-found', `${upstream.name} has no records`, { source: 'upstream' })
      signal.throwIfAborted()
      const own = new AbortController()
      const slot = Promise.withResolvers<void>()
      const end = (reason: unknown) => {
        slot.reject(reason)
        own.abort(reason)
      }
      const asker = { begun: () => slot.resolve(), refused: (_question: unknown, error: Failure) => end(error) }
      const question = new Attempts(clock, pool.timeoutMs).ask(member, 'block', key, asker, spentOn)
      const leave = () => end(signal.reason)
      signal.addEventListener('abort', leave, { once: true })
      try {
        await slot.promise
        return await upstream.record(key, own.signal)
      } catch (error) {
        if (isFailure(error, 'throttled')) health.throttled(error)
        throw error
      } finally {
        signal.removeEventListener('abort', leave)
        question.end('failed', clock.monotonic(), unjudged)
      }
    },
    invalid: (failure) => noteInvalid(member.upstream.name, spentOn, failure),
  })

  function noteInvalid(name: string, spentOn: string, failure: Failure): void {
    invalidUntil.set(`${name} ${spentOn}`, clock.monotonic() + invalidMs)
    log('warn', 'names.invalid-record', { upstream: name, forMs: invalidMs, why: failure.message })
  }

  const sentInvalid = (name: string, spentOn: string): boolean =>
    (invalidUntil.get(`${name} ${spentOn}`) ?? 0) > clock.monotonic()

  const routed = (spentOn: string): RecordSource[] =>
    routers.flatMap(({ name, record }) => {
      const as = `router ${name}`
      if (sentInvalid(as, spentOn)) return []
      return [{ name: as, record, invalid: (failure) => noteInvalid(as, spentOn, failure) }]
    })

  return (key) => {
    const spentOn = blockKey(key)
    const ready: Member[] = []
    const unhealthy: Member[] = []
    const skipped: Attempt[] = []
    for (const member of pool.members) {
      const { upstream, health } = member
      if (!upstream.record) continue
      const state = sentInvalid(upstream.name, spentOn) ? 'sent-a-false-record' : health.state(spentOn).state
      if (state === 'ready') ready.push(member)
      else if (state === 'unhealthy') unhealthy.push(member)
      else skipped.push({ upstream: upstream.name, outcome: `skipped-${state}`, ms: 0 })
    }
    if (ready.length === 0) ready.push(...unhealthy)
    else
      for (const { upstream } of unhealthy)
        skipped.push({ upstream: upstream.name, outcome: 'skipped-unhealthy', ms: 0 })
    return { ready: [...ready.map((member) => sourceOf(member, spentOn)), ...routed(spentOn)], skipped }
  }
}
