// What a provider holds is read back from the real ones: Kubo by its RPC, with no more rights than that takes, and a Cluster
// by the gateway behind it.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { multipart, post } from '../support/adding.ts'
import { noise } from '../support/fixtures.ts'
import { fetchAll, startGateway } from '../support/gateway.ts'
import { startCluster } from './support/cluster.ts'
import { type Kubo, startKubo } from './support/kubo.ts'

const secret = 'a-secret-of-the-interop-suite'
const commands = ['version', 'dag/import', 'pin/ls', 'block/get'].map((command) => `/api/v0/${command}`)
let kubo: Kubo
let behind: Kubo
let cluster: Awaited<ReturnType<typeof startCluster>>
before(async () => {
  const rights = { AuthSecret: `bearer:${secret}`, AllowedPaths: commands }
  kubo = await startKubo({ config: { 'API.Authorizations': { cidgate: rights } } })
  behind = await startKubo()
  cluster = await startCluster(behind.rpc, { user: 'cidgate', password: secret })
})
after(async () => {
  await cluster?.stop()
  await behind?.stop()
  await kubo?.stop()
})

const bodies = [noise(1000, 1), noise(5_000_000, 2)]

const providers = {
  kubo: () => ({ name: 'home', use: 'kubo', url: kubo.rpc, auth: { bearer: secret } }),
  cluster: () => ({
    name: 'home',
    use: 'cluster',
    url: cluster.rest,
    auth: { basic: `cidgate:${secret}` },
    gateway: behind.gateway,
  }),
}

for (const [name, provider] of Object.entries(providers))
  describe(name, () => {
    test('instance without an upload → reads it from its provider', async () => {
      const config = { pinning: { providers: [provider()] }, retrieval: { probeEvery: '10m' } }
      const first = await startGateway({ config })
      const paths: string[] = []
      for (const body of bodies) {
        const { status, json, body: text } = await post(`${first.url}/add`, multipart([{ fileName: 'a', body }]))
        assert.equal(status, 200, text)
        paths.push((json['cids'] as [string])[0])
      }
      await first.close()
      const second = await startGateway({ config })
      try {
        for (const [index, path] of paths.entries()) {
          const { status, body, headers } = await fetchAll(second.url + path)
          assert.equal(status, 200, body.toString().slice(0, 500))
          assert.ok(body.equals(bodies[index] as Uint8Array))
          assert.match(String(headers['cache-status']), /detail="home"/)
        }
        // What it does not hold is said at once: it looks nowhere else.
        const absent = await fetchAll(`${second.url}/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy`)
        assert.equal(absent.status, 404)
        assert.ok(absent.ms < 2000, `${absent.ms} ms`)
      } finally {
        await second.close()
      }
    })
  })
