// Metrics of tiers.
import type { TierUsage } from '../../../backends/tiers/contract.ts'
import type { Reading, Sample } from '../../observe/metrics.ts'
import type { Histogram } from '../../observe/requests.ts'
import type { TierStats } from '../../retrieval/tiers/tier-stack.ts'

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

export function tierMetrics({ stack, guards, usage, corrupt }: TierParts): readonly Reading[] {
  const used = (what: keyof TierUsage) => (): Sample[] =>
    usage().flatMap(({ tier, usage: one }) => (one[what] === undefined ? [] : [{ labels: { tier }, value: one[what] }]))
  const took = (what: 'reads' | 'writes') => () =>
    guards.map((guard) => ({ labels: { tier: guard.name }, histogram: guard.took[what] }))
  return [
    {
      name: 'cidgate_tier_lookups_total',
      labels: ['tier', 'result'],
      kind: 'counter',
      help: 'Looks into a tier, by result: hit, miss, or outage (it could not be asked, or not in time).',
      read: () =>
        stack.stats().flatMap((stats) =>
          Object.entries(results).map(([key, result]) => ({
            labels: { tier: stats.tier, result },
            value: stats[key as keyof typeof results],
          })),
        ),
    },
    {
      name: 'cidgate_tier_writes_total',
      labels: ['tier', 'outcome'],
      kind: 'counter',
      help: 'Blocks for a slow tier, by outcome: written, dropped (no room to wait) or failed.',
      read: () =>
        stack.stats().flatMap(({ tier, written, dropped, failed }) =>
          Object.entries({ written, dropped, failed }).map(([outcome, value]) => ({
            labels: { tier, outcome },
            value,
          })),
        ),
    },
    {
      name: 'cidgate_tier_write_queue_blocks',
      labels: ['tier'],
      kind: 'gauge',
      help: 'Blocks that wait to be written to a slow tier.',
      read: () => stack.stats().map(({ tier, queued }) => ({ labels: { tier }, value: queued })),
    },
    {
      name: 'cidgate_tier_write_queue_bytes',
      labels: ['tier'],
      kind: 'gauge',
      help: 'Their bytes; cache.writeQueueBytes is the most.',
      read: () => stack.stats().map(({ tier, queuedBytes }) => ({ labels: { tier }, value: queuedBytes })),
    },
    {
      name: 'cidgate_tier_corrupt_blocks_total',
      labels: ['tier'],
      kind: 'counter',
      help: 'Blocks in a tier that did not match their CID.',
      read: () => [...corrupt].map(([tier, value]) => ({ labels: { tier }, value })),
    },
    {
      name: 'cidgate_tier_bytes',
      labels: ['tier'],
      kind: 'gauge',
      help: 'What lies in a tier of this machine. Of a disk: what this process wrote, and what it has read of the folder, which is all of it after some writes.',
      read: used('bytes'),
    },
    {
      name: 'cidgate_tier_limit_bytes',
      labels: ['tier'],
      kind: 'gauge',
      help: 'The most that may lie in it (maxBytes).',
      read: used('limitBytes'),
    },
    {
      name: 'cidgate_tier_blocks',
      labels: ['tier'],
      kind: 'gauge',
      help: 'Blocks in a tier, where it counts them.',
      read: used('blocks'),
    },
    {
      name: 'cidgate_tier_circuit_open',
      labels: ['tier'],
      kind: 'gauge',
      help: '1 while a tier is passed over because its last calls failed.',
      read: () => guards.map(({ name, isDown }) => ({ labels: { tier: name }, value: isDown ? 1 : 0 })),
    },
    {
      name: 'cidgate_tier_read_duration_seconds',
      labels: ['tier'],
      kind: 'histogram',
      help: 'How long the answers of a slow tier to reads took.',
      read: took('reads'),
    },
    {
      name: 'cidgate_tier_write_duration_seconds',
      labels: ['tier'],
      kind: 'histogram',
      help: 'How long the answers of a slow tier to writes took.',
      read: took('writes'),
    },
  ]
}
