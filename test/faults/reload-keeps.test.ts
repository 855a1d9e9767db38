// Fault: a reload that makes the gateway forget its caches and counters. What did not change goes over as it is; only what
// changed is made anew.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { appendFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, afterEach, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { multipart, post } from '../support/adding.ts'
import { type DnsServer, startDnsServer } from '../support/dns-server.ts'
import { addFile, type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { tempFolder } from '../support/gateway.ts'
import { createKey } from '../support/ipns.ts'
import { keptIn } from '../support/kept.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../support/providers.ts'
import { type Said, type Served, startServed } from '../support/served.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let upstream: ProgrammableUpstream
let served: Served | undefined
const closers: (() => Promise<unknown>)[] = []
before(async () => {
  all = await fixtures()
})
afterEach(async () => {
  await served?.close()
  for (const close of closers.splice(0)) await close()
  served = undefined
})

async function another(): Promise<ProgrammableUpstream> {
  const one = await startUpstream({ blocks: all.blocks })
  closers.push(one.close)
  return one
}

/** A denylist that says so much, in a folder of its own. */
async function denylist(text: string): Promise<string> {
  const folder = await tempFolder()
  closers.push(() => rm(folder, { recursive: true }))
  const list = join(folder, 'list.deny')
  await writeFile(list, text)
  return list
}

async function start(more: Said = {}): Promise<Served> {
  upstream = await another()
  served = await startServed(withUpstream(more))
  return served
}

const withUpstream = ({ retrieval, ...more }: Said = {}): Said => ({
  ...more,
  retrieval: { upstreams: [{ name: 'one', url: upstream.url }], ...(retrieval as Said) },
})

const hello = () => `/ipfs/${all.files.hello.cid}`
const big = () => `/ipfs/${all.files.chunkedV1.cid}`
const cacheStatus = ({ headers }: { headers: NodeJS.Dict<string | string[]> }) => String(headers['cache-status'])

test('reload: memory tier → kept until its own entry changes', async () => {
  const responses = { maxBytes: 0 }
  const { get, reload } = await start({ cache: { responses } })
  for (const path of [hello(), big()]) assert.equal((await get(path)).status, 200)
  const asked = upstream.asked.length
  upstream.fault = { kind: 'refuse' }
  const tiers = [
    { use: 'memory', maxBytes: '64MiB' },
    { use: 'disk', maxBytes: '1GiB', path: join(served?.data ?? '', 'other') },
  ]
  for (const cache of [{ responses }, { responses, writeQueueBytes: '1MiB', tiers }]) {
    assert.equal(await reload(withUpstream({ cache })), true)
    const answer = await get(big())
    assert.ok(answer.body.equals(all.files.chunkedV1.bytes))
    assert.match(cacheStatus(answer), /hit; detail=memory/)
    assert.equal(upstream.asked.length, asked)
  }
  upstream.fault = undefined
  const cache = { responses, tiers: [{ use: 'memory', maxBytes: '32MiB' }] }
  assert.equal(await reload(withUpstream({ cache })), true)
  assert.equal((await get(hello())).status, 200)
  assert.equal(upstream.asked.length, asked + 1)
})

test('reload → response cache kept until its settings change', async () => {
  const one = await start()
  const { get, reload, counters } = one
  const hits = async () =>
    (await counters()).get('cidgate_http_requests_total{route="ipfs",method="GET",status="200",source="responses"}') ??
    0
  const isCached = async () => /detail=responses/.test(cacheStatus(await get(hello())))
  await get(hello())
  assert.equal(await isCached(), true)
  const before = await hits()
  assert.equal(await reload(), true)
  assert.equal(await isCached(), true)
  assert.equal(await hits(), before + 1)
  for (const change of [
    { responses: { types: 'web' } },
    { hosts: { localhost: { subdomains: true } } },
    { names: { dnslinkSites: true } },
    { trustedProxies: ['127.0.0.1'] },
  ]) {
    assert.equal(await reload(withUpstream(change)), true)
    assert.equal(await isCached(), false, JSON.stringify(change))
    assert.equal(await isCached(), true)
  }
  assert.equal(await reload(withUpstream({ denylists: [await denylist(`${hello()}\n`)] })), true)
  assert.equal((await get(hello())).status, 410)
})

describe('reload: denylists', () => {
  test('changed → read at once; unreadable → reload refused', async () => {
    const list = await denylist('# nothing\n')
    const { get, reload, log } = await start({ denylists: [list] })
    for (const path of [hello(), big()]) assert.equal((await get(path)).status, 200)
    await writeFile(list, '# nothing\n')
    assert.equal(await reload(), true)
    assert.match(cacheStatus(await get(hello())), /detail=responses/, 'unchanged')
    await appendFile(list, `${hello()}\n`)
    assert.equal(await reload(), true)
    assert.equal((await get(hello())).status, 410)
    assert.equal((await get(big())).status, 200)
    await rm(list)
    assert.equal(await reload(), false)
    assert.match(
      String(log.findLast(({ event }) => event === 'config.refused')?.facts['why']),
      /denylists: .*list\.deny/,
    )
    assert.equal((await get(hello())).status, 410)
    await writeFile(list, 'this is no list\n')
    for (let count = 0; count < 2; count++) assert.equal(await reload(), false)
    await writeFile(list, '')
    assert.equal(await reload(), true)
    assert.equal((await get(hello())).status, 200)
  })

  test('takedown after a reload → older requests are denied too', async () => {
    const { get, reload, serving } = await start()
    const { cid } = await addFile(new Map(), all.names['policy.json'])
    upstream.delayMs = 1000
    const old = get(`/ipfs/${all.directory}/policy.json`)
    while (upstream.asked.length === 0) await sleep(5)
    assert.equal(await reload(withUpstream({ denylists: [await denylist('')] })), true)
    const taken = await fetch(`http://${serving.admin}/deny/${cid}`, { method: 'POST' })
    assert.equal(taken.status, 200, await taken.text())
    assert.equal((await old).status, 410)
    assert.equal((await get(`/ipfs/${cid}`)).status, 410)
  })
})

describe('reload: upstream health', () => {
  test('Retry-After → kept until its own entry changes', async () => {
    const { get, reload, admin } = await start()
    upstream.fault = { kind: 'throttle', retryAfter: '900' }
    await get(hello())
    const asked = upstream.asked.length
    upstream.fault = undefined
    assert.equal(await reload(), true)
    assert.equal((await get(big())).status, 404)
    assert.match((await admin('/readyz')).body.toString(), /"upstream one","ok":false,"why":"rate-limited"/)
    const other = { name: 'two', url: (await another()).url }
    const upstreams = [other, { name: 'one', url: upstream.url }]
    assert.equal(await reload(withUpstream({ retrieval: { upstreams, hedgeDelay: '0s' } })), true)
    assert.equal((await get(big())).status, 200)
    assert.equal(upstream.asked.length, asked)
    const own = [{ name: 'one', url: upstream.url, headers: { 'x-key': 'paid for' } }]
    assert.equal(await reload(withUpstream({ retrieval: { upstreams: own } })), true)
    assert.equal((await get(hello())).status, 200)
    assert.equal(upstream.asked.length, asked + 1)
  })

  test('quarantine for wrong bytes → kept', async () => {
    const { get, reload, admin } = await start()
    upstream.fault = { kind: 'wrongBytes', block: 0 }
    await get(hello())
    assert.equal(await reload(), true)
    assert.match((await admin('/readyz')).body.toString(), /"upstream one","ok":false,"why":"quarantined"/)
  })

  test('connections → kept', async () => {
    const { get, reload } = await start()
    await get(hello())
    const asked = upstream.asked.length
    const { opened } = upstream
    assert.ok(opened > 0)
    for (let count = 0; count < 5; count++) assert.equal(await reload(), true)
    await get(big())
    assert.ok(upstream.asked.length > asked)
    assert.equal(upstream.opened, opened)
  })
})

test('reload: negative cache → kept until an upstream may have it', async () => {
  const absent = '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'
  const retrieval = { negativeCache: { initialTtl: '50s' }, backgroundSearch: 0 }
  const { get, reload } = await start({ retrieval })
  upstream.fault = { kind: 'notFound' }
  for (const path of [absent, hello()]) assert.equal((await get(path)).status, 404)
  const asked = upstream.asked.length
  assert.equal(await reload(), true)
  for (const path of [absent, hello()]) assert.equal((await get(path)).status, 404)
  assert.equal(upstream.asked.length, asked)
  const upstreams = [
    { name: 'one', url: upstream.url },
    { name: 'two', url: (await another()).url },
  ]
  assert.equal(await reload(withUpstream({ retrieval: { ...retrieval, upstreams } })), true)
  assert.equal((await get(hello())).status, 200)
})

describe('reload: names', () => {
  let dns: DnsServer
  before(async () => {
    dns = await startDnsServer()
  })
  after(async () => {
    await dns.close()
  })

  test('resolved names kept, DNSLink and IPNS', async () => {
    dns.texts.set('_dnslink.example.org', [`dnslink=${hello()}`])
    dns.ttl = 300
    const key = createKey()
    const names = { dns: [dns.address] }
    const { get, reload } = await start({ names })
    upstream.records.set(key.name, await key.record(hello()))
    for (const path of ['/ipns/example.org', `/ipns/${key.name}`]) assert.equal((await get(path)).status, 200)
    const [asked, questions] = [upstream.asked.length, dns.asked.length]
    assert.equal(await reload(), true)
    for (const path of ['/ipns/example.org', `/ipns/${key.name}`]) assert.equal((await get(path)).status, 200)
    // An upstream that comes is no reason to forget what a key said.
    const upstreams = [
      { name: 'one', url: upstream.url },
      { name: 'two', url: 'http://127.0.0.1:9' },
    ]
    assert.equal(await reload(withUpstream({ names, retrieval: { upstreams } })), true)
    for (const path of ['/ipns/example.org', `/ipns/${key.name}`]) assert.equal((await get(path)).status, 200)
    assert.deepEqual([upstream.asked.length, dns.asked.length], [asked, questions])
  })

  test('DNS server changes → DNSLink looked up again', async () => {
    dns.texts.set('_dnslink.other.example', [`dnslink=${hello()}`])
    const { get, reload } = await start({ names: { dns: [dns.address] } })
    await get('/ipns/other.example')
    const questions = dns.asked.length
    assert.equal(await reload(withUpstream({ names: { dns: [dns.url] } })), true)
    await get('/ipns/other.example')
    assert.ok(dns.asked.length > questions)
  })
})

describe('reload: counters', () => {
  const two = (more: Said = {}): Said => ({
    retrieval: {
      upstreams: [
        { name: 'one', url: upstream.url, ...more },
        { name: 'dead', url: 'http://127.0.0.1:9' },
      ],
    },
  })

  test("today's quota use continues, even with a new quota", async () => {
    const secret = 'the-token-of-the-tests'
    const upTo = (uploads: number): Said => ({
      upload: { auth: { tokens: [{ name: 'ci', token: secret, quota: { uploads } }] } },
    })
    const { url, reload, admin } = await start(upTo(2))
    const upload = async () =>
      (await post(`${url}/add`, multipart([{ body: 'hello' }]), { authorization: `Bearer ${secret}` })).status
    assert.deepEqual([await upload(), await upload(), await upload()], [200, 200, 429])
    assert.equal(await reload(upTo(2)), true)
    assert.equal(await upload(), 429)
    assert.equal(await reload(upTo(3)), true)
    assert.deepEqual([await upload(), await upload()], [200, 429])
    const { body } = await admin('/metrics')
    assert.match(body.toString(), /^cidgate_token_used_uploads\{token="ci"\} 3$/m)
    assert.match(body.toString(), /^cidgate_token_quota_refusals_total\{token="ci"\} 3$/m)
  })

  test('connection, refusal and malformed-request counts continue', async () => {
    const { url, counters, admin, reload } = await start({ limits: { maxConnections: 1, maxConnectionsPerClient: 2 } })
    const to = { port: Number(new URL(url).port), host: '127.0.0.1' }
    const refused = 'cidgate_connections_refused_total{limit="maxConnections"}'
    const unread = 'cidgate_http_requests_total{route="none",method="other",status="400",source="none"}'
    for (let turn = 1; turn < 3; turn++) {
      const busy = connect(to)
      // Its answer is under way until the body has come.
      busy.write(
        'POST /add HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n',
      )
      await once(busy, 'data')
      const { body } = await admin('/metrics')
      assert.match(body.toString(), /^cidgate_connections 1$/m)
      assert.match(await text(connect(to)), /^HTTP\/1.1 503 /)
      assert.equal((await counters()).get(refused), turn)
      busy.destroy()
      // Until the server has seen it leave there is no room.
      while (!(await admin('/metrics')).body.toString().includes('\ncidgate_connections 0\n'));
      const noise = connect(to)
      noise.write('noise\r\n\r\n')
      assert.match(await text(noise), /^HTTP\/1.1 400 /)
      assert.equal((await counters()).get(unread), turn)
      assert.equal(
        await reload({ limits: { maxConnections: 1, maxConnectionsPerClient: 2, maxConcurrentRequests: 10 + turn } }),
        true,
      )
      assert.equal((await counters()).get(refused), turn)
      assert.equal((await counters()).get(unread), turn)
    }
  })

  test('no counter decreases at any change', async () => {
    const cache = { responses: { maxBytes: '1MiB' }, tiers: [{ use: 'memory', maxBytes: '64MiB' }, { use: 'disk' }] }
    const one = await start({ cache, retrieval: {} })
    const traffic = async () => {
      for (const path of [hello(), big(), '/ipfs/nothing', `/ipfs/${all.directory}/nothing`, '/nowhere', hello()])
        await one.get(path)
      assert.equal(
        (await post(`${one.url}/add`, multipart([{ fileName: 'a', body: noise(1000, Math.random() * 1e9) }]))).status,
        200,
      )
    }
    let before = await one.counters()
    const held = async (what: string) => {
      const now = await one.counters()
      assert.ok([...now.values()].some((value) => value > 0))
      for (const [series, value] of now)
        assert.ok(value >= (before.get(series) ?? 0), `${what}: ${series} went back to ${value}`)
      before = now
    }
    const rounds: [what: string, more: Said][] = [
      ['nothing', { cache }],
      ['memory', { cache: { ...cache, tiers: [{ use: 'memory', maxBytes: '32MiB' }, { use: 'disk' }] } }],
      [
        'the disk',
        {
          cache: {
            ...cache,
            tiers: [
              { use: 'memory', maxBytes: '32MiB' },
              { use: 'disk', maxBytes: '2GiB' },
            ],
          },
        },
      ],
      ['responses', { cache: { ...cache, responses: { maxBytes: 0 } } }],
      ['an upstream', { cache, ...two({ headers: { a: 'b' } }) }],
      ['an upstream that goes', { cache, retrieval: { upstreams: [{ name: 'dead', url: 'http://127.0.0.1:9' }] } }],
      ['and comes back', { cache, ...two() }],
      ['limits', { cache, limits: { maxConcurrentRequests: 1, perClient: { perMinute: 60_000 } } }],
      [
        'all of it',
        {
          cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '1MiB' }] },
          names: { maxEntries: 10 },
        },
      ],
    ]
    await traffic()
    await held('before')
    for (const [what, more] of rounds) {
      assert.equal(await one.reload(withUpstream(more)), true, what)
      await held(what)
      await traffic()
      await held(`${what}, and after it`)
    }
  })
})

describe('reload: uploads', () => {
  let kubo: StandIn
  before(async () => {
    kubo = await startStandIn(kuboApi)
  })
  afterEach(() => {
    kubo.script = undefined
  })
  after(async () => {
    await kubo.close()
  })
  const local = { name: 'local', use: 'embedded' }
  const remote = () => ({ name: 'kubo', use: 'kubo', url: kubo.url, auth: { bearer: token } })
  const begun = async () => (await keptIn(served?.data ?? '')).strays
  const blocks = async () => (await keptIn(served?.data ?? '')).blocks
  const body = (length: number, seed: number) => multipart([{ fileName: 'a', body: noise(length, seed) }])
  /** The service takes uploads, and no client can read from it. */
  const takesOnly = () => {
    kubo.script = ({ path }) => (/block\/get|dag\/export/.test(path) ? { status: 500 } : undefined)
  }

  /** It has come as far as the disk, and waits there for its end. */
  // The first blocks are written together, when ten of 256 KiB are here.
  const upload = { profile: 'unixfs-v0-2015' }
  const [begunBytes, wholeBytes] = [3_000_000, 3_200_000]

  async function beginUpload(url: string, whole: Buffer) {
    const end = Promise.withResolvers<void>()
    const slowly = async function* () {
      yield whole.subarray(0, begunBytes)
      await end.promise
      yield whole.subarray(begunBytes)
    }
    const inProgress = post(`${url}/add`, slowly())
    while ((await begun()).length === 0) await sleep(5)
    return { inProgress, goOn: () => end.resolve() }
  }

  const changes: [what: string, more: Said][] = [
    ['memory', { cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '32MiB' }] } }],
    ['the uploads themselves', { upload: { concurrency: 3 } }],
  ]
  for (const [what, more] of changes)
    test(`${what} changes during uploads → readable once acknowledged`, async () => {
      takesOnly()
      const pinning = { providers: [remote()] }
      const { url, get, reload } = await start({ pinning, upload, retrieval: { upstreams: [] } })
      const { inProgress, goOn } = await beginUpload(url, body(wholeBytes, 77))
      assert.equal(
        await reload(
          withUpstream({
            pinning,
            ...more,
            upload: { ...upload, ...(more['upload'] as Said) },
            retrieval: { upstreams: [], ...(more['retrieval'] as Said) },
          }),
        ),
        true,
      )
      goOn()
      const { status, json, body: said } = await inProgress
      assert.equal(status, 200, said)
      // The service holds it: what it was received into is let go, and the tiers are all there is.
      while ((await blocks()) > 0) await sleep(5)
      const [path] = json['cids'] as [string]
      const answer = await get(path)
      assert.equal(answer.status, 200, answer.body.toString(undefined, 0, 300))
      assert.ok(answer.body.equals(noise(wholeBytes, 77)))
    })

  test('uploads in progress → checked against the new denylist', async () => {
    const pinning = { providers: [local] }
    const { url, get, reload } = await start({ pinning, upload })
    const { inProgress, goOn } = await beginUpload(url, body(wholeBytes, 78))
    const known = await post(`${url}/add`, body(wholeBytes, 78))
    const [path] = known.json['cids'] as [string]
    assert.equal(await reload(withUpstream({ pinning, upload, denylists: [await denylist(`${path}\n`)] })), true)
    goOn()
    assert.equal((await inProgress).status, 410)
    assert.equal((await get(path)).status, 410)
  })

  test('pending deliveries keep their state', async () => {
    kubo.script = () => ({ status: 503 })
    const pinning = { minConfirmations: 1, providers: [local, remote()] }
    const { url, admin, reload } = await start({ pinning, retrieval: { upstreams: [] } })
    assert.equal((await post(`${url}/add`, body(1000, 5))).status, 200)
    const open = async () => JSON.parse((await admin('/uploads')).body.toString())
    type Open = { uploads: { providers: Record<string, { tries: number; notBefore: number }> }[] }
    const standing = async () => ((await open()) as Open).uploads[0]?.providers['kubo']
    while (((await standing())?.tries ?? 0) < 1) await sleep(20)
    const before = await standing()
    for (let count = 0; count < 5; count++)
      assert.equal(await reload(withUpstream({ pinning, retrieval: { upstreams: [] } })), true)
    const now = await standing()
    assert.ok(now && before && now.tries >= before.tries)
    if (now.tries === before.tries) assert.deepEqual(now, before)
    kubo.script = undefined
    for (const until = Date.now() + 20_000; (await open()).open > 0 && Date.now() < until; ) await sleep(50)
    assert.equal((await open()).open, 0)
  })

  test('provider probe results kept, so readiness is too', async () => {
    kubo.script = () => ({ status: 503 })
    const pinning = { probeEvery: '1h', minConfirmations: 1, providers: [remote()] }
    const { admin, reload } = await start({ pinning })
    type Ready = { uploads?: boolean; checks: { name: string; ok: boolean }[] }
    const ready = async (): Promise<Ready> => JSON.parse((await admin('/readyz?for=uploads')).body.toString())
    while ((await ready()).uploads !== false) await sleep(20)
    assert.equal(await reload(), true)
    assert.equal((await ready()).uploads, false)
    kubo.script = undefined
    // Another one is looked at, and what is known of this one stays.
    const more = { ...pinning, minConfirmations: 2, providers: [local, remote()] }
    assert.equal(await reload(withUpstream({ pinning: more })), true)
    const seen = (await ready()).checks.find(({ name }) => name === 'provider kubo')
    assert.equal(seen?.ok, false)
  })
})

test('repeated reloads under load lose no request', async () => {
  const one = await start()
  let going = true
  const statuses = new Map<number, number>()
  const readers = Array.from({ length: 6 }, async (_, reader) => {
    const paths = [hello(), big(), `/ipfs/${all.directory}/sub/big.bin`, `/ipfs/${all.hamt}/file-700.txt`]
    for (let count = reader; going; count++) {
      const { status } = await one.get(paths[count % paths.length] as string)
      statuses.set(status, (statuses.get(status) ?? 0) + 1)
    }
  })
  const changes: Said[] = [
    {},
    { cache: { tiers: [{ use: 'memory', maxBytes: '32MiB' }] } },
    { responses: { types: 'web' } },
    { retrieval: { upstreams: [{ name: 'another', url: upstream.url }] } },
    { retrieval: { timeout: '7s' } },
  ]
  for (let count = 0; count < 25; count++)
    assert.equal(await one.reload(withUpstream(changes[count % changes.length])), true)
  going = false
  await Promise.all(readers)
  assert.deepEqual([...statuses.keys()], [200])
})

test('reloads cause no extra probes', async () => {
  let asked = 0
  const service = createServer((_request, response) => {
    asked++
    response.writeHead(403).end()
  })
  await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
  closers.push(async () => {
    service.closeAllConnections()
    await new Promise((resolve) => service.close(resolve))
  })
  const { port } = service.address() as AddressInfo
  const retrieval = { probeEvery: '10m', upstreams: [{ name: 'one', url: `http://127.0.0.1:${port}` }] }
  served = await startServed({ retrieval })
  while (!served.log.some(({ event }) => /^upstream\./.test(event))) await sleep(10)
  const before = asked
  for (let count = 0; count < 10; count++) assert.equal(await served.reload(), true)
  assert.equal(asked, before)
  // A client's question is another matter: there is no other upstream to ask, so this one gets it.
  await served.get(hello())
  assert.ok(asked > before)
})
