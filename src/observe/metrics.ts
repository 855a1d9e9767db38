// Counters and gauges in the Prometheus text format. A counter on a fast path is one property of one object: labelled
// counts stay where they are counted, and are read at each scrape.

export type Sample = { readonly labels?: Readonly<Record<string, string>>; readonly value: number }

export interface Metrics {
  /** Registers a reading: `read` is called at each scrape. */
  add(name: string, kind: 'counter' | 'gauge', help: string, read: () => number | Iterable<Sample>): void
  render(): string
  /** The values of all counters, by name and labels. */
  totals(): ReadonlyMap<string, number>
  /** Continues the counters of a gateway that this one replaces, so that none goes back. */
  goOnFrom(before: Metrics): void
}

const escapeLabel = (value: string): string =>
  value.replace(/[\\"\n]/g, (char) => (char === '\n' ? '\\n' : `\\${char}`))

function seriesOf(name: string, labels: Sample['labels'] = {}): string {
  const pairs = Object.entries(labels).map(([key, text]) => `${key}="${escapeLabel(text)}"`)
  return pairs.length > 0 ? `${name}{${pairs.join(',')}}` : name
}

type Reading = {
  readonly name: string
  readonly kind: 'counter' | 'gauge'
  readonly help: string
  readonly read: () => number | Iterable<Sample>
}

export function createMetrics(): Metrics {
  const readings: Reading[] = []
  /** The value of each counter when this gateway began to count. */
  const before = new Map<string, number>()

  function* samples({ name, kind, read }: Reading): Iterable<readonly [series: string, value: number]> {
    const value = read()
    for (const one of typeof value === 'number' ? [{ value }] : value) {
      const series = seriesOf(name, one.labels)
      yield [series, kind === 'counter' ? one.value + (before.get(series) ?? 0) : one.value]
    }
  }

  function totals(): Map<string, number> {
    const counters = readings.filter(({ kind }) => kind === 'counter')
    // Counters without a reading keep their values: an upstream of that name may come back.
    return new Map([...before, ...counters.flatMap((reading) => [...samples(reading)])])
  }

  return {
    add(name, kind, help, read) {
      if (readings.some((reading) => reading.name === name)) throw new Error(`metric ${name} is registered twice`)
      readings.push({ name, kind, help, read })
    },
    totals,
    goOnFrom(other) {
      before.clear()
      const here = totals()
      for (const [series, value] of other.totals()) before.set(series, value - (here.get(series) ?? 0))
    },
    render() {
      let text = ''
      for (const reading of readings) {
        const { name, kind, help } = reading
        text += `# HELP ${name} ${help}\n# TYPE ${name} ${kind}\n`
        for (const [series, value] of samples(reading)) text += `${series} ${value}\n`
      }
      return text
    },
  }
}
