// A gateway that sends paths on to subdomains, as Kubo does at a host name and several public ones do: followed where the
// operator says so, to the subdomain of that very thing and to nowhere else.

import assert from 'node:assert/strict'
import dns from 'node:dns'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { syncBuiltinESMExports } from 'node:module'
import type { AddressInfo, Socket } from 'node:net'
import { after, afterEach, before, describe, test } from 'node:test'
import { CID } from 'multiformats/cid'
import { request } from 'undici'
import { followed } from '../../backends/upstreams/ask.ts'
import { createAgent } from '../../backends/upstreams/connect.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import { upstreamKinds } from '../../backends/upstreams/index.ts'
import { blockKey, proves } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { type Failure, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { linksOf } from '../../src/ipld/block-links.ts'
import { blockOf, dagOf } from '../../src/testing/upstream.ts'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { inParallel } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let behind: ProgrammableUpstream
let plain: ProgrammableUpstream
before(async () => {
  all = await fixtures()
  behind = await startUpstream({ blocks: all.blocks })
  plain = await startUpstream({ blocks: all.blocks, plain: true })
})
after(async () => {
  await behind.close()
  await plain.close()
})

const made: Upstream[] = []
const servers: Server[] = []
afterEach(async () => {
  for (const upstream of made.splice(0)) await upstream.close()
  for (const server of servers.splice(0)) {
    server.closeAllConnections()
    server.close()
  }
})

type Front = {
  readonly url: string
  readonly hosts: string[]
  /** Answers under way below subdomains: each has a connection to itself. */
  readonly maxAtOnce: () => number
  readonly open: () => number
}

/** At localhost, paths are sent on to `<cid>.ipfs.localhost`; there, they are answered by `source`. */
async function front(
  source: ProgrammableUpstream,
  more: (url: URL, request: IncomingMessage, response: ServerResponse) => boolean | Promise<boolean> = () => false,
): Promise<Front> {
  const hosts: string[] = []
  const below = new Set<Socket>()
  let answering = 0
  let most = 0
  const server = createServer(async (request, response) => {
    const host = request.headers.host ?? ''
    const url = new URL(request.url ?? '/', `http://${host}`)
    hosts.push(host)
    if (host !== named) {
      below.add(request.socket)
      request.socket.once('close', () => below.delete(request.socket))
      most = Math.max(most, ++answering)
    }
    const isAnswered = await more(url, request, response)
    if (isAnswered) return
    const [, cid = '', rest = ''] = /^\/ipfs\/([^/]+)(.*)$/.exec(url.pathname) ?? []
    if (host === named && cid !== '') {
      const label = CID.parse(cid).toV1().toString()
      return void response
        .writeHead(301, { location: `http://${label}.ipfs.${named}${rest || '/'}${url.search}` })
        .end()
    }
    const path = `/ipfs/${host.split('.')[0]}${url.pathname === '/' ? '' : url.pathname}${url.search}`
    const answer = await request_(source.url + path, request)
    response.writeHead(answer.statusCode, answer.headers as Record<string, string>)
    const body = Buffer.from(await answer.body.arrayBuffer())
    // A moment later the client may have it all, and come again.
    answering--
    response.end(body)
  })
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, resolve))
  const named = `localhost:${(server.address() as AddressInfo).port}`
  return { url: `http://${named}`, hosts, maxAtOnce: () => most, open: () => below.size }
}
const request_ = (url: string, { headers }: IncomingMessage) =>
  request(url, { headers: { accept: String(headers.accept) } })

function connect(use: string, settings: Record<string, unknown>): Upstream {
  const kind = upstreamKinds[use]
  assert.ok(kind)
  const options = kind.options.parse({ firstByteTimeout: '5s', bodyTimeout: '5s', ...settings })
  const upstream = kind.create(options, { name: 'one', userAgent: 'cidgate/test', log: silentLog, clock: systemClock })
  made.push(upstream)
  return upstream
}

const signal = () => new AbortController().signal

async function failure(work: Promise<unknown>): Promise<Failure> {
  const error: unknown = await work.then(
    () => assert.fail('it should have failed'),
    (reason: unknown) => reason,
  )
  assert.ok(isFailure(error), String(error))
  return error
}

describe('redirects: subdomains', () => {
  test('trustless gateway: blocks and CARs', async () => {
    const upstream = connect('trustless', { url: (await front(behind)).url, redirects: 'subdomains' })
    for (const { cid } of [all.files.hello, all.files.smallV0])
      assert.ok(proves(cid, await blockOf(upstream, cid, signal())))
    const want = { cid: all.directory, segments: ['über', 'ß.txt'], scope: 'entity' } as const
    const blocks = await Array.fromAsync(dagOf(upstream, want, signal()))
    assert.equal(blocks.length, 3)
    assert.ok(blocks.every(({ cid, bytes }) => proves(cid, bytes)))
  })

  test('plain gateway: files', async () => {
    const upstream = connect('plain', { url: (await front(plain)).url, redirects: 'subdomains' })
    for (const { cid } of [all.files.hello, all.files.smallV0])
      assert.ok(proves(cid, await blockOf(upstream, cid, signal())))
  })

  test('option off → not followed, log names the option', async () => {
    const { url, hosts } = await front(behind)
    const { kind, message } = await failure(blockOf(connect('trustless', { url }), all.files.hello.cid, signal()))
    assert.equal(kind, 'upstream-error')
    assert.match(message, /subdomain of its own \(301\); set `redirects: subdomains` if that is meant/)
    assert.equal(hosts.length, 1)
  })

  test('redirect loop → ended', async () => {
    const { url, hosts } = await front(behind, (at, _request, response) => {
      if (at.pathname.startsWith('/ipfs/')) return false
      response.writeHead(302, { location: '/again' }).end()
      return true
    })
    const upstream = connect('trustless', { url, redirects: 'subdomains' })
    assert.equal((await failure(blockOf(upstream, all.files.hello.cid, signal()))).kind, 'upstream-error')
    assert.equal(hosts.length, 3)
  })

  test('connections bounded, none kept after use', async () => {
    const { url, maxAtOnce, open } = await front(behind, async (at) => {
      if (!at.pathname.startsWith('/ipfs/')) await new Promise((resolve) => setTimeout(resolve, 20))
      return false
    })
    const upstream = connect('trustless', { url, redirects: 'subdomains', maxConnections: 3 })
    // The queue of an upstream asks so many at once.
    const got = await inParallel(many(), 3, async (cid) => proves(cid, await blockOf(upstream, cid, signal())))
    assert.ok(got.every(Boolean))
    // Beside those in use, some that are being closed.
    assert.ok(maxAtOnce() <= 3 + 8, `${maxAtOnce()} connections for ${got.length} things`)
    assert.ok(got.length > 40)
    for (const until = Date.now() + 5000; open() > 0 && Date.now() < until; ) await new Promise(setImmediate)
    assert.equal(open(), 0)
  })

  test('host and redirect targets are checked at each connection', async (context) => {
    const { url, hosts } = await front(behind)
    const { port } = new URL(url)
    let addresses: string[] = []
    const lookup = (_name: string, options: { all?: boolean }, done: (...words: unknown[]) => void) => {
      const found = addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }))
      if (options.all) done(null, found)
      else done(null, found[0]?.address, found[0]?.family)
    }
    context.mock.method(dns, 'lookup', lookup as never)
    syncBuiltinESMExports()
    const own = { url: `http://gateway.example:${port}`, connectTimeout: 1000, maxConnections: 4 }
    const careful = createAgent({ ...own, allowPrivate: false })
    const free = createAgent({ ...own, allowPrivate: true })
    const get = (host: string, dispatcher = careful) =>
      request(`http://${host}:${port}/`, { dispatcher }).then(({ body }) => body.dump())
    try {
      // One address that is public does not let the others pass, in whichever order they come.
      for (const host of ['gateway.example', 'a.ipfs.gateway.example'])
        for (const told of [
          ['127.0.0.1'],
          ['93.184.216.34', '127.0.0.1'],
          ['127.0.0.1', '93.184.216.34'],
          ['::ffff:127.0.0.1'],
        ]) {
          addresses = told
          const bad = told.find((one) => one.endsWith('127.0.0.1'))
          await assert.rejects(get(host), (error: Error) =>
            error.message.includes(`${host} resolves to ${bad}, inside`),
          )
        }
      assert.deepEqual(hosts, [], 'nothing was asked')
      addresses = ['127.0.0.1']
      for (const host of ['gateway.example', 'a.ipfs.gateway.example']) await get(host, free)
      assert.equal(hosts.length, 2)
    } finally {
      await careful.destroy()
      await free.destroy()
      context.mock.restoreAll()
      syncBuiltinESMExports()
    }
  })

  test('gateway named by a router: private address → refused before connecting', async () => {
    const { url, hosts } = await front(behind)
    const { port } = new URL(url)
    for (const host of ['127.0.0.1', '[::1]', '[::ffff:127.0.0.1]'])
      assert.throws(() => found({ url: `http://${host}:${port}` }), /inside this network/)
    const near = found({ url: `http://localhost:${port}` })
    await assert.rejects(blockOf(near, all.files.hello.cid, AbortSignal.timeout(5000)), /inside this network/)
    assert.deepEqual(hosts, [])
    const allowed = found({ url: `http://127.0.0.1:${port}`, allowPrivate: true })
    await assert.rejects(blockOf(allowed, all.files.hello.cid, AbortSignal.timeout(5000)))
    assert.equal(hosts.length, 1)
  })

  test('gateway named by a router: redirects → not followed', async () => {
    const source = await startUpstream({ blocks: all.blocks })
    const { cid } = all.files.hello
    source.fault = ({ url }) => (url.startsWith('/ipfs/') ? { kind: 'moved', to: '/elsewhere' } : undefined)
    const upstream = found({ url: source.url, allowPrivate: true })
    await assert.rejects(blockOf(upstream, cid, AbortSignal.timeout(5000)), /redirects/)
    assert.equal(source.seen.length, 1)
    await source.close()
  })
})

/** So many that more than a few are asked for at once. */
function many(): CID[] {
  const roots = [...Object.values(all.files).map((file) => file.cid), all.directory, all.hamt]
  const below = roots.flatMap((cid) => linksOf({ cid, bytes: all.blocks.get(blockKey(cid)) ?? assert.fail() }))
  return [...new Map([...roots, ...below].map((cid) => [blockKey(cid), cid])).values()].slice(0, 60)
}

describe('allowed redirects', () => {
  const cid = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
  const other = 'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'
  const site = new URL(`https://gw.example/ipfs/${cid}/a?format=raw`)
  const cases: readonly (readonly [location: string, redirects: 'site' | 'subdomains', isFollowed: boolean])[] = [
    ['/elsewhere', 'site', true],
    [`https://www.gw.example/ipfs/${cid}`, 'site', true],
    [`https://${cid}.ipfs.gw.example/a?format=raw`, 'subdomains', true],
    [`https://${cid}.ipfs.gw.example/a?format=raw`, 'site', false],
    // In another spelling it is the same thing.
    [`https://${CID.parse(cid).toString().toUpperCase()}.ipfs.gw.example/`, 'subdomains', true],
    [`https://${other}.ipfs.gw.example/`, 'subdomains', false],
    [`https://${cid}.ipns.gw.example/`, 'subdomains', false],
    [`https://${cid}.gw.example/`, 'subdomains', false],
    ['https://somebody.gw.example/', 'subdomains', false],
    [`https://${cid}.ipfs.somebody.gw.example/`, 'subdomains', false],
    [`https://x.${cid}.ipfs.gw.example/`, 'subdomains', false],
    [`https://${cid}.ipfs.other.example/`, 'subdomains', false],
    [`https://${cid}.ipfs.gw.example.evil.example/`, 'subdomains', false],
    [`https://${cid}.ipfs.gw.example:8443/`, 'subdomains', false],
    ['https://gw.example:8443/', 'site', false],
    [`http://${cid}.ipfs.gw.example/`, 'subdomains', false],
    [`https://user@${cid}.ipfs.gw.example/`, 'subdomains', false],
    [`https://:word@${cid}.ipfs.gw.example/`, 'subdomains', false],
    [`file:///ipfs/${cid}`, 'subdomains', false],
    ['https://127.0.0.1/', 'subdomains', false],
  ]
  for (const [location, redirects, isFollowed] of cases)
    test(`${redirects}: ${location} is ${isFollowed ? '' : 'not '}followed`, () => {
      assert.equal(
        followed(location, { site, from: site, redirects })?.href,
        isFollowed ? new URL(location, site).href : undefined,
      )
    })

  test('http to https, and within the subdomain → followed', () => {
    const at = new URL(`http://gw.example/ipfs/${cid}`)
    const to = (location: string, from: string) =>
      followed(location, { site: at, from: new URL(from), redirects: 'subdomains' })
    assert.ok(to(`https://${cid}.ipfs.gw.example/`, at.href))
    assert.ok(to(`https://${cid}.ipfs.gw.example/`, `http://${cid}.ipfs.gw.example/`))
    assert.ok(to(`/other`, `https://${cid}.ipfs.gw.example/`))
    assert.equal(to(`https://${other}.ipfs.gw.example/`, `https://${cid}.ipfs.gw.example/`), undefined)
    // Another port is another service, also where the scheme is a safer one.
    assert.equal(to('https://gw.example:6443/', at.href), undefined)
    assert.equal(to('https://gw.example:6443/', 'http://gw.example:8080/'), undefined)
    assert.ok(to('https://gw.example:8080/', 'http://gw.example:8080/'))
  })
})

function found(options: Readonly<Record<string, unknown>>): Upstream {
  const { trustless } = upstreamKinds
  const settings = trustless?.options.parse(options)
  const context = { name: 'found', userAgent: 'test', isFound: true, log: silentLog, clock: systemClock }
  const upstream = trustless?.create(settings, context) ?? assert.fail()
  made.push(upstream)
  return upstream
}
