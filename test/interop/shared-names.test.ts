// A name that Kubo signed, over real stores: a second instance with an empty disk and nobody to ask resolves what the first
// one proved, and a newer record takes the place of an older one.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Fetched, fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type Kubo, startKubo } from './support/kubo.ts'
import { startRedis, startS3 } from './support/stores.ts'

type Store = { readonly tier: Record<string, unknown>; stop(): Promise<void> }

const stores: Readonly<Record<string, () => Promise<Store>>> = {
  async Redis() {
    const { url, stop } = await startRedis()
    return { tier: { use: 'redis', url }, stop }
  },
  async 'S3 of versitygw'() {
    const { bucket, endpoint, region, accessKeyId, secretAccessKey, stop } = await startS3()
    return { tier: { use: 's3', bucket, endpoint, region, accessKeyId, secretAccessKey, forcePathStyle: true }, stop }
  },
}

let kubo: Kubo
let key: string
let first: string
let second: string
before(async () => {
  kubo = await startKubo()
  const add = (text: string) => kubo.ipfs(['add', '-Q', '--cid-version=1'], Buffer.from(text)).trim()
  first = add('the first one')
  second = add('the second one')
  key = kubo.ipfs(['key', 'list', '-l', '--ipns-base=base36']).split(/\s/)[0] ?? ''
})
after(() => kubo?.stop())

const publish = (cid: string) => kubo.ipfs(['name', 'publish', '--allow-offline', '--ttl=1s', `/ipfs/${cid}`])

for (const [what, make] of Object.entries(stores))
  describe(`IPNS records shared by instances over ${what}`, () => {
    let store: Store
    const open: TestGateway[] = []
    before(async () => {
      store = await make()
    })
    after(async () => {
      for (const one of open) await one.close()
      await store?.stop()
    })

    async function start(upstreams: Record<string, unknown>[]): Promise<TestGateway> {
      const tiers = [
        { use: 'memory', maxBytes: '8MiB' },
        { ...store.tier, timeout: '10s' },
      ]
      const at = await startGateway({
        upstreams,
        config: { cache: { tiers }, names: { ttl: { min: '1s', max: '1s' } } },
      })
      open.push(at)
      return at
    }
    const get = (at: TestGateway): Promise<Fetched> => fetchAll(`${at.url}/ipns/${key}`)
    /** Until another instance, made anew with nobody to ask, has it. */
    async function until(cid: string): Promise<void> {
      for (let tries = 0; ; tries++) {
        const { status, headers } = await get(await start([]))
        if (status === 200 && headers.etag === `"${cid}"`) return
        assert.ok(tries < 30, `it never came: ${status} ${headers.etag}`)
        await sleep(200)
      }
    }

    test('record of another instance → resolved, replaced by a newer one', async () => {
      const asking = await start([{ name: 'kubo', url: kubo.gateway }])
      for (const cid of [first, second]) {
        publish(cid)
        await sleep(1100)
        assert.equal((await get(asking)).headers.etag, `"${cid}"`)
        await until(cid)
      }
    })
  })
