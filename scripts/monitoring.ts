// Prints docs/monitoring.md from the sources (`npm run schema`).
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type MetricParts, readingsOf } from '../src/admin/metrics.ts'
import type { Reading } from '../src/observe/metrics.ts'
import { watchProcess } from '../src/observe/process.ts'

const opening = `# Monitoring: dashboard, metrics, log and traces

\`npm run schema\` generates the tables of this page from the sources.

| question | answer |
|---|---|
| why was this 404 at that time | the log line \`http.request\` with the answer's \`X-Request-Id\`: \`why\` and \`attempts\`. The last 100: \`cidgate status --failures\` |
| how much of the traffic is a hit | \`cidgate_http_requests_total\` by \`source\`: \`responses\`, a tier, or \`upstream\` |
| which upstream is slow, or sends wrong bytes | \`cidgate_upstream_time_to_first_byte_seconds\`; \`cidgate_upstream_outcomes_total{outcome="hash_mismatch"}\` |
| how full is each tier, and the disk | \`cidgate_tier_bytes\` against \`cidgate_tier_limit_bytes\`; \`cidgate_data_free_bytes\` |
| what is not yet at a provider | \`/uploads\` on the admin address |
| was the reload accepted | \`cidgate_config_last_reload_successful\`, and \`config.refused\` in the log |

## Dashboard

Open the admin address in a browser: \`http://127.0.0.1:8081/\`. It shows requests, upstreams, tiers, uploads, pins and recent failures as they are now, uploads files, and explains any path
(*Why*). On an upload or pin it verifies, syncs, deletes and takes down.

![The dashboard: two faults with their next steps, four figures, requests, and failures by cause](images/dashboard-1280-light.png)

From another machine it asks for a token; use a tunnel or TLS in front:

\`\`\`yaml
admin: 0.0.0.0:8081
adminAccess:
  hosts: [gateway-admin.example]
  tokens: ["\${CIDGATE_ADMIN_TOKEN}"]
\`\`\`

Requests through a proxy (\`X-Forwarded-For\`, \`Forwarded\`, \`Via\`) need a token, also from this machine. For programs:

\`\`\`sh
curl -s http://127.0.0.1:8081/status
curl -s 'http://127.0.0.1:8081/why?path=/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
curl -s 'http://127.0.0.1:8081/blocks?path=/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
\`\`\`

## Grafana and alerts

\`deploy/grafana/cidgate.json\` is a dashboard; \`deploy/prometheus/alerts.yaml\` are rules, and each names its paragraph in [troubleshoot](troubleshoot.md#alerts):

\`\`\`yaml
# of Prometheus
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: cidgate
    static_configs:
      - targets: ["127.0.0.1:8081"]
\`\`\`

With a token on the admin address add \`authorization: { credentials: … }\`.

## Traces

\`\`\`sh
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.01 npx cidgate serve
\`\`\`

Spans go to that collector by OTLP over HTTP in JSON: one for each request (below the client's \`traceparent\`), one for each question to an upstream (\`upstream block\`, \`upstream dag\`) and each upload to
a provider (\`provider pin\`). No span has a query, a header, a token or a client's address. The usual variables apply: \`OTEL_EXPORTER_OTLP_HEADERS\`, \`_TIMEOUT\`, \`_COMPRESSION=gzip\`, \`OTEL_SERVICE_NAME\`,
\`OTEL_RESOURCE_ATTRIBUTES\`, \`OTEL_TRACES_SAMPLER\`, \`OTEL_BSP_…\`, \`OTEL_SDK_DISABLED\`. Spans that a collector does not take in time are dropped and counted (\`cidgate_spans_total\`). Use Node 24 with traces.

## Metrics

\`GET /metrics\` on the admin address, in the Prometheus text format. Counters survive a reload; no client can create a series. Cached responses are in the counts, not in the histograms.
`

const ofLog = `## Log events

One line each on standard error: \`time\`, \`level\`, \`event\` and its facts, as JSON or, on a terminal, as words (\`log.format\`, \`log.level\`). A proxy in \`trustedProxies\` may set
\`X-Request-Id\`.

\`http.request\` (\`log.access\`) has \`request\` (its id), \`client\`, \`method\`, \`host\`, \`path\` without its query, \`agent\`, \`token\` (its name), \`route\`, \`status\`, \`source\`, \`ms\`,
\`firstByteMs\`, \`bytes\`, \`bytesIn\`, \`trace\`, \`cut\`, and for a failure \`kind\`, \`why\` and \`attempts\`. By default only failures have lines, at most \`log.failuresPerSecond\` of each
kind; \`leftOut\` counts the others.
`

/** Every metric, for its name only: nothing can be read. */
export function allMetrics(): readonly Reading[] {
  const watch = watchProcess()
  watch.close()
  const nothing = { requests: {}, limits: {}, hot: {}, server: {}, pool: {}, uploads: {} }
  const parts = {
    http: nothing,
    upstreams: nothing,
    tiers: nothing,
    uploads: nothing,
    gateway: nothing,
    process: watch,
  }
  return readingsOf(parts as unknown as MetricParts)
}

export function monitoring(): string {
  return `${[opening, metricTable(allMetrics()), ofLog, eventTable()].join('\n')}`
}

function metricTable(readings: readonly Reading[]): string {
  const rows = readings.map(
    ({ name, kind, help, labels = [] }) =>
      `| \`${name}\` | ${kind} | ${labels.map((label) => `\`${label}\``).join(', ')} | ${help} |`,
  )
  return `| metric | type | labels | |\n|---|---|---|---|\n${rows.join('\n')}\n`
}

type Event = { readonly name: string; readonly levels: Set<string>; readonly facts: Set<string> }

/**
 * Finds every event name in a call that writes to the log, with the level and the fields of that
 * call.
 */
function eventTable(): string {
  const events = new Map<string, Event>()
  const root = join(import.meta.dirname, '..')
  for (const area of ['src', 'backends'])
    for (const file of readdirSync(join(root, area), { recursive: true, encoding: 'utf8' }).sort())
      if (file.endsWith('.ts')) note(events, readFileSync(join(root, area, file), 'utf8'))
  const rows = [...events.values()]
    .sort((one, other) => (one.name < other.name ? -1 : 1))
    .map(
      ({ name, levels, facts }) =>
        `| \`${name}\` | ${[...levels].join(', ')} | ${[...facts].map((fact) => `\`${fact}\``).join(', ')} |`,
    )
  return `| event | level | facts |\n|---|---|---|\n${rows.join('\n')}\n`
}

const isEvent = /'([a-z][a-z-]*\.[a-z][a-z-]*)'/g
const isLevel = /'(debug|info|warn|error)'/g

function note(events: Map<string, Event>, text: string): void {
  for (const { index, 0: opens } of text.matchAll(/\b(?:log|latest|said|crash|lines\[format\])\(/g)) {
    const call = callAt(text, index + opens.length)
    const [head = '', ...rest] = call.split(', {')
    const levels = [...head.matchAll(isLevel)].map(([, level = '']) => level)
    // `said` and `crash` log errors.
    const shown = levels.length > 0 ? levels : ['error']
    const facts = [...rest.join(', {').matchAll(/(?:^|[{,]|\.\.\.\()\s*(\w+)(?=\s*[:,}]|$)/g)].map(
      ([, fact = '']) => fact,
    )
    for (const [, name = ''] of head.matchAll(isEvent)) {
      const event = events.get(name) ?? { name, levels: new Set(), facts: new Set() }
      for (const level of shown) event.levels.add(level)
      for (const fact of facts) event.facts.add(fact)
      if (levels.length === 0) event.facts.add('error')
      events.set(name, event)
    }
  }
}

/** The arguments of a call, up to its closing parenthesis. */
function callAt(text: string, from: number): string {
  let depth = 1
  let at = from
  for (; at < text.length && depth > 0; at++) {
    if (text[at] === '(') depth++
    if (text[at] === ')') depth--
  }
  return text.slice(from, at - 1)
}

if (process.argv[1] === import.meta.filename) process.stdout.write(monitoring())
