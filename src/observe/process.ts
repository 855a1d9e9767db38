// Resource usage of this process, under the metric names that dashboards for Node expect. Must be
// closed, because Node continues to measure otherwise.
import { readdir, readFile } from 'node:fs/promises'
import { constants, monitorEventLoopDelay, PerformanceObserver } from 'node:perf_hooks'
import { getHeapSpaceStatistics } from 'node:v8'
import type { Reading } from './metrics.ts'
import { createHistograms } from './requests.ts'

export interface ProcessWatch {
  readonly readings: readonly Reading[]
  close(): void
}

const gcBounds: readonly number[] = [0.001, 0.01, 0.1, 1, 2, 5]
const gcKinds: Readonly<Record<number, string>> = {
  [constants.NODE_PERFORMANCE_GC_MINOR]: 'minor',
  [constants.NODE_PERFORMANCE_GC_MAJOR]: 'major',
  [constants.NODE_PERFORMANCE_GC_INCREMENTAL]: 'incremental',
  [constants.NODE_PERFORMANCE_GC_WEAKCB]: 'weakcb',
}
const windowMs = 10_000

export function watchProcess(): ProcessWatch {
  const lag = watchLag()
  const gc = createHistograms<{ readonly kind: string }>(gcBounds)
  const observer = new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      const { kind = 0 } = ((entry as { readonly detail?: unknown }).detail ?? {}) as { readonly kind?: number }
      gc.observe({ kind: gcKinds[kind] ?? 'other' }, entry.duration / 1000)
    }
  })
  observer.observe({ entryTypes: ['gc'] })
  const startedAt = Math.round(performance.timeOrigin) / 1000
  return {
    readings: [
      ...ofProcess(startedAt),
      ...ofHeap,
      {
        name: 'nodejs_gc_duration_seconds',
        labels: ['kind'],
        kind: 'histogram',
        help: 'Garbage collections, by kind.',
        read: gc.read,
      },
      ...ofLoop(lag),
    ],
    close() {
      observer.disconnect()
      lag.close()
    },
  }
}

const ofProcess = (startedAt: number): readonly Reading[] => [
  {
    name: 'process_cpu_seconds_total',
    kind: 'counter',
    help: 'Processor time, in this program and in the system.',
    read: () => {
      const { user, system } = process.cpuUsage()
      return (user + system) / 1e6
    },
  },
  {
    name: 'process_start_time_seconds',
    kind: 'gauge',
    help: 'When this process began, since the epoch.',
    read: () => startedAt,
  },
  {
    name: 'process_resident_memory_bytes',
    kind: 'gauge',
    isSum: true,
    help: 'Resident memory.',
    read: () => process.memoryUsage.rss(),
  },
  {
    name: 'process_open_fds',
    kind: 'gauge',
    help: 'Open files and sockets, where the system tells (Linux).',
    read: async () => ofLinux(async () => (await readdir('/proc/self/fd')).length - 1),
  },
  {
    name: 'process_max_fds',
    kind: 'gauge',
    help: 'The most that may be open.',
    read: async () =>
      ofLinux(async () => Number(/^Max open files +(\d+)/m.exec(await readFile('/proc/self/limits', 'utf8'))?.[1])),
  },
]

/** No sample on systems without /proc. */
async function ofLinux(read: () => Promise<number>): Promise<{ readonly value: number }[]> {
  const value = await read().catch(() => Number.NaN)
  return Number.isFinite(value) ? [{ value }] : []
}

const ofHeap: readonly Reading[] = [
  {
    name: 'nodejs_heap_size_total_bytes',
    kind: 'gauge',
    help: 'What the heap of JavaScript takes.',
    read: () => process.memoryUsage().heapTotal,
  },
  {
    name: 'nodejs_heap_size_used_bytes',
    kind: 'gauge',
    help: 'What of it is used.',
    read: () => process.memoryUsage().heapUsed,
  },
  {
    name: 'nodejs_external_memory_bytes',
    kind: 'gauge',
    help: 'Memory of buffers and of native code.',
    read: () => process.memoryUsage().external,
  },
  {
    name: 'nodejs_heap_space_size_used_bytes',
    labels: ['space'],
    kind: 'gauge',
    help: 'What is used of each space of the heap.',
    read: () =>
      getHeapSpaceStatistics().map(({ space_name, space_used_size }) => ({
        labels: { space: space_name.replace(/_space$/, '') },
        value: space_used_size,
      })),
  },
  {
    name: 'nodejs_active_resources',
    labels: ['type'],
    kind: 'gauge',
    help: 'What keeps the event loop going, by type: sockets, timers, requests to the disk.',
    read: () => {
      const counts = new Map<string, number>()
      for (const type of process.getActiveResourcesInfo()) counts.set(type, (counts.get(type) ?? 0) + 1)
      return [...counts].map(([type, value]) => ({ labels: { type }, value }))
    },
  },
  {
    name: 'nodejs_version_info',
    labels: ['version'],
    kind: 'gauge',
    help: 'The version of Node.',
    read: () => [{ labels: { version: process.version }, value: 1 }],
  },
]

const ofLoop = (lag: LagWatch): readonly Reading[] => [
  {
    name: 'nodejs_eventloop_busy_seconds_total',
    kind: 'counter',
    help: 'How long the event loop was at work; its rate is how busy it is, 1 at most.',
    read: () => performance.eventLoopUtilization().active / 1000,
  },
  {
    name: 'nodejs_eventloop_lag_p99_seconds',
    kind: 'gauge',
    help: 'The delay of the event loop that 99 of 100 stayed below in the last 10 to 20 seconds.',
    read: () => lag.p99Seconds(),
  },
  {
    name: 'nodejs_eventloop_lag_max_seconds',
    kind: 'gauge',
    help: 'The largest delay of the event loop in the last 10 to 20 seconds.',
    read: () => lag.maxSeconds(),
  },
]

type LagWatch = { p99Seconds(): number; maxSeconds(): number; close(): void }

/** Uses windows of its own: if a scrape reset the delay, two scrapers would each see half of it. */
function watchLag(): LagWatch {
  const delay = monitorEventLoopDelay({ resolution: 20 })
  delay.enable()
  let last = { p99: 0, max: 0 }
  const seen = () => (delay.count === 0 ? { p99: 0, max: 0 } : { p99: delay.percentile(99), max: delay.max })
  const timer = setInterval(() => {
    last = seen()
    delay.reset()
  }, windowMs)
  timer.unref()
  return {
    p99Seconds: () => Math.max(last.p99, seen().p99) / 1e9,
    maxSeconds: () => Math.max(last.max, seen().max) / 1e9,
    close() {
      clearInterval(timer)
      delay.disable()
    },
  }
}
