// The official conformance suite against Kubo, against cidgate in front of that Kubo with empty tiers, against the same
// cidgate with Kubo stopped, and against a new cidgate process over the same data. Prints a table of them, group by group,
// and every case that Kubo passes and cidgate does not, or that was not run there.
//   GATEWAY_CONFORMANCE=/path/to/gateway-conformance npm run conformance
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Kubo, startKubo } from '../support/kubo.ts'
import { freePort, run, tempFolder } from '../support/processes.ts'
import { type Column, type Counts, judged, sorted, table } from './report.ts'
import { createSuite, everything, type Fixtures, groups, trustlessOnly } from './suite.ts'

const program = process.env['GATEWAY_CONFORMANCE']
if (!program) throw new Error('GATEWAY_CONFORMANCE: the path of the gateway-conformance binary, built from its source')

const cidgate = fileURLToPath(new URL('../../../bin/cidgate.mjs', import.meta.url))
const hosts = ['localhost', 'example.com']
const folder = await tempFolder()
const suite = createSuite(program, folder.path)

async function loadedKubo({ cars, records, namesMap }: Fixtures): Promise<Kubo> {
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

/** A process of its own, by the command that an operator starts. */
async function startCidgate(types: 'api' | 'web', upstream: string, { namesMap }: Fixtures) {
  const port = await freePort()
  const config = {
    listen: `127.0.0.1:${port}`,
    data: join(folder.path, `data-${types}`),
    admin: false,
    log: { level: 'error' },
    pinning: { providers: [] },
    responses: { types },
    hosts: Object.fromEntries(hosts.map((name) => [name, { subdomains: true }])),
    trustedProxies: ['127.0.0.1'],
    names: {
      dnslinkSites: true,
      static: Object.fromEntries(namesMap.split(',').map((pair) => pair.split(/:(.*)/).slice(0, 2))),
    },
    retrieval: { probeEvery: 0, upstreams: [{ name: 'kubo', url: upstream }] },
  }
  const file = join(folder.path, `${types}.json`)
  await writeFile(file, JSON.stringify(config))
  const url = `http://127.0.0.1:${port}`
  const isReady = () =>
    fetch(`${url}/ipfs/bafkqaaa`).then(
      ({ ok }) => ok,
      () => false,
    )
  const running = await run({ command: process.execPath, args: [cidgate, 'serve', '--config', file], isReady })
  return { url, stop: () => running.stop() }
}

const given = suite.fixtures()
const kubo = await loadedKubo(given)
const opened: { stop(): Promise<void> }[] = [{ stop: () => kubo.stop() }]
const start = async (types: 'api' | 'web') => {
  const one = await startCidgate(types, kubo.gateway, given)
  opened.push(one)
  return one
}
const isTrustless = (group: string): boolean => group.startsWith('trustless-')
const columns: Column[] = []
const ask = async (head: string, url: string, asked: Column['asked'] = () => true) =>
  columns.push({ head, asked, counts: await suite.run(url, asked === isTrustless ? trustlessOnly : everything) })
try {
  // Which specifications a case needs, nothing but a run without the others tells.
  const byGroup = new Map<string, Counts>()
  for (const group of groups) byGroup.set(group, await suite.run(kubo.gateway, group))
  const cases = sorted(byGroup)

  await ask('Kubo', kubo.gateway)
  const [web, api] = [await start('web'), await start('api')]
  await ask('web', web.url)
  await ask('api', api.url, isTrustless)
  await kubo.stop()
  await ask('web, Kubo stopped', web.url)
  await ask('api, Kubo stopped', api.url, isTrustless)
  await web.stop()
  await api.stop()
  await ask('web, new process', (await start('web')).url)
  await ask('api, new process', (await start('api')).url, isTrustless)

  console.log(table(columns, cases))
  const { missed, shared } = judged(columns, cases)
  for (const one of shared) console.log(`not passed by Kubo either: ${one}`)
  for (const one of missed) console.log(`MISSED: ${one}`)
  process.exitCode = missed.length > 0 ? 1 : 0
} finally {
  for (const { stop } of opened) await stop().catch(() => {})
  await folder.remove()
}
