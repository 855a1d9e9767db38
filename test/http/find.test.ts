// Content that no configured upstream has is found through routers: who holds it joins the race, and is believed nothing.
import assert from 'node:assert/strict'
import { afterEach, before, describe, test } from 'node:test'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { createKey } from '../support/ipns.ts'
import { addressOf, recordOf, startRouter, type TestRouter } from '../support/router.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
before(async () => {
  all = await fixtures()
})

const open: { close(): Promise<unknown> }[] = []
afterEach(async () => {
  for (const one of open.splice(0)) await one.close()
})

const holder = async (delayMs = 0): Promise<ProgrammableUpstream> => {
  const one = await startUpstream({ blocks: all.blocks, delayMs })
  open.push(one)
  return one
}

const routerOf = async (...holders: readonly { readonly url: string }[]): Promise<TestRouter> => {
  const router = await startRouter(holders.map(({ url }) => addressOf(url)))
  open.push(router)
  return router
}

const gatewayWith = async (
  routers: readonly { readonly url: string }[],
  upstreams: readonly Record<string, unknown>[] = [],
  more: Record<string, unknown> = {},
): Promise<TestGateway> => {
  const retrieval = {
    routers: routers.map(({ url }, index) => ({ name: `r${index}`, url, allowPrivate: true })),
    ...more,
  }
  const at = await startGateway({ upstreams, config: { retrieval } })
  open.unshift(at)
  return at
}

const attemptsOf = (body: Buffer): { upstream: string; outcome: string }[] => JSON.parse(body.toString()).attempts

describe('find providers by routers', () => {
  test('no upstream, found gateways corrupt or stall → verified content', async () => {
    const [liar, slow, good] = [await holder(), await holder(1500), await holder()]
    liar.fault = { kind: 'wrongBytes', block: 0 }
    const router = await routerOf(liar, slow, good)
    const at = await gatewayWith([router])
    for (const { cid, bytes } of [all.files.hello, all.files.json]) {
      const { status, body, headers } = await fetchAll(`${at.url}/ipfs/${cid}`)
      assert.equal(status, 200, body.toString())
      assert.ok(body.equals(bytes))
      assert.match(String(headers['cache-status']), /fwd=miss; .*127\.0\.0\.1/)
    }
    const big = await fetchAll(`${at.url}/ipfs/${all.directory}/sub/big.bin`)
    assert.ok(big.body.equals(all.names['sub/big.bin'] as Buffer))
  })

  test('router without a name → its private gateways found', async () => {
    const { url } = await routerOf(await holder())
    const at = await startGateway({ config: { retrieval: { routers: [{ url, allowPrivate: true }] } } })
    open.unshift(at)
    assert.equal((await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)).status, 200)
  })

  test('false and slow gateways found → 1.5 times at most', async () => {
    const timeOf = async (find: (holders: readonly ProgrammableUpstream[]) => Promise<TestGateway>) => {
      const [liar, slow] = [await holder(), await holder(300)]
      liar.fault = { kind: 'wrongBytes', block: 0 }
      const at = await find([liar, slow])
      const began = performance.now()
      for (const { cid, bytes } of [all.files.hello, all.files.json])
        assert.ok((await fetchAll(`${at.url}/ipfs/${cid}`)).body.equals(bytes))
      return performance.now() - began
    }
    const configured = await timeOf((holders) =>
      gatewayWith(
        [],
        holders.map(({ url }, index) => ({ name: `u${index}`, url })),
      ),
    )
    const found = await timeOf(async (holders) => gatewayWith([await routerOf(...holders)]))
    assert.ok(found <= 1.5 * configured, `${found} ms against ${configured} ms`)
  })

  test('one lookup per root, however much is read below', async () => {
    const router = await routerOf(await holder())
    const at = await gatewayWith([router])
    for (const name of ['readme.txt', 'sub/big.bin', 'readme.txt'])
      assert.equal((await fetchAll(`${at.url}/ipfs/${all.directory}/${name}`)).status, 200)
    assert.deepEqual(router.seen, [`/routing/v1/providers/${all.directory.toV1()}?filter-addrs=http,https`])
  })

  test('upstreams respond in time → no router lookup', async () => {
    const router = await routerOf(await holder())
    const at = await gatewayWith([router], [{ name: 'own', url: (await holder()).url }])
    assert.equal((await fetchAll(`${at.url}/ipfs/${all.directory}/sub/big.bin`)).status, 200)
    assert.deepEqual(router.seen, [])
  })

  test('upstreams lack it, hang or fail → found by routers', async () => {
    for (const fault of [{ kind: 'notFound' }, { kind: 'silent' }, { kind: 'refuse' }] as const) {
      const own = await holder()
      own.fault = fault
      const found = await holder()
      const router = await routerOf(found)
      const at = await gatewayWith([router], [{ name: 'own', url: own.url }])
      const leaf = await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)
      assert.ok(leaf.status === 200 && leaf.ms < 3000, `${fault.kind}: ${leaf.status} after ${leaf.ms} ms`)
      const file = await fetchAll(`${at.url}/ipfs/${all.directory}/sub/big.bin`)
      assert.ok(file.status === 200 && file.ms < 3500, `${fault.kind}: ${file.status} after ${file.ms} ms`)
      for (const { headers } of found.asked) assert.equal(headers['cache-control'], 'only-if-cached')
    }
  })

  test('no provider → 404 that says so; router failure → not cached', async () => {
    const router = await routerOf()
    const at = await gatewayWith([router])
    const none = await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)
    assert.equal(none.status, 404)
    assert.deepEqual(
      attemptsOf(none.body).map(({ upstream, outcome }) => [upstream, outcome]),
      [['router r0', 'not-found']],
    )
    const found = await holder()
    router.names = [addressOf(found.url)]
    router.instead = (_request, response) => void response.writeHead(500).end()
    const failed = await fetchAll(`${at.url}/ipfs/${all.files.json.cid}`)
    assert.equal(failed.status, 404)
    assert.equal(failed.headers['cache-control'], 'no-store')
    router.instead = undefined
    await new Promise((resolve) => setTimeout(resolve, 1100))
    assert.equal((await fetchAll(`${at.url}/ipfs/${all.files.json.cid}`)).status, 200)
  })

  test('failing router, probed → no request waits for it', async () => {
    const [bad, good] = [await routerOf(), await routerOf(await holder())]
    bad.instead = (_request, response) => void response.writeHead(503, { 'retry-after': '60' }).end()
    const at = await gatewayWith([bad, good], [], { probeEvery: '1h' })
    const isProbed = (router: TestRouter) => router.seen.some((path) => path.includes('/providers/bafkqaaa'))
    while (!isProbed(bad) || !isProbed(good)) await new Promise((resolve) => setTimeout(resolve, 20))
    while (!at.log.some(({ event }) => event === 'router.failed'))
      await new Promise((resolve) => setTimeout(resolve, 20))
    assert.equal((await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)).status, 200)
    assert.equal(bad.seen.length, 1)
    assert.equal(good.seen.length, 2)
  })

  test('thousand bad gateways → 8 connections at most, good responses unaffected', async () => {
    const traps = await Promise.all(Array.from({ length: 20 }, () => holder()))
    for (const trap of traps) trap.fault = { kind: 'html' }
    const router = await routerOf()
    router.instead = (_request, response) => {
      response.writeHead(200, { 'content-type': 'application/x-ndjson' })
      for (let turn = 0; turn < 1000; turn++) {
        const trap = traps[turn % traps.length] as ProgrammableUpstream
        response.write(
          ['{"Schema":', recordOf('/ip4/10.0.0.1/tcp/443/https'), recordOf(addressOf(trap.url)), '\n\n[]\n'][turn % 4],
        )
      }
      response.end(recordOf(addressOf(at.url)))
    }
    const own = await holder(400)
    const at = await gatewayWith([router], [{ name: 'own', url: own.url }], { backgroundSearch: 0 })
    const opened = () => traps.reduce((sum, trap) => sum + trap.opened, 0)
    const { status, body } = await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)
    assert.ok(status === 200 && body.equals(all.files.hello.bytes))
    assert.ok(opened() <= 8, `${opened()} connections`)
    own.fault = { kind: 'notFound' }
    const before = opened()
    const lost = await fetchAll(`${at.url}/ipfs/${all.files.json.cid}`)
    assert.ok(lost.status === 404 && lost.ms < 5000, `${lost.status} after ${lost.ms} ms`)
    assert.ok(opened() - before <= 8, `${opened() - before} connections`)
    assert.ok(traps.filter((trap) => trap.opened > 0).length <= 8)
  })

  test('private addresses, not allowed → not contacted', async () => {
    const found = await holder()
    const { port } = new URL(found.url)
    const router = await routerOf()
    router.names = [
      addressOf(found.url),
      `/ip6/::1/tcp/${port}/http`,
      '/dns/localhost/https',
      `/dns/localhost/tcp/${port}/http`,
    ]
    const at = await startGateway({
      config: { retrieval: { routers: [{ name: 'strict', url: router.url, allowHttp: true, ports: 'any' }] } },
    })
    open.unshift(at)
    const { status } = await fetchAll(`${at.url}/ipfs/${all.files.hello.cid}`)
    assert.equal(status, 404)
    assert.equal(found.opened, 0)
  })

  test('router has the record of a name → verified and followed', async () => {
    const [router, key] = [await routerOf(await holder()), createKey()]
    router.records.set(key.name, await key.record(`/ipfs/${all.files.hello.cid}`))
    const false1 = createKey()
    router.records.set(false1.name, await createKey().record(`/ipfs/${all.files.hello.cid}`))
    const at = await gatewayWith([router])
    const { status, body } = await fetchAll(`${at.url}/ipns/${key.name}`)
    assert.ok(status === 200 && body.equals(all.files.hello.bytes))
    assert.ok((await fetchAll(`${at.url}/ipns/${false1.name}`)).status >= 400)
  })

  test('another cidgate as router and provider → read through it', async () => {
    const second = await startGateway({ config: { public: 'http://127.0.0.1:1', provider: true } })
    open.push(second)
    const body = new FormData()
    body.append('data', new Blob(['held by the second']), 'x')
    const { cids } = (await (await fetch(`${second.url}/add`, { method: 'POST', body })).json()) as { cids: string[] }
    const router = await routerOf(second)
    const at = await gatewayWith([router])
    const read = await fetchAll(`${at.url}${cids[0]}`)
    assert.equal(read.body.toString(), 'held by the second')
    const seen = await fetchAll(`${second.url}/routing/v1${cids[0]?.replace('/ipfs', '/providers')}`)
    assert.match(seen.body.toString(), /"\/ip4\/127\.0\.0\.1\/tcp\/1\/http"/)
  })
})
