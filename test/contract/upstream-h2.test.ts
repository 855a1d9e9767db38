// HTTP/2 connections to upstreams: negotiated, shared by questions that do not harm each other, and replaced.

import assert from 'node:assert/strict'
import { createSecureServer, type Http2Server, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2'
import { type AddressInfo, connect as connectTo, createServer, type Socket } from 'node:net'
import { after, afterEach, before, describe, test } from 'node:test'
import { createSecureContext, getCACertificates, setDefaultCACertificates } from 'node:tls'
import { CID } from 'multiformats/cid'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import { upstreamKinds } from '../../backends/upstreams/index.ts'
import { blockKey, proves } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { blockOf, dagOf } from '../../src/testing/upstream.ts'
import { selfSigned } from '../support/certificate.ts'
import { addFile, type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { startUpstream, type UpstreamOptions } from '../support/upstream.ts'

const day = 86_400_000
const certificateFor = (host: string) => selfSigned(host, new Date(Date.now() - day), new Date(Date.now() + day))
const [own, below] = [certificateFor('localhost'), certificateFor('*.ipfs.localhost')]
const trusted = getCACertificates('default')
let all: Fixtures
const cleanup: (() => unknown)[] = []
before(async () => {
  setDefaultCACertificates([...trusted, own.cert, below.cert])
  all = await fixtures()
})
after(() => setDefaultCACertificates(trusted))
afterEach(async () => {
  for (const one of cleanup.splice(0).reverse()) await one()
})

const patient = { connectTimeout: '10s', firstByteTimeout: '10s', bodyTimeout: '10s' }
const never = () => new AbortController().signal

function upstreamAt(url: string, settings: Record<string, unknown> = {}): Upstream {
  const { trustless } = upstreamKinds
  assert.ok(trustless)
  const context = { name: 'one', userAgent: 'cidgate/test', log: silentLog, clock: systemClock }
  const upstream = trustless.create(trustless.options.parse({ ...patient, url, ...settings }), context)
  cleanup.push(() => upstream.close())
  return upstream
}

async function programmable(protocol: 'h2' | 'both' | undefined) {
  const tls: UpstreamOptions['tls'] = { ...own, ...(protocol && { protocol }) }
  const server = await startUpstream({ blocks: all.blocks, tls })
  cleanup.push(() => server.close())
  return server
}

type Scripted = {
  readonly port: number
  readonly sessions: readonly ServerHttp2Session[]
  readonly asked: readonly { readonly host: string; readonly session: ServerHttp2Session }[]
}

/** Answers raw blocks over HTTP/2 once `more` lets it. */
async function scripted(more: (stream: ServerHttp2Stream, path: string) => unknown = () => undefined) {
  const sessions: ServerHttp2Session[] = []
  const asked: { host: string; session: ServerHttp2Session }[] = []
  const server: Http2Server = createSecureServer({
    ...own,
    maxSendHeaderBlockLength: 2 ** 24,
    SNICallback: (name, done) => done(null, createSecureContext(name === 'localhost' ? own : below)),
  })
  server.on('session', (session) => {
    sessions.push(session)
    session.on('error', () => {})
    session.on('close', () => sessions.splice(sessions.indexOf(session), 1))
  })
  server.on('stream', async (stream, headers) => {
    stream.on('error', () => {})
    const path = headers[':path'] ?? ''
    asked.push({ host: headers[':authority'] ?? '', session: stream.session as ServerHttp2Session })
    if ((await more(stream, path)) === true || stream.destroyed) return
    const [, cid = ''] = /\/ipfs\/(\w+)/.exec(path) ?? []
    const bytes = all.blocks.get(blockKey(CID.parse(cid))) ?? assert.fail(path)
    stream.respond({ ':status': 200, 'content-type': 'application/vnd.ipld.raw', 'content-length': bytes.byteLength })
    stream.end(bytes)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanup.push(() => {
    for (const session of [...sessions]) session.destroy()
    return new Promise((resolve) => server.close(resolve))
  })
  const { port } = server.address() as AddressInfo
  return { port, sessions, asked } satisfies Scripted
}

describe('upstreams over HTTP/2', () => {
  test('HTTP/1.1, HTTP/2 or both → blocks and CARs', async () => {
    for (const protocol of [undefined, 'both', 'h2'] as const) {
      const server = await programmable(protocol)
      const upstream = upstreamAt(server.url)
      assert.equal((await upstream.probe(never())).car, true)
      const { cid } = all.files.chunkedV1
      const blocks = await Array.fromAsync(dagOf(upstream, { cid, segments: [], scope: 'entity' }, never()))
      assert.ok(blocks.length > 1 && blocks.every((block) => proves(block.cid, block.bytes)))
    }
  })

  test('concurrent requests → one connection', async () => {
    const server = await programmable('h2')
    server.delayMs = 20
    const upstream = upstreamAt(server.url)
    const { hello, smallV0 } = all.files
    await Promise.all(Array.from({ length: 32 }, (_, at) => blockOf(upstream, (at % 2 ? hello : smallV0).cid, never())))
    assert.deepEqual([server.opened, server.maxAtOnce], [1, 32])
  })

  test('stream cut, aborted or stalled → other streams continue', async () => {
    const server = await programmable('h2')
    const upstream = upstreamAt(server.url)
    const { hello, smallV0, chunkedV1 } = all.files
    const large = await addFile(all.blocks, noise(20_000_000, 6))
    server.fault = ({ url }) => {
      if (url.includes(String(smallV0.cid))) return { kind: 'cut', after: 10 }
      return url.includes(String(chunkedV1.cid)) ? { kind: 'stall', after: 1000 } : undefined
    }
    // Its reader takes one block, and so its window is full.
    const paused = dagOf(upstream, { cid: large.cid, segments: [], scope: 'entity' }, never())
    await paused.next()
    const controller = new AbortController()
    const stalled = Array.fromAsync(
      dagOf(upstream, { cid: chunkedV1.cid, segments: [], scope: 'entity' }, controller.signal),
    )
    const outcomes = await Promise.allSettled([
      ...Array.from({ length: 5 }, () => blockOf(upstream, smallV0.cid, never())),
      ...Array.from({ length: 5 }, () => blockOf(upstream, hello.cid, never())),
    ])
    controller.abort(new Error('enough'))
    await assert.rejects(stalled, { message: 'enough' })
    assert.deepEqual(
      outcomes.map(({ status }) => status),
      [...Array<string>(5).fill('rejected'), ...Array<string>(5).fill('fulfilled')],
    )
    let blocks = 1
    for (let next = await paused.next(); !next.done; next = await paused.next()) blocks++
    assert.ok(blocks > 2)
    assert.equal(server.opened, 1)
  })

  test('reader stops → bounded memory', async () => {
    const server = await programmable('h2')
    const upstream = upstreamAt(server.url)
    const large = await addFile(all.blocks, noise(50_000_000, 6))
    const paused = dagOf(upstream, { cid: large.cid, segments: [], scope: 'entity' }, never())
    await paused.next()
    await new Promise((resolve) => setTimeout(resolve, 300))
    assert.ok(server.sentBytes < 8_000_000, `${server.sentBytes} bytes`)
    await paused.return(undefined)
  })

  test('GOAWAY → running responses finish, new connection', async () => {
    const server = await scripted(async (stream) => {
      if (stream.id === 39) stream.session?.goaway()
      await new Promise((resolve) => setTimeout(resolve, 30))
    })
    const upstream = upstreamAt(`https://localhost:${server.port}`)
    for (let round = 0; round < 4; round++)
      await Promise.all(Array.from({ length: 16 }, () => blockOf(upstream, all.files.hello.cid, never())))
    assert.ok(new Set(server.asked.map(({ session }) => session)).size > 1)
  })

  test('refused stream → retried; always refused → broken', async () => {
    let refusals = 1
    const server = await scripted((stream) => {
      if (refusals-- <= 0) return undefined
      stream.close(7)
      return true
    })
    const upstream = upstreamAt(`https://localhost:${server.port}`)
    await blockOf(upstream, all.files.hello.cid, never())
    refusals = Number.POSITIVE_INFINITY
    await assert.rejects(blockOf(upstream, all.files.hello.cid, never()), (error) => isFailure(error, 'upstream-error'))
    assert.ok(server.asked.length <= 6)
  })

  test('headers larger than 64 KiB → broken', async () => {
    const server = await scripted((stream) => {
      const filler = Object.fromEntries(Array.from({ length: 40 }, (_, at) => [`x-${at}`, 'a'.repeat(8000)]))
      stream.respond({ ':status': 200, 'content-type': 'application/vnd.ipld.raw', ...filler })
      stream.end()
      return true
    })
    const upstream = upstreamAt(`https://localhost:${server.port}`)
    await assert.rejects(blockOf(upstream, all.files.hello.cid, never()), (error) => isFailure(error, 'upstream-error'))
  })

  test('dead connection → replaced', async () => {
    const server = await scripted()
    const sockets: Socket[] = []
    // It forgets its oldest connections as a firewall does: both ends believe that they are open.
    const forgetful = createServer((socket) => {
      const behind = connectTo(server.port, '127.0.0.1')
      for (const [one, other] of [
        [socket, behind],
        [behind, socket],
      ] as const) {
        one.pipe(other)
        one.on('error', () => other.destroy())
        one.on('close', () => other.destroy())
      }
      sockets.push(socket, behind)
    })
    await new Promise<void>((resolve) => forgetful.listen(0, '127.0.0.1', resolve))
    cleanup.push(() => {
      for (const socket of sockets) socket.destroy()
      return new Promise((resolve) => forgetful.close(resolve))
    })
    const { port } = forgetful.address() as AddressInfo
    const upstream = upstreamAt(`https://localhost:${port}`, { connectTimeout: '300ms', firstByteTimeout: '300ms' })
    await blockOf(upstream, all.files.hello.cid, never())
    for (const socket of sockets) {
      socket.unpipe()
      socket.on('data', () => {})
    }
    let failures = 0
    for (const until = Date.now() + 20_000; Date.now() < until; ) {
      const got = await blockOf(upstream, all.files.hello.cid, never()).catch(() => undefined)
      if (got) break
      failures++
    }
    assert.ok(failures > 0 && failures < 20, `${failures} failures`)
    assert.equal(sockets.length, 4)
  })

  test('redirects to subdomains → bounded connections, none kept', async () => {
    let maxAtOnce = 0
    const server = await scripted((stream, path) => {
      maxAtOnce = Math.max(maxAtOnce, server.sessions.length)
      const [, cid = ''] = /^\/ipfs\/(\w+)/.exec(path) ?? []
      const isBelow = server.asked.at(-1)?.host !== `localhost:${server.port}`
      if (isBelow) {
        const bytes = all.blocks.get(blockKey(CID.parse(server.asked.at(-1)?.host.split('.')[0] ?? '')))
        stream.respond({ ':status': 200, 'content-type': 'application/vnd.ipld.raw' })
        stream.end(bytes)
      } else {
        const location = `https://${CID.parse(cid).toV1()}.ipfs.localhost:${server.port}/?format=raw`
        stream.respond({ ':status': 301, location })
        stream.end()
      }
      return true
    })
    const settings = { redirects: 'subdomains', maxConnections: 3 }
    const upstream = upstreamAt(`https://localhost:${server.port}`, settings)
    const files = Object.values(all.files)
    for (let round = 0; round < 5; round++) await Promise.all(files.map(({ cid }) => blockOf(upstream, cid, never())))
    assert.ok(maxAtOnce <= 2 * (3 + 8), `${maxAtOnce} connections`)
    for (const until = Date.now() + 5000; server.sessions.length > 1; ) {
      assert.ok(Date.now() < until, `${server.sessions.length} connections are kept`)
      await new Promise(setImmediate)
    }
  })
})
