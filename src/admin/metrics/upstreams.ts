// Metrics of upstreams, and of searches and name lookups.

import type { Names } from '../../names/names.ts'
import { type Reading, type Sample, stateset } from '../../observe/metrics.ts'
import type { Histogram } from '../../observe/requests.ts'
import type { Retrieval } from '../../retrieval/session.ts'
import { type UpstreamState, upstreamStates } from '../../retrieval/upstreams/upstream-health.ts'

export type UpstreamParts = {
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

export function upstreamMetrics({ pool, finder, retrieval, names }: UpstreamParts): readonly Reading[] {
  const { members } = pool
  const byUpstream = (read: (member: UpstreamParts['pool']['members'][number]) => number): Iterable<Sample> =>
    members.map((member) => ({ labels: { upstream: member.upstream.name }, value: read(member) }))
  const histograms = (which: 'firstByte' | 'duration') => () =>
    members.map(({ upstream, health }) => ({
      labels: { upstream: upstream.name },
      histogram: health.measured[which],
    }))
  return [
    {
      name: 'cidgate_upstream_requests_total',
      labels: ['upstream'],
      kind: 'counter',
      help: 'Questions that an upstream was asked.',
      read: () => byUpstream(({ health }) => health.counts['asked'] ?? 0),
    },
    {
      name: 'cidgate_upstream_outcomes_total',
      labels: ['upstream', 'outcome'],
      kind: 'counter',
      help: 'What became of them: won, lost (another was faster), not_found, throttled, failed or hash_mismatch.',
      read: () =>
        members.flatMap(({ upstream, health }) =>
          Object.entries(health.counts)
            .filter(([outcome]) => outcome !== 'asked')
            .map(([outcome, value]) => ({ labels: { upstream: upstream.name, outcome: snake(outcome) }, value })),
        ),
    },
    {
      name: 'cidgate_upstream_received_bytes_total',
      labels: ['upstream'],
      kind: 'counter',
      help: 'Bytes that an upstream brought and that proved right.',
      read: () => byUpstream(({ health }) => health.measured.bytes),
    },
    {
      name: 'cidgate_upstream_time_to_first_byte_seconds',
      labels: ['upstream'],
      kind: 'histogram',
      help: 'From a question to the first proved bytes.',
      read: histograms('firstByte'),
    },
    {
      name: 'cidgate_upstream_request_duration_seconds',
      labels: ['upstream'],
      kind: 'histogram',
      help: 'From a question to its end, however it ended.',
      read: histograms('duration'),
    },
    {
      name: 'cidgate_upstream_state',
      labels: ['upstream', 'state'],
      kind: 'gauge',
      help: 'A state set: 1 for the state that an upstream is in, 0 for the others (docs/upstreams.md).',
      read: () =>
        members.flatMap(({ upstream, health }) =>
          stateset('state', upstreamStates, health.state('').state, { upstream: upstream.name }),
        ),
    },
    {
      name: 'cidgate_retrieval_queued_requests',
      kind: 'gauge',
      isSum: true,
      help: 'Requests for content that wait to begin: eight begin in each turn of the event loop.',
      read: () => retrieval.stats().toBegin,
    },
    {
      name: 'cidgate_fetches_in_progress',
      labels: ['kind'],
      kind: 'gauge',
      help: 'Fetches from upstreams in progress, by kind: block or dag (a whole answer).',
      read: () => {
        const { blockFlights, dagFlights } = retrieval.stats()
        return [
          { labels: { kind: 'block' }, value: blockFlights },
          { labels: { kind: 'dag' }, value: dagFlights },
        ]
      },
    },
    {
      name: 'cidgate_background_searches',
      kind: 'gauge',
      help: 'Searches that go on behind a 404.',
      read: () => retrieval.stats().searches,
    },
    {
      name: 'cidgate_negative_cache_entries',
      kind: 'gauge',
      help: 'CIDs remembered as not found.',
      read: () => retrieval.stats().notFoundRoots,
    },
    {
      name: 'cidgate_router_lookups_total',
      labels: ['router', 'outcome'],
      kind: 'counter',
      help: 'Look-ups at a router, by outcome: named (a gateway that may be asked), nobody or failed.',
      read: () =>
        (finder?.routers() ?? []).flatMap(({ name: router, lookups, named, failures }) => [
          { labels: { router, outcome: 'named' }, value: named },
          { labels: { router, outcome: 'nobody' }, value: Math.max(0, lookups - named - failures) },
          { labels: { router, outcome: 'failed' }, value: failures },
        ]),
    },
    {
      name: 'cidgate_found_gateways',
      kind: 'gauge',
      help: 'Gateways that routers named and that are remembered, with what is known of each.',
      read: () => finder?.found().length ?? 0,
    },
    {
      name: 'cidgate_names_known',
      labels: ['kind'],
      kind: 'gauge',
      help: 'Names that are known, by kind: records (IPNS) or links (DNSLink).',
      read: () => {
        const { records, links } = names.stats()
        return [
          { labels: { kind: 'records' }, value: records },
          { labels: { kind: 'links' }, value: links },
        ]
      },
    },
    {
      name: 'cidgate_names_lookups',
      kind: 'gauge',
      help: 'Look-ups of names in progress.',
      read: () => names.stats().flights,
    },
    {
      name: 'cidgate_names_stale_answers_total',
      kind: 'counter',
      help: 'Answers with a name that could not be looked up again in time.',
      read: () => names.stats().stale,
    },
  ]
}

const snake = (text: string): string => text.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
