// /routing/v1 of this gateway: other nodes are told of what is held here for good, and of nothing else.
import assert from 'node:assert/strict'
import { readFile, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { CID } from 'multiformats/cid'
import { identityIn } from '../../src/announce/advertisement.ts'
import { filtered } from '../../src/http/routing.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { peerCid } from '../support/identity.ts'
import { createKey } from '../support/ipns.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const ndjson = 'application/x-ndjson'
const addresses = ['/dns/gw.example/tcp/443/https', '/dns/gw.example/tcp/443/tls/http']

let all: Fixtures
let upstream: ProgrammableUpstream
let at: TestGateway
let peerId: string
let added: string
let denied: string
before(async () => {
  all = await fixtures()
  upstream = await startUpstream({ blocks: all.blocks })
  const data = await tempFolder()
  const list = join(data, 'list.deny')
  await writeFile(list, '')
  at = await startGateway({
    data,
    upstreams: [{ name: 'one', url: upstream.url, allowPrivate: true }],
    config: { public: 'https://gw.example', denylists: [list], hosts: { 'gw.example': { provider: true } } },
  })
  peerId = identityIn(join(data, 'identity.pem')).peerId
  added = await add(at, 'hello, router')
  denied = await add(at, 'denied')
  await writeFile(list, `/ipfs/${denied}\n`)
  for (let turn = 0; turn < 100; turn++) {
    if ((await fetchAll(`${at.url}/ipfs/${denied}`)).status === 410) break
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
})
after(async () => {
  await at.close()
  await upstream.close()
})

async function add({ url }: TestGateway, text: string): Promise<string> {
  const body = new FormData()
  body.append('data', new Blob([text]), 'file')
  const answer = (await (await fetch(`${url}/add`, { method: 'POST', body })).json()) as { cids: string[] }
  return answer.cids[0]?.replace('/ipfs/', '') ?? assert.fail()
}

const record = () => ({ Schema: 'peer', ID: peerId, Addrs: addresses, Protocols: ['transport-ipfs-gateway-http'] })
const ask = (path: string, headers: Record<string, string> = {}) => fetchAll(`${at.url}/routing/v1${path}`, headers)

describe('/routing/v1/providers', () => {
  test('pinned here → this gateway, streamed or complete', async () => {
    for (const host of ['127.0.0.1', 'gw.example']) {
      const whole = await ask(`/providers/${added}`, { Host: host })
      assert.equal(whole.status, 200)
      assert.deepEqual(JSON.parse(whole.body.toString()), { Providers: [record()] })
      assert.equal(whole.headers['content-type'], 'application/json')
      assert.equal(whole.headers['access-control-allow-origin'], '*')
      assert.match(String(whole.headers['cache-control']), /^public, max-age=300, stale-while-revalidate=172800/)
      assert.equal(whole.headers.vary, 'Accept')
    }
    const streamed = await ask(`/providers/${added}`, { accept: `${ndjson}, application/json;q=0.9` })
    assert.equal(streamed.headers['content-type'], ndjson)
    assert.deepEqual(JSON.parse(streamed.body.toString().trimEnd()), record())
  })

  test('other codec or CID version → same answer', async () => {
    const { multihash } = CID.parse(added)
    for (const code of [0x55, 0x70, 0x71]) {
      const { body } = await ask(`/providers/${CID.createV1(code, multihash)}`)
      assert.deepEqual(JSON.parse(body.toString()), { Providers: [record()] })
    }
  })

  test('cached, absent or denied → empty, no upstream asked', async () => {
    const { cid } = all.files.hello
    await fetchAll(`${at.url}/ipfs/${cid}`)
    const seen = upstream.seen.length
    for (const one of [cid.toString(), all.files.json.cid.toString(), denied, 'bafkqaaa']) {
      const whole = await ask(`/providers/${one}`)
      assert.deepEqual(JSON.parse(whole.body.toString()), { Providers: [] }, one)
      assert.match(String(whole.headers['cache-control']), /max-age=15,/)
      const streamed = await ask(`/providers/${one}`, { accept: ndjson })
      assert.deepEqual([streamed.status, streamed.body.byteLength], [200, 0])
    }
    assert.equal(upstream.seen.length, seen)
  })

  test('malformed or other method → refused', async () => {
    assert.equal((await ask('/providers/x')).status, 400)
    assert.equal((await ask(`/providers/${added}`, { accept: 'text/html' })).status, 400)
    for (const path of ['/', '/x', '/providers', '/providers/', `/providers/${added}/x`])
      assert.equal((await ask(path)).status, 404)
    for (const [method, status] of [
      ['PUT', 501],
      ['POST', 405],
      ['DELETE', 405],
      ['OPTIONS', 204],
    ] as const)
      for (const path of ['/providers', `/ipns/${createKey().name}`])
        assert.equal((await fetch(`${at.url}/routing/v1${path}`, { method })).status, status, method)
  })
})

describe('/routing/v1 peers and names', () => {
  test('own peer ID, any spelling → record; another → none', async () => {
    const own = peerCid(identityIn(join(at.data, 'identity.pem')))
    for (const id of [peerId, own])
      assert.deepEqual(JSON.parse((await ask(`/peers/${id}`)).body.toString()), { Peers: [record()] })
    for (const id of [createKey().name, 'QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG'])
      assert.deepEqual(JSON.parse((await ask(`/peers/${id}`)).body.toString()), { Peers: [] })
    assert.equal((await ask('/peers/example.com')).status, 400)
  })

  test('verified record → its bytes; others → 404, no upstream asked', async () => {
    const key = createKey()
    const bytes = await key.record(`/ipfs/${added}`)
    upstream.records.set(key.name, bytes)
    assert.equal((await ask(`/ipns/${key.name}`)).status, 404)
    assert.equal((await fetchAll(`${at.url}/ipns/${key.name}`)).status, 200)
    const told = await ask(`/ipns/${key.name}`, { accept: 'application/vnd.ipfs.ipns-record' })
    assert.equal(told.status, 200)
    assert.equal(told.headers['content-type'], 'application/vnd.ipfs.ipns-record')
    assert.ok(told.body.equals(bytes))
    assert.match(String(told.headers['cache-control']), /^public, max-age=\d+$/)
    assert.equal((await ask(`/ipns/${key.name}`, { accept: 'text/html' })).status, 406)
    assert.equal((await ask('/ipns/example.com')).status, 400)
  })

  test('no `public` → no routes, no key', async () => {
    const plain = await startGateway()
    try {
      assert.equal((await fetchAll(`${plain.url}/routing/v1/providers/${added}`)).status, 404)
      await assert.rejects(stat(join(plain.data, 'identity.pem')))
    } finally {
      await plain.close()
    }
  })

  test('key: owner-only file, kept across restarts', async () => {
    const file = join(at.data, 'identity.pem')
    assert.equal((await stat(file)).mode & 0o777, 0o600)
    assert.match(await readFile(file, 'utf8'), /^-----BEGIN PRIVATE KEY-----/)
    assert.equal(identityIn(file).peerId, peerId)
    const broken = await tempFolder()
    await writeFile(join(broken, 'identity.pem'), 'secret that is no key')
    await assert.rejects(startGateway({ data: broken, config: { public: 'https://gw.example' } }), (error: Error) => {
      assert.match(error.message, /identity\.pem/)
      return !error.message.includes('secret')
    })
  })
})

describe('filters of /routing/v1 (IPIP-484)', () => {
  const self = { peerId: 'me', addresses }
  const left = (addrs: string | null, protocols: string | null = null) =>
    (filtered(self, addrs, protocols) as { Addrs: string[] } | undefined)?.Addrs ?? []

  test('address filter → included names, without those after !', () => {
    assert.deepEqual(left(null), addresses)
    assert.deepEqual(left('https,webtransport,tls'), addresses)
    assert.deepEqual(left('HTTPS'), addresses.slice(0, 1))
    assert.deepEqual(left('tls,unknown'), addresses.slice(1))
    assert.deepEqual(left('!tls'), addresses.slice(0, 1))
    for (const none of ['unknown', 'quic-v1', '!dns', 'http,!tls']) assert.deepEqual(left(none), [], none)
  })

  test('protocol filter → this protocol, or nothing', () => {
    assert.deepEqual(left(null, 'transport-bitswap,Transport-IPFS-Gateway-HTTP,unknown'), addresses)
    for (const none of ['unknown', 'transport-bitswap']) assert.deepEqual(left(null, none), [])
  })
})
