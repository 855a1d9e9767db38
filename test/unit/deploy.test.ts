// What deploy/ ships, held against the code: files that it names are there, configurations are valid, addresses that probes
// ask for are answered. The images' steps and two real instances behind a real nginx are tried in test/interop.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { parse, parseAllDocuments } from 'yaml'
import { z } from 'zod'
import { kubernetesMonitoring } from '../../scripts/kubernetes-monitoring.ts'
import { allMetrics } from '../../scripts/monitoring.ts'
import { parseConfig } from '../../src/config/load.ts'
import type { Reading } from '../../src/observe/metrics.ts'
import { fetchAll } from '../support/gateway.ts'
import { alertRules, dashboardQueries, labelsIn, queryOf } from '../support/promql.ts'
import { startServed } from '../support/served.ts'
import { closingAfterEach } from '../support/started.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const read = (file: string): string => readFileSync(join(root, 'deploy', file), 'utf8')
const started = closingAfterEach()

type Service = {
  readonly build?: { readonly context: string; readonly dockerfile: string }
  readonly image?: string
  readonly command?: readonly string[]
  readonly environment?: Readonly<Record<string, string>>
  readonly volumes?: readonly string[]
  readonly depends_on?: readonly string[] | Readonly<Record<string, unknown>>
}
type Compose = {
  readonly services: Readonly<Record<string, Service>>
  readonly volumes: Readonly<Record<string, unknown>>
}

/** Secrets that an operator puts into the environment. */
const secrets = {
  S3_ACCESS_KEY_ID: 'an-id',
  S3_SECRET_ACCESS_KEY: 'a-secret',
  UPLOAD_TOKEN: 'a-token-of-32-characters-or-more!',
}

for (const file of ['compose.yaml', 'compose.kubo.yaml', 'two-instances/compose.yaml'])
  describe(`deploy/${file}`, () => {
    const folder = dirname(join(root, 'deploy', file))
    const { services, volumes } = parse(read(file), { merge: true }) as Compose

    for (const [name, service] of Object.entries(services))
      test(`${name}: image, files, volumes and services exist`, () => {
        const { build, image } = service
        assert.ok((build === undefined) !== (image === undefined), 'one of build and image')
        if (build) assert.ok(existsSync(join(folder, build.context, build.dockerfile)))
        for (const one of dependencies(service)) assert.ok(one in services)
        for (const volume of service.volumes ?? []) {
          const [from = ''] = volume.split(':')
          assert.ok(from.startsWith('.') ? existsSync(join(folder, from)) : from in volumes, volume)
        }
      })

    // A port that is published to one machine is open to every web page in a browser there.
    test('uploads require a token', () => {
      const gateways = Object.values(services).filter(({ build }) => build)
      assert.ok(gateways.length > 0)
      for (const { volumes: mounts = [], environment = {} } of gateways) {
        const mount = mounts.map((one) => one.split(':')).find(([, to]) => to?.startsWith('/etc/cidgate/'))
        const config = mount?.[0] ? parse(readFileSync(resolve(folder, mount[0]), 'utf8')) : {}
        const own = interpolated(environment)
        const { auth } = parseConfig(config, { ...own, CIDGATE_LISTEN: '0.0.0.0:8080' }).upload
        assert.deepEqual(auth, { tokens: [secrets.UPLOAD_TOKEN] })
      }
    })

    test('every configuration is valid and names existing services', () => {
      for (const { command = [], volumes: mounts = [], environment = {} } of Object.values(services)) {
        const target = command[command.indexOf('--config') + 1]
        if (!command.includes('--config') || target === undefined) continue
        const mount = mounts.map((one) => one.split(':')).find(([, to]) => to === target)
        assert.ok(mount?.[0], `${target} is mounted`)
        const text = readFileSync(resolve(folder, mount[0]), 'utf8')
        parseConfig(parse(text), { ...secrets, ...interpolated(environment) })
        for (const [, host] of text.matchAll(/(?:http|redis):\/\/([\w-]+):\d+/g))
          assert.ok(host && host in services, host)
      }
    })
  })

/** As compose does it. A variable that has to be set is one that the operator is told to make. */
const interpolated = (environment: Readonly<Record<string, string>>): Record<string, string> =>
  Object.fromEntries(
    Object.entries(environment).map(([name, value]) => [
      name,
      value.replace(/\$\{(\w+):\?([^}]*)\}/, (_all, variable: string, told: string) => {
        assert.match(told, /openssl rand/)
        return secrets[variable as keyof typeof secrets] ?? assert.fail(`${variable} is not known here`)
      }),
    ]),
  )

const dependencies = ({ depends_on: on = [] }: Service): readonly string[] =>
  Array.isArray(on) ? (on as readonly string[]) : Object.keys(on)

describe('deploy/Dockerfile', () => {
  const text = read('Dockerfile')

  test("copies the package's files and what npm ci needs", () => {
    const allowed: readonly string[] = readFileSync(join(root, '.dockerignore'), 'utf8').match(/^!.*/gm) ?? []
    for (const one of ['bin', 'src', 'backends', 'config', 'package.json', 'package-lock.json'])
      assert.ok(allowed.includes(`!${one}`), one)
  })

  test('runs the launcher with the required Node, unprivileged', () => {
    const [, version] = /^FROM node:(\d+)/m.exec(text) ?? []
    const { engines } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { engines: { node: string } }
    assert.ok(Number(version) >= Number(/\d+/.exec(engines.node)?.[0]))
    assert.match(text, /^USER node$/m)
    const [, entry] = /^ENTRYPOINT (.*)$/m.exec(text) ?? []
    const [, program] = JSON.parse(entry ?? '[]') as string[]
    assert.ok(existsSync(join(root, program ?? '')))
  })
})

describe('image health check', () => {
  const [, command = '[]'] = /^HEALTHCHECK [^[]*CMD (\[.*\])$/m.exec(read('Dockerfile')) ?? []
  const [, ...args] = JSON.parse(command) as string[]
  const ask = async (admin: string) => {
    const env = { ...process.env, CIDGATE_ADMIN: admin }
    const program = spawn(process.execPath, args, { cwd: root, env, stdio: ['ignore', 'ignore', 'pipe'] })
    let said = ''
    program.stderr.on('data', (chunk) => (said += chunk))
    const [code] = await once(program, 'close')
    return { code, said }
  }

  test('asks the configured admin address, reports why not ready', async () => {
    const data = await mkdtemp(join(tmpdir(), 'cidgate-health-'))
    const socket = `unix:${join(data, 'admin.sock')}`
    const { serving } = await started(startServed({ admin: socket }))
    const ill = createServer((_request, response) => response.writeHead(503).end()).listen(0, '127.0.0.1')
    await once(ill, 'listening')
    const { port } = ill.address() as AddressInfo
    const [ready, notReady, gone, unset] = await Promise.all(
      [`${serving.admin},mode=0600`, `127.0.0.1:${port}`, `${socket}.gone`, ''].map(ask),
    )
    ill.close()
    assert.deepEqual(ready, { code: 0, said: '' })
    assert.deepEqual(notReady, { code: 1, said: `healthcheck: 127.0.0.1:${port} says 503\n` })
    assert.equal(gone?.code, 1)
    assert.match(gone?.said ?? '', /^healthcheck: unix:.*\.gone: .*ENOENT/)
    // Empty is unset: the usual address is asked, whatever is there.
    assert.doesNotMatch(unset?.said ?? '', /no address/)
    await rm(data, { recursive: true })
  })
})

describe('deploy/kubernetes.yaml', () => {
  const text = read('kubernetes.yaml')
  type Manifest = { readonly kind: string; readonly data?: Record<string, string> }
  const manifests = parseAllDocuments(text).map((one) => one.toJS() as Manifest)

  test('configuration is valid with the documented secrets', () => {
    const config = manifests.find(({ kind }) => kind === 'ConfigMap')?.data?.['cidgate.yaml'] ?? ''
    for (const [, name = ''] of config.matchAll(/\$\{(\w+)\}/g))
      assert.ok(text.includes(`--from-literal=${name}=`), name)
    parseConfig(parse(config), secrets)
  })

  test('probe URLs respond', async () => {
    const paths = new Set([...text.matchAll(/httpGet: \{ path: (\S+),/g)].map(([, path = '']) => path))
    assert.deepEqual([...paths].sort(), ['/healthz', '/readyz'])
    const { serving } = await started(startServed({}))
    for (const path of paths) assert.equal((await fetchAll(`http://${serving.admin}${path}`)).status, 200)
  })
})

describe('deploy/kubernetes-monitoring.yaml', () => {
  const text = read('kubernetes-monitoring.yaml')
  const documents = parseAllDocuments(text).map((one) => one.toJS() as unknown)
  const pods = parseAllDocuments(read('kubernetes.yaml')).map((one) => one.toJS() as unknown)

  const words = z.record(z.string().regex(/^[\w./-]+$/), z.string().max(63))
  const metadata = z.strictObject({ name: z.string().regex(/^[a-z0-9-]+$/), labels: words })
  const time = z.string().regex(/^(?:\d+(?:ms|[smhdwy]))+$/)
  const crd = z.literal('monitoring.coreos.com/v1')
  /** As far as fields are used here, as the operator's own definitions have them. */
  const kinds = z.tuple([
    z.strictObject({
      ...{ apiVersion: z.literal('v1'), kind: z.literal('Service'), metadata },
      spec: z.strictObject({
        clusterIP: z.literal('None'),
        publishNotReadyAddresses: z.boolean(),
        selector: words,
        ports: z.array(z.strictObject({ name: z.string(), port: z.int(), targetPort: z.string() })),
      }),
    }),
    z.strictObject({
      ...{ apiVersion: crd, kind: z.literal('ServiceMonitor'), metadata },
      spec: z.strictObject({
        jobLabel: z.string(),
        selector: z.strictObject({ matchLabels: words }),
        endpoints: z.array(z.strictObject({ port: z.string(), path: z.string(), interval: time, scrapeTimeout: time })),
      }),
    }),
    z.strictObject({
      ...{ apiVersion: crd, kind: z.literal('PrometheusRule'), metadata },
      spec: z.strictObject({
        groups: z.array(
          z.strictObject({
            name: z.string(),
            rules: z.array(
              z.strictObject({
                ...{ alert: z.string(), expr: z.string(), for: time.optional(), labels: words },
                annotations: z.record(z.string(), z.string()),
              }),
            ),
          }),
        ),
      }),
    }),
  ])

  test("equals the script's output for the alert rules", () => {
    assert.equal(text, kubernetesMonitoring(), 'run `npm run schema`')
  })

  test("has the operator's form, with unchanged Prometheus rules", () => {
    const [, , rules] = kinds.parse(documents)
    assert.deepEqual(rules.spec, parse(read('prometheus/alerts.yaml')))
  })

  test("monitor → service → pod port, with the rules' job name", () => {
    const [service, monitor] = kinds.parse(documents)
    const container = z.object({ ports: z.array(z.object({ name: z.string(), containerPort: z.int() })) })
    const template = z.object({
      metadata: z.object({ labels: words }),
      spec: z.object({ containers: z.array(container) }),
    })
    const deployment = z.object({ kind: z.literal('Deployment'), spec: z.object({ template }) })
    const found = pods.find((one) => deployment.safeParse(one).success)
    const pod = deployment.parse(found).spec.template
    assert.deepEqual(service.metadata.labels, monitor.spec.selector.matchLabels)
    assert.deepEqual(service.spec.selector, pod.metadata.labels)
    for (const { port } of monitor.spec.endpoints) {
      const [named] = service.spec.ports.filter(({ name }) => name === port)
      const ports = pod.spec.containers.flatMap((one) => one.ports)
      assert.equal(ports.find(({ name }) => name === named?.targetPort)?.containerPort, named?.port)
    }
    const job = service.metadata.labels[monitor.spec.jobLabel]
    assert.ok(alertRules().some(({ expr }) => expr.includes(`job="${job}"`)))
  })

  test('is distinct from the client service', () => {
    const [service, monitor] = kinds.parse(documents)
    const all = pods.map((one) =>
      z.object({ kind: z.string(), metadata: z.object({ labels: words.optional() }) }).parse(one),
    )
    const wanted = Object.entries(monitor.spec.selector.matchLabels)
    for (const { metadata } of all.filter(({ kind }) => kind === 'Service'))
      assert.ok(!wanted.every(([key, value]) => metadata.labels?.[key] === value))
    assert.equal(service.spec.clusterIP, 'None')
  })
})

test('deploy/cidgate.service uses existing commands', () => {
  const text = read('cidgate.service')
  const programs = [...text.matchAll(/\/opt\/cidgate\/(\S+\.mjs) (\w+)/g)].map(([, file = '', command]) => ({
    file,
    command,
  }))
  assert.deepEqual(
    programs.map(({ command }) => command),
    ['check', 'serve'],
  )
  for (const { file } of programs) assert.ok(existsSync(join(root, file)))
  // The messages come from a child process of the gateway (src/server/notify.ts).
  assert.match(text, /^Type=notify\nNotifyAccess=all$/m)
})

describe('workflows on push and tag', () => {
  for (const name of ['ci', 'release'])
    test(`${name}: every named program and file exists`, () => {
      const text = readFileSync(join(root, `.github/workflows/${name}.yml`), 'utf8')
      const { jobs } = parse(text) as { jobs: Record<string, { steps: { run?: string }[] }> }
      assert.ok(Object.values(jobs).every(({ steps }) => steps.length > 0))
      for (const [file = ''] of text.matchAll(/\.ci\/[\w-]+|deploy\/\w+|CHANGELOG\.md/g))
        assert.ok(existsSync(join(root, file)), file)
    })
})

describe('monitoring files', () => {
  const metrics = new Map(allMetrics().map((reading) => [reading.name, reading]))
  const sources = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts'))
    .map((file) => readFileSync(join(root, 'src', file), 'utf8'))
    .join('\n')
  /** What Prometheus adds to each series, and `up`, which is its own. */
  const added = ['instance', 'job']
  const free: ReadonlySet<string> = new Set([...added, 'status'])

  type Metric = { readonly labels: readonly string[]; readonly help: string }
  function metricOf(name: string): Metric | undefined {
    if (name === 'up') return { labels: added, help: '' }
    const base = name.replace(/_(bucket|sum|count)$/, '')
    const isPart = metrics.get(base)?.kind === 'histogram'
    const found: Reading | undefined = isPart ? (base === name ? undefined : metrics.get(base)) : metrics.get(name)
    if (!found) return undefined
    const le = name.endsWith('_bucket') ? ['le'] : []
    return { labels: [...(found.labels ?? []), ...added, ...le], help: found.help }
  }

  /** What is wrong with a query, and with the labels that are told of it. */
  function faultsOf(expr: string, told: readonly string[]): string[] {
    const { metrics: asked, groupedBy } = queryOf(expr)
    const known = asked.flatMap(({ name }) => metricOf(name)?.labels ?? [])
    const left = groupedBy.length > 0 ? groupedBy : known
    return [
      ...(asked.length === 0 ? ['it asks for nothing'] : []),
      ...asked.flatMap(({ name, matchers }) => {
        const metric = metricOf(name)
        if (!metric) return [`there is no metric ${name}`]
        return matchers.flatMap(({ label, values }) => {
          if (!metric.labels.includes(label)) return [`${name} has no label ${label}`]
          const isKnown = (value: string) => sources.includes(`'${value}'`) || metric.help.includes(value)
          return free.has(label)
            ? []
            : values.filter((value) => !isKnown(value)).map((value) => `${label} is never ${value}`)
        })
      }),
      ...groupedBy.filter((label) => !known.includes(label)).map((label) => `nothing in it has the label ${label}`),
      ...told.filter((label) => !left.includes(label)).map((label) => `no label ${label} is left to tell`),
    ]
  }

  test('checker detects wrong metric, label, value, histogram, legend', () => {
    assert.deepEqual(faultsOf('sum by (tier) (rate(cidgate_tier_lookups_total{result="hit"}[5m])) > 0', ['tier']), [])
    for (const [expr, told, fault] of [
      ['rate(cidgate_tier_lookup_total[5m])', [], 'there is no metric cidgate_tier_lookup_total'],
      ['cidgate_tier_bytes{upstream="a"}', [], 'cidgate_tier_bytes has no label upstream'],
      ['cidgate_tier_lookups_total{result=~"hit|hits-of-it"}', [], 'result is never hits-of-it'],
      ['cidgate_tier_read_duration_seconds', [], 'there is no metric cidgate_tier_read_duration_seconds'],
      ['sum by (upstream) (cidgate_tier_bytes)', [], 'nothing in it has the label upstream'],
      ['sum by (instance) (cidgate_tier_bytes)', ['tier'], 'no label tier is left to tell'],
      ['1 > 0', [], 'it asks for nothing'],
    ] as const)
      assert.deepEqual(faultsOf(expr, told), [fault])
  })

  test('Grafana queries use existing metrics and labels', () => {
    const queries = dashboardQueries()
    assert.ok(queries.length > 50)
    assert.deepEqual(
      queries.flatMap(({ panel, expr, legend }) =>
        faultsOf(expr, labelsIn(legend)).map((fault) => `${panel}: ${fault}`),
      ),
      [],
    )
  })

  test('alerts use existing metrics, and have troubleshooting entries', () => {
    const rules = alertRules()
    assert.deepEqual(
      rules.flatMap(({ alert, expr, annotations: { summary } }) =>
        faultsOf(expr, labelsIn(summary)).map((fault) => `${alert}: ${fault}`),
      ),
      [],
    )
    for (const { alert, annotations, labels } of rules) {
      assert.equal(annotations.runbook, `docs/troubleshoot.md#${alert.toLowerCase()}`)
      assert.ok(['page', 'ticket'].includes(labels['severity'] ?? ''), alert)
    }
    const page = readFileSync(join(root, 'docs/troubleshoot.md'), 'utf8')
    assert.deepEqual(
      [...page.matchAll(/^### (Cidgate\w+)$/gm)].map(([, name]) => name),
      rules.map(({ alert }) => alert),
    )
  })

  test('compose paths match for Prometheus, Grafana and rules', () => {
    const { services } = parse(read('two-instances/compose.yaml'), { merge: true }) as Compose
    const targets = (name: string) => (services[name]?.volumes ?? []).map((volume) => volume.split(':').at(1))
    const { rule_files: rules, scrape_configs: jobs } = parse(read('two-instances/prometheus.yaml')) as {
      rule_files: string[]
      scrape_configs: { job_name: string; static_configs: { targets: string[] }[] }[]
    }
    for (const file of rules) assert.ok(targets('prometheus').includes(file), file)
    assert.deepEqual(
      jobs.map(({ job_name: name }) => name),
      ['cidgate'],
    )
    for (const target of jobs.flatMap(({ static_configs: all }) => all.flatMap((one) => one.targets)))
      assert.ok((target.split(':')[0] ?? '') in services, target)
    const { datasources } = parse(read('grafana/datasource.yaml')) as { datasources: { url: string }[] }
    for (const { url } of datasources) assert.ok(new URL(url).hostname in services, url)
    const { providers } = parse(read('grafana/dashboards.yaml')) as { providers: { options: { path: string } }[] }
    for (const { options } of providers)
      assert.ok(targets('grafana').some((file) => file !== undefined && dirname(file) === options.path))
    assert.ok(
      targets('grafana').includes(services['grafana']?.environment?.['GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH']),
    )
  })
})
