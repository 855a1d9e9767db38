// What Prometheus says of the metrics, the alert rules and the dashboard: its own checker reads them, each alert fires on what it
// is for and on nothing that is well, and a real Prometheus answers every query of the dashboard with what a gateway gave it.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { multipart, post } from '../support/adding.ts'
import { fetchAll, metricsOf, startGateway, type TestGateway } from '../support/gateway.ts'
import { alertRules, dashboardQueries, filledIn } from '../support/promql.ts'
import { freePort, require, run, tempFolder } from './support/processes.ts'

const deploy = fileURLToPath(new URL('../../deploy/', import.meta.url))
const alerts = join(deploy, 'prometheus/alerts.yaml')

const closing: (() => unknown)[] = []
after(async () => {
  for (const close of closing.toReversed()) await close()
})

async function folder(): Promise<string> {
  const { path, remove } = await tempFolder()
  closing.push(remove)
  return path
}

/** Fails with what it said. JSON is YAML, too. */
async function promtool(args: readonly string[], input?: string): Promise<void> {
  require('promtool')
  const child = spawn('promtool', args)
  let said = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (piece: Buffer) => (said += piece.toString()))
  child.stdin.end(input)
  const [code] = (await once(child, 'close')) as [number]
  assert.equal(code, 0, said)
}

/** A gateway that has answered a little of everything. */
async function lively(): Promise<TestGateway> {
  const at = await startGateway({
    upstreams: [{ name: 'nobody', url: 'http://127.0.0.1:1' }],
    config: {
      cache: {
        tiers: [
          { use: 'memory', maxBytes: '16MiB' },
          { use: 'disk', maxBytes: '64MiB' },
        ],
      },
      pinning: { providers: [{ name: 'here', use: 'embedded' }] },
    },
    tracing: { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1' },
  })
  closing.push(at.close)
  const { json } = await post(`${at.url}/add`, multipart([{ body: 'hello' }]))
  const [path = ''] = json['cids'] as string[]
  for (let turn = 0; turn < 3; turn++) assert.equal((await fetchAll(at.url + path)).status, 200)
  await fetchAll(`${at.url}/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy`)
  return at
}

test('promtool → accepts the metrics and those of two-instances', async () => {
  const { gateway } = await lively()
  await promtool(['check', 'metrics'], await metricsOf(gateway))
  const shipped = await readFile(join(deploy, 'two-instances/prometheus.yaml'), 'utf8')
  const file = join(await folder(), 'prometheus.yaml')
  await writeFile(file, shipped.replace('/etc/prometheus/alerts.yaml', alerts))
  await promtool(['check', 'config', file])
})

describe('alerts', () => {
  const instance = 'instance="a",job="cidgate"'
  /** A minute between two values. Each alert is on, two hours later, after the first series and off after the second. */
  const shapes: Readonly<Record<string, readonly [bad: readonly string[][], well: readonly string[][]]>> = {
    CidgateDown: [[[`up{${instance}}`, '0x120']], [[`up{${instance}}`, '1x120']]],
    CidgateErrors: [
      [
        [`cidgate_http_requests_total{${instance},status="502"}`, '0+6x120'],
        [`cidgate_http_requests_total{${instance},status="200"}`, '0+60x120'],
      ],
      [
        [`cidgate_http_requests_total{${instance},status="404"}`, '0+60x120'],
        [`cidgate_http_requests_total{${instance},status="502"}`, '0+1x120'],
        [`cidgate_http_requests_total{${instance},status="200"}`, '0+60x120'],
      ],
    ],
    CidgateBug: [
      [[`cidgate_failures_total{${instance},kind="internal"}`, '_x115 1x5']],
      [
        [`cidgate_failures_total{${instance},kind="internal"}`, '3x120'],
        [`cidgate_failures_total{${instance},kind="not-found"}`, '0+9x120'],
      ],
    ],
    CidgateShedding: [
      [[`cidgate_http_requests_shed_total{${instance}}`, '0+1x120']],
      [[`cidgate_http_requests_shed_total{${instance}}`, '7x120']],
    ],
    CidgateLoopLate: [
      [[`nodejs_eventloop_lag_p99_seconds{${instance}}`, '0.6x120']],
      [[`nodejs_eventloop_lag_p99_seconds{${instance}}`, '0.1x120']],
    ],
    CidgateFilesNearLimit: [
      [
        [`process_open_fds{${instance}}`, '950x120'],
        [`process_max_fds{${instance}}`, '1000x120'],
      ],
      [
        [`process_open_fds{${instance}}`, '50x120'],
        [`process_max_fds{${instance}}`, '1000x120'],
      ],
    ],
    CidgateNoUpstream: [
      [
        [`cidgate_upstream_state{${instance},upstream="one",state="ready"}`, '0x120'],
        [`cidgate_upstream_state{${instance},upstream="one",state="unhealthy"}`, '1x120'],
      ],
      [
        [`cidgate_upstream_state{${instance},upstream="one",state="ready"}`, '0x120'],
        [`cidgate_upstream_state{${instance},upstream="two",state="ready"}`, '1x120'],
      ],
    ],
    CidgateUpstreamHashMismatch: [
      [[`cidgate_upstream_outcomes_total{${instance},upstream="one",outcome="hash_mismatch"}`, '0x115 1x5']],
      [[`cidgate_upstream_outcomes_total{${instance},upstream="one",outcome="failed"}`, '0+9x120']],
    ],
    CidgateTierDown: [
      [[`cidgate_tier_circuit_open{${instance},tier="s3"}`, '1x120']],
      [[`cidgate_tier_circuit_open{${instance},tier="s3"}`, '0x120']],
    ],
    CidgateTierCorrupt: [
      [[`cidgate_tier_corrupt_blocks_total{${instance},tier="disk"}`, '_x100 2x20']],
      [[`cidgate_tier_corrupt_blocks_total{${instance},tier="disk"}`, '2x120']],
    ],
    CidgateDiskFull: [
      [
        [`cidgate_data_free_bytes{${instance}}`, '4x120'],
        [`cidgate_data_size_bytes{${instance}}`, '100x120'],
      ],
      [
        [`cidgate_data_free_bytes{${instance}}`, '40x120'],
        [`cidgate_data_size_bytes{${instance}}`, '100x120'],
      ],
    ],
    CidgateUploadsFail: [
      [
        [`cidgate_uploads_total{${instance},outcome="upstream-error"}`, '0+3x120'],
        [`cidgate_uploads_total{${instance},outcome="accepted"}`, '0+9x120'],
      ],
      [
        [`cidgate_uploads_total{${instance},outcome="malformed"}`, '0+9x120'],
        [`cidgate_uploads_total{${instance},outcome="accepted"}`, '0+9x120'],
      ],
    ],
    CidgateProviderDown: [
      [[`cidgate_provider_up{${instance},provider="one"}`, '0x120']],
      [[`cidgate_provider_up{${instance},provider="one"}`, '1x120']],
    ],
    CidgateUploadsWait: [
      [[`cidgate_journal_oldest_seconds{${instance}}`, '22000x120']],
      [[`cidgate_journal_oldest_seconds{${instance}}`, '60x120']],
    ],
    CidgateWorkersMissing: [
      [
        [`cidgate_processes{${instance}}`, '1x120'],
        [`cidgate_processes_wanted{${instance}}`, '2x120'],
      ],
      [
        [`cidgate_processes{${instance}}`, '2x120'],
        [`cidgate_processes_wanted{${instance}}`, '2x120'],
      ],
    ],
    CidgateReloadRefused: [
      [[`cidgate_config_last_reload_successful{${instance}}`, '0x120']],
      [[`cidgate_config_last_reload_successful{${instance}}`, '1x120']],
    ],
    // The time of such a test begins at 0: a list that was never read since is as old as the test.
    CidgateDenylistOld: [
      [[`cidgate_denylist_last_success_timestamp_seconds{${instance},list="one"}`, '-90000x120']],
      [[`cidgate_denylist_last_success_timestamp_seconds{${instance},list="one"}`, '0+60x120']],
    ],
    CidgateBlind: [
      [
        [`cidgate_spans_total{${instance},outcome="dropped"}`, '0+5x120'],
        [`cidgate_spans_total{${instance},outcome="sent"}`, '0+5x120'],
      ],
      [
        [`cidgate_spans_total{${instance},outcome="dropped"}`, '5x120'],
        [`cidgate_spans_total{${instance},outcome="sent"}`, '0+5x120'],
        [`cidgate_log_lines_lost_total{${instance}}`, '3x120'],
      ],
    ],
  }

  test('each alert → fires for its fault, never when healthy', async () => {
    assert.deepEqual(
      alertRules().map(({ alert }) => alert),
      Object.keys(shapes),
    )
    const tests = Object.entries(shapes).flatMap(([alert, series]) =>
      series.map((pairs, index) => ({
        name: `${alert} ${index === 0 ? 'fires' : 'is silent'}`,
        interval: '1m',
        input_series: pairs.map(([name, values]) => ({ series: name, values })),
        promql_expr_test: [
          {
            expr: 'count by (alertname) (ALERTS{alertstate="firing"})',
            eval_time: '120m',
            exp_samples: index === 0 ? [{ labels: `{alertname="${alert}"}`, value: 1 }] : [],
          },
        ],
      })),
    )
    const file = join(await folder(), 'alerts.test.json')
    await writeFile(file, JSON.stringify({ rule_files: [alerts], evaluation_interval: '1m', tests }))
    await promtool(['test', 'rules', file])
  })
})

test('real Prometheus → answers every dashboard query, no false alert', async () => {
  const { gateway } = await lively()
  const admin = createServer(gateway.admin)
  await new Promise<void>((resolve) => admin.listen(0, '127.0.0.1', resolve))
  closing.push(() => {
    admin.closeAllConnections()
    admin.close()
  })
  const [at, port] = [await folder(), await freePort()]
  await mkdir(join(at, 'data'))
  const file = join(at, 'prometheus.json')
  const targets = [`127.0.0.1:${(admin.address() as AddressInfo).port}`]
  await writeFile(
    file,
    JSON.stringify({
      global: { scrape_interval: '1s', evaluation_interval: '1s' },
      rule_files: [alerts],
      scrape_configs: [{ job_name: 'cidgate', static_configs: [{ targets }] }],
    }),
  )
  const url = `http://127.0.0.1:${port}`
  async function ask(query: string): Promise<readonly unknown[]> {
    const answer = await fetch(`${url}/api/v1/query?${new URLSearchParams({ query })}`)
    const said = (await answer.json()) as { status: string; error?: string; data: { result: unknown[] } }
    assert.equal(said.status, 'success', `${query}: ${said.error}`)
    return said.data.result
  }
  const server = await run({
    command: 'prometheus',
    args: [
      `--config.file=${file}`,
      `--storage.tsdb.path=${join(at, 'data')}`,
      `--web.listen-address=127.0.0.1:${port}`,
    ],
    isReady: () =>
      ask('sum(up) > 0').then(
        (found) => found.length > 0,
        () => false,
      ),
  })
  closing.push(server.stop)
  // A rate needs two values.
  const rates = 'count(rate(cidgate_http_requests_shed_total[5m]))'
  for (let tries = 0; (await ask(rates)).length === 0; tries++) {
    assert.ok(tries < 300, 'Prometheus did not ask the gateway twice')
    await sleep(100)
  }
  // What this gateway has nothing of: answers that were cut, spoiled blocks, uploads that wait, a socket of its own, denylists.
  const nothingOf: ReadonlySet<string> = new Set([
    ...['Turned away, cut', 'Outages and spoiled blocks', 'Uploads that wait'],
    ...['Connections, files', 'Age of denylists'],
  ])
  const emptyPanels = async () => {
    const empty = new Set<string>()
    for (const { panel, expr } of dashboardQueries())
      if ((await ask(filledIn(expr))).length === 0 && !nothingOf.has(panel)) empty.add(panel)
    return [...empty]
  }
  // Pins are counted, and providers looked at, behind the first scrapes.
  let empty = await emptyPanels()
  for (let tries = 0; empty.length > 0 && tries < 30; tries++) {
    await sleep(1000)
    empty = await emptyPanels()
  }
  assert.deepEqual(empty, [])
  assert.deepEqual(await ask('ALERTS{alertstate="firing"}'), [])
})
