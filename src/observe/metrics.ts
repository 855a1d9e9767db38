// Counters, gauges and histograms in the Prometheus text format. A counter on a fast path is one
// property of one object: labelled counts stay where they are counted, and are read at each scrape.
import type { Histogram } from './requests.ts'

export type Labels = Readonly<Record<string, string>>
export type Sample = { readonly labels?: Labels; readonly value: number }
export type HistogramSample = { readonly labels?: Labels; readonly histogram: Histogram }

type About = {
  readonly name: string
  readonly help: string
  /** Label names, for the page that lists all metrics. */
  readonly labels?: readonly string[]
}

/** A family of series, and a function that reads it. */
export type Reading =
  | (About & { readonly kind: 'counter'; readonly read: () => number | Iterable<Sample> })
  | (About & {
      readonly kind: 'gauge'
      readonly read: () => number | Iterable<Sample> | Promise<Iterable<Sample>>
      /** Summed over the processes of a gateway. Read synchronously. */
      readonly isSum?: boolean
    })
  | (About & { readonly kind: 'histogram'; readonly read: () => Iterable<HistogramSample> })

export interface Metrics {
  /** Registers a reading: `read` is called at each scrape. */
  add(...readings: readonly Reading[]): void
  render(): Promise<string>
  /** The values of summed gauges, by name and labels. */
  sums(): ReadonlyMap<string, number>
  /** The values of all counters and histograms, by name and labels. */
  totals(): ReadonlyMap<string, number>
  /** Continues the counters of the replaced gateway, so that none decreases. */
  goOnFrom(before: Metrics): void
  readonly readings: readonly Reading[]
}

export const counter = (
  name: string,
  help: string,
  read: () => number | Iterable<Sample>,
  labels: readonly string[] = [],
): Reading => ({ name, kind: 'counter', help, read, labels })

export const gauge = (
  name: string,
  help: string,
  read: () => number | Iterable<Sample> | Promise<Iterable<Sample>>,
  labels: readonly string[] = [],
): Reading => ({ name, kind: 'gauge', help, read, labels })

/** A gauge that is summed over the processes of a gateway. */
export const sum = (name: string, help: string, read: () => number | Iterable<Sample>): Reading => ({
  ...{ name, kind: 'gauge', isSum: true, help, read },
})

export const histogram = (
  name: string,
  help: string,
  read: () => Iterable<HistogramSample>,
  labels: readonly string[] = [],
): Reading => ({ name, kind: 'histogram', help, read, labels })

/** One sample for each entry, under its key as the value of a label. */
export const labelled = (label: string, entries: Iterable<readonly [string, number]>): Sample[] =>
  [...entries].map(([text, value]) => ({ labels: { [label]: text }, value }))

const escapeLabel = (value: string): string =>
  value.replace(/[\\"\n]/g, (char) => (char === '\n' ? '\\n' : `\\${char}`))

function seriesOf(name: string, labels: Labels = {}): string {
  const pairs = Object.entries(labels).map(([key, text]) => `${key}="${escapeLabel(text)}"`)
  return pairs.length > 0 ? `${name}{${pairs.join(',')}}` : name
}

/** A stateset as in OpenMetrics: one series for each state, exactly one of which is 1. */
export const stateset = (label: string, states: readonly string[], now: string, labels: Labels = {}): Sample[] =>
  states.map((state) => ({ labels: { ...labels, [label]: state }, value: state === now ? 1 : 0 }))

type Series = Iterable<readonly [series: string, value: number]>

function* seriesOfSamples(name: string, read: number | Iterable<Sample>): Series {
  for (const { labels, value } of typeof read === 'number' ? [{ value: read } as Sample] : read)
    yield [seriesOf(name, labels), value]
}

function* seriesOfHistogram(name: string, { labels, histogram }: HistogramSample): Series {
  const { bounds, counts, sum } = histogram
  let below = 0
  for (const [at, count] of counts.entries()) {
    below += count
    yield [seriesOf(`${name}_bucket`, { ...labels, le: String(bounds[at] ?? '+Inf') }), below]
  }
  yield [seriesOf(`${name}_sum`, labels), sum]
  yield [seriesOf(`${name}_count`, labels), below]
}

/**
 * `name_bucket{…}`, `name_sum{…}` and `name_count{…}` belong to the histogram `name`, a name that
 * no counter has.
 */
function byFamily(all: Iterable<ReadonlyMap<string, number>>): ReadonlyMap<string, Map<string, number>> {
  const families = new Map<string, Map<string, number>>()
  const note = (family: string, series: string, value: number): void => {
    const own = families.get(family) ?? new Map<string, number>()
    families.set(family, own.set(series, (own.get(series) ?? 0) + value))
  }
  for (const one of all)
    for (const [series, value] of one) {
      const [name = ''] = series.split('{', 1)
      note(name, series, value)
      const histogram = name.replace(/_(?:bucket|sum|count)$/, '')
      if (histogram !== name) note(histogram, series, value)
    }
  return families
}

function* added(own: Series, rest: ReadonlyMap<string, number>): Series {
  const remaining = new Map(rest)
  for (const [series, value] of own) {
    yield [series, value + (remaining.get(series) ?? 0)]
    remaining.delete(series)
  }
  yield* remaining
}

/** `others`: totals and sums of sibling processes, which are added to those of this one. */
export function createMetrics(others: () => Iterable<ReadonlyMap<string, number>> = () => []): Metrics {
  const readings: Reading[] = []
  /** The initial value of each counter, taken over from the previous gateway. */
  const before = new Map<string, number>()

  function* counted(reading: Reading): Series {
    if (reading.kind === 'counter') yield* seriesOfSamples(reading.name, reading.read())
    if (reading.kind === 'histogram') for (const one of reading.read()) yield* seriesOfHistogram(reading.name, one)
  }

  function* countedOn(reading: Reading): Series {
    for (const [series, value] of counted(reading)) yield [series, value + (before.get(series) ?? 0)]
  }

  // Counters without a reading keep their values: an upstream of that name may return.
  const totals = () => new Map([...before, ...readings.flatMap((reading) => [...countedOn(reading)])])

  return {
    readings,
    add(...more) {
      for (const reading of more) {
        if (readings.some(({ name }) => name === reading.name))
          throw new Error(`metric ${reading.name} is registered twice`)
        readings.push(reading)
      }
    },
    totals,
    sums() {
      const all = new Map<string, number>()
      for (const reading of readings) {
        if (reading.kind !== 'gauge' || !reading.isSum) continue
        const read = reading.read()
        if (read instanceof Promise) continue
        for (const [series, value] of seriesOfSamples(reading.name, read)) all.set(series, value)
      }
      return all
    },
    goOnFrom(other) {
      before.clear()
      const current = totals()
      for (const [series, value] of other.totals()) before.set(series, value - (current.get(series) ?? 0))
    },
    async render() {
      const siblings = byFamily(others())
      const texts = readings.map(async (reading) => {
        const { name, kind, help } = reading
        const own = kind === 'gauge' ? seriesOfSamples(name, await reading.read()) : countedOn(reading)
        const rest = kind !== 'gauge' || reading.isSum ? siblings.get(name) : undefined
        const all = rest ? added(own, rest) : own
        return `# HELP ${name} ${help}\n# TYPE ${name} ${kind}\n${[...all].map(([series, value]) => `${series} ${value}\n`).join('')}`
      })
      return (await Promise.all(texts)).join('')
    },
  }
}
