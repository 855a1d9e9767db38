// Assembles the read side: blocks, names, denylists, and the response cache.

import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import { ConfigError } from '../config/complaints.ts'
import { wordsOf } from '../core/failure.ts'
import { type LoadedDenylists, loadDenylists, openTakedowns } from '../deny/load.ts'
import { createResponseCache, type ResponseCache } from '../http/content/response-cache.ts'
import { createNoLinkMemory } from '../names/dnslink.ts'
import { createRecordMemory } from '../names/ipns.ts'
import { createRecordStore, type QueuedRecord } from '../names/ipns-record.ts'
import { createLookupMemory } from '../names/lookups.ts'
import { createNames, type NamesMemory } from '../names/names.ts'
import { createSharedRecords, type Shelf } from '../names/shared-records.ts'
import { createNegativeCache } from '../retrieval/negative-cache.ts'
import { createRetrieval, type Retrieval } from '../retrieval/retrieval.ts'
import { createPool, type Member } from '../retrieval/upstreams/pool.ts'
import { startProbes } from '../retrieval/upstreams/probes.ts'
import { Finder } from '../routing/finder.ts'
import type { StoreReader } from '../store/store.ts'
import { isWorker } from '../team/team.ts'
import { isInside, joinFound, openRouter, type RouterClient, type WiredUpstream } from './backends.ts'
import type { WiringContext } from './components.ts'
import type { Tiers } from './tiers.ts'

/** The storage of IPNS records; a worker has its owner write them. */
export type RecordPlace = {
  readonly store: Pick<StoreReader, 'read'>
  readonly write: (records: readonly QueuedRecord[], max: number) => Promise<void>
}

export type ReadSide = Awaited<ReturnType<typeof wireReading>>

// The share of the first-byte timeout for upstreams, including the time in their queue.
const shareOfUpstreams = 0.95

export async function wireReading(
  context: WiringContext,
  { stack, shelves }: Pick<Tiers, 'stack' | 'shelves'>,
  upstreams: readonly WiredUpstream[],
  records: RecordPlace,
) {
  const { config, userAgent, clock, turns, log, lease, trace, team } = context
  const { timeout: deadlineMs, blockTimeout, backgroundSearch, readAhead, probeEvery, ...retrieving } = config.retrieval
  const { initialTtl: initialTtlMs, maxTtl: maxTtlMs } = retrieving.negativeCache
  // May reject, so it comes before anything that starts work.
  const denials = await wireDenials(context)
  const { visit, visitName } = denials.lists
  /** Undefined if no router is configured. */
  const finding = takeFinding(context, upstreams)
  const more = finding?.finder
  const timeoutMs = deadlineMs * shareOfUpstreams
  const pool = lease.make(createPool, { members: upstreams, hedge: retrieving.hedgeDelay, clock, timeoutMs, more })
  const arrivalOf = isWorker(team) ? team.uploadEpochs.of : undefined
  // The negative cache is valid only for the same upstreams: a new one may have the content.
  const notFound = lease.take('not found', [upstreams, finding, initialTtlMs, maxTtlMs], () =>
    createNegativeCache({ initialTtlMs, maxTtlMs, clock, arrivalOf }),
  )
  const shared = lease.make(createRetrieval, {
    ...{ stack, pool, notFound, clock, turns, log, trace, deadlineMs },
    blockDeadlineMs: blockTimeout,
    keepLookingMs: backgroundSearch,
    readAheadBytes: readAhead,
  })
  const names = lease.make(createNames, {
    ...{ settings: config.names, pool, routers: finding?.routers ?? [], visit: visitName, userAgent, clock, log },
    memory: takeNamesMemory(context, shelves, records),
  })
  lease.make(startProbes, { pool, everyMs: probeEvery, clock, log })
  return {
    pool,
    finding,
    // Every session of this gateway checks its denylists. The retrieval itself may be taken over by
    // a gateway with others.
    retrieval: lease.take('retrieval for readers', [shared, denials.lists], (): Retrieval => {
      return { ...shared, session: (request) => shared.session({ ...request, visit }) }
    }),
    hot: takeHot(context),
    denials,
    names,
  }
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
  const { dns, static: links, ttl, negativeTtl: notFound, maxEntries } = config.names
  return {
    store: lease.open('records on the disk', [store, maxEntries], () =>
      createRecordStore({ store, write: (records) => write(records, maxEntries), log }),
    ),
    shared: lease.make(createSharedRecords, { shelves, clock, log }),
    records: lease.take('records', [store, ttl, notFound, maxEntries], () => createRecordMemory(maxEntries)),
    links: lease.take('links', [dns, links, ttl, notFound, maxEntries], () => createLookupMemory<string>(maxEntries)),
    without: lease.take('without link', [dns, links, maxEntries], () => createNoLinkMemory(maxEntries)),
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
  const { routers: entries, probeEvery: probeMs, upstreams: configured } = config.retrieval
  if (entries.length === 0) return undefined
  const asked = [config.public, ...configured.map(({ options }) => (options as { url?: string }).url)].flatMap(originOf)
  return lease.take(
    'finding',
    [entries, userAgent, probeMs, asked, upstreams],
    () => {
      const routers = entries.map((entry) => openRouter(entry, { userAgent, clock, trace }))
      // By the client, since a router without a name in its entry has a default one.
      const isOpen = (router: string) =>
        entries[routers.findIndex(({ name }) => name === router)]?.allowPrivate === true
      const finder = new Finder<Member>({
        routers: entries.map(({ timeout: timeoutMs, allowPrivate, allowHttp, ports }, index) => {
          const { name, providers } = routers[index] as RouterClient
          return { name, providers, timeoutMs, rules: { allowPrivate, allowHttp, ports, isInside } }
        }),
        join: (origin, router) => joinFound(context, origin, { router, allowPrivate: isOpen(router) }),
        leave: ({ upstream }) => upstream.close(),
        isKnown: (origin) => asked.includes(origin),
        ...{ probeMs, clock, log },
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

/** Reads all lists, at a start and at a reload. Rejects with a ConfigError if one cannot be read. */
async function wireDenials({ config: { denylists, data }, userAgent, clock, log, lease }: WiringContext) {
  const folder = join(data, 'denylists')
  const hots = lease.take('every hot', [], () => new Set<ResponseCache>())
  const onChange = () => {
    for (const hot of hots) hot.clear()
  }
  // Kept apart from the other lists, so that a takedown during a reload also applies to the gateway
  // that is being created.
  const opening = lease.take('takedowns', [data], () =>
    openTakedowns({ file: join(folder, 'takedowns.deny'), onChange, log }),
  )
  let isNew = false
  const loading = lease.take(
    'denylists',
    [denylists, data, userAgent],
    () => {
      isNew = true
      return opening.then((takedowns) =>
        loadDenylists(denylists, { clock, log, userAgent, folder, onChange, takedowns }),
      )
    },
    (loaded) =>
      loaded.then(
        (lists) => lists.close(),
        () => {},
      ),
  )
  try {
    const [takedowns, lists] = await Promise.all([opening, loading])
    if (!isNew) await lists.refresh()
    const newest = lease.take('newest denials', [], () => createNewestDenials(lists))
    return {
      lists,
      takedowns,
      admit: newest.admit,
      /** Makes this the newest gateway. */
      begin: () => newest.follow(lists),
    }
  } catch (error) {
    throw new ConfigError([`denylists: ${wordsOf(error)}`])
  }
}

/**
 * Checks a block to store against the newest gateway's denylists, even if the upload began before
 * that gateway.
 */
function createNewestDenials({ visit: first }: Pick<LoadedDenylists, 'visit'>) {
  let newest = first
  return {
    admit: (cid: CID): void => newest(cid, []),
    follow({ visit }: Pick<LoadedDenylists, 'visit'>): void {
      newest = visit
    },
  }
}
