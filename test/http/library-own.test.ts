// Backends that a program brings itself: classes that obey the contracts, beside those of the configuration.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, it } from 'node:test'
import type { CID } from 'multiformats/cid'
import { silentLog } from '../../src/core/log.ts'
import {
  type Block,
  blockKey,
  ConfigError,
  type ConfigInput,
  createGateway,
  Failure,
  fromIterable,
  type Gateway,
  type PinState,
  type ProbeReport,
  type Provider,
  parseConfig,
  type Tier,
  type Upload,
  type Upstream,
} from '../../src/gateway.ts'
import { multipart, post } from '../support/adding.ts'
import { addFile, type BlockMap, text } from '../support/fixtures.ts'
import { fetchAll, metricsOf, tempFolder } from '../support/gateway.ts'

class MapTier implements Tier {
  readonly name: string
  readonly traits = { persistent: true, shared: true, trusted: false }
  readonly #blocks = new Map<string, Uint8Array>()
  closed = 0
  constructor(name = 'mine') {
    this.name = name
  }
  get size() {
    return this.#blocks.size
  }
  async get(cid: CID) {
    return this.#blocks.get(blockKey(cid))
  }
  async put(cid: CID, bytes: Uint8Array) {
    this.#blocks.set(blockKey(cid), Uint8Array.from(bytes))
  }
  async has(cid: CID) {
    return this.#blocks.has(blockKey(cid))
  }
  async delete(cid: CID) {
    this.#blocks.delete(blockKey(cid))
  }
  async close() {
    this.closed++
  }
}

class MapUpstream implements Upstream {
  readonly name = 'mine'
  readonly traits = { dag: false, canBlock: () => true }
  readonly #blocks: BlockMap
  asked = 0
  closed = 0
  constructor(blocks: BlockMap) {
    this.#blocks = blocks
  }
  readonly ask = fromIterable(({ cid }) => this.#blocksOf(cid))
  async *#blocksOf(cid: CID): AsyncGenerator<Block> {
    this.asked++
    const bytes = this.#blocks.get(blockKey(cid))
    if (!bytes) throw new Failure('not-found', `mine has no ${cid}`, { source: 'upstream' })
    yield { cid, bytes }
  }
  async probe(): Promise<ProbeReport> {
    return { usable: true, raw: true, car: false, findings: [], ms: 0 }
  }
  async close() {
    this.closed++
  }
}

class MapProvider implements Provider {
  readonly name = 'mine'
  readonly traits = { takesBytes: true, local: false }
  readonly #held = new Map<string, CID>()
  closed = 0
  isFull = false
  get size() {
    return this.#held.size
  }
  async pin({ cid }: Upload) {
    if (this.isFull) throw new Failure('refused', 'mine is full', { source: 'provider', facts: { class: 'quota' } })
    this.#held.set(blockKey(cid), cid)
    return cid
  }
  async unpin(cid: CID) {
    this.#held.delete(blockKey(cid))
  }
  async status(cid: CID): Promise<PinState> {
    return this.#held.has(blockKey(cid)) ? 'pinned' : 'missing'
  }
  async probe() {}
  async close() {
    this.closed++
  }
}

describe("program's own backends", () => {
  let data: string
  before(async () => {
    data = await tempFolder()
  })
  after(() => rm(data, { recursive: true, force: true }))
  const said = (more: ConfigInput = {}): ConfigInput => ({
    data,
    retrieval: { upstreams: [], probeEvery: 0 },
    cache: { tiers: [{ use: 'memory', maxBytes: '1MiB' }] },
    pinning: { minConfirmations: 2, providers: [{ use: 'embedded' }] },
    ...more,
  })

  async function withServer(gateway: Gateway, run: (url: string) => Promise<void>): Promise<void> {
    const server = createServer(gateway.handler)
    try {
      await gateway.start()
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      await run(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
    } finally {
      server.closeAllConnections()
      server.close()
      await gateway.close()
    }
  }

  it('read, filled, queried, confirmed, counted, never closed', async () => {
    const blocks: BlockMap = new Map()
    const { cid } = await addFile(blocks, text('only the upstream has it'))
    const own = { tiers: [new MapTier()], upstreams: [new MapUpstream(blocks)], providers: [new MapProvider()] }
    const [[tier], [upstream], [provider]] = [own.tiers, own.upstreams, own.providers] as const
    assert.ok(tier && upstream && provider)
    const gateway = createGateway(said(), { log: silentLog, ...own })
    await withServer(gateway, async (url) => {
      assert.equal((await fetchAll(`${url}/ipfs/${cid}`)).body.toString(), 'only the upstream has it')
      assert.equal(upstream.asked, 1)
      const added = await post(`${url}/add`, multipart([{ body: 'an upload' }]))
      assert.equal(added.status, 200, added.body.toString())
      assert.equal(provider.size, 1)
      // A shared tier has an upload before it is acknowledged.
      assert.ok(tier.size >= 1)
      provider.isFull = true
      const refused = await post(`${url}/add`, multipart([{ body: 'another one' }]))
      assert.equal(refused.status, 502)
      assert.match(refused.body.toString(), /mine is full/)
      const metrics = await metricsOf(gateway)
      for (const sample of [/_upstream_\S*\{[^}]*"mine"/, /_tier_\S*\{[^}]*"mine"/]) assert.match(metrics, sample)
    })
    // Another gateway, with nothing but the program's tier: what was uploaded is there, proved.
    const alone = said({ pinning: { providers: [] }, cache: { tiers: [] } })
    const folder = await tempFolder()
    const next = createGateway({ ...alone, data: folder }, { log: silentLog, tiers: own.tiers })
    await withServer(next, async (url) => {
      const { body, headers } = await fetchAll(`${url}/ipfs/${cid}`)
      assert.equal(body.toString(), 'only the upstream has it')
      assert.equal(headers['cache-status'], 'cidgate; hit; detail=mine')
    })
    await rm(folder, { recursive: true })
    assert.deepEqual([tier.closed, upstream.closed, provider.closed], [0, 0, 0])
  })

  it('contract violations → fail no request that others can serve', async () => {
    const blocks: BlockMap = new Map()
    const { cid } = await addFile(blocks, text('somebody else has it'))
    const fault = (): never => {
      throw new TypeError('a bug of the program')
    }
    const tier = Object.assign(new MapTier(), { get: fault, put: fault, has: fault })
    const upstream = Object.assign(new MapUpstream(new Map()), { name: 'bad', ask: fault, probe: fault })
    const provider = Object.assign(new MapProvider(), { pin: fault, status: fault, probe: fault })
    const gateway = createGateway(said({ pinning: {}, retrieval: { upstreams: [], probeEvery: '1h' } }), {
      log: silentLog,
      tiers: [tier],
      upstreams: [upstream, new MapUpstream(blocks)],
      providers: [provider],
    })
    await withServer(gateway, async (url) => {
      assert.equal((await fetchAll(`${url}/ipfs/${cid}`)).body.toString(), 'somebody else has it')
      assert.equal((await post(`${url}/add`, multipart([{ body: 'an upload' }]))).status, 200)
    })
  })

  it('reload → kept unchanged', async () => {
    const upstreams = [new MapUpstream(new Map())]
    const first = createGateway(said(), { log: silentLog, upstreams, providers: [new MapProvider()] })
    await first.start()
    const next = createGateway(said({ pinning: {} }), { log: silentLog, upstreams, previous: first })
    await next.start()
    await first.close()
    await withServer(next, async (url) => {
      assert.equal(
        (await fetchAll(`${url}/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e`)).status,
        404,
      )
      assert.equal(upstreams[0]?.asked, 1)
    })
  })

  const tier = new MapTier()
  const broken = Object.assign(Object.create(MapTier.prototype), { name: 'no name!', traits: {}, get: 5 })
  const wrong: readonly (readonly [what: string, make: () => unknown, expected: RegExp])[] = [
    ['no list', () => createGateway(said(), { tiers: tier as never }), /^config: option tiers: is not valid/],
    ['no object', () => createGateway(said(), { upstreams: [5 as never] }), /option upstreams\[0\]: is not valid/],
    [
      'what lacks a method',
      () => createGateway(said(), { tiers: [tier, broken] }),
      /option tiers\[1\]: `name`[\s\S]*tiers\[1\]: `get` is missing \(expected a method\)[\s\S]*`traits.shared` is missing/,
    ],
    [
      'one name twice',
      () => createGateway(said({ pinning: {} }), { tiers: [tier, new MapTier()] }),
      /option tiers\[1\]: "mine" is used twice/,
    ],
    [
      'the name of a configured one',
      () => createGateway(said({ pinning: {} }), { tiers: [new MapTier('memory')] }),
      /option tiers\[0\]: "memory" is used twice/,
    ],
    [
      'fewer providers than minConfirmations',
      () => createGateway(said()),
      /pinning.minConfirmations: .*expected at most 1, the number/,
    ],
    [
      'fewer providers than minConfirmations, in a parsed one',
      () =>
        createGateway(parseConfig(said({ pinning: { minConfirmations: 3, providers: [] } })), {
          providers: [new MapProvider()],
        }),
      /pinning.minConfirmations: .*expected at most 1, the number/,
    ],
    [
      'providers beside thin mode',
      () =>
        createGateway(said({ pinning: {}, upload: { forwardTo: 'http://127.0.0.1:1' } }), {
          providers: [new MapProvider()],
        }),
      /option providers: they get nothing with `upload.forwardTo`/,
    ],
  ]
  for (const [what, make, expected] of wrong)
    it(`${what} → ConfigError that names the argument`, () => {
      assert.throws(make, (error) => {
        assert.ok(error instanceof ConfigError)
        assert.match(error.message, expected)
        return true
      })
    })
})
