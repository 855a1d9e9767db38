// Metrics of announcements to indexers.
import type { Reading } from '../../observe/metrics.ts'
import type { Announced } from '../dashboard/shape.ts'

/** Undefined if nothing is announced. */
export function announcedMetrics(announced: (() => Announced | undefined) | undefined): readonly Reading[] {
  const by = (read: (one: Announced['indexers'][number]) => number) => () =>
    (announced?.()?.indexers ?? []).map((one) => ({ labels: { indexer: one.name }, value: read(one) }))
  return [
    {
      name: 'cidgate_announced_roots',
      kind: 'gauge',
      help: 'Uploads that are announced to indexers.',
      read: () => announced?.()?.roots ?? 0,
    },
    {
      name: 'cidgate_advertisements',
      kind: 'gauge',
      help: 'Advertisements in the chain that indexers read; they are kept for ever.',
      read: () => announced?.()?.advertisements ?? 0,
    },
    {
      name: 'cidgate_announce_confirmed',
      labels: ['indexer'],
      kind: 'gauge',
      help: 'Whether an indexer says that it took the newest advertisement.',
      read: by(({ lagMs, confirmed }) => (confirmed !== undefined && lagMs === 0 ? 1 : 0)),
    },
    {
      name: 'cidgate_announce_lag_seconds',
      labels: ['indexer'],
      kind: 'gauge',
      help: 'For how long an indexer has not taken the newest advertisement.',
      read: by(({ lagMs }) => lagMs / 1000),
    },
  ]
}
