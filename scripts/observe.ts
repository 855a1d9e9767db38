// The page with every metric and every event of the log, docs/observe.md, made from the sources: `npm run schema` writes it, and
// a test fails when the two differ.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type MetricParts, readingsOf } from '../src/admin/readings.ts'
import type { Reading } from '../src/observe/metrics.ts'
import { watchProcess } from '../src/observe/process.ts'

const opening = `# Metrics and log events

Made from the sources (\`npm run schema\`): what is here is there, and nothing else is.

## Where to look

| question | answer |
|---|---|
| why was this 404 at that time | the line \`http.request\` in the log with the \`X-Request-Id\` of the answer, or with its path and time: \`why\`, and \`attempts\` with each upstream that was asked. The newest 100 failures: \`cidgate status --failures\` |
| how much of the traffic is a hit | \`cidgate_http_requests_total\` by \`source\`: \`hot\`, a tier, or \`upstream\` |
| which upstream is slow | \`cidgate_upstream_time_to_first_byte_seconds\` |
| which upstream lies | \`cidgate_upstream_outcomes_total{outcome="false_bytes"}\`, and \`upstream.quarantined\` in the log |
| how full is each tier | \`cidgate_tier_bytes\` against \`cidgate_tier_limit_bytes\`; the disk: \`cidgate_data_free_bytes\` |
| what is not yet at a provider | \`cidgate_journal_waiting_uploads\`, \`cidgate_journal_oldest_seconds\`; each upload by name: \`/uploads\` on the admin address |
| which step of a request took how long | a trace: [below](#traces) |
| all of it at once, and who is woken | a Grafana dashboard ([deploy/grafana/cidgate.json](../deploy/grafana/cidgate.json)) and alert rules ([deploy/prometheus/alerts.yaml](../deploy/prometheus/alerts.yaml)): [below](#dashboard-and-alerts) |
| was the reload taken | \`cidgate_config_last_reload_successful\`, and \`config.refused\` in the log |

## Metrics

\`GET /metrics\` on the admin address, in the text format of Prometheus. Counters do not go back at a reload. Labels have values of the configuration and of
fixed lists only: no client can make a series. A hot answer is in the counts and not in the histograms: it is written in the moment in which it is asked for.
`

const ofDashboard = `## Dashboard and alerts

\`deploy/grafana/cidgate.json\` is a dashboard of all of this: import it, and choose the Prometheus that asks your instances. \`deploy/prometheus/alerts.yaml\` are rules for \`rule_files\`; each names
its paragraph in [troubleshoot.md](troubleshoot.md#alerts), where it says what to do. \`severity: page\` is for at once, \`ticket\` for the morning. The rules call the job \`cidgate\`:

\`\`\`yaml
# of Prometheus
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: cidgate
    static_configs:
      - targets: ["127.0.0.1:8081"]
\`\`\`

With a token on the admin address add \`authorization: { credentials: … }\`. \`deploy/two-instances\` has both running, with two instances to look at.
`

const ofTraces = `## Traces

Where \`OTEL_EXPORTER_OTLP_ENDPOINT\` is set, \`cidgate serve\` sends spans to that collector, by OTLP over HTTP in JSON (port 4318 of most collectors):

\`\`\`sh
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.01 npx cidgate serve
\`\`\`

| span | what it is | what it says |
|---|---|---|
| \`GET ipfs\`: method and route, as in the metrics | a request, below the client's \`traceparent\` | \`http.request.method\`, \`http.route\`, \`http.response.status_code\`, sizes of bodies, \`cidgate.source\`, \`cidgate.request_id\` (the line of the log, which has the trace id as well), \`cidgate.first_byte_ms\`, \`cidgate.cut\`, \`error.type\` (the kind of the failure); of content \`server.address\` and \`url.path\`. An error from 500 on |
| \`upstream block\`, \`upstream dag\` | a question to an upstream, from the moment in which it waits for its turn there | \`cidgate.upstream\`, \`cidgate.outcome\` as in \`attempts\`, \`cidgate.bytes\` that proved right, \`cidgate.cid\`, \`cidgate.waited_ms\`, the status of its answer. Not to win and not to have it is no error |
| \`provider pin\` | an upload to a provider, later tries included | \`cidgate.provider\`, \`cidgate.outcome\` (held, or the class of the failure), \`cidgate.bytes\`, \`cidgate.cid\`, the status of its answer |

What is asked carries the id of its own span on, so that an upstream of yours that records spans is found below it. A fetch that several requests share is below the one that began it. At
most 128 questions of a request have spans (\`cidgate.questions_left_out\`). No span has a query, a header, a client's address, a token, or the words of an upstream, and none has a path of \`proxy\`. Look-ups of names, tiers and what is behind \`proxy\` have no spans of their own.

| variable | |
|---|---|
| \`OTEL_EXPORTER_OTLP_ENDPOINT\` | the collector; \`/v1/traces\` is added. \`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT\` is taken as it is. Without either no span is made, and what sends them is not loaded |
| \`OTEL_EXPORTER_OTLP_HEADERS\`, \`OTEL_EXPORTER_OTLP_TIMEOUT\`, \`OTEL_EXPORTER_OTLP_COMPRESSION\` | \`name=value,name=value\` for a collector that wants a token, and the milliseconds that one answer of it may take (10000). \`OTEL_EXPORTER_OTLP_COMPRESSION=gzip\` has them compressed. Those with \`_TRACES_\` come first |
| \`OTEL_SERVICE_NAME\`, \`OTEL_RESOURCE_ATTRIBUTES\` | what each span says of the service (\`cidgate\`) |
| \`OTEL_TRACES_SAMPLER\`, \`OTEL_TRACES_SAMPLER_ARG\` | which traces are recorded: \`always_on\`, \`always_off\`, \`traceidratio\`, each also with \`parentbased_\` before it, where a client's \`traceparent\` decides; by default \`parentbased_always_on\` |
| \`OTEL_BSP_SCHEDULE_DELAY\`, \`OTEL_BSP_MAX_QUEUE_SIZE\`, \`OTEL_BSP_MAX_EXPORT_BATCH_SIZE\` | a span waits for others this long (5000), this many wait at most (2048), and this many are sent at once (256) |
| \`OTEL_SDK_DISABLED=true\`, \`OTEL_TRACES_EXPORTER=none\` | no span is made |

A wrong value is \`spans.settings\` in the log, and the default holds. No request waits for the collector. While it is slow or down a bounded number of spans waits, a batch is tried five
times, and what is lost is counted (\`cidgate_spans_total\`) and told (\`spans.lost\`). When the gateway stops, it sends what is left for five seconds at most. On Node 22 to follow requests
makes every \`await\` several times slower: use Node 24 where spans are wanted. A program passes the variables with \`createGateway(config, { tracing: process.env })\`.
`

const ofLog = `## Log events

One line each on standard error: \`time\`, \`level\`, \`event\`, and the facts of that event. JSON, or on a terminal words (\`log.format\`). \`log.level\` is the least that
is written. Up to 1 MiB of lines waits for a reader that stands still; what is lost then is counted (\`cidgate_log_lines_lost_total\`, \`log.lost\`). A proxy in front
(\`trustedProxies\`) may name the request with \`X-Request-Id\`: up to 128 letters, digits and \`. : + / = - _\`.

\`http.request\` (\`log.access\`) has \`request\` (its id), \`client\`, \`method\`, \`host\`, \`path\` without its query, \`agent\`, \`token\` (the name of the client's), \`route\`, \`status\`, \`source\`, \`ms\`, \`firstByteMs\`, \`bytes\`,
\`bytesIn\`, \`trace\` (the trace id of the client's \`traceparent\`, or of a trace that is recorded), \`cut\` where the client did not get the whole answer, and of a failure its \`kind\`, \`why\` and \`attempts\`. A hot answer has no \`ms\` and no \`firstByteMs\`: it is written in
the moment in which it is asked for. By default failures have lines (\`log.access: errors\`), of each kind at most \`log.failuresPerSecond\` (20) after a burst of half a minute; \`leftOut\` says how many of that kind had
none since the line before, and \`cidgate_failures_total\` counts them all. A request that is no HTTP, or was not sent in time, has its id, \`client\` (the address of the socket), status and \`why\` alone. It is \`warn\` from 500 on. A path of \`proxy\` is logged as it
is: a service that takes secrets in its path should not be behind it.
`

/** Every metric that there is. Nothing can be read from them. */
export function allMetrics(): readonly Reading[] {
  const watch = watchProcess()
  watch.close()
  // Only their names are asked for: nothing is read.
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

export function observe(): string {
  return `${[opening, metricTable(allMetrics()), ofDashboard, ofTraces, ofLog, eventTable()].join('\n')}`
}

function metricTable(readings: readonly Reading[]): string {
  const rows = readings.map(
    ({ name, kind, help, labels = [] }) =>
      `| \`${name}\` | ${kind} | ${labels.map((label) => `\`${label}\``).join(', ')} | ${help} |`,
  )
  return `| metric | type | labels | |\n|---|---|---|---|\n${rows.join('\n')}\n`
}

type Event = { readonly name: string; readonly levels: Set<string>; readonly facts: Set<string> }

/** Every word with a dot in a call that writes to the log, with the level and the facts of that call. */
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
    // `said` and `crash` write what they are given, as errors.
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

/** The arguments of a call, up to its own parenthesis. */
function callAt(text: string, from: number): string {
  let depth = 1
  let at = from
  for (; at < text.length && depth > 0; at++) {
    if (text[at] === '(') depth++
    if (text[at] === ')') depth--
  }
  return text.slice(from, at - 1)
}

if (process.argv[1] === import.meta.filename) process.stdout.write(observe())
