// All metrics of a gateway, in output order.

import type { TierUsage } from '../../backends/tiers/contract.ts'
import type { Clock } from '../core/clock.ts'
import type { Names } from '../names/names.ts'
import { counter, gauge, histogram, labelled, type Reading, type Sample, stateset, sum } from '../observe/metrics.ts'
import type { Histogram, RequestCounts, UploadCounts } from '../observe/requests.ts'
import type { SpanCounts } from '../observe/tracing.ts'
import type { Retrieval } from '../retrieval/retrieval.ts'
import type { TierStats } from '../retrieval/tiers/tier-stack.ts'
import type { Member, Pool } from '../retrieval/upstreams/pool.ts'
import { upstreamStates } from '../retrieval/upstreams/upstream-health.ts'
import type { Waiting } from '../store/store.ts'
import type { WaitingUpload } from '../upload/api-types.ts'
import type { PinCount } from '../upload/pins.ts'
import type { Quota } from '../upload/quotas.ts'
import type { Announced, Check, Processes, Router } from './dashboard/shape.ts'

export type MetricParts = {
  readonly http: HttpParts
  readonly upstreams: UpstreamParts
  readonly announced?: (() => Announced | undefined) | undefined
  readonly tiers: TierParts
  readonly uploads: UploadParts
  readonly gateway: GatewayParts
  readonly process: { readonly readings: readonly Reading[] }
  /** Undefined for a single process. */
  readonly processes?: (() => Processes) | undefined
}

export const readingsOf = (parts: MetricParts): readonly Reading[] => [
  ...httpMetrics(parts.http),
  ...upstreamMetrics(parts.upstreams),
  ...announcedMetrics(parts.announced),
  ...tierMetrics(parts.tiers),
  ...uploadMetrics(parts.uploads),
  ...gatewayMetrics(parts.gateway),
  ...processMetrics(parts.processes),
  ...parts.process.readings,
]

export type ConnectionCounts = {
  readonly size: number
  readonly limit: number
  /** Connections paused to throttle their client. */
  readonly paused: number
  /** By the limit that was reached. */
  readonly tally: Readonly<Record<string, { readonly ended: number; readonly refused: number }>>
}

/** Undefined `connections` if another program opened the address. */
export type ServerParts = { connections?: ConnectionCounts }

export type HttpParts = {
  readonly server: ServerParts
  readonly requests: RequestCounts
  readonly limits: {
    readonly inFlight: number
    readonly concurrency: number
    readonly shed: number
    readonly rateLimited: Readonly<Record<string, number>>
    readonly isStoreDown: boolean
  }
  readonly pendingResponses: { readonly bytes: number; readonly cut: number }
  readonly responses: { readonly bytes: number; readonly items: number; readonly maxBytes: number }
  readonly compressions: { readonly made: Readonly<Record<string, number>>; readonly busy: number }
}

const httpMetrics = ({
  requests,
  limits,
  pendingResponses,
  responses,
  compressions,
  server,
}: HttpParts): readonly Reading[] => [
  counter(
    'cidgate_http_requests_total',
    'Requests by route, method, status (499: the client left first) and source of the bytes: responses (the cache), a tier, upstream or none.',
    requests.requests,
    ['route', 'method', 'status', 'source'],
  ),
  sum('cidgate_http_requests_in_progress', 'Requests in progress.', () => limits.inFlight),
  sum(
    'cidgate_http_concurrency_limit',
    'The current limit of concurrent requests: limits.maxConcurrentRequests, or fewer while the event loop is late (limits.maxEventLoopDelay).',
    () => limits.concurrency,
  ),
  counter(
    'cidgate_http_responses_aborted_total',
    'Responses that the client did not receive completely: it left or stalled, or the bytes were unavailable.',
    requests.cut,
    ['route'],
  ),
  histogram(
    'cidgate_http_time_to_first_byte_seconds',
    'Time from the request to the status of its response, without cached responses.',
    requests.firstByte,
    ['route', 'source'],
  ),
  histogram(
    'cidgate_http_request_duration_seconds',
    "Time from the request to the end of its response at the client's pace, without cached responses.",
    requests.duration,
    ['route', 'source'],
  ),
  counter('cidgate_http_request_body_bytes_total', 'Received bytes of request bodies.', requests.bytesIn, ['route']),
  counter('cidgate_http_response_body_bytes_total', 'Written bytes of response bodies.', requests.bytesOut, [
    'route',
    'source',
  ]),
  counter('cidgate_failures_total', 'Failed requests and library calls, by kind of failure.', requests.failures, [
    'kind',
  ]),
  counter(
    'cidgate_http_requests_shed_total',
    'Requests refused with 503: limits.maxConcurrentRequests was reached, or the event loop was late.',
    () => limits.shed,
  ),
  counter(
    'cidgate_http_requests_rate_limited_total',
    'Requests refused with 429, by the limit of limits.perClient that was reached: requests, misses, exports or uploads.',
    () => labelled('limit', Object.entries(limits.rateLimited)),
    ['limit'],
  ),
  gauge(
    'cidgate_rate_limit_store_up',
    '1 if limits.sharedStore is reachable or not set; 0 if this instance counts its clients alone.',
    () => (limits.isStoreDown ? 0 : 1),
  ),
  counter(
    'cidgate_http_connections_paused_total',
    'Pauses of connections whose clients ignored Retry-After.',
    () => server.connections?.paused ?? 0,
  ),
  sum(
    'cidgate_http_pending_response_bytes',
    'Memory of responses whose clients read slowly.',
    () => pendingResponses.bytes,
  ),
  counter(
    'cidgate_http_slow_clients_closed_total',
    'Slow clients disconnected because of limits.maxPendingResponseBytes.',
    () => pendingResponses.cut,
  ),
  ...connectionMetrics(server),
  counter('cidgate_library_reads_total', 'Reads by a program with get(), by source.', requests.programReads, [
    'source',
  ]),
  sum('cidgate_response_cache_bytes', 'Bytes in the response cache.', () => responses.bytes),
  sum(
    'cidgate_response_cache_limit_bytes',
    'The limit of the response cache (cache.responses.maxBytes).',
    () => responses.maxBytes,
  ),
  counter(
    'cidgate_compressions_total',
    'Compressed responses; a cached one is compressed once for each coding.',
    () => labelled('coding', Object.entries(compressions.made)),
    ['coding'],
  ),
  counter(
    'cidgate_compressions_skipped_total',
    'Responses sent uncompressed because of the limit of concurrent compressions.',
    () => compressions.busy,
  ),
]

const connectionMetrics = (server: ServerParts): readonly Reading[] => {
  const one = (read: 'size' | 'limit') => () => (server.connections ? [{ value: server.connections[read] }] : [])
  const byLimit = (read: 'ended' | 'refused') => () =>
    Object.entries(server.connections?.tally ?? {}).map(([limit, tally]) => ({ labels: { limit }, value: tally[read] }))
  return [
    sum('cidgate_connections', 'Open connections at the public address.', one('size')),
    sum(
      'cidgate_connections_limit',
      'The limit of connections: limits.maxConnections, or three quarters of the file descriptors of this process.',
      one('limit'),
    ),
    counter(
      'cidgate_connections_refused_total',
      'Connections refused with 503 because all were busy, by the limit that was reached: maxConnections or maxConnectionsPerClient.',
      byLimit('refused'),
      ['limit'],
    ),
    counter(
      'cidgate_connections_ended_total',
      'Idle connections closed in favour of a new one, by the limit that was reached.',
      byLimit('ended'),
      ['limit'],
    ),
  ]
}

type UpstreamParts = {
  readonly pool: Pick<Pool, 'members'>
  readonly finder?: { routers(): readonly Router[] } | undefined
  readonly retrieval: Pick<Retrieval, 'stats'>
  readonly names: Pick<Names, 'stats'>
}

function upstreamMetrics({ pool, finder, retrieval, names }: UpstreamParts): readonly Reading[] {
  const { members } = pool
  const byUpstream = (read: (member: Member) => number): Iterable<Sample> =>
    labelled(
      'upstream',
      members.map((member) => [member.upstream.name, read(member)]),
    )
  const histograms = (which: 'firstByte' | 'duration') => () =>
    members.map(({ upstream, health }) => ({
      labels: { upstream: upstream.name },
      histogram: health.measured[which],
    }))
  return [
    counter(
      'cidgate_upstream_requests_total',
      'Requests to an upstream.',
      () => byUpstream(({ health }) => health.counts.asked),
      ['upstream'],
    ),
    counter(
      'cidgate_upstream_outcomes_total',
      'Requests to an upstream by outcome: won, lost (another was faster), not_found, throttled, failed or hash_mismatch.',
      () =>
        members.flatMap(({ upstream, health }) =>
          Object.entries(health.counts)
            .filter(([outcome]) => outcome !== 'asked')
            .map(([outcome, value]) => ({ labels: { upstream: upstream.name, outcome: snake(outcome) }, value })),
        ),
      ['upstream', 'outcome'],
    ),
    counter(
      'cidgate_upstream_received_bytes_total',
      'Verified bytes from an upstream.',
      () => byUpstream(({ health }) => health.measured.bytes),
      ['upstream'],
    ),
    histogram(
      'cidgate_upstream_time_to_first_byte_seconds',
      'Time from a request to its first verified bytes.',
      histograms('firstByte'),
      ['upstream'],
    ),
    histogram(
      'cidgate_upstream_request_duration_seconds',
      'Time from a request to its end, with any outcome.',
      histograms('duration'),
      ['upstream'],
    ),
    gauge(
      'cidgate_upstream_state',
      'A state set: 1 for the state of the upstream, 0 for the others (docs/upstreams.md).',
      () =>
        members.flatMap(({ upstream, health }) =>
          stateset('state', upstreamStates, health.state('').state, { upstream: upstream.name }),
        ),
      ['upstream', 'state'],
    ),
    sum(
      'cidgate_retrieval_queued_requests',
      'Content requests waiting for admission: eight start in each event-loop iteration.',
      () => retrieval.stats().toBegin,
    ),
    gauge(
      'cidgate_fetches_in_progress',
      'Fetches from upstreams in progress, by kind: block or dag.',
      () => {
        const { blockFlights: block, dagFlights: dag } = retrieval.stats()
        return labelled('kind', Object.entries({ block, dag }))
      },
      ['kind'],
    ),
    gauge(
      'cidgate_background_searches',
      'Background searches that continue after a 404.',
      () => retrieval.stats().searches,
    ),
    gauge('cidgate_negative_cache_entries', 'CIDs in the negative cache.', () => retrieval.stats().notFoundRoots),
    counter(
      'cidgate_router_lookups_total',
      'Lookups at a router, by outcome: named (a usable gateway), none or failed.',
      () =>
        (finder?.routers() ?? []).flatMap(({ name: router, lookups, named, failures }) => [
          { labels: { router, outcome: 'named' }, value: named },
          { labels: { router, outcome: 'none' }, value: Math.max(0, lookups - named - failures) },
          { labels: { router, outcome: 'failed' }, value: failures },
        ]),
      ['router', 'outcome'],
    ),
    gauge(
      'cidgate_names_known',
      'Cached names, by kind: records (IPNS) or links (DNSLink).',
      () => {
        const { records, links } = names.stats()
        return labelled('kind', Object.entries({ records, links }))
      },
      ['kind'],
    ),
    gauge('cidgate_names_lookups', 'Name lookups in progress.', () => names.stats().flights),
    counter('cidgate_names_stale_answers_total', 'Responses with a stale name.', () => names.stats().stale),
  ]
}

const snake = (text: string): string => text.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)

/** Undefined if nothing is announced. */
function announcedMetrics(announced: (() => Announced | undefined) | undefined): readonly Reading[] {
  const by = (read: (one: Announced['indexers'][number]) => number) => () =>
    labelled(
      'indexer',
      (announced?.()?.indexers ?? []).map((one) => [one.name, read(one)]),
    )
  return [
    gauge(
      'cidgate_announce_confirmed',
      '1 if the indexer confirms the newest advertisement.',
      by(({ lagMs, confirmed }) => (confirmed !== undefined && lagMs === 0 ? 1 : 0)),
      ['indexer'],
    ),
    gauge(
      'cidgate_announce_lag_seconds',
      'Time for which the indexer has not confirmed the newest advertisement.',
      by(({ lagMs }) => lagMs / 1000),
      ['indexer'],
    ),
  ]
}

export type TierParts = {
  readonly stack: { stats(): readonly TierStats[] }
  readonly guards: readonly {
    readonly name: string
    readonly isDown: boolean
    readonly took: { readonly reads: Histogram; readonly writes: Histogram }
  }[]
  /** Usage as tiers report it. */
  readonly usage: () => readonly { readonly tier: string; readonly usage: TierUsage }[]
}

const results = { hits: 'hit', misses: 'miss', outages: 'outage' } as const

function tierMetrics({ stack, guards, usage }: TierParts): readonly Reading[] {
  const used = (what: keyof TierUsage) => (): Sample[] =>
    usage().flatMap(({ tier, usage: one }) => (one[what] === undefined ? [] : [{ labels: { tier }, value: one[what] }]))
  const took = (what: 'reads' | 'writes') => () =>
    guards.map((guard) => ({ labels: { tier: guard.name }, histogram: guard.took[what] }))
  return [
    counter(
      'cidgate_tier_lookups_total',
      'Tier lookups by result: hit, miss, or outage (failed or too late).',
      () =>
        stack.stats().flatMap((stats) =>
          Object.entries(results).map(([key, result]) => ({
            labels: { tier: stats.tier, result },
            value: stats[key as keyof typeof results],
          })),
        ),
      ['tier', 'result'],
    ),
    counter(
      'cidgate_tier_writes_total',
      'Writes to a slow tier in blocks, by outcome: written, dropped (queue full) or failed.',
      () =>
        stack.stats().flatMap(({ tier, written, dropped, failed }) =>
          Object.entries({ written, dropped, failed }).map(([outcome, value]) => ({
            labels: { tier, outcome },
            value,
          })),
        ),
      ['tier', 'outcome'],
    ),
    gauge(
      'cidgate_tier_write_queue_blocks',
      'Blocks in the write queue of a slow tier.',
      () => stack.stats().map(({ tier, queued }) => ({ labels: { tier }, value: queued })),
      ['tier'],
    ),
    gauge(
      'cidgate_tier_write_queue_bytes',
      'Bytes in the write queue; the limit is cache.writeQueueBytes.',
      () => stack.stats().map(({ tier, queuedBytes }) => ({ labels: { tier }, value: queuedBytes })),
      ['tier'],
    ),
    counter(
      'cidgate_tier_corrupt_blocks_total',
      'Blocks in a tier that did not match their CID.',
      () => stack.stats().map(({ tier, corrupt }) => ({ labels: { tier }, value: corrupt })),
      ['tier'],
    ),
    gauge(
      'cidgate_tier_bytes',
      'Bytes stored in a local tier; a lower bound for a disk tier until its folder has been scanned.',
      used('bytes'),
      ['tier'],
    ),
    gauge('cidgate_tier_limit_bytes', 'The limit of a local tier (maxBytes).', used('limitBytes'), ['tier']),
    gauge(
      'cidgate_tier_circuit_open',
      '1 while the circuit breaker of a tier is open: its last calls failed, so it is skipped.',
      () => guards.map(({ name, isDown }) => ({ labels: { tier: name }, value: isDown ? 1 : 0 })),
      ['tier'],
    ),
    histogram('cidgate_tier_read_duration_seconds', 'Duration of reads from a slow tier.', took('reads'), ['tier']),
    histogram('cidgate_tier_write_duration_seconds', 'Duration of writes to a slow tier.', took('writes'), ['tier']),
  ]
}

/** The daily quota (UTC) of a token, and its use today. */
export type QuotaState = {
  readonly token: string
  readonly quota: Quota
  readonly used: { readonly uploads: number; readonly bytes: number }
  readonly refused: number
}

export type UploadParts = {
  readonly uploads: UploadCounts
  readonly quotas: () => readonly QuotaState[]
  /** Pending deliveries to providers and shared tiers; undefined if nothing is stored. */
  readonly waiting?: (() => Promise<Waiting>) | undefined
  /** The pending uploads, oldest first. */
  readonly waitingPage?: ((limit: number) => Promise<readonly WaitingUpload[]>) | undefined
  readonly pins: () => PinCount | undefined
  readonly checks: () => readonly Check[]
  readonly disk: () => Promise<{ readonly freeBytes: number; readonly bytes: number } | undefined>
  readonly clock: Clock
}

export const nothingWaits: Waiting = { uploads: 0, bytes: 0, oldestAt: undefined, holders: [] }

function uploadMetrics(parts: UploadParts): readonly Reading[] {
  const { uploads, quotas, pins, checks, disk, clock } = parts
  let asked: Promise<Waiting> | undefined
  /** Queried once for all series of a scrape. */
  const waiting = (): Promise<Waiting> => {
    asked ??= (parts.waiting?.() ?? Promise.resolve(nothingWaits)).finally(() => {
      asked = undefined
    })
    return asked
  }
  return [
    counter(
      'cidgate_uploads_total',
      'Uploads by outcome: accepted, or the kind of failure. A wrong token or form counts in cidgate_http_requests_total only.',
      uploads.outcomes,
      ['outcome'],
    ),
    counter('cidgate_uploaded_bytes_total', 'Bytes of the blocks of accepted uploads.', uploads.bytes),
    ...quotaMetrics(quotas),
    counter(
      'cidgate_provider_requests_total',
      'Pin requests by provider and outcome: pinned, or the class of failure.',
      uploads.attempts,
      ['provider', 'outcome'],
    ),
    histogram(
      'cidgate_provider_request_duration_seconds',
      'Duration of pin requests by provider.',
      () => uploads.took.read(),
      ['provider'],
    ),
    gauge(
      'cidgate_provider_up',
      '1 if the last check of a provider passed.',
      () =>
        checks().flatMap(({ name, ok }) => {
          const [, provider] = /^(?:provider|through) (.+)$/.exec(name) ?? []
          return provider === undefined ? [] : [{ labels: { provider }, value: ok ? 1 : 0 }]
        }),
      ['provider'],
    ),
    gauge('cidgate_journal_uploads', 'Uploads that a provider or shared tier lacks.', async () => [
      { value: (await waiting()).uploads },
    ]),
    gauge('cidgate_journal_bytes', 'Their bytes.', async () => [{ value: (await waiting()).bytes }]),
    gauge(
      'cidgate_journal_waiting_uploads',
      'Uploads pending at a provider.',
      async () => {
        const { holders } = await waiting()
        return holders.flatMap(({ holder: provider, kind, uploads: value }) =>
          kind === 'tier' ? [] : [{ labels: { provider }, value }],
        )
      },
      ['provider'],
    ),
    gauge('cidgate_journal_oldest_seconds', 'Age of the oldest pending upload; 0 if there is none.', async () => {
      const now = clock.now()
      return [{ value: Math.max(0, now - ((await waiting()).oldestAt ?? now)) / 1000 }]
    }),
    gauge('cidgate_pins', 'Pins at the last count, which runs rarely if there are many; absent before the first.', () =>
      known(pins()?.pins),
    ),
    gauge('cidgate_pins_bytes', 'Bytes of all pins; shared blocks count for each pin.', () => known(pins()?.bytes)),
    gauge('cidgate_provider_pins', 'Pins held by a provider.', () => labelled('provider', pins()?.pinned ?? []), [
      'provider',
    ]),
    gauge(
      'cidgate_data_free_bytes',
      'Free bytes for this user on the disk of the data folder.',
      async () => (await disk().then((one) => one && [{ value: one.freeBytes }])) ?? [],
    ),
    gauge(
      'cidgate_data_size_bytes',
      'Size of the disk of the data folder.',
      async () => (await disk().then((one) => one && [{ value: one.bytes }])) ?? [],
    ),
  ]
}

const known = (value: number | undefined) => (value === undefined ? [] : [{ value }])

function quotaMetrics(quotas: () => readonly QuotaState[]): readonly Reading[] {
  const each = (value: (state: QuotaState) => number | undefined) => () =>
    quotas().flatMap((state) => known(value(state)).map((one) => ({ labels: { token: state.token }, ...one })))
  const one = (name: string, help: string, value: (state: QuotaState) => number | undefined): Reading => ({
    ...{ name: `cidgate_token_${name}`, labels: ['token'], kind: 'gauge', help, read: each(value) },
  })
  return [
    one('used_uploads', 'Accepted uploads today (UTC) with a token that has a quota.', ({ used }) => used.uploads),
    one('limit_uploads', 'The daily limit (quota.uploads).', ({ quota }) => quota.uploads),
    one('used_bytes', 'Bytes of accepted uploads today (UTC) with a token that has a quota.', ({ used }) => used.bytes),
    one('limit_bytes', 'The daily limit (quota.bytes).', ({ quota }) => quota.bytes),
    counter(
      'cidgate_token_quota_refusals_total',
      'Uploads refused with 429 because the quota of their token was used up.',
      each(({ refused }) => refused),
      ['token'],
    ),
  ]
}

type GatewayParts = {
  readonly version: string
  readonly reloads: ReloadCounts
  readonly denylists: {
    readonly rules: number
    lists(): readonly { readonly where: string; readonly checkedAt: number }[]
  }
  readonly log: { readonly lost?: () => number }
  /** Undefined if spans are off. */
  readonly spans: { readonly counts: Readonly<SpanCounts> } | undefined
}

/** Counts configuration reloads. Shared by successive gateways. */
export type ReloadCounts = { accepted: number; refused: number; lastAcceptedAt: number; wasLastAccepted: boolean }

const gatewayMetrics = ({ version, reloads, denylists, log, spans }: GatewayParts): readonly Reading[] => [
  gauge('cidgate_build_info', 'The version of cidgate; always 1.', () => [{ labels: { version }, value: 1 }], [
    'version',
  ]),
  counter(
    'cidgate_config_reloads_total',
    'Configuration reloads by outcome: accepted, or refused (the log has the reason).',
    () => labelled('outcome', Object.entries({ accepted: reloads.accepted, refused: reloads.refused })),
    ['outcome'],
  ),
  gauge('cidgate_config_last_reload_successful', '1 if the last reload was accepted, or before the first.', () =>
    reloads.wasLastAccepted ? 1 : 0,
  ),
  gauge(
    'cidgate_config_last_reload_success_timestamp_seconds',
    'Time since the epoch of the last successful load of the configuration.',
    () => reloads.lastAcceptedAt / 1000,
  ),
  gauge('cidgate_denylist_rules', 'Rules of all denylists.', () => denylists.rules),
  gauge(
    'cidgate_denylist_last_success_timestamp_seconds',
    'Time since the epoch of the last successful check of a denylist; 0 while only a copy is in force.',
    () => denylists.lists().map(({ where, checkedAt }) => ({ labels: { list: where }, value: checkedAt / 1000 })),
    ['list'],
  ),
  counter('cidgate_log_lines_lost_total', 'Lines of the log that could not be written.', () => log.lost?.() ?? 0),
  counter(
    'cidgate_spans_total',
    'Spans by outcome: sent, dropped (queue full) or failed (refused by the collector). Absent without OTEL_EXPORTER_OTLP_ENDPOINT.',
    () => labelled('outcome', Object.entries(spans?.counts ?? {})),
    ['outcome'],
  ),
]

/** Undefined for a single process, whose other metrics say it all. */
const processMetrics = (read: (() => Processes) | undefined): readonly Reading[] => [
  gauge('cidgate_processes', 'Serving processes, including the owner of the data folder (workers).', () =>
    read ? read().answering : 1,
  ),
  gauge('cidgate_processes_wanted', 'Configured number of processes.', () => (read ? read().wanted : 1)),
  counter('cidgate_worker_restarts_total', 'Workers that exited unexpectedly and were replaced.', () =>
    read ? read().restarts : 0,
  ),
]
