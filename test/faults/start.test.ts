// Fault: requests before the gateway is ready, or a gateway that says it is ready and is not. Acknowledged uploads are there for the
// first request; requests that come too early wait; a disk that takes no uploads is reported.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { rm, writeFile } from 'node:fs/promises'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import supertest from 'supertest'
import { parseConfig } from '../../src/config/load.ts'
import { silentLog } from '../../src/core/log.ts'
import { type Replaceable, serve } from '../../src/server/serve.ts'
import { below, multipart, post } from '../support/adding.ts'
import { fetchAll, startGateway, tempFolder } from '../support/gateway.ts'
import { kuboApi, startStandIn, token } from '../support/providers.ts'

/** Two addresses without a listener. */
async function freeAddresses(): Promise<{ listen: string; admin: string }> {
  const servers = [createServer(), createServer()]
  const [listen, admin] = await Promise.all(
    servers.map(async (server) => {
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      return `127.0.0.1:${(server.address() as AddressInfo).port}`
    }),
  )
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))))
  return { listen: String(listen), admin: String(admin) }
}

let data: string
beforeEach(async () => {
  data = await tempFolder()
})
afterEach(() => rm(data, { recursive: true, force: true }))

describe('gateway start', () => {
  it('closed at once → no disk-check file left', async () => {
    for (let turn = 0; turn < 3; turn++) {
      const at = await startGateway({ data })
      await at.close()
      const left = (await below(data)).filter((name) => name.endsWith('.tmp'))
      assert.deepEqual(left, [])
      await rm(data, { recursive: true, force: true })
    }
  })

  it('uploads pending at a provider → served from the first response', async () => {
    const kubo = await startStandIn(kuboApi)
    kubo.script = () => ({ status: 503 })
    const providers = [{ name: 'kubo', use: 'kubo', url: kubo.url, auth: { bearer: token } }]
    const config = { pinning: { acceptWhileUnavailable: true, providers } }
    const first = await startGateway({ data, config })
    const body = randomBytes(1000)
    const { json } = await post(`${first.url}/add`, multipart([{ fileName: 'a', body }]))
    await first.close()
    const again = await startGateway({ data, config })
    try {
      const { status, body: got } = await fetchAll(again.url + (json['cids'] as [string])[0])
      assert.equal(status, 200)
      assert.ok(got.equals(body))
    } finally {
      await again.close()
      await kubo.close()
    }
  })

  it('early requests wait; admin address reports starting', async () => {
    const made = Promise.withResolvers<void>()
    const handler: RequestListener = (_request, response) => void response.end('here')
    const create = async (): Promise<Replaceable> => {
      await made.promise
      return { handler, admin: handler, serves: () => false, drain: () => {}, close: async () => {} }
    }
    const addresses = await freeAddresses()
    const config = parseConfig({
      data,
      retrieval: { upstreams: [] },
      limits: { maxConcurrentRequests: 2 },
      ...addresses,
    })
    const serving = serve({ config, log: silentLog, create })
    const admin = `http://${addresses.admin}`
    while (
      await fetchAll(`${admin}/healthz`)
        .catch(() => undefined)
        .then((answer) => answer?.status !== 200)
    );
    const ready = await fetchAll(`${admin}/readyz`)
    assert.deepEqual([ready.status, JSON.parse(ready.body.toString())], [503, { ready: false, starting: true }])
    const early = [1, 2, 3].map(() => fetchAll(`http://${addresses.listen}/x`))
    // The line has an end.
    const refused = await Promise.race(early)
    assert.deepEqual([refused.status, refused.headers['retry-after']], [503, '1'])
    made.resolve()
    const bodies = (await Promise.all(early)).map(({ body }) => body.toString())
    assert.equal(bodies.filter((body) => body === 'here').length, 2)
    await (await serving).close()
  })

  it('failed start → everything closed', async () => {
    const addresses = await freeAddresses()
    const config = parseConfig({ data, retrieval: { upstreams: [] }, ...addresses })
    const create = () => Promise.reject(new Error('it is not to be'))
    await assert.rejects(serve({ config, log: silentLog, create }), /it is not to be/)
    await assert.rejects(fetchAll(`http://${addresses.listen}/x`), /ECONNREFUSED/)
  })
})

describe('/readyz?for=uploads', () => {
  /** The gateway's next look may have made the folder again in between, and may write into it while it is removed. */
  async function putFile(path: string): Promise<void> {
    for (;;) {
      try {
        return await writeFile(path, '')
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EISDIR') throw error
        await rm(path, { recursive: true, force: true, maxRetries: 100, retryDelay: 1 })
      }
    }
  }

  for (const folder of ['uploads'])
    it(`disk refuses uploads (${folder} is a file) → 503`, async () => {
      const gateway = await startGateway({ data, config: { pinning: { probeEvery: '20ms' } } })
      try {
        const ask = () => supertest(gateway.gateway.admin).get('/readyz?for=uploads')
        const becomes = async (wanted: number, said = /"data folder"/): Promise<void> => {
          for (const until = Date.now() + 20_000; Date.now() < until; ) {
            const { status, text } = await ask()
            if (status === wanted && said.test(text)) return
            await sleep(10)
          }
          return assert.fail(`it did not become ${wanted}: ${(await ask()).text}`)
        }
        await becomes(200)
        await rm(join(data, folder), { recursive: true, force: true })
        await putFile(join(data, folder))
        // A look during the change says that the folder is not there.
        await becomes(503, new RegExp(`cannot write to ${join(data, folder)}.*: (ENOTDIR|EEXIST)`))
        await rm(join(data, folder))
        await becomes(200)
      } finally {
        await gateway.close()
      }
    })
})
