// Fault: the disk under uploads corrupts data, or folders are removed from it. A 200 means that the file can be read from here
// now, and a repeated upload repairs what was lost.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, it } from 'node:test'
import { multipart, post } from '../support/adding.ts'
import { fetchAll, metricsOf, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { rot } from '../support/kept.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../support/providers.ts'

let data: string
let kubo: StandIn
beforeEach(async () => {
  data = await tempFolder()
  kubo = await startStandIn(kuboApi)
})
afterEach(async () => {
  await kubo.close()
  await rm(data, { recursive: true, force: true, maxRetries: 20, retryDelay: 10 })
})

const start = (more: Record<string, unknown> = {}): Promise<TestGateway> =>
  startGateway({
    data,
    config: {
      pinning: {
        providers: [
          { name: 'local', use: 'embedded' },
          { name: 'kubo', use: 'kubo', url: kubo.url, auth: { bearer: token } },
        ],
        ...more,
      },
      // Nothing but the store of pins can answer after a restart.
      cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '2MiB' }] },
    },
  })

async function add(gateway: TestGateway, body: Uint8Array): Promise<string> {
  const { status, json, body: text } = await post(`${gateway.url}/add`, multipart([{ fileName: 'a', body }]))
  assert.equal(status, 200, text)
  return (json['cids'] as [string])[0]
}

describe('damaged embedded pins', () => {
  for (const isRestarted of [false, true])
    it(`repeated upload${isRestarted ? ' after a restart' : ''} → repairs the damaged pin`, async () => {
      kubo.script = () => ({ status: 503 })
      const body = randomBytes(2_500_000)
      let gateway = await start()
      try {
        const path = await add(gateway, body)
        assert.ok((await rot(data)) > 1)
        if (isRestarted) {
          await gateway.close()
          gateway = await start()
          // 503: the disk of a busy machine was late.
          const { status } = await fetchAll(gateway.url + path)
          assert.ok(status === 404 || status === 503, `what rotted is not served: ${status}`)
          assert.match(await metricsOf(gateway.gateway), /^cidgate_tier_corrupt_blocks_total{tier="\w+"} [1-9]/m)
        }
        assert.equal(await add(gateway, body), path)
        await gateway.close()
        gateway = await start()
        const { status, body: got } = await fetchAll(gateway.url + path)
        assert.equal(status, 200)
        assert.ok(got.equals(body))
        kubo.script = undefined
      } finally {
        await gateway.close()
      }
      // What was brought anew is what the other one gets.
      gateway = await start()
      try {
        for (const until = Date.now() + 30_000; kubo.pins.size === 0 && Date.now() < until; )
          await new Promise((resolve) => setTimeout(resolve, 20))
        assert.equal(kubo.pins.size, 1)
      } finally {
        await gateway.close()
      }
    })
})

describe('folders removed while the gateway runs', () => {
  for (const gone of ['uploads', 'cache'])
    it(`${gone} removed → next upload accepted, readable after a restart`, async () => {
      let gateway = await start({ minConfirmations: 'all' })
      try {
        await add(gateway, randomBytes(1_500_000))
        await rm(join(data, gone), { recursive: true, force: true, maxRetries: 20, retryDelay: 10 })
        const body = randomBytes(1_500_000)
        const path = await add(gateway, body)
        await gateway.close()
        gateway = await start()
        assert.ok((await fetchAll(gateway.url + path)).body.equals(body))
      } finally {
        await gateway.close()
      }
    })
})
