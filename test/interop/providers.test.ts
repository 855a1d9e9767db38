// The providers on their suite, against the real thing: Kubo, IPFS Cluster, and Cluster's Pinning Service API.
import assert from 'node:assert/strict'
import { after, afterEach, before } from 'node:test'
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import { providerKinds } from '../../backends/pinning/index.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { providerContract, type ProviderUnderTest as Service } from '../../src/testing/provider.ts'
import { startCluster } from './support/cluster.ts'
import { type Kubo, startKubo } from './support/kubo.ts'

const secret = 'a-secret-of-the-interop-suite'
let guarded: Kubo
let behind: Kubo
let cluster: Awaited<ReturnType<typeof startCluster>>

before(async () => {
  const rights = { AuthSecret: `bearer:${secret}`, AllowedPaths: ['/api/v0'] }
  guarded = await startKubo({ config: { 'API.Authorizations': { cidgate: rights } } })
  behind = await startKubo()
  cluster = await startCluster(behind.rpc, { user: 'cidgate', password: secret })
})
after(async () => {
  await cluster?.stop()
  await behind?.stop()
  await guarded?.stop()
})

const made: Provider[] = []
afterEach(async () => {
  for (const provider of made.splice(0)) await provider.close()
})

function connect(use: string, settings: Record<string, unknown>): Provider {
  const kind = providerKinds[use]
  assert.ok(kind)
  const context = {
    name: 'one',
    userAgent: 'cidgate/test',
    data: '/nonexistent',
    folders: processFolders,
    log: silentLog,
    clock: systemClock,
  }
  const provider = kind.create(kind.options.parse(settings), context)
  made.push(provider)
  return provider
}

const service = (
  use: string,
  settings: (secret: string) => Record<string, unknown>,
  nameOf: (cid: CID) => Promise<string>,
): Service => ({
  provider: connect(use, settings(secret)),
  nameOf,
  stranger: connect(use, settings('a-wrong-secret')),
  stop: async () => {},
})

for (const how of ['car', 'add'])
  providerContract(`kubo itself, by ${how}`, async () =>
    service(
      'kubo',
      (bearer) => ({ url: guarded.rpc, auth: { bearer }, uploadAs: how }),
      async (cid) => {
        const path = `pin/ls?arg=${cid}&names=true`
        const authorization = `Bearer ${secret}`
        const answer = await fetch(`${guarded.rpc}/api/v0/${path}`, { method: 'POST', headers: { authorization } })
        const { Keys } = (await answer.json()) as { Keys: Record<string, { Name: string }> }
        return Object.values(Keys)[0]?.Name ?? ''
      },
    ),
  )

/** The status of a pin at Cluster, which names it. */
async function nameInCluster(cid: CID): Promise<string> {
  const authorization = `Basic ${Buffer.from(`cidgate:${secret}`).toString('base64')}`
  const answer = await fetch(`${cluster.rest}/pins/${cid}`, { headers: { authorization } })
  return ((await answer.json()) as { name: string }).name
}

providerContract('cluster itself', async () =>
  service('cluster', (password) => ({ url: cluster.rest, auth: { basic: `cidgate:${password}` } }), nameInCluster),
)

providerContract("psa, as Cluster's own", async () => {
  const token = await cluster.token()
  return {
    ...service('psa', (given) => ({ url: cluster.pinning, token: given === secret ? token : given }), nameInCluster),
    // It fetches by CID, here from the only node it knows.
    async offer(upload) {
      const chunks = await Array.fromAsync(upload.car(new AbortController().signal))
      behind.ipfs(['dag', 'import', '--pin-roots=false'], Buffer.concat(chunks))
    },
  }
})
