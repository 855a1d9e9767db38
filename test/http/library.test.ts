// The gateway as a library: what it may be made of.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, describe, it } from 'node:test'
import { pathToFileURL } from 'node:url'
import express from 'express'
import { silentLog } from '../../src/core/log.ts'
import { ConfigError, type ConfigInput, createGateway, Failure, type Gateway, parseConfig } from '../../src/gateway.ts'
import { lockFile } from '../../src/store/owner.ts'
import { fetchAll, startedGateway, tempFolder } from '../support/gateway.ts'

describe('gateway in a program', () => {
  let data: string
  before(async () => {
    data = await tempFolder()
  })
  after(() => rm(data, { recursive: true, force: true }))

  const inputs: readonly (readonly [what: string, make: () => Parameters<typeof createGateway>[0]])[] = [
    ['what a file would say', () => ({ data, retrieval: { upstreams: [] } })],
    ['the same, frozen', () => Object.freeze({ data, retrieval: Object.freeze({ upstreams: [] }) })],
    ['a configuration', () => parseConfig({ data, retrieval: { upstreams: [] } })],
    ['a copy of one', () => ({ ...parseConfig({ retrieval: { upstreams: [] } }), data, log: { level: 'warn' } })],
  ]
  for (const [what, make] of inputs)
    it(`created from ${what}`, async () => {
      const gateway = await startedGateway(make(), { log: silentLog })
      await gateway.close()
    })

  it('ConfigInput types every key, and every backend by `use`', () => {
    const written: ConfigInput = {
      listen: ':8080',
      retrieval: {
        timeout: '5s',
        probeEvery: 0,
        upstreams: [
          { url: 'https://example.org', perMinute: 60, firstByteTimeout: '2s' },
          { use: 'kubo', url: 'http://127.0.0.1:5001' },
        ],
      },
      cache: {
        tiers: [
          { use: 'memory', maxBytes: '64MiB' },
          { use: 'redis', url: 'redis://localhost', ttl: '1h' },
        ],
      },
      pinning: { minConfirmations: 'all', providers: [{ use: 'embedded', name: 'local' }] },
    }
    assert.equal(parseConfig(written).pinning.minConfirmations, 'all')
    // What a file with these mistakes would be refused for, an editor underlines.
    const wrong: ConfigInput[] = [
      // @ts-expect-error: there is no such key.
      { retrieval: { deadlin: '5s' } },
      // @ts-expect-error: a number has no unit.
      { retrieval: { timeout: 5 } },
      // @ts-expect-error: there is no such backend.
      { cache: { tiers: [{ use: 'dsk' }] } },
      // @ts-expect-error: this option is of another backend.
      { cache: { tiers: [{ use: 'memory', path: './here' }] } },
      // @ts-expect-error: a provider has no kind that is meant without being named.
      { pinning: { providers: [{ name: 'local' }] } },
    ]
    for (const one of wrong) assert.throws(() => parseConfig(one), { name: 'ConfigError' })
  })

  it('invalid options → refused, frozen or not', async () => {
    const wrong = Object.freeze({ data, listen: 'eighty' })
    assert.throws(
      () => createGateway(wrong),
      (error) => error instanceof ConfigError && /listen/.test(error.message),
    )
  })
})

const open: (() => unknown)[] = []
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close()
})

async function listen(handler: RequestListener): Promise<string> {
  const server = createServer(handler)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  open.push(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

const statusAt = async (url: string): Promise<number> => (await fetchAll(url)).status
// "hi", in the CID itself.
const hi = '/ipfs/bafkqaatine'

describe('life cycle in a program', () => {
  let data: string
  beforeEach(async () => {
    data = await tempFolder()
    open.push(() => rm(data, { recursive: true, force: true }))
  })
  const make = (more: ConfigInput = {}): Gateway => {
    const gateway = createGateway({ data, retrieval: { upstreams: [] }, ...more }, { log: silentLog })
    open.push(() => gateway.close())
    return gateway
  }

  const isFree = async () => (await lockFile(join(data, 'owner.lock'))).release()

  it('before start: no folder, network, timer or listener', async () => {
    const seen = () => ({
      resources: process.getActiveResourcesInfo().sort(),
      listeners: [process, process.stdout, process.stderr].map((one) =>
        one.eventNames().map((name) => `${String(name)} ${one.listenerCount(name)}`),
      ),
    })
    let asked = 0
    const url = await listen(() => void asked++)
    const before = seen()
    const gateway = createGateway({
      data,
      denylists: [`${url}/list`],
      names: { dnslinkSites: true },
      retrieval: { upstreams: [{ url }] },
      pinning: { providers: [{ use: 'embedded' }, { use: 'kubo', url }] },
      cache: { tiers: [{ use: 'disk' }, { use: 'redis', url: 'redis://127.0.0.1:1' }] },
    })
    assert.deepEqual(seen(), before)
    assert.deepEqual(await readdir(data), [])
    assert.equal(asked, 0)
    await gateway.close()
    assert.deepEqual(await readdir(data), [])
  })

  it('before start or after close → 503; foreign paths pass', async () => {
    const gateway = make()
    const app = express().use('/gw', gateway.router)
    app.get('/gw/own', (_request, response) => void response.send('own'))
    const [server, mounted, admin] = [await listen(gateway.handler), await listen(app), await listen(gateway.admin)]
    const shut = async (what: RegExp) => {
      for (const url of [server + hi, `${mounted}/gw${hi}`, `${mounted}/gw/add`]) {
        const { status, headers, body } = await fetchAll(url)
        assert.equal(status, 503, url)
        assert.match(body.toString(), what)
        assert.ok(headers['retry-after'] && headers['x-request-id'])
      }
      assert.equal((await fetchAll(`${mounted}/gw/own`)).body.toString(), 'own')
      assert.deepEqual([await statusAt(`${admin}/healthz`), await statusAt(`${admin}/readyz`)], [200, 503])
    }
    await shut(/call its start\(\)/)
    await gateway.start()
    await gateway.start()
    assert.deepEqual([await statusAt(server + hi), await statusAt(`${mounted}/gw${hi}`)], [200, 200])
    assert.equal(await statusAt(`${admin}/readyz`), 200)
    await Promise.all([gateway.close(), gateway.close()])
    await shut(/is closed/)
    await assert.rejects(gateway.start(), (error) => error instanceof Failure && error.kind === 'overloaded')
  })

  it('requests wait during the start', async () => {
    const list = Promise.withResolvers<void>()
    const url = await listen((_request, response) => void list.promise.then(() => response.end('version: 1\n---\n')))
    const gateway = make({ denylists: [`${url}/list.deny`] })
    const app = express().use(gateway.router)
    app.get('/own', (_request, response) => void response.send('own'))
    const [server, mounted] = [await listen(gateway.handler), await listen(app)]
    const starting = gateway.start()
    const waiting = Promise.all([statusAt(server + hi), statusAt(mounted + hi)])
    assert.equal((await fetchAll(`${mounted}/own`)).body.toString(), 'own')
    list.resolve()
    await starting
    assert.deepEqual(await waiting, [200, 200])
  })

  it('failed start → reason to program and requests, nothing left open', async () => {
    const list = Promise.withResolvers<void>()
    const url = await listen((_request, response) => void list.promise.then(() => response.writeHead(404).end()))
    const gateway = make({ denylists: [`${url}/list.deny`] })
    const server = await listen(gateway.handler)
    const starting = gateway.start()
    const waiting = fetchAll(server + hi)
    list.resolve()
    await assert.rejects(starting, (error) => error instanceof ConfigError)
    await assert.rejects(gateway.start(), (error) => error instanceof ConfigError)
    const { status, body } = await waiting
    assert.equal(status, 503)
    assert.match(body.toString(), /could not start/)
    await isFree()
  })

  it('close during the start', async () => {
    const gateway = make()
    const starting = gateway.start()
    const closing = gateway.close()
    await assert.rejects(starting, /is closed/)
    await closing
    await isFree()
  })
})

// The whole page, with the servers and the package itself, is run in test/interop/library.test.ts.
describe('examples of docs/library.md', () => {
  const page = readFileSync(new URL('../../docs/library.md', import.meta.url), 'utf8')
  const codes = [...page.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map(([, code = '']) => code)
  const entry = new URL('../../src/gateway.ts', import.meta.url).href

  for (const [index, code] of codes.entries()) {
    if (code.includes('cidgate/testing')) continue
    it(`example ${index + 1} runs`, async () => {
      const folder = await tempFolder()
      open.push(() => rm(folder, { recursive: true, force: true }))
      const here = code
        .replaceAll("from 'cidgate'", `from '${entry}'`)
        .replaceAll("'./", `'${folder}/`)
        .replaceAll(/^\s*console\..*$/gm, '')
      const file = join(folder, 'example.ts')
      await writeFile(file, here)
      await import(pathToFileURL(file).href)
      if (code.includes('policy.json'))
        assert.equal(await readFile(join(folder, 'policy.json'), 'utf8'), '{"title":"a policy"}')
    })
  }
})
