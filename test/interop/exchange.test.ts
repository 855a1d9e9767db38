// Content that goes from one to the other: added here and read there, added there and read here, and as a CAR in between.
import assert from 'node:assert/strict'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { noise } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { startCluster } from './support/cluster.ts'
import { type Kubo, startKubo } from './support/kubo.ts'
import { tempFolder } from './support/processes.ts'

const sizes = [1, 1024 * 1024 + 1, 5_000_000]

let node: Kubo
let behind: Kubo
let cluster: Awaited<ReturnType<typeof startCluster>>
let folder: Awaited<ReturnType<typeof tempFolder>>
const started: TestGateway[] = []

before(async () => {
  folder = await tempFolder()
  node = await startKubo()
  behind = await startKubo()
  cluster = await startCluster(behind.rpc)
})
after(async () => {
  for (const gateway of started) await gateway.close()
  await cluster?.stop()
  await behind?.stop()
  await node?.stop()
  await folder?.remove()
})

async function start(options: Parameters<typeof startGateway>[0]): Promise<TestGateway> {
  const gateway = await startGateway(options)
  started.push(gateway)
  return gateway
}

async function add(url: string, bytes: Uint8Array): Promise<string> {
  const form = new FormData()
  form.set('data', new Blob([Uint8Array.from(bytes)]), 'file')
  const answer = await fetch(`${url}/add`, { method: 'POST', body: form })
  const text = await answer.text()
  assert.equal(answer.status, 200, text)
  return (JSON.parse(text) as { cids: string[] }).cids[0]?.slice('/ipfs/'.length) ?? ''
}

const read = async (kubo: Kubo, path: string): Promise<Buffer> => {
  const answer = await fetch(`${kubo.rpc}/api/v0/cat?arg=${encodeURIComponent(path)}`, { method: 'POST' })
  assert.equal(answer.status, 200, path)
  return Buffer.from(await answer.arrayBuffer())
}

test('Kubo and Cluster as providers → upload readable at both', async () => {
  const at = await start({
    config: {
      pinning: {
        minConfirmations: 'all',
        providers: [
          { name: 'node', use: 'kubo', url: node.rpc },
          { name: 'several', use: 'cluster', url: cluster.rest },
        ],
      },
    },
  })
  for (const size of sizes) {
    const bytes = noise(size, 30)
    const cid = await add(at.url, bytes)
    for (const kubo of [node, behind]) {
      assert.ok(Buffer.compare(await read(kubo, cid), bytes) === 0)
      assert.match(kubo.ipfs(['pin', 'ls', '--type=recursive', cid]), /recursive/)
    }
  }
  assert.equal(node.ipfs(['cat', await add(at.url, Buffer.from('a few words'))]), 'a few words')
})

describe('content added to Kubo, read through cidgate', () => {
  const files: Record<string, Uint8Array> = {
    'readme.txt': Buffer.from('read me'),
    'with space.txt': Buffer.from('a name with a space'),
    'sub/deep.bin': noise(3_000_000, 31),
  }
  const gateways: Record<string, TestGateway> = {}
  let directory = ''

  before(async () => {
    const source = join(folder.path, 'there')
    await mkdir(join(source, 'sub'), { recursive: true })
    for (const [name, bytes] of Object.entries(files)) await writeFile(join(source, name), bytes)
    directory = node.ipfs(['add', '--recursive', '--quieter', source]).trim()
    const upstreams = {
      'its gateway': { name: 'node', url: node.gateway },
      'its RPC': { name: 'node', use: 'kubo', url: node.rpc },
    }
    for (const [name, upstream] of Object.entries(upstreams)) gateways[name] = await start({ upstreams: [upstream] })
  })

  for (const name of ['its gateway', 'its RPC']) {
    test(`${name}: directory, files and a range → read`, async () => {
      const url = `${gateways[name]?.url}/ipfs/${directory}`
      const listing = JSON.parse((await fetchAll(url)).body.toString()) as { entries: { name: string }[] }
      assert.deepEqual(listing.entries.map((entry) => entry.name).sort(), ['readme.txt', 'sub', 'with space.txt'])
      for (const [path, bytes] of Object.entries(files)) {
        const { status, body } = await fetchAll(`${url}/${path.split('/').map(encodeURIComponent).join('/')}`)
        assert.equal(status, 200)
        assert.ok(Buffer.compare(body, bytes) === 0, path)
      }
      const part = await fetchAll(`${url}/sub/deep.bin`, { range: 'bytes=1000000-1999999' })
      assert.equal(part.status, 206)
      assert.ok(Buffer.compare(part.body, (files['sub/deep.bin'] as Uint8Array).subarray(1_000_000, 2_000_000)) === 0)
    })

    test(`${name}: missing CID → 404, soon`, async () => {
      const missing = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
      const { status, body, headers, ms } = await fetchAll(`${gateways[name]?.url}/ipfs/${missing}`)
      assert.equal(status, 404)
      assert.ok(headers['retry-after'])
      const { attempts } = JSON.parse(body.toString()) as { attempts: { outcome: string }[] }
      assert.ok(attempts.length > 0 && attempts.every(({ outcome }) => outcome === 'not-found'), body.toString())
      assert.ok(ms < 2000, `${ms} ms`)
    })
  }

  test('name published with Kubo → resolved by cidgate', async () => {
    const [, name] = /Published to ([^:]+):/.exec(node.ipfs(['name', 'publish', '--allow-offline', directory])) ?? []
    const { status, body } = await fetchAll(`${gateways['its gateway']?.url}/ipns/${name}/readme.txt`)
    assert.equal(status, 200, body.toString())
    assert.equal(body.toString(), 'read me')
  })
})

test('CAR exported by either → imported by the other, same root', async () => {
  const at = await start({ config: { pinning: { providers: [{ name: 'local', use: 'embedded' }] } } })
  for (const size of sizes) {
    const bytes = noise(size, 32)
    const cid = await add(at.url, bytes)
    const car = await fetchAll(`${at.url}/ipfs/${cid}?format=car`)
    assert.equal(car.status, 200)
    const told = node.ipfs(['dag', 'import', '--stats', '--enc=json'], car.body)
    const [root] = told.split('\n').map((line) => JSON.parse(line || '{}') as { Root?: { Cid: { '/': string } } })
    assert.equal(root?.Root?.Cid['/'], cid)
    assert.ok(Buffer.compare(await read(node, cid), bytes) === 0)
    const back = await fetch(`${node.rpc}/api/v0/dag/export?arg=${cid}&progress=false`, { method: 'POST' })
    assert.ok(
      Buffer.compare(Buffer.from(await back.arrayBuffer()), car.body) === 0,
      'the same blocks in the same order',
    )
  }
})
