// Find and be found with real servers: Kubo fetches what this gateway's router names, an indexer takes its chain, and this gateway
// finds through Kubo's routing API.
import assert from 'node:assert/strict'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { CID } from 'multiformats/cid'
import { parse, stringify } from 'yaml'
import { encodeHead, identityIn } from '../../src/announce/advertisement.ts'
import { noise } from '../support/fixtures.ts'
import { fetchAll, metricsOf, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { identityOf } from '../support/identity.ts'
import { type Indexer, startStoretheindex } from './support/indexer.ts'
import { type Kubo, startKubo } from './support/kubo.ts'
import { commandsOf, root, shellForPages } from './support/page.ts'
import { freePort } from './support/processes.ts'

async function holder(
  more: Record<string, unknown> = {},
  data?: string,
): Promise<TestGateway & { readonly port: number }> {
  const port = await freePort()
  const at = await startGateway({
    port,
    ...(data !== undefined && { data }),
    config: { public: `http://127.0.0.1:${port}`, provider: true, upload: { maxBytes: '200MiB' }, ...more },
  })
  return { ...at, port }
}

const delegated = (url: string) => ({
  'Routing.Type': 'delegated',
  'Routing.DelegatedRouters': [url],
  'Provide.Enabled': false,
  'HTTPRetrieval.Enabled': true,
  'Bitswap.ServerEnabled': false,
})

async function add(url: string, files: Readonly<Record<string, Uint8Array>>, query = ''): Promise<string> {
  const form = new FormData()
  for (const [name, bytes] of Object.entries(files)) form.append('data', new Blob([Uint8Array.from(bytes)]), name)
  const answer = await fetch(`${url}/add${query}`, { method: 'POST', body: form })
  const text = await answer.text()
  assert.equal(answer.status, 200, text)
  return (JSON.parse(text) as { cids: string[] }).cids.at(-1)?.slice('/ipfs/'.length) ?? ''
}

const cat = async (kubo: Kubo, path: string): Promise<Buffer> => {
  const answer = await fetch(`${kubo.rpc}/api/v0/cat?arg=${encodeURIComponent(path)}`, {
    method: 'POST',
    signal: AbortSignal.timeout(60_000),
  })
  assert.equal(answer.status, 200, path)
  return Buffer.from(await answer.arrayBuffer())
}

async function unpin({ gateway }: TestGateway, cid: string): Promise<void> {
  const server = createServer(gateway.admin)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  assert.ok((await fetch(`http://127.0.0.1:${port}/pins/${cid}`, { method: 'DELETE' })).ok)
  server.closeAllConnections()
  server.close()
}

async function within(ms: number, what: string, is: () => Promise<boolean>): Promise<number> {
  const began = Date.now()
  while (!(await is())) {
    assert.ok(Date.now() - began < ms, `${what}: not within ${ms} ms`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  return Date.now() - began
}

describe('Kubo with this gateway as its only router', () => {
  let at: TestGateway & { readonly port: number }
  let kubo: Kubo
  before(async () => {
    at = await holder()
    kubo = await startKubo({ isOnline: true, config: delegated(at.url) })
  })
  after(async () => {
    await kubo?.stop()
    await at?.close()
  })

  test('file, directory and 100 MiB file → read', async () => {
    const small = Buffer.from('found by the router')
    assert.ok((await cat(kubo, await add(at.url, { data: small }))).equals(small))
    const files = { 'a.txt': Buffer.from('a'), 'b/c.bin': noise(3_000_000, 7) }
    const directory = await add(at.url, files, '?wrap=true')
    assert.ok((await cat(kubo, `${directory}/b/c.bin`)).equals(files['b/c.bin']))
    const big = noise(100 * 1024 * 1024, 9)
    assert.ok((await cat(kubo, await add(at.url, { data: big }))).equals(big))
  })

  test('unpinned → not named by the router', async () => {
    const cid = await add(at.url, { data: Buffer.from('for a while') })
    const told = async () =>
      JSON.parse((await fetchAll(`${at.url}/routing/v1/providers/${cid}`)).body.toString()).Providers.length
    assert.equal(await told(), 1)
    await unpin(at, cid)
    assert.equal(await told(), 0)
  })
})

describe('this gateway without an upstream', () => {
  test('Kubo as router → finds what a second gateway holds', async () => {
    const second = await holder()
    const kubo = await startKubo({ isOnline: true, config: delegated(second.url) })
    const routers = [{ name: 'kubo', url: kubo.gateway, allowPrivate: true }]
    const at = await startGateway({ config: { retrieval: { routers } } })
    try {
      const bytes = noise(5_000_000, 11)
      const cid = await add(second.url, { data: bytes })
      const { status, body, headers } = await fetchAll(`${at.url}/ipfs/${cid}`)
      assert.equal(status, 200, body.subarray(0, 500).toString())
      assert.ok(body.equals(bytes))
      assert.match(String(headers['cache-status']), /via kubo/)
    } finally {
      await at.close()
      await kubo.stop()
      await second.close()
    }
  })

  test('found gateways → at most 1.5 times as slow as configured', async () => {
    const one = await holder()
    try {
      const texts = Array.from({ length: 12 }, (_, index) => Buffer.from(`number ${index}`))
      const cids: string[] = []
      for (const data of texts) cids.push(await add(one.url, { data }))
      const timeOf = async (retrieval: Record<string, unknown>): Promise<number> => {
        const at = await startGateway({ config: { retrieval } })
        try {
          const took: number[] = []
          for (const cid of cids) {
            const { status, ms } = await fetchAll(`${at.url}/ipfs/${cid}`)
            assert.equal(status, 200)
            took.push(ms)
          }
          // The first ones make connections and load code.
          return took.slice(2).sort((left, right) => left - right)[5] as number
        } finally {
          await at.close()
        }
      }
      const configured = await timeOf({ upstreams: [{ url: one.url, allowPrivate: true }] })
      const found = await timeOf({ routers: [{ url: one.url, allowPrivate: true }] })
      // A look-up and a fetch are two requests where the other way has one: below 10 ms that is all there is.
      assert.ok(found <= Math.max(1.5 * configured, configured + 10), `${found} ms against ${configured} ms`)
    } finally {
      await one.close()
    }
  })
})

describe('storetheindex with Pebble', () => {
  let indexer: Indexer
  let at: TestGateway & { readonly port: number }
  before(async () => {
    indexer = await startStoretheindex()
    const entry = { name: 'sti', url: indexer.finder, announce: indexer.ingest }
    at = await holder({ announce: { indexers: [entry], every: '200ms' } })
  })
  after(async () => {
    await at?.close()
    await indexer?.stop()
  })

  const announced = async () => at.log.filter(({ event }) => event === 'announce.announced').length

  test('removal → forgotten, also after the next batch', async () => {
    const before = await announced()
    const [stays, goes] = [
      await add(at.url, { data: Buffer.from('stays') }),
      await add(at.url, { data: Buffer.from('goes') }),
    ]
    await within(5000, 'announced', async () => (await announced()) > before)
    await within(2000, 'indexed', async () => (await indexer.knows(stays)) && (await indexer.knows(goes)))
    const then = await announced()
    await unpin(at, goes)
    await within(5000, 'announced', async () => (await announced()) > then)
    await within(2000, 'removed', async () => !(await indexer.knows(goes)))
    await within(2000, 'indexed', () => indexer.knows(stays))
    const next = await add(at.url, { data: Buffer.from('next') })
    await within(5000, 'indexed', () => indexer.knows(next))
    assert.equal(await indexer.knows(goes), false)
    assert.equal(await indexer.knows(stays), true)
    await within(20_000, 'confirmed', async () =>
      /cidgate_announce_confirmed\{indexer="sti"\} 1/.test(await metricsOf(at.gateway)),
    )
  })

  test('admin sync → signed head taken, forged head refused', async () => {
    const { peerId } = identityIn(join(at.data, 'identity.pem'))
    indexer.sync(peerId, `/ip4/127.0.0.1/tcp/${at.port}/http`)
    await within(5000, 'synced', async () => indexer.output().includes('Latest advertisement already processed'))
    let asked = 0
    const forged = createServer((request, response) => {
      if (request.url !== '/ipni/v1/ad/head') return void response.writeHead(404).end()
      asked++
      void fetchAll(`${at.url}/ipni/v1/ad/head`).then(({ body }) => {
        const { head } = JSON.parse(body.toString()) as { head: { '/': string } }
        response.end(encodeHead(CID.parse(head['/']), identityOf(Buffer.alloc(32, 9))))
      })
    })
    await new Promise<void>((resolve) => forged.listen(0, '127.0.0.1', resolve))
    try {
      const { port } = forged.address() as AddressInfo
      let said = 'sync in progress'
      await within(5000, 'told to sync', async () => {
        said = syncs(() => indexer.sync(peerId, `/ip4/127.0.0.1/tcp/${port}/http`))
        return !said.includes('sync in progress')
      })
      await within(5000, 'asked for the head', async () => asked > 0)
      await within(5000, 'refused', async () =>
        /wrong peer|does not match|mismatch|signed by|invalid/i.test(indexer.output()),
      )
    } finally {
      forged.closeAllConnections()
      forged.close()
    }
  })
})

test('find.md: reach, once announced → nothing to mend', async () => {
  const indexer = await startStoretheindex()
  const shell = await shellForPages()
  const indexers = [{ name: 'sti', url: indexer.finder, announce: indexer.ingest }]
  const at = await holder({ announce: { indexers, every: '200ms' } })
  try {
    const cid = await add(at.url, { data: Buffer.from('within reach') })
    await within(20_000, 'confirmed', async () =>
      /cidgate_announce_confirmed\{indexer="sti"\} 1/.test(await metricsOf(at.gateway)),
    )
    const text = await readFile(join(root, 'docs/find.md'), 'utf8')
    const page = parse(/^```yaml\n([\s\S]*?)^```$/m.exec(text)?.[1] ?? '') as Record<string, Record<string, unknown>>
    const routers = [{ name: 'own', url: at.url, allowPrivate: true }]
    const here = { public: at.url, announce: { indexers }, retrieval: { ...page['retrieval'], routers } }
    await writeFile(join(shell.path, 'my.yaml'), stringify({ ...page, ...here }))
    const [command = ''] = await commandsOf('docs/find.md')
    const said = await shell.run({ url: at.url, serving: {} }, command.replace(/bafk\w+/, cid))
    for (const name of ['public', 'router', 'block', 'headers', 'miss', 'head', 'indexer sti', 'router own'])
      assert.match(said, new RegExp(`^ok   ${name}: `, 'm'))
  } finally {
    await at.close()
    await shell.remove()
    await indexer.stop()
  }
})

test('low limits per client → indexer fetches the complete chain', async () => {
  const data = await tempFolder()
  const indexer = await startStoretheindex()
  const indexers = [{ name: 'sti', url: indexer.finder, announce: indexer.ingest }]
  try {
    const nobody = [{ name: 'none', url: 'http://127.0.0.1:1' }]
    const before = await holder({ announce: { indexers: nobody, every: '100ms' } }, data)
    const cids: string[] = []
    let head = ''
    while (cids.length < 20) {
      cids.push(await add(before.url, { data: Buffer.from(`number ${cids.length}`) }))
      await within(10_000, 'published', async () => {
        const { body } = await fetchAll(`${before.url}/ipni/v1/ad/head`)
        const isNew = body.toString() !== head
        head = body.toString()
        return isNew
      })
    }
    await before.close()
    const limits = { perClient: { perMinute: 120, burst: 5 } }
    const at = await holder({ announce: { indexers, every: '200ms' }, limits }, data)
    try {
      for (const cid of cids) await within(30_000, `${cid} is indexed`, () => indexer.knows(cid))
    } finally {
      await at.close()
    }
  } finally {
    await indexer.stop()
    await rm(data, { recursive: true, force: true })
  }
})

function syncs(work: () => string): string {
  try {
    return work()
  } catch (error) {
    return String(error)
  }
}
