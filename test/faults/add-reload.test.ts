// Fault: the configuration is reloaded while uploads come in. Uploads in progress are received to the end, acknowledged ones
// reach their providers once, and nothing is left over.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseConfig } from '../../src/config/load.ts'
import { silentLog } from '../../src/core/log.ts'
import { serve } from '../../src/server/serve.ts'
import { below, multipart, post } from '../support/adding.ts'
import { fetchAll, startedGateway, tempFolder } from '../support/gateway.ts'
import { keptIn } from '../support/kept.ts'
import { kuboApi, startStandIn, token } from '../support/providers.ts'

test('uploads in progress survive a reload', async () => {
  const data = await tempFolder()
  const kubo = await startStandIn(kuboApi)
  kubo.script = () => ({ status: 503 })
  const configOf = (url: string, schemas: object) =>
    parseConfig({
      data,
      listen: '127.0.0.1:0',
      admin: false,
      retrieval: { upstreams: [] },
      upload: { schemas },
      pinning: {
        minConfirmations: 1,
        providers: [
          { name: 'local', use: 'embedded' },
          { name: 'kubo', use: 'kubo', url, auth: { bearer: token } },
        ],
      },
    })
  const config = configOf(kubo.url, {})
  const refused = configOf('http://127.0.0.1:1', { own: { type: 'nonsense' } })
  const create = (next: typeof config) => startedGateway(next, { log: silentLog })
  const serving = await serve({ config, log: silentLog, create })
  try {
    const url = `http://${serving.listen}`
    const files = [randomBytes(2_500_000), randomBytes(1000), randomBytes(2000)]
    const bodies = files.map((body) => multipart([{ fileName: 'a', body }]))
    const [slow, before, after] = bodies as [Buffer, Buffer, Buffer]
    assert.equal((await post(`${url}/add`, before)).status, 200)
    const goOn = Promise.withResolvers<void>()
    const slowly = async function* () {
      yield slow.subarray(0, 2_000_000)
      await goOn.promise
      yield slow.subarray(2_000_000)
    }
    const inProgress = post(`${url}/add`, slowly())
    for (const until = Date.now() + 5000; (await below(join(data, 'uploads'))).length < 2 && Date.now() < until; )
      await sleep(5)

    // A refused configuration leaves nothing behind.
    assert.equal(await serving.reload(() => refused), false)
    const reloaded = serving.reload(() => config)
    await sleep(200)
    // The new one takes uploads while the old one still receives.
    assert.equal((await post(`${url}/add`, after)).status, 200)
    goOn.resolve()
    const { status, json, body } = await inProgress
    assert.equal(status, 200, body)
    await reloaded
    const [path] = json['cids'] as [string]
    assert.ok((await fetchAll(url + path)).body.equals(files[0] as Buffer))

    kubo.script = undefined
    for (const until = Date.now() + 20_000; Date.now() < until; await sleep(50))
      if ((await keptIn(data)).waiting.length === 0) break
    assert.equal(kubo.pins.size, 3)
    const { uploads, waiting, strays } = await keptIn(data)
    assert.deepEqual([uploads.length, waiting, strays], [3, [], []])
  } finally {
    await serving.close()
    await kubo.close()
    await rm(data, { recursive: true, force: true })
  }
})

test('provider out across a reload → accepted upload delivered', async () => {
  const data = await tempFolder()
  const kubo = await startStandIn(kuboApi)
  kubo.script = () => ({ status: 503 })
  const configOf = (perClient: number) =>
    parseConfig({
      data,
      listen: '127.0.0.1:0',
      admin: false,
      retrieval: { upstreams: [] },
      upload: { perClient },
      pinning: {
        minConfirmations: 1,
        providers: [
          { name: 'local', use: 'embedded' },
          { name: 'kubo', use: 'kubo', url: kubo.url, auth: { bearer: token } },
        ],
      },
    })
  const create = (next: ReturnType<typeof configOf>) => startedGateway(next, { log: silentLog })
  const serving = await serve({ config: configOf(5), log: silentLog, create })
  try {
    const body = multipart([{ fileName: 'a', body: randomBytes(1_000_000) }])
    const goOn = Promise.withResolvers<void>()
    const slowly = async function* () {
      yield body.subarray(0, 500_000)
      await goOn.promise
      yield body.subarray(500_000)
    }
    const inProgress = post(`http://${serving.listen}/add`, slowly())
    for (const until = Date.now() + 5000; (await below(join(data, 'uploads'))).length === 0 && Date.now() < until; )
      await sleep(5)
    const reloaded = serving.reload(() => configOf(6))
    await sleep(200)
    goOn.resolve()
    assert.equal((await inProgress).status, 200)
    await reloaded
    kubo.script = undefined
    for (const until = Date.now() + 20_000; kubo.pins.size === 0 && Date.now() < until; ) await sleep(50)
    assert.equal(kubo.pins.size, 1)
  } finally {
    await serving.close()
    await kubo.close()
    await rm(data, { recursive: true, force: true })
  }
})
