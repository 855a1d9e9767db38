// All metrics of a gateway, in output order.

import type { TierUsage } from '../../backends/tiers/contract.ts'
import type { Clock } from '../core/clock.ts'
import type { Names } from '../names/names.ts'
import { counter, gauge, histogram, labelled, type Reading, type Sample, stateset, sum } from '../observe/metrics.ts'
import type { Histogram, RequestCounts, UploadCounts } from '../observe/requests.ts'
import type { SpanCounts } from '../observe/tracing/exporter.ts'
import type { Retrieval } from '../retrieval/session.ts'
import type { TierStats } from '../retrieval/tiers/tier-stack.ts'
import { type UpstreamState, upstreamStates } from '../retrieval/upstreams/upstream-health.ts'
import type { Waiting } from '../store/store.ts'
import type { WaitingUpload } from '../upload/api-types.ts'
import type { PinCount } from '../upload/pins.ts'
import type { Quota } from '../upload/quotas.ts'
import type { Announced, Check, Processes } from './dashboard/shape.ts'

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

export const readingsOf = ({
  http,
  upstreams,
  announced,
  tiers,
  uploads,
  gateway,
  process,
  processes,
}: MetricParts): readonly Reading[] => [
  ...httpMetrics(http),
  ...upstreamMetrics(upstreams),
  ...announcedMetrics(announced),
  ...tierMetrics(tiers),
  ...uploadMetrics(uploads),
  ...gatewayMetrics(gateway),
  ...processMetrics(processes),
  ...process.readings,
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
    'Requests by the route that answered, method, status (499: the client left before) and source of the bytes: responses (the cache), a tier, upstream or none.',
    requests.requests,
    ['route', 'method', 'status', 'source'],
  ),
  sum('cidgate_http_requests_in_progress', 'Requests being answered.', () => limits.inFlight),
  sum(
    'cidgate_http_concurrency_limit',
    'The most requests that may be in progress now: limits.maxConcurrentRequests, or fewer while the event loop is late (limits.maxEventLoopDelay).',
    () => limits.concurrency,
  ),
  counter(
    'cidgate_http_responses_aborted_total',
    'Requests whose client did not get the whole answer: it left, stood still, or the bytes could not be had.',
    requests.cut,
    ['route'],
  ),
  histogram(
    'cidgate_http_time_to_first_byte_seconds',
    'From the request to the status of its answer. Without cached responses, which are written at once.',
    requests.firstByte,
    ['route', 'source'],
  ),
  histogram(
    'cidgate_http_request_duration_seconds',
    'From the request to the end of its answer, at the pace of the client. Without cached responses.',
    requests.duration,
    ['route', 'source'],
  ),
  counter('cidgate_http_request_body_bytes_total', 'Bytes of request bodies that arrived.', requests.bytesIn, [
    'route',
  ]),
  counter(
    'cidgate_http_response_body_bytes_total',
    'Bytes of response bodies that were written, without headers.',
    requests.bytesOut,
    ['route', 'source'],
  ),
  counter(
    'cidgate_failures_total',
    'Requests that failed, those of programs included, by kind of failure.',
    requests.failures,
    ['kind'],
  ),
  counter(
    'cidgate_http_requests_shed_total',
    'Requests answered with 503 because limits.maxConcurrentRequests was reached, or the event loop was late.',
    () => limits.shed,
  ),
  counter(
    'cidgate_http_requests_rate_limited_total',
    'Requests answered with 429 because their client was over limits.perClient, by what it had too many of: requests, misses, exports or uploads.',
    () => labelled('limit', Object.entries(limits.rateLimited)),
    ['limit'],
  ),
  gauge(
    'cidgate_rate_limit_store_up',
    '1: limits.sharedStore can be reached, or is not set. 0: this instance counts its clients alone.',
    () => (limits.isStoreDown ? 0 : 1),
  ),
  counter(
    'cidgate_http_connections_paused_total',
    'How often a connection was not read for a while, because its client asked again at once after each 503 or 429.',
    () => server.connections?.paused ?? 0,
  ),
  sum(
    'cidgate_http_pending_response_bytes',
    'Memory that answers hold because their clients read slowly.',
    () => pendingResponses.bytes,
  ),
  counter(
    'cidgate_http_slow_clients_closed_total',
    'Clients that were cut off because answers held limits.maxPendingResponseBytes.',
    () => pendingResponses.cut,
  ),
  ...connectionMetrics(server),
  counter('cidgate_library_reads_total', 'What a program read with get(), by source.', requests.programReads, [
    'source',
  ]),
  sum('cidgate_response_cache_bytes', 'Bytes of complete answers in memory.', () => responses.bytes),
  sum(
    'cidgate_response_cache_limit_bytes',
    'The most that complete answers may take (cache.responses.maxBytes).',
    () => responses.maxBytes,
  ),
  sum('cidgate_response_cache_items', 'Complete answers in memory.', () => responses.items),
  counter(
    'cidgate_compressions_total',
    'Answers that were compressed. A cached one is compressed once for each coding.',
    () => labelled('coding', Object.entries(compressions.made)),
    ['coding'],
  ),
  counter(
    'cidgate_compressions_skipped_total',
    'Answers that went out plain although their clients take a coding, because enough others were being compressed.',
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
      'The most there may be: limits.maxConnections, or three quarters of the file descriptors of this process.',
      one('limit'),
    ),
    counter(
      'cidgate_connections_refused_total',
      'Connections that were answered with 503 and closed, because all were busy, by the setting that was reached: maxConnections or maxConnectionsPerClient.',
      byLimit('refused'),
      ['limit'],
    ),
    counter(
      'cidgate_connections_ended_total',
      'Idle connections that were closed to make room for a new one, by the setting that was reached.',
      byLimit('ended'),
      ['limit'],
    ),
  ]
}

type UpstreamParts = {
  readonly pool: {
    readonly members: readonly {
      readonly upstream: { readonly name: string }
      readonly health: {
        readonly counts: Readonly<Record<string, number>>
        readonly measured: { readonly firstByte: Histogram; readonly duration: Histogram; readonly bytes: number }
        state(key: string): { readonly state: UpstreamState }
      }
    }[]
  }
  readonly finder?:
    | {
        found(): readonly unknown[]
        routers(): readonly {
          readonly name: string
          readonly lookups: number
          readonly named: number
          readonly failures: number
        }[]
      }
    | undefined
  readonly retrieval: Pick<Retrieval, 'stats'>
  readonly names: Pick<Names, 'stats'>
}

function upstreamMetrics({ pool, finder, retrieval, names }: UpstreamParts): readonly Reading[] {
  const { members } = pool
  const byUpstream = (read: (member: UpstreamParts['pool']['members'][number]) => number): Iterable<Sample> =>
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
      'Questions that an upstream was asked.',
      () => byUpstream(({ health }) => health.counts['asked'] ?? 0),
      ['upstream'],
    ),
    counter(
      'cidgate_upstream_outcomes_total',
      'What became of them: won, lost (another was faster), not_found, throttled, failed or hash_mismatch.',
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
      'Bytes that an upstream brought and that proved right.',
      () => byUpstream(({ health }) => health.measured.bytes),
      ['upstream'],
    ),
    histogram(
      'cidgate_upstream_time_to_first_byte_seconds',
      'From a question to the first proved bytes.',
      histograms('firstByte'),
      ['upstream'],
    ),
    histogram(
      'cidgate_upstream_request_duration_seconds',
      'From a question to its end, however it ended.',
      histograms('duration'),
      ['upstream'],
    ),
    gauge(
      'cidgate_upstream_state',
      'A state set: 1 for the state that an upstream is in, 0 for the others (docs/upstreams.md).',
      () =>
        members.flatMap(({ upstream, health }) =>
          stateset('state', upstreamStates, health.state('').state, { upstream: upstream.name }),
        ),
      ['upstream', 'state'],
    ),
    sum(
      'cidgate_retrieval_queued_requests',
      'Requests for content that wait to begin: eight begin in each turn of the event loop.',
      () => retrieval.stats().toBegin,
    ),
    gauge(
      'cidgate_fetches_in_progress',
      'Fetches from upstreams in progress, by kind: block or dag (a whole answer).',
      () => {
        const { blockFlights: block, dagFlights: dag } = retrieval.stats()
        return labelled('kind', Object.entries({ block, dag }))
      },
      ['kind'],
    ),
    gauge('cidgate_background_searches', 'Searches that go on behind a 404.', () => retrieval.stats().searches),
    gauge('cidgate_negative_cache_entries', 'CIDs remembered as not found.', () => retrieval.stats().notFoundRoots),
    counter(
      'cidgate_router_lookups_total',
      'Look-ups at a router, by outcome: named (a gateway that may be asked), nobody or failed.',
      () =>
        (finder?.routers() ?? []).flatMap(({ name: router, lookups, named, failures }) => [
          { labels: { router, outcome: 'named' }, value: named },
          { labels: { router, outcome: 'nobody' }, value: Math.max(0, lookups - named - failures) },
          { labels: { router, outcome: 'failed' }, value: failures },
        ]),
      ['router', 'outcome'],
    ),
    gauge(
      'cidgate_found_gateways',
      'Gateways that routers named and that are remembered, with what is known of each.',
      () => finder?.found().length ?? 0,
    ),
    gauge(
      'cidgate_names_known',
      'Names that are known, by kind: records (IPNS) or links (DNSLink).',
      () => {
        const { records, links } = names.stats()
        return labelled('kind', Object.entries({ records, links }))
      },
      ['kind'],
    ),
    gauge('cidgate_names_lookups', 'Look-ups of names in progress.', () => names.stats().flights),
    counter(
      'cidgate_names_stale_answers_total',
      'Answers with a name that could not be looked up again in time.',
      () => names.stats().stale,
    ),
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
    gauge('cidgate_announced_roots', 'Uploads that are announced to indexers.', () => announced?.()?.roots ?? 0),
    gauge(
      'cidgate_advertisements',
      'Advertisements in the chain that indexers read; they are kept for ever.',
      () => announced?.()?.advertisements ?? 0,
    ),
    gauge(
      'cidgate_announce_confirmed',
      'Whether an indexer says that it took the newest advertisement.',
      by(({ lagMs, confirmed }) => (confirmed !== undefined && lagMs === 0 ? 1 : 0)),
      ['indexer'],
    ),
    gauge(
      'cidgate_announce_lag_seconds',
      'For how long an indexer has not taken the newest advertisement.',
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
  readonly corrupt: ReadonlyMap<string, number>
}

const results = { hits: 'hit', misses: 'miss', outages: 'outage' } as const

function tierMetrics({ stack, guards, usage, corrupt }: TierParts): readonly Reading[] {
  const used = (what: keyof TierUsage) => (): Sample[] =>
    usage().flatMap(({ tier, usage: one }) => (one[what] === undefined ? [] : [{ labels: { tier }, value: one[what] }]))
  const took = (what: 'reads' | 'writes') => () =>
    guards.map((guard) => ({ labels: { tier: guard.name }, histogram: guard.took[what] }))
  return [
    counter(
      'cidgate_tier_lookups_total',
      'Looks into a tier, by result: hit, miss, or outage (it could not be asked, or not in time).',
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
      'Blocks for a slow tier, by outcome: written, dropped (no room to wait) or failed.',
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
      'Blocks that wait to be written to a slow tier.',
      () => stack.stats().map(({ tier, queued }) => ({ labels: { tier }, value: queued })),
      ['tier'],
    ),
    gauge(
      'cidgate_tier_write_queue_bytes',
      'Their bytes; cache.writeQueueBytes is the most.',
      () => stack.stats().map(({ tier, queuedBytes }) => ({ labels: { tier }, value: queuedBytes })),
      ['tier'],
    ),
    counter(
      'cidgate_tier_corrupt_blocks_total',
      'Blocks in a tier that did not match their CID.',
      () => labelled('tier', corrupt),
      ['tier'],
    ),
    gauge(
      'cidgate_tier_bytes',
      'What lies in a tier of this machine. Of a disk: what this process wrote, and what it has read of the folder, which is all of it after some writes.',
      used('bytes'),
      ['tier'],
    ),
    gauge('cidgate_tier_limit_bytes', 'The most that may lie in it (maxBytes).', used('limitBytes'), ['tier']),
    gauge('cidgate_tier_blocks', 'Blocks in a tier, where it counts them.', used('blocks'), ['tier']),
    gauge(
      'cidgate_tier_circuit_open',
      '1 while a tier is passed over because its last calls failed.',
      () => guards.map(({ name, isDown }) => ({ labels: { tier: name }, value: isDown ? 1 : 0 })),
      ['tier'],
    ),
    histogram(
      'cidgate_tier_read_duration_seconds',
      'How long the answers of a slow tier to reads took.',
      took('reads'),
      ['tier'],
    ),
    histogram(
      'cidgate_tier_write_duration_seconds',
      'How long the answers of a slow tier to writes took.',
      took('writes'),
      ['tier'],
    ),
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
      'Uploads by outcome: accepted, or the kind of the failure. One with a wrong token or a wrong form is in cidgate_http_requests_total alone.',
      uploads.outcomes,
      ['outcome'],
    ),
    counter('cidgate_uploaded_files_total', 'Files and DAGs of accepted uploads.', uploads.files),
    counter('cidgate_uploaded_bytes_total', 'Bytes of their blocks.', uploads.bytes),
    ...quotaMetrics(quotas),
    counter(
      'cidgate_provider_requests_total',
      'Requests to keep an upload, by provider and outcome: pinned, or the class of the failure.',
      uploads.attempts,
      ['provider', 'outcome'],
    ),
    histogram(
      'cidgate_provider_request_duration_seconds',
      'How long a provider took to answer them.',
      () => uploads.took.read(),
      ['provider'],
    ),
    gauge(
      'cidgate_provider_up',
      'Whether the last check of a provider went well: 1, or 0.',
      () =>
        checks().flatMap(({ name, ok }) => {
          const [, provider] = /^(?:provider|through) (.+)$/.exec(name) ?? []
          return provider === undefined ? [] : [{ labels: { provider }, value: ok ? 1 : 0 }]
        }),
      ['provider'],
    ),
    gauge('cidgate_journal_uploads', 'Uploads that some provider or shared tier lacks.', async () => [
      { value: (await waiting()).uploads },
    ]),
    gauge('cidgate_journal_bytes', 'Their bytes.', async () => [{ value: (await waiting()).bytes }]),
    gauge(
      'cidgate_journal_waiting_uploads',
      'Uploads that a provider is still to get.',
      async () => {
        const { holders } = await waiting()
        return holders.flatMap(({ holder: provider, kind, uploads: value }) =>
          kind === 'tier' ? [] : [{ labels: { provider }, value }],
        )
      },
      ['provider'],
    ),
    gauge(
      'cidgate_journal_oldest_seconds',
      'The age of the oldest upload in the journal; 0: it is empty.',
      async () => {
        const now = clock.now()
        return [{ value: Math.max(0, now - ((await waiting()).oldestAt ?? now)) / 1000 }]
      },
    ),
    gauge(
      'cidgate_pins',
      'Pins, by the last count. Many are counted rarely, behind the scrapes; absent until the first count is over.',
      () => known(pins()?.pins),
    ),
    gauge('cidgate_pins_bytes', 'Their bytes. What several pins have in common counts for each.', () =>
      known(pins()?.bytes),
    ),
    gauge(
      'cidgate_provider_pins',
      'Those of them that a provider holds.',
      () => labelled('provider', pins()?.pinned ?? []),
      ['provider'],
    ),
    gauge(
      'cidgate_data_free_bytes',
      'Room for this user on the disk of the data folder.',
      async () => (await disk().then((one) => one && [{ value: one.freeBytes }])) ?? [],
    ),
    gauge(
      'cidgate_data_size_bytes',
      'The size of that disk.',
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
    one('used_uploads', 'Accepted uploads of today (UTC) with a token that has a quota.', ({ used }) => used.uploads),
    one('limit_uploads', 'The most of a day (quota.uploads).', ({ quota }) => quota.uploads),
    one(
      'used_bytes',
      'Bytes of accepted uploads of today (UTC) with a token that has a quota.',
      ({ used }) => used.bytes,
    ),
    one('limit_bytes', 'The most of a day (quota.bytes).', ({ quota }) => quota.bytes),
    counter(
      'cidgate_token_quota_refusals_total',
      'Uploads that were answered with 429 because the quota of their token was used up.',
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
export type ReloadCounts = { taken: number; refused: number; lastTakenAt: number; wasLastTaken: boolean }

const gatewayMetrics = ({ version, reloads, denylists, log, spans }: GatewayParts): readonly Reading[] => [
  gauge('cidgate_build_info', 'The version of cidgate; always 1.', () => [{ labels: { version }, value: 1 }], [
    'version',
  ]),
  counter(
    'cidgate_config_reloads_total',
    'Reloads of the configuration, by outcome: taken, or refused (the log says why).',
    () => labelled('outcome', Object.entries({ taken: reloads.taken, refused: reloads.refused })),
    ['outcome'],
  ),
  gauge(
    'cidgate_config_last_reload_successful',
    'Whether the last reload was taken: 1, or 0. 1 before the first.',
    () => (reloads.wasLastTaken ? 1 : 0),
  ),
  gauge(
    'cidgate_config_last_reload_success_timestamp_seconds',
    'When the configuration that is in force was taken, since the epoch.',
    () => reloads.lastTakenAt / 1000,
  ),
  gauge('cidgate_denylist_rules', 'Rules of all denylists.', () => denylists.rules),
  gauge(
    'cidgate_denylist_last_success_timestamp_seconds',
    'When a denylist was last read or found unchanged, since the epoch; 0: a copy of an earlier process is in force.',
    () => denylists.lists().map(({ where, checkedAt }) => ({ labels: { list: where }, value: checkedAt / 1000 })),
    ['list'],
  ),
  counter('cidgate_log_lines_lost_total', 'Lines of the log that could not be written.', () => log.lost?.() ?? 0),
  counter(
    'cidgate_spans_total',
    'Spans for traces, by outcome: sent, dropped (no room to wait for the collector) or failed (it did not take them). Absent without OTEL_EXPORTER_OTLP_ENDPOINT.',
    () => labelled('outcome', Object.entries(spans?.counts ?? {})),
    ['outcome'],
  ),
]

/** Undefined for a single process, whose other metrics say it all. */
const processMetrics = (read: (() => Processes) | undefined): readonly Reading[] => [
  gauge('cidgate_processes', 'Processes that answer now, the owner of the data folder included (workers).', () =>
    read ? read().answering : 1,
  ),
  gauge('cidgate_processes_wanted', 'How many there should be.', () => (read ? read().wanted : 1)),
  counter('cidgate_worker_restarts_total', 'Workers that ended by themselves and were replaced.', () =>
    read ? read().restarts : 0,
  ),
]
