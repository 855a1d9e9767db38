// The official conformance suite against Kubo, against cidgate in front of that Kubo with empty tiers, and once more with
// Kubo stopped. Prints a table of both, group by group, and every case that Kubo passes and cidgate does not.
//   GATEWAY_CONFORMANCE=/path/to/gateway-conformance npm run conformance
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync, realpathSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { createGateway } from '../../../src/gateway.ts'
import { createHttpServer } from '../../../src/http/server.ts'
import { type Kubo, startKubo } from '../support/kubo.ts'
import { freePort, runOnce, tempFolder } from '../support/processes.ts'
import { type Counts, readReport } from './report.ts'

const suite = process.env['GATEWAY_CONFORMANCE']
if (!suite) throw new Error('GATEWAY_CONFORMANCE: the path of the gateway-conformance binary, built from its source')

// Some cases belong to a second group too, and run only when that one is named with them.
const groups = [
  'trustless-block-gateway',
  'trustless-car-gateway',
  'trustless-car-gateway-optional',
  'trustless-ipns-gateway',
  'path-unixfs-gateway',
  'path-range-gateway,path-unixfs-gateway',
  'path-raw-gateway',
  'path-tar-gateway',
  'path-dag-gateway',
  'path-ipns-gateway',
  'redirects-file,subdomain-ipfs-gateway,dnslink-gateway',
  'subdomain-ipfs-gateway',
  'subdomain-ipns-gateway',
  'dnslink-gateway',
  'proxy-gateway,subdomain-ipfs-gateway',
] as const

const hosts = ['localhost', 'example.com']
const folder = await tempFolder()

function files(under: string): string[] {
  return readdirSync(under, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
}

function fixtures(): { cars: string[]; records: string[]; namesMap: string } {
  const to = join(folder.path, 'fixtures')
  runOnce(suite as string, ['extract-fixtures', '--directory', to])
  const all = files(to)
  return {
    cars: all.filter((file) => file.endsWith('.car')),
    records: all.filter((file) => file.endsWith('.ipns-record')),
    namesMap: readFileSync(all.find((file) => file.endsWith('IPFS_NS_MAP')) as string, 'utf8').trim(),
  }
}

async function loadedKubo({ cars, records, namesMap }: ReturnType<typeof fixtures>): Promise<Kubo> {
  const host = { UseSubdomains: true, InlineDNSLink: true, Paths: ['/ipfs', '/ipns'] }
  const kubo = await startKubo({
    namesMap,
    config: { 'Gateway.PublicGateways': Object.fromEntries(hosts.map((name) => [name, host])), 'Routing.Type': 'auto' },
  })
  for (const car of cars) kubo.ipfs(['dag', 'import', '--pin-roots=false', car])
  for (const record of records) {
    const key = record.split('/').at(-1)?.split(/[_.]/)[0]
    try {
      kubo.ipfs(['routing', 'put', '--allow-offline', `/ipns/${key}`, record])
    } catch {
      // Some are wrong on purpose, and Kubo takes none of those.
    }
  }
  return kubo
}

async function startCidgate(types: 'api' | 'web', upstream: string, namesMap: string) {
  const gateway = await createGateway({
    data: join(folder.path, `data-${types}`),
    admin: false,
    log: { level: 'error' },
    pinning: { providers: [] },
    responses: { types },
    hosts: Object.fromEntries(hosts.map((name) => [name, { subdomains: true }])),
    trustedProxies: ['127.0.0.1'],
    names: {
      sites: true,
      links: Object.fromEntries(namesMap.split(',').map((pair) => pair.split(/:(.*)/).slice(0, 2))),
    },
    retrieval: { probeEvery: 0, upstreams: [{ name: 'kubo', url: upstream }] },
  })
  const port = await freePort()
  const server = createHttpServer(gateway.handler, gateway.serves)
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${port}`,
    async close() {
      server.closeAllConnections()
      server.close()
      await gateway.close()
    },
  }
}

/** Each group by itself, so that its counts are its own. */
async function test(url: string, which: readonly string[]): Promise<Map<string, Counts>> {
  const subdomain = `http://example.com:${new URL(url).port}`
  const home = process.env['GATEWAY_CONFORMANCE_HOME'] ?? dirname(realpathSync(suite as string))
  const counts = new Map<string, Counts>()
  for (const specs of which) {
    const json = join(folder.path, 'report.json')
    const urls = ['--gateway-url', url, '--subdomain-url', subdomain]
    const command = ['test', ...urls, '--json', json, '--specs', specs, '--', '-timeout', '5m']
    const env = { ...process.env, GATEWAY_CONFORMANCE_HOME: home }
    // Cases that fail end it with 1; the report says which.
    await new Promise<void>((resolve) => execFile(suite as string, command, { env }, () => resolve()))
    counts.set(specs, readReport(readFileSync(json, 'utf8')))
  }
  return counts
}

const given = fixtures()
const kubo = await loadedKubo(given)
const web = await startCidgate('web', kubo.gateway, given.namesMap)
const api = await startCidgate('api', kubo.gateway, given.namesMap)
const trustless = groups.filter((group) => group.startsWith('trustless-'))
try {
  const columns = {
    Kubo: await test(kubo.gateway, groups),
    'cidgate, web': await test(web.url, groups),
    'cidgate, api': await test(api.url, trustless),
  }
  await kubo.stop()
  const all = { ...columns, 'cidgate, web, Kubo stopped': await test(web.url, groups) }
  const heads = Object.keys(all)
  console.log(`| group | ${heads.join(' | ')} |\n|---|${heads.map(() => '---|').join('')}`)
  for (const group of groups) {
    const cells = Object.values(all).map((counts) => {
      const one = counts.get(group)
      return one ? `${one.passed.size}${one.failed.size > 0 ? `, ${one.failed.size} fail` : ''}` : '–'
    })
    console.log(`| ${group} | ${cells.join(' | ')} |`)
  }
  let missed = 0
  for (const [head, counts] of Object.entries(all).slice(1))
    for (const [group, { failed }] of counts)
      for (const name of failed) {
        const isOurs = columns.Kubo.get(group)?.passed.has(name)
        if (isOurs) missed++
        console.log(`${isOurs ? 'MISSED' : 'also fails in Kubo'}: ${head}: ${group}: ${name}`)
      }
  process.exitCode = missed > 0 ? 1 : 0
} finally {
  await kubo.stop().catch(() => {})
  await Promise.all([web.close(), api.close()])
  await folder.remove()
}
