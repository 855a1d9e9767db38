// Totals over all processes of a gateway, including the owner's.

import { availableParallelism } from 'node:os'
import type { Processes } from '../../admin/dashboard/shape.ts'
import type { Config } from '../../config/load.ts'
import type { HistogramSample, Labels, Sample } from '../../observe/metrics.ts'
import { type Histogram, type RequestCounts, secondsBounds } from '../../observe/requests.ts'
import { isOwner, type OwnerTeam, type Team, type Totals } from '../../team/team.ts'
import type { WiringContext } from '../wiring-context.ts'

const othersOf = (team: OwnerTeam): readonly Totals[] => [
  team.endedTotals,
  ...team.workers().map(({ counts }) => counts.totals),
]

/** Counters, histograms and summed gauges of the other processes. */
export function countsElsewhere(team: Team | undefined): (() => readonly Totals[]) | undefined {
  if (!isOwner(team)) return undefined
  return () => [...othersOf(team), ...team.workers().map(({ counts }) => counts.gauges)]
}

export function processesOfTeam(team: Team | undefined): (() => Processes) | undefined {
  if (!isOwner(team)) return undefined
  return () => ({ wanted: team.size, answering: 1 + team.workers().length, restarts: team.restarts })
}

/** Request counts of all processes, for the dashboard and the status. */
export function joinedRequests(own: RequestCounts, { team, lease }: WiringContext): RequestCounts {
  return isOwner(team) ? lease.take('joined requests', [own, team], () => joined(own, team)) : own
}

function joined(own: RequestCounts, team: OwnerTeam): RequestCounts {
  const samples = (name: string) =>
    function* (): Iterable<Sample> {
      for (const totals of othersOf(team))
        for (const [series, value] of totals)
          if (series.startsWith(`${name}{`)) yield { labels: labelsIn(series), value }
    }
  const requests = samples('cidgate_http_requests_total')
  const bytesOut = samples('cidgate_http_response_body_bytes_total')
  return {
    ...own,
    *requests() {
      yield* own.requests()
      yield* requests()
    },
    *bytesOut() {
      yield* own.bytesOut()
      yield* bytesOut()
    },
    *firstByte() {
      yield* own.firstByte()
      for (const totals of othersOf(team)) yield* histogramsIn(totals, 'cidgate_http_time_to_first_byte_seconds')
    },
  }
}

const labelsIn = (series: string): Labels =>
  Object.fromEntries(
    [...series.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name = '', value = '']) => [name, value]),
  )

function* histogramsIn(totals: Totals, name: string): Iterable<HistogramSample> {
  const found = new Map<string, { readonly labels: Labels; readonly counts: Float64Array }>()
  for (const [series, value] of totals) {
    if (!series.startsWith(`${name}_bucket{`)) continue
    const { le = '', ...labels } = labelsIn(series)
    const key = JSON.stringify(labels)
    const one = found.get(key) ?? { labels, counts: new Float64Array(secondsBounds.length + 1) }
    found.set(key, one)
    const at = le === '+Inf' ? secondsBounds.length : secondsBounds.indexOf(Number(le))
    if (at >= 0) one.counts[at] = value
  }
  for (const { labels, counts } of found.values()) {
    for (let at = counts.length - 1; at > 0; at--) counts[at] = (counts[at] ?? 0) - (counts[at - 1] ?? 0)
    const histogram: Histogram = { bounds: secondsBounds, counts, sum: 0, observe() {} }
    yield { labels, histogram }
  }
}

export const processesOf = ({ workers }: Pick<Config, 'workers'>): number =>
  workers === 'auto' ? availableParallelism() : workers

/**
 * Connections are not divided: the kernel chooses who accepts one, and each process has its own
 * descriptors.
 */
export function shareOf(config: Config, size: number): Config {
  if (size === 1) return config
  const part = (most: number): number => Math.max(1, Math.floor(most / size))
  const bytes = (most: number): number => Math.floor(most / size)
  const { cache, limits, retrieval } = config
  return {
    ...config,
    cache: {
      ...cache,
      writeQueueBytes: bytes(cache.writeQueueBytes),
      responses: { ...cache.responses, maxBytes: bytes(cache.responses.maxBytes) },
      tiers: cache.tiers.map((tier) =>
        tier.use === 'memory' ? { ...tier, options: withPart(tier.options, part) } : tier,
      ),
    },
    limits: {
      ...limits,
      maxConcurrentRequests: part(limits.maxConcurrentRequests),
      maxPendingResponseBytes: bytes(limits.maxPendingResponseBytes),
    },
    retrieval: {
      ...retrieval,
      readAhead: bytes(retrieval.readAhead),
      upstreams: retrieval.upstreams.map((one) => ({
        ...one,
        perMinute: one.perMinute && part(one.perMinute),
        perCidPerMinute: one.perCidPerMinute && part(one.perCidPerMinute),
      })),
    },
  }
}

function withPart(options: unknown, part: (most: number) => number): unknown {
  const own = options as { readonly maxBytes: number }
  return { ...own, maxBytes: part(own.maxBytes) }
}
