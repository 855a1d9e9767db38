// Counters and gauges in the Prometheus text format. A counter on the hot path is one property of one object: what is
// counted with labels is held by whoever counts it and only read here, when somebody asks.

export type Sample = { readonly labels?: Readonly<Record<string, string>>; readonly value: number }

export interface Metrics {
  /** Registers a reading: `read` is called at each scrape. */
  add(name: string, kind: 'counter' | 'gauge', help: string, read: () => number | Iterable<Sample>): void
  render(): string
  /** What every counter stands at, by its name and labels. */
  totals(): ReadonlyMap<string, number>
  /** From now on counters go on where they stand there: none ever goes back, although others count now. */
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
  /** What a counter stood at when whoever reads it here began to count. */
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
    // Those that nothing is read of any more stand where they stood: their like may come back.
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
