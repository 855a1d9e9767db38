// Resolves /ipns/<name>, keys by their records and domains by their DNSLink, step by step until the
// path ends at content. Callers append the rest of the request's path.
import type { CID } from 'multiformats/cid'
import { type ContentPath, parseRoot } from '../content/resolve.ts'
import { parseKey } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { VisitNames } from '../retrieval/session.ts'
import type { Pool } from '../retrieval/upstreams/pool.ts'
import { txtServers } from './dns-query.ts'
import { createDnsLinks, createSites, type HasLink, type NoLinkMemory } from './dnslink.ts'
import { createIpnsNames, type RecordMemory, type RecordRouter, recordSources } from './ipns.ts'
import { canonicalKey, keyText, type RecordStore } from './ipns-record.ts'
import type { LookupAnswer, LookupMemory, LookupRequest } from './lookups.ts'
import type { SharedRecords } from './shared-records.ts'

export type { LookupRequest } from './lookups.ts'

export type ResolvedName = {
  /** The content path of the name, including the path in its record. */
  readonly path: ContentPath
  /** Checks a path below that CID against the denylists, for each name on the way. */
  readonly visitNames: VisitNames
  /** The freshness of the result: the minimum of all steps. */
  readonly ttlMs: number
  /** Milliseconds since the epoch, after which no cache may serve it. */
  readonly endsAt: number
  /** The source of the last step that was looked up; `memory` if none was. */
  readonly via: string
}

type NameRecord = {
  /** The key, in base36. */
  readonly name: string
  readonly bytes: Uint8Array
  /** The TTL of the record. */
  readonly ttlMs: number
  readonly ageMs: number
  readonly endsAt: number
}

type ResolveRequest = LookupRequest & {
  /** Segments after the name: a denylist may mean only that path. */
  readonly rest?: readonly string[] | undefined
}

export interface Names {
  /** Rejects with a Failure: malformed, not-found, denied, hash-mismatch, timeout, unavailable. */
  resolve(name: string, wants: ResolveRequest): Promise<ResolvedName>
  /**
   * The verified record of a key as bytes. Rejects with `malformed` for a domain, which has none.
   */
  record(name: string, wants: LookupRequest): Promise<NameRecord>
  /**
   * True if a domain has a DNSLink; false if no server responded, so that requests to other hosts
   * are served.
   */
  readonly hasLink: HasLink
  stats(): Readonly<Record<'records' | 'links' | 'flights' | 'stale', number>>
  close(): Promise<void>
}

type NamesSettings = {
  readonly dns: 'system' | readonly string[]
  readonly static: Readonly<Record<string, string>>
  readonly timeout: number
  readonly ttl: { readonly min: number; readonly max: number }
  readonly negativeTtl: number
  readonly maxEntries: number
}

/** The known names. Kept across reloads and closed by the owner. */
export type NamesMemory = {
  /** Records in the data folder. */
  readonly store: RecordStore
  /** Records in the tiers shared by instances. */
  readonly shared: SharedRecords
  readonly records: RecordMemory
  readonly links: LookupMemory<string>
  /** Domains that recently had no link. */
  readonly without: NoLinkMemory
}

const maxSteps = 32

export function createNames(options: {
  readonly settings: NamesSettings
  readonly pool: Pool
  /** Delegated routers, which store records too. */
  readonly routers?: readonly RecordRouter[]
  readonly memory: NamesMemory
  /** Throws a Failure `denied`. Called for each name on the way. */
  readonly visit: (name: string, rest: readonly string[]) => void
  readonly userAgent: string
  readonly clock: Clock
  readonly log: Log
}): Names {
  const { settings, pool, routers, memory, visit, userAgent, clock, log } = options
  const { timeout: deadlineMs, negativeTtl: notFoundMs, maxEntries } = settings
  const bounds = {
    deadlineMs,
    notFoundMs,
    maxEntries,
    clock,
    ttl: { minMs: settings.ttl.min, maxMs: settings.ttl.max },
  }
  const { store, shared, records, links: known, without } = memory
  const ipns = createIpnsNames({
    ...bounds,
    store,
    shared,
    memory: records,
    sources: recordSources({ pool, routers, clock, log }),
  })
  const servers = txtServers(settings.dns, { userAgent, clock })
  const links = createDnsLinks({ ...bounds, servers, memory: known, fixed: settings.static })

  async function step(name: string, wants: LookupRequest): Promise<LookupAnswer<string>> {
    const key = keyOf(name)
    if (!key) return links.resolve(name, wants)
    const answer = await ipns.resolve(key, wants)
    return { ...answer, value: answer.value.value }
  }

  return {
    async resolve(asked, wants) {
      let name = asked
      let below: readonly string[] = []
      const passed: Passed[] = []
      let ttlMs = Number.POSITIVE_INFINITY
      let endsAt = Number.POSITIVE_INFINITY
      let via = 'memory'
      for (let count = 0; count < maxSteps; count++) {
        visit(name, [...below, ...(wants.rest ?? [])])
        passed.push({ name, below })
        const answer = await step(name, wants)
        const [namespace, root, ...names] = answer.value.split('/').filter((part) => part !== '')
        below = [...names.map((one) => checked(one, asked)), ...below]
        ttlMs = Math.min(ttlMs, answer.freshMs)
        endsAt = Math.min(endsAt, answer.endsAt)
        if (answer.via !== 'memory') via = answer.via
        if (root === undefined || (namespace !== 'ipfs' && namespace !== 'ipns')) throw senseless(asked, answer.value)
        if (namespace === 'ipfs') {
          const path = { cid: rootOf(root, asked), segments: below, encoded: below }
          return { path, visitNames: visitor(visit, passed, below), ttlMs, endsAt, via }
        }
        name = root
      }
      throw new Failure(
        'malformed',
        `/ipns/${asked} cannot be resolved: more than ${maxSteps} names point at each other`,
        { source: 'upstream' },
      )
    },

    async record(name, wants) {
      visit(name, [])
      const key = keyOf(name)
      if (!key) {
        const what = `${JSON.stringify(name)} is not an IPNS key: only /ipns/<key> has an IPNS record`
        throw new Failure('malformed', what, { source: 'client' })
      }
      const { value, freshMs, endsAt } = await ipns.resolve(key, wants)
      const ttlMs = Math.min(value.ttlMs, settings.ttl.max)
      // Near the end of the record, its end limits the TTL.
      const isEnding = freshMs >= endsAt - clock.now()
      const ageMs = isEnding ? 0 : Math.max(0, ttlMs - freshMs)
      return { name: keyText(key), bytes: value.bytes, ttlMs: isEnding ? freshMs : ttlMs, ageMs, endsAt }
    },

    hasLink: createSites({
      resolve: (domain, signal) => links.resolve(domain, { signal }),
      maxEntries,
      without,
      clock,
    }),

    stats() {
      const [records, domains] = [ipns.stats(), links.stats()]
      return {
        records: records.kept,
        links: domains.kept,
        flights: records.flights + domains.flights,
        stale: records.stale + domains.stale,
      }
    },

    async close() {
      ipns.close()
      await links.close()
    },
  }
}

/** A name on the way, and the path after it. */
type Passed = { readonly name: string; readonly below: readonly string[] }

/**
 * `base` is the path below the CID that the names add. A path outside of it was not reached through
 * them.
 */
function visitor(
  visit: (name: string, rest: readonly string[]) => void,
  passed: readonly Passed[],
  base: readonly string[],
): VisitNames {
  return (segments) => {
    for (const { name, below } of passed) {
      const count = base.length - below.length
      if (base.slice(0, count).every((one, index) => one === segments[index])) visit(name, segments.slice(count))
    }
  }
}

/** The normalized key; undefined for a possible domain. */
function keyOf(name: string): CID | undefined {
  const cid = name.includes('.') ? undefined : parseKey(name)
  return cid && canonicalKey(cid)
}

/** Spells the key in base36, as in URLs. Undefined for a domain or an invalid key. */
export function spellingOf(name: string): string | undefined {
  try {
    const key = keyOf(name)
    return key && keyText(key)
  } catch {
    return undefined
  }
}

function rootOf(text: string, asked: string): CID {
  try {
    return parseRoot(text)
  } catch (cause) {
    throw senseless(asked, `/ipfs/${text}`, cause)
  }
}

function checked(segment: string, asked: string): string {
  if (segment === '.' || segment === '..' || /\0/.test(segment) || !segment.isWellFormed())
    throw senseless(asked, segment)
  return segment
}

const senseless = (asked: string, value: string, cause?: unknown): Failure =>
  new Failure(
    'malformed',
    `/ipns/${asked} points at ${JSON.stringify(value.slice(0, 200))}, which is not a content path`,
    { source: 'content', cause },
  )
