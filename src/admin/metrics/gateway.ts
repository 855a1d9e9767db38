// Metrics of the gateway itself: version, configuration, denylists and log.
import type { Reading } from '../../observe/metrics.ts'
import type { SpanCounts } from '../../observe/tracing/exporter.ts'

export type GatewayParts = {
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

export const gatewayMetrics = ({ version, reloads, denylists, log, spans }: GatewayParts): readonly Reading[] => [
  {
    name: 'cidgate_build_info',
    labels: ['version'],
    kind: 'gauge',
    help: 'The version of cidgate; always 1.',
    read: () => [{ labels: { version }, value: 1 }],
  },
  {
    name: 'cidgate_config_reloads_total',
    labels: ['outcome'],
    kind: 'counter',
    help: 'Reloads of the configuration, by outcome: taken, or refused (the log says why).',
    read: () => [
      { labels: { outcome: 'taken' }, value: reloads.taken },
      { labels: { outcome: 'refused' }, value: reloads.refused },
    ],
  },
  {
    name: 'cidgate_config_last_reload_successful',
    kind: 'gauge',
    help: 'Whether the last reload was taken: 1, or 0. 1 before the first.',
    read: () => (reloads.wasLastTaken ? 1 : 0),
  },
  {
    name: 'cidgate_config_last_reload_success_timestamp_seconds',
    kind: 'gauge',
    help: 'When the configuration that is in force was taken, since the epoch.',
    read: () => reloads.lastTakenAt / 1000,
  },
  { name: 'cidgate_denylist_rules', kind: 'gauge', help: 'Rules of all denylists.', read: () => denylists.rules },
  {
    name: 'cidgate_denylist_last_success_timestamp_seconds',
    labels: ['list'],
    kind: 'gauge',
    help: 'When a denylist was last read or found unchanged, since the epoch; 0: a copy of an earlier process is in force.',
    read: () => denylists.lists().map(({ where, checkedAt }) => ({ labels: { list: where }, value: checkedAt / 1000 })),
  },
  {
    name: 'cidgate_log_lines_lost_total',
    kind: 'counter',
    help: 'Lines of the log that could not be written.',
    read: () => log.lost?.() ?? 0,
  },
  {
    name: 'cidgate_spans_total',
    labels: ['outcome'],
    kind: 'counter',
    help: 'Spans for traces, by outcome: sent, dropped (no room to wait for the collector) or failed (it did not take them). Absent without OTEL_EXPORTER_OTLP_ENDPOINT.',
    read: () => Object.entries(spans?.counts ?? {}).map(([outcome, value]) => ({ labels: { outcome }, value })),
  },
]
