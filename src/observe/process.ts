// Resource usage of this process, under the metric names that dashboards for Node expect. Must be
// closed, because Node continues to measure otherwise.
import { readdir, readFile } from 'node:fs/promises'
import { constants, monitorEventLoopDelay, PerformanceObserver } from 'node:perf_hooks'
import { getHeapSpaceStatistics } from 'node:v8'
import { counter, gauge, histogram, labelled, type Reading, sum } from './metrics.ts'
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
      histogram('nodejs_gc_duration_seconds', 'Garbage collections, by kind.', gc.read, ['kind']),
      ...ofLoop(lag),
    ],
    close() {
      observer.disconnect()
      lag.close()
    },
  }
}

const ofProcess = (startedAt: number): readonly Reading[] => [
  counter('process_cpu_seconds_total', 'Processor time, in this program and in the system.', () => {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1e6
  }),
  gauge('process_start_time_seconds', 'When this process began, since the epoch.', () => startedAt),
  sum('process_resident_memory_bytes', 'Resident memory.', () => process.memoryUsage.rss()),
  gauge('process_open_fds', 'Open files and sockets, where the system tells (Linux).', () =>
    ofLinux(async () => (await readdir('/proc/self/fd')).length - 1),
  ),
  gauge('process_max_fds', 'The limit of open files.', () =>
    ofLinux(async () => Number(/^Max open files +(\d+)/m.exec(await readFile('/proc/self/limits', 'utf8'))?.[1])),
  ),
]

/** No sample on systems without /proc. */
async function ofLinux(read: () => Promise<number>): Promise<{ readonly value: number }[]> {
  const value = await read().catch(() => Number.NaN)
  return Number.isFinite(value) ? [{ value }] : []
}

const ofHeap: readonly Reading[] = [
  gauge('nodejs_heap_size_total_bytes', 'Size of the JavaScript heap.', () => process.memoryUsage().heapTotal),
  gauge('nodejs_heap_size_used_bytes', 'Used part of the heap.', () => process.memoryUsage().heapUsed),
  gauge('nodejs_external_memory_bytes', 'Memory of buffers and of native code.', () => process.memoryUsage().external),
  gauge(
    'nodejs_heap_space_size_used_bytes',
    'Used part of each space of the heap.',
    () =>
      labelled(
        'space',
        getHeapSpaceStatistics().map((one) => [one.space_name.replace(/_space$/, ''), one.space_used_size]),
      ),
    ['space'],
  ),
  gauge(
    'nodejs_active_resources',
    'Resources that keep the event loop running, by type: sockets, timers, requests to the disk.',
    () => {
      const counts = new Map<string, number>()
      for (const type of process.getActiveResourcesInfo()) counts.set(type, (counts.get(type) ?? 0) + 1)
      return labelled('type', counts)
    },
    ['type'],
  ),
  gauge('nodejs_version_info', 'The version of Node.', () => labelled('version', [[process.version, 1]]), ['version']),
]

const ofLoop = (lag: LagWatch): readonly Reading[] => [
  counter(
    'nodejs_eventloop_busy_seconds_total',
    'Time that the event loop was at work; its rate is how busy it is, 1 at most.',
    () => performance.eventLoopUtilization().active / 1000,
  ),
  gauge(
    'nodejs_eventloop_lag_p99_seconds',
    'The delay of the event loop that 99 of 100 stayed below in the last 10 to 20 seconds.',
    lag.p99Seconds,
  ),
  gauge(
    'nodejs_eventloop_lag_max_seconds',
    'The largest delay of the event loop in the last 10 to 20 seconds.',
    lag.maxSeconds,
  ),
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
