// Metrics of the processes of one gateway.
import type { Reading } from '../../observe/metrics.ts'

export type ProcessParts = {
  readonly wanted: number
  readonly answering: number
  readonly restarts: number
}

/** Undefined for a single process, whose other metrics say it all. */
export const processMetrics = (read: (() => ProcessParts) | undefined): readonly Reading[] => [
  {
    name: 'cidgate_processes',
    kind: 'gauge',
    help: 'Processes that answer now, the owner of the data folder included (workers).',
    read: () => (read ? read().answering : 1),
  },
  {
    name: 'cidgate_processes_wanted',
    kind: 'gauge',
    help: 'How many there should be.',
    read: () => (read ? read().wanted : 1),
  },
  {
    name: 'cidgate_worker_restarts_total',
    kind: 'counter',
    help: 'Workers that ended by themselves and were replaced.',
    read: () => (read ? read().restarts : 0),
  },
]
