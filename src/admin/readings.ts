// The metrics and where they read their values. Names are ours, except those that operators of other gateways know.

import type { ServerResponse } from 'node:http'
import type { Failure } from '../core/failure.ts'
import type { Account } from '../observe/account.ts'
import type { Metrics, Sample } from '../observe/metrics.ts'

export interface RequestCounts {
  ended(response: ServerResponse, account: Account): void
  /** The same for what a program read without HTTP, which has no status. */
  read(account: Account): void
  failed(failure: Failure): void
  statuses(): Iterable<Sample>
  sources(): Iterable<Sample>
  failures(): Iterable<Sample>
}

/** Counts the outcome of each request that the fast path did not answer. */
export function createRequestCounts(): RequestCounts {
  const statuses = new Map<number, number>()
  const sources = new Map<string, number>()
  const failures = new Map<string, number>()
  const bump = <Key>(counts: Map<Key, number>, key: Key) => counts.set(key, (counts.get(key) ?? 0) + 1)
  const read = (account: Account) => bump(sources, account.fetches > 0 ? 'upstream' : (account.tier ?? 'none'))
  function* samples<Key>(counts: Map<Key, number>, label: string): Iterable<Sample> {
    for (const [key, value] of counts) yield { labels: { [label]: String(key) }, value }
  }
  return {
    ended(response, account) {
      bump(statuses, response.statusCode)
      read(account)
    },
    read,
    failed: ({ kind }) => void bump(failures, kind),
    statuses: () => samples(statuses, 'code'),
    sources: () => samples(sources, 'from'),
    failures: () => samples(failures, 'kind'),
  }
}

type Parts = {
  readonly requests: RequestCounts
  readonly hot: { readonly bytes: number; readonly items: number }
  readonly fastPath: { readonly hits: number }
  readonly limits: { readonly inFlight: number; readonly shed: number; readonly throttled: number }
  readonly pool: {
    readonly members: readonly {
      readonly upstream: { readonly name: string }
      readonly health: {
        readonly counts: Readonly<Record<string, number>>
        state(key: string): { readonly state: string }
      }
    }[]
  }
  readonly stack: {
    stats(): readonly {
      readonly tier: string
      readonly hits: number
      readonly misses: number
      readonly outages: number
      readonly written: number
      readonly dropped: number
      readonly failed: number
      readonly queued: number
    }[]
  }
  readonly retrieval: { stats(): Readonly<Record<string, number>> }
  readonly names: { stats(): Readonly<Record<string, number>> }
  readonly corrupt: ReadonlyMap<string, number>
  readonly denylists: { readonly rules: number }
  readonly loop: { p99Seconds(): number }
  readonly log: { readonly lost?: () => number }
}

export function describeGateway(metrics: Metrics, parts: Parts): void {
  const { requests, hot, fastPath, limits, pool, stack, retrieval, names, corrupt, denylists, loop, log } = parts
  metrics.add(
    'ipfs_http_gw_responses_total',
    'counter',
    'Answers that did not come from the fast path, by status.',
    requests.statuses,
  )
  metrics.add('ipfs_http_gw_concurrent_requests', 'gauge', 'Requests being answered.', () => limits.inFlight)
  metrics.add('cidgate_answers_total', 'counter', 'Answers by where their bytes came from.', requests.sources)
  metrics.add('cidgate_failures_total', 'counter', 'Requests that failed, by kind.', requests.failures)
  metrics.add(
    'cidgate_log_lines_lost_total',
    'counter',
    'Lines of the log that could not be written.',
    () => log.lost?.() ?? 0,
  )
  metrics.add('cidgate_hot_hits_total', 'counter', 'Answers from the fast path.', () => fastPath.hits)
  metrics.add('cidgate_hot_bytes', 'gauge', 'Bytes of complete answers in memory.', () => hot.bytes)
  metrics.add('cidgate_hot_items', 'gauge', 'Complete answers in memory.', () => hot.items)
  metrics.add('cidgate_shed_total', 'counter', 'Requests answered with 503.', () => limits.shed)
  metrics.add('cidgate_throttled_total', 'counter', 'Requests answered with 429.', () => limits.throttled)
  for (const count of ['hits', 'misses', 'outages'] as const) {
    metrics.add(`cidgate_tier_${count}_total`, 'counter', `Reads of a tier: ${count}.`, () =>
      stack.stats().map((tier) => ({ labels: { tier: tier.tier }, value: tier[count] })),
    )
  }
  metrics.add('cidgate_tier_fills_total', 'counter', 'Blocks for a slow tier, by outcome.', () =>
    stack
      .stats()
      .flatMap(({ tier, written, dropped, failed }) =>
        Object.entries({ written, dropped, failed }).map(([outcome, value]) => ({ labels: { tier, outcome }, value })),
      ),
  )
  metrics.add('cidgate_tier_fill_queue', 'gauge', 'Blocks that wait to be written to a slow tier.', () =>
    stack.stats().map(({ tier, queued }) => ({ labels: { tier }, value: queued })),
  )
  metrics.add('cidgate_tier_corrupt_blocks_total', 'counter', 'Blocks in a tier that did not match their CID.', () =>
    [...corrupt].map(([tier, value]) => ({ labels: { tier }, value })),
  )
  metrics.add('cidgate_upstream_requests_total', 'counter', 'Requests to an upstream, by outcome.', () =>
    pool.members.flatMap(({ upstream, health }) =>
      Object.entries(health.counts).map(([outcome, value]) => ({
        labels: { upstream: upstream.name, outcome },
        value,
      })),
    ),
  )
  metrics.add('cidgate_upstream_state', 'gauge', 'Whether an upstream may be asked now, and if not, why.', () =>
    pool.members.map(({ upstream, health }) => ({
      labels: { upstream: upstream.name, state: health.state('').state },
      value: 1,
    })),
  )
  metrics.add('cidgate_retrieval', 'gauge', 'Fetches in progress, searches, and CIDs remembered as not found.', () =>
    Object.entries(retrieval.stats()).map(([what, value]) => ({ labels: { what }, value })),
  )
  metrics.add('cidgate_names', 'gauge', 'Names in the cache, look-ups in progress, and stale answers.', () =>
    Object.entries(names.stats()).map(([what, value]) => ({ labels: { what }, value })),
  )
  metrics.add('cidgate_denylist_rules', 'gauge', 'Rules of all denylists.', () => denylists.rules)
  metrics.add('cidgate_event_loop_delay_seconds', 'gauge', 'p99 of the event loop delay since the last scrape.', () =>
    loop.p99Seconds(),
  )
  metrics.add('process_resident_memory_bytes', 'gauge', 'Resident memory.', () => process.memoryUsage.rss())
}
