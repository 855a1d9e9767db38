// How we call ourselves, to everybody that we speak to: who runs a service finds out from it who it is that asks, and whom
// to write to.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterEach, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { runDoctor } from '../../src/cli/doctor-checks.ts'
import { loadConfig } from '../../src/config/load.ts'
import { multipart, post } from '../support/adding.ts'
import { fetchAll, startGateway, tempFolder } from '../support/gateway.ts'
import { startRedisServer } from '../support/redis-server.ts'

const userAgent = 'court-gateway/2.1 (+https://gateway.example.org; ops@example.org)'

const servers: Server[] = []
afterEach(() => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections()
    server.close()
  }
})

type Heard = { readonly url: string; readonly names: Set<string> }

/** Says no to everything, and writes down who asked. */
async function listener(answer?: { readonly type: string; readonly body: string }): Promise<Heard> {
  const names = new Set<string>()
  const server = createServer((request, response) => {
    request.resume()
    names.add(String(request.headers['user-agent']))
    response.writeHead(answer ? 200 : 404, { 'content-type': answer?.type ?? 'text/plain' }).end(answer?.body)
  })
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, names }
}

async function named(all: Readonly<Record<string, Heard>>): Promise<void> {
  const silent = () => Object.entries(all).filter(([, { names }]) => names.size === 0)
  for (const until = Date.now() + 20_000; silent().length > 0 && Date.now() < until; ) await sleep(10)
  const heard = Object.fromEntries(Object.entries(all).map(([what, { names }]) => [what, [...names]]))
  assert.deepEqual(heard, Object.fromEntries(Object.keys(all).map((what) => [what, [userAgent]])))
}

const missing = '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'

async function everybody() {
  const no = () => listener()
  return {
    trustless: await no(),
    plain: await no(),
    'kubo as an upstream': await no(),
    'kubo as a provider': await no(),
    cluster: await no(),
    pinata: await no(),
    filebase: await no(),
    psa: await no(),
    forward: await no(),
    'a gateway to read back from': await no(),
    S3: await no(),
    'DNS over HTTPS': await no(),
    'a denylist': await listener({ type: 'text/plain', body: 'version: 1\n---\n' }),
  }
}

function configOf(all: Awaited<ReturnType<typeof everybody>>) {
  const keys = { accessKeyId: 'a', secretAccessKey: 'b' }
  const urlOf = (what: keyof typeof all) => all[what].url
  return {
    pinning: {
      minConfirmations: 'all',
      timeout: '2s',
      providers: [
        { use: 'kubo', url: urlOf('kubo as a provider'), gateway: urlOf('a gateway to read back from') },
        { use: 'cluster', url: urlOf('cluster') },
        { use: 'pinata', token: 't', uploadsUrl: urlOf('pinata'), apiUrl: urlOf('pinata') },
        { use: 'filebase', endpoint: urlOf('filebase'), bucket: 'b', ...keys },
        { use: 'psa', url: urlOf('psa'), token: 't' },
        { use: 'forward', url: `${urlOf('forward')}/add` },
      ],
    },
    retrieval: {
      userAgent,
      timeout: '2s',
      backgroundSearch: 0,
      hedgeDelay: 0,
      probeEvery: '1h',
      upstreams: [
        { name: 'trustless', url: urlOf('trustless') },
        { name: 'plain', use: 'plain', url: urlOf('plain') },
        { name: 'kubo', use: 'kubo', url: urlOf('kubo as an upstream') },
      ],
    },
    cache: { tiers: [{ use: 's3', bucket: 'b', endpoint: urlOf('S3'), ...keys }] },
    names: { dns: [`${urlOf('DNS over HTTPS')}/dns-query`] },
    denylists: [`${urlOf('a denylist')}/list.deny`],
  }
}

test('sent to upstreams, providers, stores, denylists and DNS servers', async () => {
  const all = await everybody()
  const { retrieval, cache, ...more } = configOf(all)
  const gateway = await startGateway({ upstreams: retrieval.upstreams, config: { ...more, retrieval, cache } })
  try {
    await fetchAll(gateway.url + missing)
    await fetchAll(`${gateway.url}/ipns/name.example.org`)
    await post(`${gateway.url}/add`, multipart([{ fileName: 'a', body: 'a text' }]))
    await named(all)
  } finally {
    await gateway.close()
  }
})

test('sent to the service of thin mode, probes and uploads', async () => {
  const service = await listener()
  const config = { pinning: { providers: [] }, retrieval: { userAgent }, upload: { forwardTo: `${service.url}/add` } }
  const gateway = await startGateway({ config })
  try {
    await named({ service })
    service.names.clear()
    await post(`${gateway.url}/add`, multipart([{ fileName: 'a', body: 'a text' }]))
    await named({ service })
  } finally {
    await gateway.close()
  }
})

test('Redis → user agent in CLIENT LIST', async () => {
  const redis = await startRedisServer()
  const config = { retrieval: { userAgent }, cache: { tiers: [{ use: 'redis', url: redis.url }] } }
  const gateway = await startGateway({ config })
  try {
    await fetchAll(gateway.url + missing)
    const said = () => redis.clients.find((words) => /court-gateway/.test(words))
    for (const until = Date.now() + 10_000; !said() && Date.now() < until; ) await sleep(10)
    assert.equal(said(), `SETINFO LIB-NAME node-redis(${userAgent.replaceAll(' ', '-')})`)
  } finally {
    await gateway.close()
    await redis.stop()
  }
})

test('doctor sends it with every probe', async (context) => {
  const all = await everybody()
  const { names: _, ...rest } = configOf(all)
  const data = await tempFolder()
  context.mock.method(process.stdout, 'write', () => true)
  await writeFile(join(data, 'doctor.yaml'), JSON.stringify({ data, admin: false, ...rest }))
  await runDoctor(loadConfig(join(data, 'doctor.yaml')))
  // It asks for no names.
  const { 'DNS over HTTPS': dns, ...looked } = all
  assert.equal(dns.names.size, 0)
  await named(looked)
})
