// The queries of deploy/: read out of the dashboard and the alert rules, and taken apart as far as a name or a label in them can
// be wrong. What Prometheus itself says of them is asked in test/interop.
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parse } from 'yaml'

const read = (file: string): string =>
  readFileSync(fileURLToPath(new URL(`../../deploy/${file}`, import.meta.url)), 'utf8')

export type AlertRule = {
  readonly alert: string
  readonly expr: string
  readonly for?: string
  readonly labels: Readonly<Record<string, string>>
  readonly annotations: { readonly summary: string; readonly runbook: string }
}

export function alertRules(): readonly AlertRule[] {
  const { groups } = parse(read('prometheus/alerts.yaml')) as { groups: { rules: AlertRule[] }[] }
  return groups.flatMap(({ rules }) => rules)
}

export type PanelQuery = { readonly panel: string; readonly expr: string; readonly legend: string }

export function dashboardQueries(): readonly PanelQuery[] {
  type Panel = { title: string; targets?: { expr: string; legendFormat: string }[] }
  type Dashboard = { panels: Panel[]; annotations: { list: { name: string; expr: string; textFormat: string }[] } }
  const { panels, annotations } = JSON.parse(read('grafana/cidgate.json')) as Dashboard
  return [
    ...panels.flatMap(({ title, targets = [] }) =>
      targets.map(({ expr, legendFormat }) => ({ panel: title, expr, legend: legendFormat })),
    ),
    ...annotations.list.map(({ name, expr, textFormat }) => ({ panel: name, expr, legend: textFormat })),
  ]
}

/** As Grafana sends it to Prometheus. */
export const filledIn = (expr: string): string =>
  expr.replaceAll('$__rate_interval', '5m').replaceAll('$instance', '.*')

export type Matcher = { readonly label: string; readonly values: readonly string[] }
export type Query = {
  readonly metrics: readonly { readonly name: string; readonly matchers: readonly Matcher[] }[]
  /** By which labels it is summed up; none: it keeps those of the metric. */
  readonly groupedBy: readonly string[]
}

const words: ReadonlySet<string> = new Set(['or', 'and', 'unless', 'offset', 'bool'])

export function queryOf(expr: string): Query {
  const groupedBy: string[] = []
  const plain = expr
    .replace(/\[[^\]]*\]/g, '')
    .replace(/\b(by|without|on|ignoring)\s*\(([^)]*)\)/g, (_all, how: string, labels: string) => {
      if (how === 'by') groupedBy.push(...labels.split(',').map((label) => label.trim()))
      return ''
    })
  const selectors = plain.matchAll(/\b([a-zA-Z_:][\w:]*)\b(?!\s*\()(?:\{([^}]*)\})?/g)
  const metrics = [...selectors]
    .filter(([, name = '']) => !words.has(name))
    .map(([, name = '', inside = '']) => ({ name, matchers: matchersOf(inside) }))
  return { metrics, groupedBy }
}

const matchersOf = (text: string): Matcher[] =>
  [...text.matchAll(/(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"/g)].map(([, label = '', value = '']) => ({
    label,
    values: value.split('|'),
  }))

/** `{{label}}` of a legend, `{{ $labels.label }}` of an alert. */
export const labelsIn = (template: string): string[] =>
  [...template.matchAll(/\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}/g)].map(([, label = '']) => label)
