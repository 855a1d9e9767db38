// Counters and gauges in the Prometheus text format. A counter on the hot path is one property of one object: what is
// counted with labels is held by whoever counts it and only read here, when somebody asks.

export type Sample = { readonly labels?: Readonly<Record<string, string>>; readonly value: number }

export interface Metrics {
  /** Registers a reading: `read` is called at each scrape. */
  add(name: string, kind: 'counter' | 'gauge', help: string, read: () => number | Iterable<Sample>): void
  render(): string
}

const escapeLabel = (value: string): string =>
  value.replace(/[\\"\n]/g, (char) => (char === '\n' ? '\\n' : `\\${char}`))

function line(name: string, { labels, value }: Sample): string {
  const pairs = Object.entries(labels ?? {}).map(([key, text]) => `${key}="${escapeLabel(text)}"`)
  return `${name}${pairs.length > 0 ? `{${pairs.join(',')}}` : ''} ${value}\n`
}

export function createMetrics(): Metrics {
  const readings: { name: string; kind: string; help: string; read: () => number | Iterable<Sample> }[] = []
  return {
    add(name, kind, help, read) {
      if (readings.some((reading) => reading.name === name)) throw new Error(`metric ${name} is registered twice`)
      readings.push({ name, kind, help, read })
    },
    render() {
      let text = ''
      for (const { name, kind, help, read } of readings) {
        const value = read()
        const samples = typeof value === 'number' ? [{ value }] : value
        text += `# HELP ${name} ${help}\n# TYPE ${name} ${kind}\n`
        for (const sample of samples) text += line(name, sample)
      }
      return text
    },
  }
}
