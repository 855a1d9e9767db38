// A distribution in Prometheus' form: the number of observations up to each bound, their total and
// their sum. Updated on observation, read at each scrape.

export interface Histogram {
  readonly bounds: readonly number[]
  /**
   * Observations up to each bound and above the previous one; the last count is above all bounds.
   */
  readonly counts: Readonly<Float64Array>
  readonly sum: number
  observe(value: number): void
}

/** From a millisecond (memory) to five minutes (a large file over a slow line). */
export const secondsBounds: readonly number[] = [
  0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
]

export function createHistogram(bounds: readonly number[] = secondsBounds): Histogram {
  const counts = new Float64Array(bounds.length + 1)
  let sum = 0
  return {
    bounds,
    counts,
    get sum() {
      return sum
    },
    observe(value) {
      let at = 0
      while (at < bounds.length && value > (bounds[at] as number)) at++
      counts[at] = (counts[at] as number) + 1
      sum += value
    },
  }
}

/** Estimates the quantile `share`; undefined without observations. */
export function quantileOf(bounds: readonly number[], counts: ArrayLike<number>, share: number): number | undefined {
  let all = 0
  for (let at = 0; at < counts.length; at++) all += counts[at] ?? 0
  if (all === 0) return undefined
  let below = 0
  for (const [at, bound] of bounds.entries()) {
    const count = counts[at] ?? 0
    if (count > 0 && below + count >= share * all) {
      const from = bounds[at - 1] ?? 0
      return from + ((bound - from) * (share * all - below)) / count
    }
    below += count
  }
  return bounds.at(-1)
}

/** Histograms of one kind, keyed by their labels. */
export interface Histograms<Labels extends Readonly<Record<string, string>>> {
  observe(labels: Labels, value: number): void
  read(): Iterable<{ readonly labels: Labels; readonly histogram: Histogram }>
}

export function createHistograms<Labels extends Readonly<Record<string, string>>>(
  bounds: readonly number[] = secondsBounds,
): Histograms<Labels> {
  const all = new Map<string, { readonly labels: Labels; readonly histogram: Histogram }>()
  return {
    observe(labels, value) {
      const key = Object.values(labels).join('\n')
      let one = all.get(key)
      if (!one) all.set(key, (one = { labels, histogram: createHistogram(bounds) }))
      one.histogram.observe(value)
    },
    read: () => all.values(),
  }
}
