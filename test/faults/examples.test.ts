// Each worked example of config/, as shipped, with a stand-in for the services that it names.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { shipped } from '../../src/config/package.ts'
import { readYaml } from '../../src/config/yaml.ts'
import { multipart, post } from '../support/adding.ts'
import { noise } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type Call, clusterApi, kuboApi, psaApi, startStandIn, token } from '../support/providers.ts'
import { startRedisServer } from '../support/redis-server.ts'
import { closingAfterEach } from '../support/started.ts'
import { startUpstream } from '../support/upstream.ts'

const started = closingAfterEach()
const uploadToken = 'a-token-of-the-operator'

/** As it is shipped, but for the addresses and secrets of the operator; and without the public upstreams. */
function example(name: string, replaced: Readonly<Record<string, string>>): Record<string, unknown> {
  let text = JSON.stringify(readYaml(shipped(`config/examples/${name}.yaml`)).tree)
  for (const [what, instead] of Object.entries(replaced)) {
    assert.ok(text.includes(what), `${name}.yaml names no ${what}`)
    text = text.replaceAll(what, instead)
  }
  const { listen: _, data: __, admin: ___, ...config } = JSON.parse(text) as Example
  // A machine that runs tests has other work, too: a store that is well has time.
  for (const tier of config.cache?.tiers ?? []) if (tier.use === 'redis' || tier.use === 's3') tier.timeout = '10s'
  return config
}

type Example = Record<string, unknown> & { cache?: { tiers?: { use: string; timeout?: string }[] } }

/** A new machine: an empty folder of its own, and nothing in memory. */
const instance = (config: Record<string, unknown>): Promise<TestGateway> =>
  started(startGateway({ config: { ...config, pinning: { ...(config['pinning'] as object), probeEvery: 0 } } }))

async function add({ url }: TestGateway, body: Uint8Array): Promise<string> {
  const {
    status,
    json,
    body: text,
  } = await post(`${url}/add`, multipart([{ fileName: 'a', body }]), {
    authorization: `Bearer ${uploadToken}`,
  })
  assert.equal(status, 200, text)
  return (json['cids'] as [string])[0]
}

async function isWhole({ url }: TestGateway, path: string, body: Uint8Array, from: string): Promise<void> {
  const answer = await fetchAll(url + path)
  assert.equal(answer.status, 200, answer.body.toString(undefined, 0, 300))
  assert.ok(answer.body.equals(body))
  assert.match(String(answer.headers['cache-status']), new RegExp(`detail="?${from}`))
}

const body = noise(2_200_000, 41)

describe('cluster.yaml', () => {
  test('pinned by two peers → acknowledged, readable by every instance', async () => {
    const cluster = await started(startStandIn(clusterApi))
    const gateway = await started(startUpstream({ blocks: cluster.blocks }))
    let looks = 0
    const peers = (...states: string[]) =>
      Object.fromEntries(states.map((status, index) => [`peer${index}`, { status }]))
    cluster.script = (call: Call) => {
      if (!call.path.startsWith('/pins/')) return undefined
      looks++
      return {
        json: { peer_map: looks < 3 ? peers('pinned', 'pinning', 'remote') : peers('pinned', 'pinned', 'remote') },
      }
    }
    const config = example('cluster', {
      '${UPLOAD_TOKEN}': uploadToken,
      'http://cluster.example.org:9094': cluster.url,
      'http://cluster.example.org:8080': gateway.url,
      '{"basic":"cidgate:${CLUSTER_PASSWORD}"}': JSON.stringify({ bearer: token }),
    })
    const first = await instance(config)
    const path = await add(first, body)
    assert.equal(looks, 3)
    await first.close()
    for (const another of [await instance(config), await instance(config)])
      await isWhole(another, path, body, 'cluster')
  })
})

describe('second-home.yaml', () => {
  test('stored at Kubo, fetched by the service, readable from both', async () => {
    const kubo = await started(startStandIn(kuboApi))
    const gateway = await started(startUpstream({ blocks: kubo.blocks }))
    const isAnswered = Promise.withResolvers<void>()
    const origins: string[] = []
    const service = await started(
      startStandIn(async (call, self) => {
        if (call.method === 'POST') origins.push(...(JSON.parse(call.body.toString()) as { origins: string[] }).origins)
        // It fetches in its own time; no uploading client waits for that.
        if (call.path.split('/').length > 3) await isAnswered.promise
        return psaApi(call, self)
      }),
    )
    const config = example('second-home', {
      'http://127.0.0.1:5001': kubo.url,
      'https://api.pinning.example.org': service.url,
      '${PSA_TOKEN}': token,
      'https://gateway.pinning.example.org': gateway.url,
      '"name":"kubo"': `"auth":{"bearer":"${token}"},"name":"kubo"`,
    })
    const first = await instance(config)
    const path = await add(first, body)
    assert.equal(kubo.pins.size, 1)
    isAnswered.resolve()
    for (const until = Date.now() + 10_000; ![...service.pins.values()].includes('pinned') && Date.now() < until; )
      await new Promise((resolve) => setTimeout(resolve, 10))
    assert.deepEqual([...service.pins], [[path.replace('/ipfs/', ''), 'pinned']])
    assert.equal(origins.length, 1)
    assert.match(origins[0] ?? '', /^\/dns4\/kubo\.example\.org\/tcp\/4001\/p2p\//)
    await first.close()

    gateway.fault = { kind: 'notFound' }
    await isWhole(await instance(config), path, body, 'kubo')
    gateway.fault = undefined
    kubo.script = () => 'cut'
    await isWhole(await instance(config), path, body, 'second-home')
  })
})

describe('redis.yaml', () => {
  test('shared blocks in Redis; evicted ones from Kubo', async () => {
    const redis = await startRedisServer()
    await started({ close: () => redis.stop() })
    const kubo = await started(startStandIn(kuboApi))
    const config = example('redis', {
      '${UPLOAD_TOKEN}': uploadToken,
      '${REDIS_URL}': redis.url,
      'http://kubo.example.org:5001': kubo.url,
      '${KUBO_TOKEN}': token,
    })
    const first = await instance(config)
    const path = await add(first, body)
    assert.ok(
      [...redis.values.values()].every(({ expires = 0 }) => Math.abs(expires - Date.now() - 86_400_000) < 60_000),
    )
    await first.close()
    kubo.script = () => ({ status: 503 })
    await isWhole(await instance(config), path, body, 'redis')
    kubo.script = undefined
    redis.values.clear()
    await isWhole(await instance(config), path, body, 'kubo')
  })
})
