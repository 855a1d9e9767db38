// The activity of the last ten minutes in spans of five seconds, for the plots of the dashboard.
import type { Clock } from '../core/clock.ts'
import { type RequestCounts, timesOf } from './requests.ts'

const everyMs = 5_000
const maxSpans = 120
const contentRoutes: ReadonlySet<string | undefined> = new Set(['ipfs', 'ipns'])

export function createHistory(counts: RequestCounts, clock: Clock) {
  const spans: ReturnType<typeof take>[] = []
  let before = readAll(counts)
  let takenAt = clock.monotonic()

  function take() {
    const now = readAll(counts)
    const at = clock.monotonic()
    const firstByte = now.firstByte.map((count, index) => count - (before.firstByte[index] ?? 0))
    const span = {
      at: clock.now(),
      seconds: (at - takenAt) / 1000,
      requests: now.requests - before.requests,
      refused: now.refused - before.refused,
      failed: now.failed - before.failed,
      content: now.content - before.content,
      hits: now.hits - before.hits,
      ...timesOf(now.bounds, firstByte),
    }
    before = now
    takenAt = at
    return span
  }

  const again = (): (() => void) =>
    clock.after(everyMs, () => {
      spans.push(take())
      if (spans.length > maxSpans) spans.shift()
      cancel = again()
    })
  let cancel = again()
  /** `list`: oldest first. */
  return { list: (): readonly ReturnType<typeof take>[] => spans, close: () => cancel() }
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
