// What one client may ask a minute, by kind of request, through HTTP; and two gateways that count together in a Redis.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { fetchAll, startGateway } from '../support/gateway.ts'
import { startRedisServer } from '../support/redis-server.ts'
import { closingAfterEach } from '../support/started.ts'
import { startUpstream } from '../support/upstream.ts'

const closing = closingAfterEach()

async function start(limits: object, blocks: BlockMap = new Map()) {
  const upstream = await closing(startUpstream({ blocks }))
  const gateway = await closing(
    startGateway({
      upstreams: [{ name: 'one', url: upstream.url }],
      config: { limits, pinning: { providers: [{ use: 'embedded' }] } },
    }),
  )
  return { ...gateway, upstream, status: async (path: string) => (await fetchAll(gateway.url + path)).status }
}

async function upload(url: string): Promise<number> {
  const form = new FormData()
  form.set('data', new Blob([Buffer.from(noise(100, Math.random()))]))
  const answer = await fetch(`${url}/add`, { method: 'POST', body: form })
  await answer.text()
  return answer.status
}

describe('limits per client', () => {
  test('cache misses → limited; cache hits → unlimited', async () => {
    const blocks: BlockMap = new Map()
    const files = await Promise.all([1, 2, 3].map((seed) => addFile(blocks, noise(100, seed))))
    const { status, url, upstream } = await start({ perClient: { misses: 8 } }, blocks)
    const paths = files.map(({ cid }) => `/ipfs/${cid}`) as [string, string, string]
    assert.deepEqual([await status(paths[0]), await status(paths[1])], [200, 200])
    const asked = upstream.asked.length
    const refused = await fetchAll(url + paths[2], { accept: 'application/json' })
    assert.equal(refused.status, 429)
    assert.match(String(refused.body), /content that is not here yet/)
    assert.ok(Number(refused.headers['retry-after']) >= 1)
    assert.equal(upstream.asked.length, asked, 'an upstream was asked for it')
    assert.deepEqual([await status(paths[0]), await status(paths[1])], [200, 200])
  })

  test('negative cache hit → not a miss', async () => {
    const { status } = await start({ perClient: { misses: 4 } })
    const path = '/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
    for (let count = 0; count < 3; count++) assert.equal(await status(path), 404)
  })

  test('CARs → limited separately from files', async () => {
    const blocks: BlockMap = new Map()
    const { cid } = await addFile(blocks, noise(100, 1))
    const { status } = await start({ perClient: { exports: 4 } }, blocks)
    assert.equal(await status(`/ipfs/${cid}?format=car`), 200)
    assert.equal(await status(`/ipfs/${cid}?format=car`), 429)
    assert.equal(await status(`/ipfs/${cid}`), 200)
    assert.equal(await status(`/ipfs/${cid}?format=raw`), 200)
  })

  test('eight spellings of one address → one client', async () => {
    const config = { trustedProxies: ['127.0.0.1'], limits: { perClient: { perMinute: 1, burst: 2 } } }
    const { url } = await closing(startGateway({ config }))
    const statuses: number[] = []
    for (const client of [
      ...['192.0.2.1', '192.0.2.1:80', '::ffff:192.0.2.1', '::FFFF:c000:201', '[::ffff:192.0.2.1]:80'],
      ...['0:0:0:0:0:ffff:c000:201', '0000:0000:0000:0000:0000:ffff:192.0.2.1', '::ffff:192.0.2.1%eth0', '192.0.2.2'],
    ])
      statuses.push((await fetchAll(`${url}/ipfs/bafkqaaa`, { 'x-forwarded-for': client })).status)
    assert.deepEqual(statuses, [200, 200, ...Array.from({ length: 6 }, () => 429), 200])
  })

  test('uploads → limited', async () => {
    const { url } = await start({ perClient: { uploads: 8 } })
    assert.deepEqual([await upload(url), await upload(url), await upload(url)], [200, 200, 429])
  })

  test('no limits configured → unlimited', async () => {
    const { url, status } = await start({})
    for (let count = 0; count < 3; count++) assert.equal(await upload(url), 200)
    assert.equal(await status('/ipfs/bafkqaaa?format=car'), 200)
  })
})

test('two gateways, one Redis → shared limits; without it, each alone', async () => {
  const redis = await closing(startRedisServer().then((server) => ({ ...server, close: () => server.stop(), server })))
  const limits = { perClient: { perMinute: 60, burst: 10 }, sharedStore: { use: 'redis', url: redis.url } }
  const [one, other] = [await start(limits), await start(limits)]
  const path = '/ipfs/bafkqaaa'
  for (let count = 0; count < 10; count++) assert.equal(await one.status(path), 200)
  assert.equal(await one.status(path), 429)
  assert.equal(await other.status(path), 200)
  const began = Date.now()
  let had = 1
  while ((await other.status(path)) === 200) {
    had++
    assert.ok(had < 10, 'it never heard of what the first one let through')
    await sleep(400)
  }
  assert.ok(Date.now() - began < 5000)
  assert.ok([...redis.server.values.keys()].every((key) => key.startsWith('cidgate:limit:')))
  await redis.server.refuse()
  const third = await start(limits)
  for (let count = 0; count < 10; count++) assert.equal(await third.status(path), 200)
})
