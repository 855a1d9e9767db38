// The dashboard on the admin address: its page and the policy of it, what it is told each second, and why a path is answered
// as it is.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { createServer, get, type RequestListener, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import supertest from 'supertest'
import type { Blocks, Status, Why } from '../../src/admin/dashboard/shape.ts'
import { findPlaces } from '../../src/retrieval/tiers/dag-in-tiers.ts'
import { multipart, post } from '../support/adding.ts'
import { distinctFiles, type FileFixture, type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const token = 'a-token-of-the-operator'
const folder = new URL('../../src/admin/dashboard/page/', import.meta.url)
const files = readdirSync(folder).filter((name) => name !== 'index.html')
const textOf = (name: string): string => readFileSync(new URL(name, folder), 'utf8')

let all: Fixtures
let only: FileFixture[]
let good: ProgrammableUpstream
let at: TestGateway
before(async () => {
  all = await fixtures()
  only = await distinctFiles(all.blocks, 4, 3000)
  good = await startUpstream({ blocks: all.blocks })
  at = await startGateway({
    upstreams: [{ name: 'good', url: good.url, perMinute: 600 }],
    config: {
      adminAccess: { tokens: [token] },
      pinning: { probeEvery: '1h', providers: [{ name: 'local', use: 'embedded' }] },
    },
  })
})
after(async () => {
  await at.close()
  await good.close()
})

const ask = (path: string, headers: Record<string, string> = {}) => supertest(at.gateway.admin).get(path).set(headers)
const statusNow = async ({ gateway } = at): Promise<Status> =>
  (await supertest(gateway.admin).get('/status')).body as Status

/** The last step of a request comes after its answer. */
async function statusWhen(isSo: (status: Status) => boolean | undefined, of = at): Promise<Status> {
  for (let tries = 0; tries < 2000; tries++) {
    const status = await statusNow(of)
    if (isSo(status)) return status
    await sleep(5)
  }
  assert.fail(JSON.stringify(await statusNow(of), null, 1))
}

describe('dashboard page', () => {
  test('strict policy, correct media types', async () => {
    const { status, headers, text } = await ask('/')
    assert.equal(status, 200)
    assert.equal(headers['content-type'], 'text/html; charset=utf-8')
    const policy = String(headers['content-security-policy']).split('; ')
    for (const rule of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"])
      assert.ok(policy.includes(rule), rule)
    assert.ok(policy.includes("frame-ancestors 'none'"))
    assert.doesNotMatch(text, /<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=/i)
    for (const name of files) {
      const file = await ask(`/dashboard/${name}`)
      assert.equal(file.status, 200, name)
      assert.equal(file.headers['x-content-type-options'], 'nosniff')
      assert.equal(file.headers['cache-control'], 'no-store')
      const type = /\.(\w+)$/.exec(name)?.[1]
      assert.match(
        String(file.headers['content-type']),
        { js: /javascript/, css: /css/, svg: /svg/ }[type ?? ''] ?? /^$/,
      )
    }
  })

  test('every referenced file exists, on this host', async () => {
    const named = [
      ...[...textOf('index.html').matchAll(/(?:href|src)="(\/[^"]*)"/g)].map(([, path = '']) => path),
      ...files.flatMap((name) =>
        [...textOf(name).matchAll(/^import .*? from '\.\/([\w.]+)'/gm)].map(([, file]) => `/dashboard/${file}`),
      ),
    ]
    assert.ok(named.length > 10)
    for (const path of new Set(named)) assert.notEqual((await ask(path)).status, 404, path)
    for (const name of ['index.html', ...files])
      assert.deepEqual(
        (textOf(name).match(/https?:\/\/[^\s'"<>)]+/g) ?? []).filter((url) => url !== 'http://www.w3.org/2000/svg'),
        [],
        name,
      )
  })

  test('other package files → not served', async () => {
    for (const path of ['/dashboard/', '/dashboard/package.json', '/dashboard/..%2fshape.ts', '/dashboard/main.js/'])
      assert.equal((await ask(path)).status, 404, path)
  })

  test('not on the public address', async () => {
    for (const path of ['/status', '/why?path=/ipfs/x', '/dashboard/main.js'])
      assert.equal((await fetch(at.url + path)).status, 404, path)
    assert.doesNotMatch(await (await fetch(at.url, { headers: { Accept: 'text/html' } })).text(), /dashboard/)
  })
})

describe('clients of the dashboard', () => {
  const rows: [string, path: string, headers: Record<string, string>, status: number][] = [
    ['the page under a name of a stranger (DNS rebinding)', '/', { Host: 'evil.example' }, 403],
    ['its script there', '/dashboard/main.js', { Host: 'evil.example' }, 403],
    ['a link on another page to it', '/', { 'Sec-Fetch-Site': 'cross-site', 'Sec-Fetch-Mode': 'navigate' }, 200],
    ['the status, for a page of another origin', '/status', { Origin: 'https://evil.example' }, 403],
    ['the same, without an Origin', '/status', { 'Sec-Fetch-Site': 'cross-site' }, 403],
    ['a reading, for a page of another origin', '/why?path=x', { Origin: 'https://evil.example' }, 403],
    ['a drawing, for a page of another origin', '/blocks?path=x', { Origin: 'https://evil.example' }, 403],
  ]
  for (const [name, path, headers, status] of rows)
    test(`${name}: ${status}`, async () => {
      assert.equal((await ask(path, { Host: 'localhost:8081', ...headers })).status, status)
    })

  test('remote client: page without token, its requests need one', async () => {
    const elsewhere: RequestListener = (request, response) => {
      Object.defineProperty(request.socket, 'remoteAddress', { value: '192.0.2.7', configurable: true })
      at.gateway.admin(request, response)
    }
    const far = supertest(elsewhere)
    for (const [path, status] of [
      ['/', 200],
      ['/dashboard/main.js', 200],
      ['/status', 401],
      ['/why?path=x', 401],
    ] as const)
      assert.equal((await far.get(path)).status, status, path)
    const { status } = await far.get('/status').set({ Authorization: `Bearer ${token}` })
    assert.equal(status, 200)
  })
})

describe('/status', () => {
  test('counts requests by status and source, upstreams by outcome', async () => {
    await fetchAll(`${at.url}/ipfs/${only[0]?.cid}`)
    const { requests, upstreams, tiers, ready, startedAt } = await statusWhen(
      (status) => (status.requests.bySource['upstream'] ?? 0) > 0,
    )
    assert.ok((requests.byStatus['2xx'] ?? 0) >= 1)
    const [upstream] = upstreams
    assert.equal(upstream?.state, 'ready')
    assert.equal(upstream.why, undefined)
    assert.ok(upstream.won >= 1)
    assert.ok((upstream.firstByte.p50Ms ?? 0) > 0)
    assert.deepEqual(upstream.budget, { perMinute: 600, used: upstream.asked })
    assert.deepEqual(
      tiers.map(({ name }) => name),
      ['memory', 'local'],
    )
    assert.ok((tiers[0]?.bytes ?? 0) >= 3000)
    assert.equal(tiers[0]?.limitBytes, 64 * 1024 * 1024)
    assert.equal(ready, true)
    assert.ok(startedAt <= Date.now())
  })

  test('hash mismatch → upstream quarantined, with reason and duration', async () => {
    const liar = await startUpstream({ blocks: all.blocks })
    liar.fault = { kind: 'wrongBytes', block: 0 }
    const own = await startGateway({ upstreams: [{ name: 'liar', url: liar.url }] })
    const asked = Date.now()
    try {
      assert.notEqual((await fetchAll(`${own.url}/ipfs/${only[0]?.cid}`)).status, 200)
      const { upstreams } = (await supertest(own.gateway.admin).get('/status')).body as Status
      const [told] = upstreams
      assert.ok((told?.hashMismatch ?? 0) > 0)
      assert.match(told?.lastError?.why ?? '', /do not hash to their CID/)
      // The first quarantine is over in seconds: on a machine that is held up it is by now.
      if (told?.state === 'ready') return
      assert.equal(told?.state, 'quarantined')
      assert.match(told.why ?? '', /do not hash to their CID/)
      assert.ok((told.until ?? 0) >= asked)
    } finally {
      await own.close()
      await liar.close()
    }
  })

  test('failure → id and attempts, no query', async () => {
    const lacking = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
    const { headers } = await fetchAll(`${at.url}/ipfs/${lacking}?secret=1`)
    const id = headers['x-request-id']
    const { failures } = await statusWhen((status) => status.failures.some(({ request }) => request === id))
    const [failed] = failures
    assert.equal(failed?.request, id)
    assert.equal(failed?.status, 404)
    assert.equal(failed.path, `/ipfs/${lacking}`)
    assert.equal(failed.method, 'GET')
    assert.equal(failed.client, '127.0.0.1')
    assert.equal(failed.kind, 'not-found')
    assert.match(failed.why ?? '', /no upstream has/)
    assert.ok(failed.attempts?.some(({ upstream, outcome }) => upstream === 'good' && outcome === 'not-found'))
    assert.doesNotMatch(JSON.stringify(failures), /secret/)
  })

  test('unchanged → 304', async () => {
    let tag = ''
    for (let tries = 0; tries < 100; tries++) {
      const { status, headers, text } = await ask('/status', tag === '' ? {} : { 'If-None-Match': tag })
      if (status === 304) return assert.equal(text, '')
      assert.equal(status, 200)
      tag = String(headers['etag'])
    }
    assert.fail('the status changes each time')
  })

  test('upload missing at a provider → provider and reason', async () => {
    const closed = createServer()
    await new Promise<void>((resolve) => closed.listen(0, '127.0.0.1', resolve))
    const address = closed.address()
    await new Promise((resolve) => closed.close(resolve))
    const url = `http://127.0.0.1:${typeof address === 'object' && address ? address.port : 0}`
    const providers = [
      { name: 'local', use: 'embedded' },
      { name: 'gone', use: 'kubo', url },
    ]
    const own = await startGateway({ config: { pinning: { providers } } })
    try {
      const { json } = await post(`${own.url}/add`, multipart([{ body: 'on its way' }]))
      const cid = String((json['cids'] as string[])[0]).slice('/ipfs/'.length)
      for (;;) {
        const { body } = (await supertest(own.gateway.admin).get('/status')) as { body: Status }
        const [local, gone] = body.providers
        if (gone?.failed['transient'] === undefined || local?.ok === undefined || gone.ok === undefined) continue
        assert.equal(local.pinned, 1)
        assert.equal(gone.waiting, 1)
        assert.equal(gone.ok, false)
        assert.match(gone.why ?? '', /ECONNREFUSED/)
        assert.equal(body.pending.open, 1)
        assert.equal(body.pending.uploads[0]?.cid, cid)
        assert.equal(body.pending.oldestAt, Date.parse(body.pending.uploads[0].at))
        return
      }
    } finally {
      await own.close()
    }
  })
})

describe('upload on the admin address', () => {
  const providers = [{ name: 'local', use: 'embedded' }]
  const body = multipart([{ body: 'by the operator' }])

  test('counts as an upload; needs operator access, no upload token', async () => {
    const config = { upload: { auth: { tokens: ['0123456789abcdef'] } }, pinning: { providers } }
    const own = await startGateway({ config })
    const server = createServer(own.gateway.admin)
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const admin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    try {
      assert.equal((await post(`${own.url}/add`, body)).status, 401)
      const { status, headers, json } = await post(`${admin}/add`, body)
      assert.equal(status, 200)
      assert.ok(headers['x-request-id'])
      assert.equal(headers['access-control-allow-origin'], undefined)
      const read = await fetchAll(own.url + String((json['cids'] as string[])[0]))
      assert.equal(read.body.toString(), 'by the operator')
      const refused = await post(`${admin}/add`, multipart([]))
      assert.deepEqual([refused.status, refused.headers['access-control-allow-origin']], [400, undefined])
      const { takes } = await statusWhen(({ requests }) => requests.byStatus['2xx'] === 2, own)
      assert.deepEqual(takes, { maxBytes: 100 * 1024 * 1024 })
      const preflight = await fetch(`${admin}/add`, { method: 'OPTIONS', headers: { Origin: 'https://evil.example' } })
      assert.equal(preflight.status, 403)
    } finally {
      server.closeAllConnections()
      server.close()
      await own.close()
    }
  })

  test('no uploads configured → none; thin mode → no pins', async () => {
    const closed = await startGateway({ config: { pinning: { providers: [] } } })
    const thin = await startGateway({
      config: { upload: { forwardTo: { url: `${good.url}/add` } }, pinning: { providers: [] } },
    })
    try {
      assert.equal((await statusNow(closed)).takes, undefined)
      assert.equal((await supertest(closed.gateway.admin).post('/add')).status, 404)
      const { takes, pins } = await statusNow(thin)
      assert.ok(takes)
      assert.equal(pins, undefined)
    } finally {
      await closed.close()
      await thin.close()
    }
  })
})

describe('/why', () => {
  const why = async (path: string): Promise<Why> => (await ask(`/why?path=${encodeURIComponent(path)}`)).body as Why

  test('each block with its source: upstream first, then tier', async () => {
    const path = `/ipfs/${only[1]?.cid}`
    const before = await statusNow()
    const first = await why(path)
    assert.equal(first.status, 200)
    assert.deepEqual(
      first.steps.map(({ cid, from, isFetched }) => ({ cid, from, isFetched })),
      [{ cid: String(only[1]?.cid), from: 'good', isFetched: true }],
    )
    assert.equal(first.found?.bytes, 3000)
    const again = await why(path)
    assert.deepEqual(
      again.steps.map(({ from, isFetched }) => ({ from, isFetched })),
      [{ from: 'memory', isFetched: false }],
    )
    assert.equal((await statusNow()).requests.total, before.requests.total, 'it is no request of a client')
  })

  test('path → step by step', async () => {
    const told = await why(`/ipfs/${all.directory}/readme.txt`)
    assert.equal(told.status, 200)
    assert.equal(told.steps.length, 2)
    assert.equal(told.steps.at(-1)?.cid, told.found?.cid)
  })

  test('failure → as for a client, with the steps before it', async () => {
    assert.equal((await why(`/ipfs/${all.directory}`)).status, 200)
    const noLink = await why(`/ipfs/${all.directory}/not-there`)
    assert.equal(noLink.status, 404)
    assert.equal(noLink.failure?.kind, 'path-not-found')
    assert.equal(noLink.steps.length, 1)
    const absent = await why('/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy')
    assert.equal(absent.status, 404)
    assert.equal(absent.failure?.kind, 'not-found')
    assert.ok(absent.attempts.some(({ upstream }) => upstream === 'good'))
    for (const wrong of ['/ipfs/nonsense', 'nonsense']) assert.equal((await why(wrong)).status, 400, wrong)
  })

  test('client leaves early → not a gateway error', async () => {
    const before = good.asked.length
    let answer: ServerResponse | undefined
    const server = createServer((request, response) => {
      answer = response
      at.gateway.admin(request, response)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    good.fault = { kind: 'silent' }
    try {
      const { port } = server.address() as AddressInfo
      const asking = get(`http://127.0.0.1:${port}/why?path=/ipfs/${only[3]?.cid}`).on('error', () => {})
      while (good.asked.length === before) await setImmediate()
      asking.destroy()
      while (!answer?.writableEnded) await setImmediate()
    } finally {
      good.fault = undefined
      server.close()
    }
    assert.deepEqual(
      at.log.filter(({ level }) => level === 'error'),
      [],
    )
  })

  test('request without exactly one path → refused', async () => {
    for (const query of ['', '?path=', '?path=a&path=b', `?path=${'a'.repeat(5000)}`])
      assert.equal((await ask(`/why${query}`)).status, 400, query.slice(0, 20))
  })
})

describe('/blocks', () => {
  const blocksOf = async (path: string, { gateway } = at): Promise<Blocks> =>
    (await supertest(gateway.admin).get(`/blocks?path=${encodeURIComponent(path)}`)).body as Blocks
  const body = (files: number) =>
    multipart(
      Array.from({ length: files }, (_, index) => ({ fileName: `d/${index}.txt`, body: `of ${files}: ${index}` })),
    )
  const add = async (files: number): Promise<string> => {
    const { status, json } = await post(`${at.url}/add?wrap=true`, body(files))
    assert.equal(status, 200)
    return String((json['cids'] as string[]).at(-1))
  }

  test('each block once, with parent and tiers', async () => {
    const { why, placed } = await blocksOf(await add(3))
    assert.equal(why.status, 200)
    assert.deepEqual(placed?.tiers, ['memory', 'local'])
    assert.deepEqual(
      placed.blocks.map(({ parent, isAway }) => ({ parent, isAway })),
      [undefined, 0, 1, 1, 1].map((parent) => ({ parent, isAway: false })),
    )
    assert.ok(placed.blocks.every(({ places }) => places[1] === 'has'))
    assert.equal(placed.isCut, false)
  })

  test('path → its blocks; lookups fill no tier', async () => {
    const path = await add(4)
    const { why, placed } = await blocksOf(`${path}/d/2.txt`)
    assert.equal(placed?.blocks.length, 3)
    assert.equal(placed.blocks.at(-1)?.cid, why.found?.cid)
    const memory = async () => (await statusNow()).tiers[0]?.blocks
    const before = await memory()
    await blocksOf(path)
    assert.equal(await memory(), before)
  })

  test('stops after 100 blocks, or when nothing is found', async () => {
    const { placed } = await blocksOf(await add(150))
    assert.equal(placed?.blocks.length, 100)
    assert.equal(placed.isCut, true)
    const absent = await blocksOf('/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy')
    assert.equal(absent.why.status, 404)
    assert.equal(absent.placed, undefined)
    assert.equal((await ask('/blocks')).status, 400)
  })

  test('unreachable tier → unknown; block in no tier → traversal stops', async () => {
    const away = { name: 'away', has: async () => false, get: async () => undefined }
    const silent = { name: 'silent', has: () => Promise.reject(new Error('no answer')), get: async () => undefined }
    const { signal } = new AbortController()
    const { blocks, isCut } = await findPlaces(
      [away, silent],
      [all.directory, ...only.slice(0, 1).map(({ cid }) => cid)],
      { signal, maxBlocks: 9 },
    )
    assert.deepEqual(
      blocks.map(({ places, isAway }) => ({ places, isAway })),
      [1, 2].map(() => ({ places: ['lacks', 'unknown'], isAway: true })),
    )
    assert.equal(isCut, false)
    const over = await findPlaces([away], [all.directory], { signal: AbortSignal.abort(), maxBlocks: 9 })
    assert.deepEqual(over.blocks, [])
    assert.equal(over.isCut, true)
  })
})
