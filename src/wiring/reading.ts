// Assembles the read side: blocks, names, denylists, and the response cache.

import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import { ConfigError } from '../config/complaints.ts'
import { type DenylistsWithTakedowns, loadDenylists, openTakedowns, withTakedowns } from '../deny/load.ts'
import { createResponseCache, type ResponseCache } from '../http/content/response-cache.ts'
import { createNoLinkMemory } from '../names/dnslink.ts'
import { createRecordMemory } from '../names/ipns.ts'
import { createRecordStore, type QueuedRecord } from '../names/ipns-record.ts'
import { createLookupMemory } from '../names/lookups.ts'
import { createNames, type Names, type NamesMemory } from '../names/names.ts'
import { createSharedRecords, type Shelf } from '../names/shared-records.ts'
import { createNegativeCache } from '../retrieval/negative-cache.ts'
import { createRetrieval } from '../retrieval/retrieval.ts'
import { type Retrieval, withVisit } from '../retrieval/session.ts'
import { createPool, type Member, type Pool } from '../retrieval/upstreams/pool.ts'
import { startProbes } from '../retrieval/upstreams/probes.ts'
import { createFinder, type Finder } from '../routing/finder.ts'
import type { StoreReader } from '../store/store.ts'
import { isWorker } from '../team/team.ts'
import { isInside, joinFound, openRouter, type RouterClient, type WiredUpstream } from './backends.ts'
import type { Tiers } from './tiers.ts'
import type { WiringContext } from './wiring-context.ts'

/** The storage of IPNS records; a worker has its owner write them. */
export type RecordPlace = {
  readonly store: Pick<StoreReader, 'read'>
  readonly write: (records: readonly QueuedRecord[], max: number) => Promise<void>
}

export type ReadSide = {
  readonly pool: Pool
  /** Undefined if no router is configured. */
  readonly finding: Finding | undefined
  readonly retrieval: Retrieval
  readonly hot: ResponseCache
  readonly denials: Denials
  readonly names: Names
}

// The share of the first-byte timeout for upstreams, including the time in their queue.
const shareOfUpstreams = 0.95

type ReadSources = Pick<Tiers, 'stack' | 'shelves'> & {
  readonly upstreams: readonly WiredUpstream[]
  readonly records: RecordPlace
}

export async function wireReading(
  context: WiringContext,
  { stack, shelves, upstreams, records }: ReadSources,
): Promise<ReadSide> {
  const { config, clock, log, lease, turns, trace, team } = context
  const { timeout, blockTimeout, hedgeDelay: hedge, probeEvery, backgroundSearch, readAhead } = config.retrieval
  const { initialTtl: initialTtlMs, maxTtl: maxTtlMs } = config.retrieval.negativeCache
  const timeoutMs = timeout * shareOfUpstreams
  // May reject, so it comes before anything that starts work.
  const denials = await wireDenials(context)
  const finding = takeFinding(context, upstreams)
  const pool = lease.take('pool', [upstreams, hedge, timeoutMs, finding], () =>
    createPool({ members: upstreams, hedge, clock, timeoutMs, more: finding?.finder }),
  )
  // The negative cache is valid only for the same upstreams: a new one may have the content.
  const notFound = lease.take('not found', [upstreams, finding, initialTtlMs, maxTtlMs], () =>
    createNegativeCache({
      ...{ initialTtlMs, maxTtlMs, clock },
      arrivalOf: isWorker(team) ? team.uploadEpochs.of : undefined,
    }),
  )
  const retrieval = lease.open(
    'retrieval',
    [stack, pool, notFound, timeout, blockTimeout, backgroundSearch, readAhead],
    () =>
      createRetrieval({
        ...{ stack, pool, notFound, clock, turns, log, trace },
        deadlineMs: timeout,
        blockDeadlineMs: blockTimeout,
        keepLookingMs: backgroundSearch,
        readAheadBytes: readAhead,
      }),
  )
  lease.open('probes', [pool, probeEvery], () => startProbes({ pool, everyMs: probeEvery, clock, log }))
  return {
    ...{ pool, finding, denials, hot: takeHot(context) },
    // Every session of this gateway checks its denylists. The retrieval itself may be taken over by
    // a gateway with others.
    retrieval: lease.take('retrieval for readers', [retrieval, denials.lists], () =>
      withVisit(retrieval, denials.visit),
    ),
    names: takeNames(context, { pool, shelves, records, denials, finding }),
  }
}

function takeNames(
  context: WiringContext,
  parts: Pick<ReadSide, 'pool' | 'denials' | 'finding'> & Pick<ReadSources, 'shelves' | 'records'>,
): Names {
  const { pool, shelves, records, denials, finding } = parts
  const routers = finding?.routers ?? []
  const { config, userAgent, clock, log, lease } = context
  const memory = takeNamesMemory(context, shelves, records)
  return lease.open('names', [Object.values(memory), pool, routers, denials.lists, config.names, userAgent], () =>
    createNames({ settings: config.names, pool, routers, memory, visit: denials.visitName, userAgent, clock, log }),
  )
}

/**
 * DNS answers are dropped when the DNS servers or their options change; IPNS records are
 * self-certifying and stay.
 */
function takeNamesMemory(
  { config, clock, log, lease }: WiringContext,
  shelves: readonly Shelf[],
  { store, write }: RecordPlace,
): NamesMemory {
  const { dns, static: links, ttl, negativeTtl: notFound, maxEntries: most } = config.names
  return {
    store: lease.open('records on the disk', [store, most], () =>
      createRecordStore({ store, write: (records) => write(records, most), log }),
    ),
    shared: lease.open('records in shared tiers', [shelves], () => createSharedRecords({ shelves, clock, log })),
    records: lease.take('records', [store, ttl, notFound, most], () => createRecordMemory(most)),
    links: lease.take('links', [dns, links, ttl, notFound, most], () => createLookupMemory<string>(most)),
    without: lease.take('without link', [dns, links, most], () => createNoLinkMemory(most)),
  }
}

/** The response cache, kept only if nothing that affects responses changed. */
function takeHot({ config, lease }: WiringContext): ResponseCache {
  const { cache, responses, hosts, names, trustedProxies, denylists } = config
  const hots = lease.take('every hot', [], () => new Set<ResponseCache>())
  return lease.take(
    'hot',
    [cache.responses, responses, hosts, names, trustedProxies, denylists],
    () => {
      const hot = createResponseCache(cache.responses)
      hots.add(hot)
      return hot
    },
    (hot) => hots.delete(hot),
  )
}

type Finding = { readonly finder: Finder<Member>; readonly routers: readonly RouterClient[] }

/** Undefined if no router is configured. */
function takeFinding(context: WiringContext, upstreams: readonly WiredUpstream[]): Finding | undefined {
  const { config, userAgent, clock, log, lease, trace } = context
  const { routers: entries, timeout: deadline, probeEvery, upstreams: configured } = config.retrieval
  if (entries.length === 0) return undefined
  const asked = new Set(configured.flatMap(({ options }) => originOf((options as { url?: string }).url)))
  for (const origin of originOf(config.public)) asked.add(origin)
  return lease.take(
    'finding',
    [entries, userAgent, deadline, probeEvery, [...asked], upstreams],
    () => {
      const routers = entries.map((entry) => openRouter(entry, { userAgent, clock, trace }))
      const mayBePrivate = new Map(routers.map(({ name }, index) => [name, entries[index]?.allowPrivate === true]))
      const finder = createFinder<Member>({
        routers: routers.map(({ name, providers }, index) => {
          const { timeout, allowPrivate, allowHttp, ports } = entries[index] as (typeof entries)[number]
          return { name, providers, timeoutMs: timeout, rules: { allowPrivate, allowHttp, ports, isInside } }
        }),
        join: (origin, router) =>
          joinFound(context, origin, { router, allowPrivate: mayBePrivate.get(router) === true }),
        leave: ({ upstream }) => upstream.close(),
        isKnown: (origin) => asked.has(origin),
        probeMs: probeEvery,
        clock,
        log,
      })
      return { finder, routers }
    },
    async ({ finder, routers }) => {
      await finder.close()
      await Promise.all(routers.map((router) => router.close()))
    },
  )
}

const originOf = (url: string | undefined): readonly string[] =>
  url !== undefined && URL.canParse(url) ? [new URL(url).origin] : []

type Denials = {
  readonly lists: DenylistsWithTakedowns
  readonly visit: DenylistsWithTakedowns['visit']
  readonly visitName: DenylistsWithTakedowns['visitName']
  /**
   * Checks a block to store against the newest gateway's denylists, even if the upload began before
   * that gateway.
   */
  readonly admit: (cid: CID) => void
  /** Adds a CID to the list of takedowns, even if another list denies it already. */
  readonly takeDown: DenylistsWithTakedowns['takeDown']
  /** Makes this the newest gateway. */
  begin(): void
}

/**
 * Reads all lists, at a start and at a reload. Rejects with a ConfigError if one cannot be read.
 */
async function wireDenials(context: WiringContext): Promise<Denials> {
  const { lists, isNew } = takeLists(context)
  const loaded = await lists
    .then(async (kept) => {
      if (!isNew) await kept.refresh()
      return kept
    })
    .catch((error: unknown) => {
      throw new ConfigError([`denylists: ${error instanceof Error ? error.message : error}`])
    })
  const { visit, visitName, takeDown } = loaded
  const newest = context.lease.take('newest denials', [], () => ({ visit }))
  return {
    lists: loaded,
    visit,
    visitName,
    admit: (cid) => newest.visit(cid, []),
    takeDown,
    begin() {
      newest.visit = visit
    },
  }
}

function takeLists(context: WiringContext): { lists: Promise<DenylistsWithTakedowns>; isNew: boolean } {
  const { config, userAgent, clock, log, lease } = context
  const { denylists, data } = config
  const folder = join(data, 'denylists')
  const hots = lease.take('every hot', [], () => new Set<ResponseCache>())
  const onChange = () => {
    for (const hot of hots) hot.clear()
  }
  // Kept apart from the other lists, so that a takedown during a reload also applies to the gateway
  // that is being created.
  const takedowns = lease.take('takedowns', [data], () =>
    openTakedowns({ file: join(folder, 'takedowns.deny'), onChange, log }),
  )
  let isNew = false
  const lists = lease.take(
    'denylists',
    [denylists, data, userAgent],
    () => {
      isNew = true
      return loadDenylists(denylists, { clock, log, userAgent, folder, onChange }).then((loaded) =>
        takedowns
          .then(async (opened) => {
            await opened.refresh()
            return withTakedowns(loaded, opened)
          })
          .catch((error: unknown) => {
            loaded.close()
            throw error
          }),
      )
    },
    (loading) =>
      loading.then(
        (loaded) => loaded.close(),
        () => {},
      ),
  )
  takedowns.catch(() => {}) // reported by the lists
  return { lists, isNew }
}
