// GET and HEAD /ipns/<key or domain>[/<path>] over HTTP, as clients see it.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import { base16 } from 'multiformats/bases/base16'
import { base32 } from 'multiformats/bases/base32'
import { base58btc } from 'multiformats/bases/base58'
import type { Clock } from '../../src/core/clock.ts'
import { type DnsServer, startDnsServer } from '../support/dns-server.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { type Fetched, fetchAll, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { createKey, type TestKey } from '../support/ipns.ts'
import { createShiftedClock, type ShiftedClock } from '../support/shifted-clock.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let dns: DnsServer
let upstream: ProgrammableUpstream
let gateway: TestGateway
let clock: ShiftedClock
let key: TestKey
const record = 'application/vnd.ipfs.ipns-record'

/** By their configuration. What they know of names stays: each test has a key and domains of its own. */
const gateways = new Map<string, TestGateway>()

before(async () => {
  all = await fixtures()
  dns = await startDnsServer()
  upstream = await startUpstream({ blocks: all.blocks })
  clock = createShiftedClock({ still: true })
})
after(async () => {
  for (const one of gateways.values()) await one.close()
  await upstream.close()
  await dns.close()
})
beforeEach(() => {
  key = createKey()
  dns.texts.clear()
  dns.asked.length = 0
  dns.ttl = 60
  dns.fault = undefined
  upstream.fault = undefined
})

async function start(config: Record<string, unknown> = {}, by: Clock = clock): Promise<void> {
  const said = JSON.stringify([config, by === clock])
  const known = gateways.get(said)
  gateway =
    known ??
    (await startGateway({
      upstreams: [{ name: 'one', url: upstream.url }],
      clock: by,
      config: { names: { dns: [dns.address] }, ...config },
    }))
  gateways.set(said, gateway)
}
const get = (path: string, headers: Record<string, string> = {}): Promise<Fetched> =>
  fetchAll(`${gateway.url}${path}`, headers)
const publish = async (value: string, facts: Parameters<TestKey['record']>[1] = {}, owner = key) =>
  upstream.records.set(owner.name, await owner.record(value, facts))
const recordsAsked = () => upstream.asked.filter(({ url }) => url.startsWith(`/ipns/${key.name}`)).length
const problem = ({ body }: Fetched) =>
  JSON.parse(body.toString()) as { detail: string; attempts?: { upstream: string; outcome: string }[] }

describe('IPNS keys', () => {
  test('record → its content, for its lifetime', async () => {
    await start()
    await publish(`/ipfs/${all.directory}`, { ttlMs: 120_000 })
    const answer = await get(`/ipns/${key.name}/policy.json`)
    const { status, headers, body } = answer
    assert.deepEqual([status, body.toString()], [200, '{"name":"Policy"}'])
    assert.equal(headers['content-type'], 'application/json')
    assert.match(headers['cache-control'] ?? '', /^public, max-age=1(20|19), stale-while-revalidate=1(20|19)$/)
    assert.equal(headers['x-ipfs-path'], `/ipns/${key.name}/policy.json`)
    assert.match(String(headers['x-ipfs-roots']), new RegExp(`^${all.directory},baf`))
    assert.equal(headers['cache-status'], 'cidgate; fwd=miss; detail="one"')
    const direct = await get(`/ipfs/${all.directory}/policy.json`)
    assert.equal(direct.headers.etag, headers.etag)
    assert.match(direct.headers['cache-control'] ?? '', /immutable/)
    const again = await get(`/ipns/${key.name}/policy.json`)
    assert.equal(again.headers['cache-status'], 'cidgate; hit; detail=memory')
    assert.equal(recordsAsked(), 1)
    const copy = await get(`/ipns/${key.name}/policy.json`, { 'if-none-match': headers.etag ?? '' })
    assert.equal(copy.status, 304)
    assert.match(copy.headers['cache-control'] ?? '', /^public, max-age=1\d\d/)
  })

  test('every spelling of a key → same content', async () => {
    await start()
    await publish(`/ipfs/${all.files.hello.cid}`)
    const spellings = [key.name, key.peer, ...[base16, base32, base58btc].map((base) => key.cid.toString(base))]
    for (const name of [...spellings, key.cid.toString(base32).toUpperCase()]) {
      const { status, body } = await get(`/ipns/${name}`)
      assert.deepEqual([status, body.equals(Buffer.from(all.files.hello.bytes))], [200, true], name)
    }
    assert.equal(recordsAsked(), 1)
  })

  test('listing, range, HEAD, format → as /ipfs, except max-age', async () => {
    await start()
    await publish(`/ipfs/${all.directory}`)
    const path = `/ipns/${key.name}`
    for (const [suffix, headers, status] of [
      ['/', {}, 200],
      ['/policy.json', { range: 'bytes=1-4' }, 206],
      ['?format=car', {}, 200],
      ['/policy.json?format=raw', {}, 200],
      ['', { accept: 'application/vnd.ipld.raw' }, 200],
    ] as const) {
      const answer = await get(path + suffix, headers)
      const direct = await get(`/ipfs/${all.directory}${suffix}`, headers)
      assert.equal(answer.status, status, suffix)
      assert.equal(answer.headers.etag, direct.headers.etag)
      assert.equal(answer.headers['content-type'], direct.headers['content-type'])
      if (suffix !== '/') assert.deepEqual(answer.body, direct.body)
      assert.match(answer.headers['cache-control'] ?? '', /^public, max-age=(60|59), stale/, suffix)
    }
    assert.equal(JSON.parse((await get(`${path}/`)).body.toString()).path, `${path}/`)
    const head = await fetch(`${gateway.url}${path}/policy.json`, { method: 'HEAD' })
    assert.deepEqual([head.status, head.headers.get('content-length')], [200, '17'])
  })

  test('path in the record precedes the path in the request', async () => {
    await start()
    await publish(`/ipfs/${all.directory}/über`)
    assert.equal((await get(`/ipns/${key.name}/%C3%9F.txt`)).status, 200)
    await publish(`/ipfs/${all.directory}/../x`, { sequence: 2 })
    clock.shift(60_000)
    assert.equal((await get(`/ipns/${key.name}`)).status, 422)
  })

  test('TTL over → looked up again, new content served', async () => {
    await start()
    await publish(`/ipfs/${all.files.hello.cid}`, { ttlMs: 30_000 })
    await get(`/ipns/${key.name}`)
    await publish(`/ipfs/${all.files.json.cid}`, { sequence: 2 })
    clock.shift(29_000)
    assert.equal((await get(`/ipns/${key.name}`)).headers.etag, `"${all.files.hello.cid}"`)
    clock.shift(1_000)
    assert.equal((await get(`/ipns/${key.name}`)).headers.etag, `"${all.files.json.cid}"`)
    assert.equal(recordsAsked(), 2)
  })

  test('no-cache → lookup; only-if-cached → no upstream', async () => {
    await start()
    await publish(`/ipfs/${all.files.hello.cid}`)
    assert.equal((await get(`/ipns/${key.name}`, { 'cache-control': 'only-if-cached' })).status, 412)
    assert.equal(recordsAsked(), 0)
    await get(`/ipns/${key.name}`)
    await publish(`/ipfs/${all.files.json.cid}`, { sequence: 2 })
    clock.shift(1_000)
    assert.equal((await get(`/ipns/${key.name}`)).headers.etag, `"${all.files.hello.cid}"`)
    const fresh = await get(`/ipns/${key.name}`, { 'cache-control': 'no-cache' })
    assert.equal(fresh.headers.etag, `"${all.files.json.cid}"`)
    assert.equal((await get(`/ipns/${key.name}`, { 'cache-control': 'only-if-cached' })).status, 200)
  })

  test('no record → 404 with attempts, cached briefly', async () => {
    await start()
    const answer = await get(`/ipns/${key.name}`)
    assert.equal(answer.status, 404)
    assert.deepEqual(
      problem(answer).attempts?.map(({ upstream: name, outcome }) => [name, outcome]),
      [['one', 'not-found']],
    )
    assert.ok(Number(answer.headers['retry-after']) <= 5)
    await publish(`/ipfs/${all.files.hello.cid}`)
    assert.equal((await get(`/ipns/${key.name}`)).status, 404)
    assert.equal(recordsAsked(), 1)
    clock.shift(5_000)
    assert.equal((await get(`/ipns/${key.name}`)).status, 200)
  })

  test('record with a URL or non-content path → no requests', async (context) => {
    await start()
    const other = await startUpstream({ blocks: all.blocks })
    context.after(() => other.close())
    const { host, port } = new URL(other.url)
    for (const value of [
      `//${host}/ipfs/${all.directory}`,
      `/ip4/127.0.0.1/tcp/${port}/http`,
      `/ipfs/${all.directory}/../../..`,
      `/ipfs/${host}`,
    ]) {
      const own = createKey()
      await publish(value, {}, own)
      const { status, headers } = await get(`/ipns/${own.name}/policy.json`)
      assert.ok(status >= 400 && headers.location === undefined, `${value}: ${status}`)
    }
    assert.deepEqual(other.seen, [])
  })

  test('invalid name → 400', async () => {
    await start()
    for (const name of ['', 'nodots', '-a.example', '%00', all.cbor.toString().slice(0, 20)]) {
      assert.equal((await get(`/ipns/${name}`)).status, 400, name)
    }
    assert.equal(recordsAsked(), 0)
  })
})

describe('IPNS records', () => {
  test('sent as signed, by ?format and by Accept', async () => {
    await start()
    const bytes = await key.record(`/ipfs/${all.files.hello.cid}`, { ttlMs: 1_800_000 })
    upstream.records.set(key.name, bytes)
    for (const [query, headers] of [
      ['?format=ipns-record', {}],
      ['', { accept: record }],
    ] as const) {
      for (const name of [key.name, key.peer]) {
        const answer = await get(`/ipns/${name}${query}`, headers)
        assert.equal(answer.status, 200)
        assert.deepEqual(answer.body, Buffer.from(bytes))
        assert.equal(answer.headers['content-type'], record)
        assert.match(
          answer.headers['content-disposition'] ?? '',
          new RegExp(`^attachment; filename="${key.name}.ipns-record"`),
        )
        assert.match(answer.headers['cache-control'] ?? '', /^public, max-age=1800\b/)
        assert.equal(answer.headers['x-ipfs-roots'], undefined)
        const copy = await get(`/ipns/${name}${query}`, { ...headers, 'if-none-match': answer.headers.etag ?? '' })
        assert.equal(copy.status, 304)
      }
    }
    const named = await get(`/ipns/${key.name}?format=ipns-record&filename=testтест.ipns-record`)
    assert.match(
      named.headers['content-disposition'] ?? '',
      /attachment; filename="test____.ipns-record"; filename\*=UTF-8''test%D1%82%D0%B5%D1%81%D1%82.ipns-record/,
    )
    const head = await fetch(`${gateway.url}/ipns/${key.name}?format=ipns-record`, { method: 'HEAD' })
    assert.equal(head.headers.get('content-length'), String(bytes.byteLength))
  })

  test('max-age is the remaining lifetime, as for content', async () => {
    await start()
    await publish(`/ipfs/${all.files.hello.cid}`, { ttlMs: 1_800_000 })
    assert.equal((await get(`/ipns/${key.name}?format=ipns-record`)).status, 200)
    clock.shift(1_500_000)
    const content = await get(`/ipns/${key.name}`)
    assert.match(content.headers['cache-control'] ?? '', /^public, max-age=(300|299)\b/)
    // Its own time, and how much of that is over.
    const record = await get(`/ipns/${key.name}?format=ipns-record`)
    assert.match(record.headers['cache-control'] ?? '', /^public, max-age=1800\b/)
    assert.match(record.headers['age'] ?? '', /^150[01]$/)
    assert.equal(recordsAsked(), 1)
  })

  test('expired → no longer served', async () => {
    // The end of a record is a date of this machine's clock.
    await start({}, createShiftedClock())
    await publish(`/ipfs/${all.files.hello.cid}`, { ttlMs: 1_800_000, lifetimeMs: 20_000 })
    for (const query of ['?format=ipns-record', '']) {
      const { headers } = await get(`/ipns/${key.name}${query}`)
      assert.match(headers['cache-control'] ?? '', /^public, max-age=1\d$/)
    }
  })

  test('path, domain or content → no record', async () => {
    await start()
    await publish(`/ipfs/${all.directory}`)
    dns.texts.set('_dnslink.records.example', [`dnslink=/ipns/${key.name}`])
    for (const path of [`/ipns/${key.name}/policy.json`, '/ipns/records.example', `/ipfs/${all.files.hello.cid}`]) {
      assert.equal((await get(`${path}?format=ipns-record`)).status, 400, path)
      assert.equal((await get(path, { accept: record })).status, 400, path)
    }
  })
})

describe('DNSLink', () => {
  for (const over of ['DNS', 'DNS over HTTPS']) {
    test(`domain by TXT record, over ${over}, for its TTL`, async () => {
      await start(over === 'DNS' ? {} : { names: { dns: [dns.url] } })
      dns.texts.set('_dnslink.docs.example', [`dnslink=/ipfs/${all.directory}`])
      dns.ttl = 30
      const { status, body, headers } = await get('/ipns/docs.example/policy.json')
      assert.deepEqual([status, body.toString()], [200, '{"name":"Policy"}'])
      assert.match(headers['cache-control'] ?? '', /^public, max-age=(30|29), stale/)
      assert.equal(headers['x-ipfs-path'], '/ipns/docs.example/policy.json')
      dns.texts.set('_dnslink.docs.example', [`dnslink=/ipfs/${all.files.hello.cid}`])
      clock.shift(29_000)
      assert.equal((await get('/ipns/DOCS.example/policy.json')).status, 200)
      clock.shift(1_000)
      assert.equal((await get('/ipns/docs.example')).headers.etag, `"${all.files.hello.cid}"`)
      assert.equal(dns.asked.length, 2)
    })
  }

  test('domain, domain, key → content with the minimum TTL', async () => {
    await start()
    dns.texts.set('_dnslink.a.example', ['dnslink=/ipns/b.example/x'])
    dns.texts.set('_dnslink.b.example', [`dnslink=/ipns/${key.name}`])
    await publish(`/ipfs/${all.directory}/über`, { ttlMs: 20_000 })
    const answer = await get('/ipns/b.example/%C3%9F.txt')
    assert.equal(answer.status, 200)
    assert.match(answer.headers['cache-control'] ?? '', /^public, max-age=(20|19)\b/)
    assert.equal((await get('/ipns/a.example')).status, 404, 'there is no x in it')
  })

  test('cycle → error', async () => {
    await start()
    dns.texts.set('_dnslink.one.example', ['dnslink=/ipns/two.example'])
    dns.texts.set('_dnslink.two.example', ['dnslink=/ipns/one.example'])
    const answer = await get('/ipns/one.example')
    assert.equal(answer.status, 400)
    assert.match(problem(answer).detail, /more than 32 names/)
    await publish(`/ipns/${key.name}`)
    assert.equal((await get(`/ipns/${key.name}`)).status, 400)
  })

  test('no link → 404; cached result outlives DNS outage', async () => {
    await start()
    const answer = await get('/ipns/none.example')
    assert.equal(answer.status, 404)
    assert.match(problem(answer).detail, /_dnslink\.none\.example/)
    dns.texts.set('_dnslink.out.example', [`dnslink=/ipfs/${all.files.hello.cid}`])
    assert.equal((await get('/ipns/out.example')).status, 200)
    dns.fault = 'servfail'
    clock.shift(3_600_000)
    const stale = await get('/ipns/out.example')
    assert.equal(stale.status, 200)
    assert.match(stale.headers['cache-control'] ?? '', /^public, max-age=(10|9)\b/)
    assert.equal((await get('/ipns/unknown.example')).status, 404)
  })

  test('static name of the configuration → no lookup', async () => {
    await start({ names: { dns: [dns.address], static: { 'house.example': `/ipfs/${all.files.hello.cid}` } } })
    assert.equal((await get('/ipns/house.example')).status, 200)
    assert.deepEqual(dns.asked, [])
  })
})

describe('denylists and names', () => {
  test('denied by name, by intermediate name, and by target', async () => {
    const folder = await tempFolder()
    const list = join(folder, 'names.deny')
    const other = createKey()
    await writeFile(list, `/ipns/bad.example\n/ipns/${key.peer}/policy.json\n/ipfs/${all.files.hello.cid}\n`)
    await start({ denylists: [list] })
    dns.texts.set('_dnslink.bad.example', [`dnslink=/ipfs/${all.files.json.cid}`])
    dns.texts.set('_dnslink.good.example', ['dnslink=/ipns/bad.example'])
    await publish(`/ipfs/${all.directory}`)
    await publish(`/ipfs/${all.files.hello.cid}`, {}, other)
    for (const [path, status] of [
      ['/ipns/bad.example', 410],
      ['/ipns/BAD.example', 410],
      ['/ipns/good.example', 410],
      [`/ipns/${key.name}/policy.json`, 410],
      [`/ipns/${key.name}/`, 200],
      [`/ipns/${other.name}`, 410],
      [`/ipns/${other.name}?format=ipns-record`, 200],
      ['/ipns/bad.example?format=ipns-record', 410],
    ] as const) {
      assert.equal((await get(path)).status, status, path)
    }
  })
})

describe('names in web mode', () => {
  const web = {
    responses: { types: 'web' },
    hosts: { 'example.org': { subdomains: true }, 'trustless.example': { trustless: true } },
  }

  test('peer ID → redirect to the host-name spelling', async () => {
    await start(web)
    await publish(`/ipfs/${all.directory}`)
    const { status, headers } = await get(`/ipns/${key.peer}/policy.json?download=true`)
    assert.deepEqual([status, headers.location], [302, `/ipns/${key.name}/policy.json?download=true`])
    assert.equal(recordsAsked(), 0)
    const rsa = await get('/ipns/QmcJM7PRfkSbcM5cf1QugM5R37TLRKyJGgBEhXjLTB8uA2/root2/')
    assert.equal(rsa.headers.location, '/ipns/k2k4r8ol4m8kkcqz509c1rcjwunebj02gcnm5excpx842u736nja8ger/root2/')
  })

  test('page: lifetime of the name, links stay under it', async () => {
    await start(web)
    await publish(`/ipfs/${all.directory}`)
    const moved = await get(`/ipns/${key.name}/sub`)
    assert.deepEqual([moved.status, moved.headers.location], [301, `/ipns/${key.name}/sub/`])
    const page = await get(`/ipns/${key.name}/sub/`, { accept: 'text/html' })
    assert.equal(page.status, 200)
    assert.match(page.headers['content-type'] ?? '', /^text\/html/)
    assert.match(page.headers['cache-control'] ?? '', /^public, max-age=(60|59)\b/)
    assert.match(page.body.toString(), new RegExp(`/ipns/${key.name}`))
  })

  test('own origin, by key and by domain', async () => {
    await start(web)
    await publish(`/ipfs/${all.directory}`)
    dns.texts.set('_dnslink.my-docs.example', [`dnslink=/ipfs/${all.directory}`])
    for (const label of [key.name, 'my--docs-example']) {
      const { status, body, headers } = await get('/policy.json', { host: `${label}.ipns.example.org` })
      assert.deepEqual([status, body.toString()], [200, '{"name":"Policy"}'], label)
      assert.match(headers['cache-control'] ?? '', /^public, max-age=(60|59)\b/)
    }
    const { headers } = await get('/ipns/my-docs.example/policy.json', { host: 'example.org' })
    assert.equal(headers.location, 'http://my--docs-example.ipns.example.org/policy.json')
  })

  test('names.dnslinkSites: host with DNSLink → site; others → paths', async () => {
    await start({ ...web, names: { dns: [dns.address], dnslinkSites: true } })
    dns.texts.set('_dnslink.docs.example', [`dnslink=/ipfs/${all.directory}`])
    const site = await get('/policy.json', { host: 'docs.example:8080' })
    assert.deepEqual([site.status, site.body.toString()], [200, '{"name":"Policy"}'])
    assert.equal(site.headers['x-ipfs-path'], '/ipns/docs.example/policy.json')
    assert.equal((await get('/policy.json', { host: 'other.example' })).status, 404)
    dns.fault = 'servfail'
    clock.shift(3_600_000)
    assert.equal((await get('/policy.json', { host: 'docs.example' })).status, 200)
    const path = `/ipfs/${all.files.hello.cid}`
    assert.equal((await get(path, { host: 'gateway.example' })).status, 200)
    for (let turn = 0; turn < 2; turn++) assert.equal((await get(path)).status, 200)
    assert.equal((await get(path, { host: 'docs.example' })).status, 404, 'the site has no such path, though it is hot')
  })

  test('hosts without DNSLink → coalesced lookups', async () => {
    await start({ ...web, names: { dns: [dns.address], dnslinkSites: true } })
    dns.fault = 'servfail'
    const path = `/ipfs/${all.files.hello.cid}`
    for (let count = 0; count < 3; count++) {
      assert.equal((await get(`${path}?${count}`, { host: 'plain.example' })).status, 200)
    }
    assert.equal(dns.asked.length, 1)
  })

  test('trustless host → records only', async () => {
    await start(web)
    await publish(`/ipfs/${all.directory}`)
    const host = 'trustless.example'
    assert.equal((await get(`/ipns/${key.name}?format=ipns-record`, { host })).status, 200)
    assert.equal((await get(`/ipns/${key.name}?format=car`, { host })).status, 200)
    assert.equal((await get(`/ipns/${key.name}/policy.json`, { host })).status, 406)
  })

  test('upstream failures → 502; not found → 404', async () => {
    await start(web)
    assert.equal((await get(`/ipns/${key.name}`)).status, 404)
    upstream.fault = { kind: 'status', status: 500, body: 'routing: not found' }
    assert.equal((await get(`/ipns/${createKey().name}`)).status, 502)
  })
})
