// The activity of the last ten minutes in spans of five seconds, for the plots of the dashboard.
import type { Clock } from '../core/clock.ts'
import { quantileOf, type RequestCounts } from './requests.ts'

/** A time span. Latencies are undefined if nothing was measured. */
export type Span = {
  /** The end of the span, in milliseconds since the epoch. */
  readonly at: number
  readonly seconds: number
  readonly requests: number
  /** Responses with a status from 400 on, and the ones from 500 on among them. */
  readonly refused: number
  readonly failed: number
  /** Successful content responses; `hits`: the ones that needed no upstream. */
  readonly content: number
  readonly hits: number
  /** Time to the first byte of content, without cached responses. */
  readonly p50Ms?: number
  readonly p95Ms?: number
}

export interface History {
  /** Oldest first. */
  list(): readonly Span[]
  close(): void
}

const everyMs = 5_000
const maxSpans = 120
const contentRoutes: ReadonlySet<string | undefined> = new Set(['ipfs', 'ipns'])

export function createHistory(counts: RequestCounts, clock: Clock): History {
  const spans: Span[] = []
  let before = readAll(counts)
  let takenAt = clock.monotonic()

  function take(): void {
    const now = readAll(counts)
    const at = clock.monotonic()
    const firstByte = now.firstByte.map((count, index) => count - (before.firstByte[index] ?? 0))
    const [p50, p95] = [quantileOf(now.bounds, firstByte, 0.5), quantileOf(now.bounds, firstByte, 0.95)]
    spans.push({
      at: clock.now(),
      seconds: (at - takenAt) / 1000,
      requests: now.requests - before.requests,
      refused: now.refused - before.refused,
      failed: now.failed - before.failed,
      content: now.content - before.content,
      hits: now.hits - before.hits,
      ...(p50 !== undefined && { p50Ms: p50 * 1000 }),
      ...(p95 !== undefined && { p95Ms: p95 * 1000 }),
    })
    if (spans.length > maxSpans) spans.shift()
    before = now
    takenAt = at
  }

  const again = (): (() => void) =>
    clock.after(everyMs, () => {
      take()
      cancel = again()
    })
  let cancel = again()
  return { list: () => spans, close: () => cancel() }
}

function readAll(counts: RequestCounts) {
  let [requests, refused, failed, content, hits] = [0, 0, 0, 0, 0]
  for (const { labels = {}, value } of counts.requests()) {
    const { route, source = 'none' } = labels
    const status = Number(labels['status'])
    requests += value
    if (status >= 400) refused += value
    if (status >= 500) failed += value
    if (status >= 400 || source === 'none' || !contentRoutes.has(route)) continue
    content += value
    if (source !== 'upstream') hits += value
  }
  let bounds: readonly number[] = []
  const firstByte: number[] = []
  for (const { labels, histogram } of counts.firstByte()) {
    if (!contentRoutes.has(labels?.['route'])) continue
    bounds = histogram.bounds
    for (const [index, count] of histogram.counts.entries()) firstByte[index] = (firstByte[index] ?? 0) + count
  }
  return { requests, refused, failed, content, hits, bounds, firstByte }
}
