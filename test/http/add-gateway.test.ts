// Uploads to whole gateways, configured as an operator would: what waits for its provider is read, what is pinned here is not
// kept twice, and thin mode in front of a gateway and of a Kubo.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { below, multipart, post } from '../support/adding.ts'
import { fetchAll, type StartOptions, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { keptIn } from '../support/kept.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../support/providers.ts'

const add = (at: TestGateway, body: Uint8Array | string, headers = {}) =>
  post(`${at.url}/add`, multipart([{ fileName: 'a', body }]), headers)

const pathOf = ({ json, body }: { json: Record<string, unknown>; body: string }): string => {
  const [path] = (json['cids'] ?? []) as string[]
  assert.ok(path, body)
  return path
}

async function withGateway(options: StartOptions, work: (at: TestGateway) => Promise<void>): Promise<void> {
  const at = await startGateway(options)
  try {
    await work(at)
  } finally {
    await at.close()
  }
}

async function until(isTrue: () => Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 10_000; Date.now() < end; await sleep(20)) if (await isTrue()) return
  assert.fail('it did not come about')
}

const noCache = { responses: { maxBytes: 0 }, tiers: [] }

describe('failed upload in web mode', () => {
  it('JSON for programs, a page for browsers', async () => {
    await withGateway({ config: { responses: { types: 'web' } } }, async (at) => {
      for (const [accept, type] of [
        [undefined, 'application/problem+json'],
        ['*/*', 'application/problem+json'],
        ['text/html,*/*', 'text/html'],
      ]) {
        const { status, headers } = await post(`${at.url}/add`, multipart([]), accept === undefined ? {} : { accept })
        assert.equal(status, 400)
        assert.ok(String(headers['content-type']).startsWith(String(type)), String(headers['content-type']))
      }
    })
  })
})

describe('pinning.acceptWhileUnavailable without a local provider', () => {
  it('queued upload → readable until delivered, even after restart', async () => {
    const data = await tempFolder()
    const kubo = await startStandIn(kuboApi)
    kubo.script = ({ path }) => (path.endsWith('/version') ? undefined : { status: 503 })
    const pinning = {
      acceptWhileUnavailable: true,
      providers: [{ name: 'kubo', use: 'kubo', url: kubo.url, auth: { bearer: token } }],
    }
    const options = { data, config: { pinning, cache: noCache } }
    const bytes = randomBytes(2_500_000)
    try {
      let path = ''
      await withGateway(options, async (at) => {
        path = pathOf(await add(at, bytes))
        const { status, body, headers } = await fetchAll(at.url + path)
        assert.equal(status, 200)
        assert.ok(body.equals(bytes))
        assert.equal(headers['cache-status'], 'cidgate; hit; detail=uploads')
      })
      await withGateway(options, async (at) => {
        const read = () => fetchAll(at.url + path, { 'Cache-Control': 'only-if-cached' })
        await until(async () => (await read()).status === 200)
        kubo.script = undefined
        // From then on it is the provider's, and this gateway has nobody to ask for it.
        await until(async () => (await below(join(data, 'uploads'))).length === 0)
        assert.equal((await read()).status, 412)
        assert.equal(kubo.pins.size, 1)
      })
    } finally {
      await kubo.close()
      await rm(data, { recursive: true, force: true })
    }
  })
})

describe('embedded provider', () => {
  it('upload → stored once on this disk', async () => {
    const cache = {
      responses: { maxBytes: 0 },
      tiers: [
        { use: 'memory', maxBytes: '1MiB' },
        { use: 'disk', maxBytes: '1GiB' },
      ],
    }
    await withGateway({ config: { cache } }, async (at) => {
      const bytes = randomBytes(3_000_000)
      const path = pathOf(await add(at, bytes))
      assert.ok((await fetchAll(at.url + path)).body.equals(bytes))
      await at.gateway.close()
      assert.equal((await keptIn(at.data)).blocks, 4)
      for (const name of await below(join(at.data, 'cache')))
        assert.equal((await readFile(join(at.data, 'cache', name))).includes(bytes.subarray(0, 64)), false, name)
    })
  })
})

describe('thin mode', () => {
  let there: TestGateway
  let kubo: StandIn
  let list: string
  before(async () => {
    list = join(await tempFolder(), 'list.deny')
    await writeFile(list, '/ipfs/bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4\n')
    there = await startGateway({ config: { upload: { auth: { tokens: ['theirs-and-long-enough'] } } } })
    kubo = await startStandIn(kuboApi)
  })
  after(async () => {
    await there.close()
    await kubo.close()
    await rm(join(list, '..'), { recursive: true, force: true })
  })

  const targets: readonly (readonly [name: string, through: () => unknown, has: (path: string) => Promise<boolean>])[] =
    [
      [
        'in front of another gateway',
        () => ({ url: `${there.url}/add`, authorization: 'Bearer theirs-and-long-enough' }),
        async (path) => (await fetchAll(there.url + path, { 'Cache-Control': 'only-if-cached' })).status === 200,
      ],
      [
        'in front of a Kubo',
        () => ({ url: `${kubo.url}/api/v0`, authorization: `Bearer ${token}` }),
        async (path) => kubo.pins.has(path.slice('/ipfs/'.length)),
      ],
    ]
  for (const [name, through, has] of targets) {
    it(`${name}: pinned there, read here, nothing on this disk`, async () => {
      const config = {
        upload: { forwardTo: through(), auth: { tokens: ['ours-and-long-enough'] } },
        denylists: [list],
        pinning: { probeEvery: 0 },
      }
      await withGateway({ config }, async (at) => {
        const ours = { Authorization: 'Bearer ours-and-long-enough' }
        const bytes = randomBytes(1_500_000)
        assert.equal((await add(at, bytes)).status, 401)
        const path = pathOf(await add(at, bytes, ours))
        assert.ok(await has(path))
        const read = await fetchAll(at.url + path)
        assert.ok(read.body.equals(bytes))
        assert.match(String(read.headers['cache-status']), /hit/)
        assert.deepEqual(await below(join(at.data, 'uploads')), [])
        assert.deepEqual(await below(join(at.data, 'pins')), [])
      })
    })

    it(`${name}: denied → not reported as held`, async () => {
      await withGateway({ config: { upload: { forwardTo: through() }, denylists: [list] } }, async (at) => {
        const { status, body } = await add(at, 'hello world\n')
        assert.equal(status, 410, body)
        await sleep(50)
        assert.equal(await has('/ipfs/bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4'), false)
      })
    })
  }
})
