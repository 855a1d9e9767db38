// Content read and added by a program, without HTTP: what a GET and a POST would have done.
import assert from 'node:assert/strict'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { buffer, text } from 'node:stream/consumers'
import { after, before, describe, it } from 'node:test'
import { silentLog } from '../../src/core/log.ts'
import { type ConfigInput, createGateway, type Failure, type Gateway, isFailure } from '../../src/gateway.ts'
import { startDnsServer } from '../support/dns-server.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addDirectory, text as bytesOf, type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { type LogLine, metricsOf, startedGateway, tempFolder } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const failure = async (work: Promise<unknown>): Promise<Failure> => {
  const error: unknown = await work.then(
    () => assert.fail('it should have failed'),
    (reason: unknown) => reason,
  )
  assert.ok(isFailure(error), `no Failure: ${String(error)}`)
  return error
}
const kindOf = async (work: Promise<unknown>): Promise<string> => (await failure(work)).kind

describe('library without HTTP', () => {
  let data: string
  let all: Fixtures
  let upstream: ProgrammableUpstream
  let gateway: Gateway
  let denied: Fixtures['files']['hello']['cid']
  const said = (more: ConfigInput = {}): ConfigInput => ({
    data,
    retrieval: { probeEvery: 0, timeout: '2s', upstreams: [{ url: upstream.url }] },
    cache: { tiers: [{ use: 'memory', maxBytes: '64MiB' }] },
    upload: { maxBytes: '2MiB' },
    ...more,
  })

  before(async () => {
    data = await tempFolder()
    all = await fixtures()
    denied = await addDirectory(all.blocks, { 'bad.txt': bytesOf('denied') })
    await writeFile(join(data, 'list.deny'), `/ipfs/${denied}/*\n`)
    upstream = await startUpstream({ blocks: all.blocks })
    gateway = await startedGateway(said({ denylists: [join(data, 'list.deny')] }), { log: silentLog })
  })
  after(async () => {
    await gateway.close()
    await upstream.close()
    await rm(data, { recursive: true })
  })

  it('get: small and large files, with type, size, CID', async () => {
    const { hello, json, deepV0, empty } = all.files
    for (const [{ cid, bytes }, type] of [
      [hello, 'application/octet-stream'],
      [json, 'application/json'],
      [deepV0, 'application/octet-stream'],
      [empty, 'application/octet-stream'],
    ] as const) {
      const got = await gateway.get(`/ipfs/${cid}`)
      assert.deepEqual([got.type, got.size, String(got.cid)], [type, bytes.byteLength, String(cid)])
      assert.ok(Buffer.from(bytes).equals(await buffer(got.bytes)))
    }
  })

  it('get: files, listings and documents by path', async () => {
    const root = `/ipfs/${all.directory}`
    assert.equal(await text((await gateway.get(`${root}/with%20space.txt`)).bytes), 'a name with a space')
    assert.equal(await text((await gateway.get(`${root}/with space.txt`)).bytes), 'a name with a space')
    const listing = await gateway.get(`${root}/`)
    assert.deepEqual(
      [listing.type, listing.size, String(listing.cid)],
      ['application/json', undefined, String(all.directory)],
    )
    const { entries } = JSON.parse(await text(listing.bytes)) as { entries: { name: string }[] }
    assert.ok(entries.some(({ name }) => name === 'readme.txt'))
    assert.equal((await gateway.get(`/ipfs/${all.dagJson}`)).type, 'application/json')
  })

  it('pieces are writable without affecting the cache', async () => {
    const { hello, chunkedV1 } = all.files
    for (const { cid, bytes } of [hello, hello, chunkedV1, chunkedV1]) {
      const pieces = await Array.fromAsync((await gateway.get(`/ipfs/${cid}`)).bytes)
      assert.ok(Buffer.concat(pieces).equals(bytes))
      for (const piece of pieces) piece.fill(0)
    }
  })

  it('errors are explained Failures', async () => {
    const nobodys = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
    assert.equal(await kindOf(gateway.get(`/ipfs/${nobodys}`)), 'not-found')
    assert.equal(await kindOf(gateway.get(`/ipfs/${all.directory}/nothing`)), 'path-not-found')
    assert.equal(await kindOf(gateway.get(`/ipfs/${denied}/bad.txt`)), 'denied')
    for (const path of ['', 'bafkqaaa', '/ipfs/nonsense', '/ipfs/', '/other/x', 5 as never])
      assert.equal(await kindOf(gateway.get(path)), 'malformed', JSON.stringify(path))
    const metrics = await metricsOf(gateway)
    assert.match(metrics, /cidgate_failures_total\{kind="denied"\} 1\n/)
    assert.match(metrics, /cidgate_library_reads_total\{source="upstream"\} [1-9]/)
    assert.match(metrics, /cidgate_http_requests_in_progress 0\n/)
  })

  it("aborted → rejects with the signal's reason, at any time", async () => {
    const reason = new Error('enough')
    const isReason = (error: unknown) => error === reason
    const path = `/ipfs/${all.files.deepV0.cid}`
    await assert.rejects(gateway.get(path, { signal: AbortSignal.abort(reason) }), isReason)
    await assert.rejects(gateway.add('x', { signal: AbortSignal.abort(reason) }), isReason)
    const controller = new AbortController()
    const { bytes } = await gateway.get(path, { signal: controller.signal })
    const reading = (async () => {
      for await (const _ of bytes) controller.abort(reason)
    })()
    await assert.rejects(reading, isReason)
  })

  it('cancel, break or stalled reader → released', async () => {
    const clock = createFakeClock()
    const folder = await tempFolder()
    const own = await startedGateway(
      said({ data: folder, limits: { maxConcurrentRequests: 3, writeTimeout: '1s' }, pinning: { providers: [] } }),
      {
        log: silentLog,
        clock,
      },
    )
    try {
      const path = `/ipfs/${all.files.chunkedV1.cid}`
      const [cancelled, left, stalled] = [await own.get(path), await own.get(path), await own.get(path)]
      assert.equal(await kindOf(own.get(path)), 'overloaded')
      cancelled.cancel()
      cancelled.cancel()
      assert.deepEqual(await Array.fromAsync(cancelled.bytes), [])
      for await (const _ of left.bytes) break
      await clock.advance(1001)
      const late = await failure(Array.fromAsync(stalled.bytes))
      assert.deepEqual([late.kind, /read nothing for 1000 ms/.test(late.message)], ['timeout', true])
      assert.match(await metricsOf(own), /cidgate_http_requests_in_progress 0\n/)
    } finally {
      await own.close()
      await rm(folder, { recursive: true })
    }
  })

  it('add: text, bytes, blobs, streams → readable', async () => {
    const bytes = noise(1_500_000, 77)
    async function* pieces() {
      for (let at = 0; at < bytes.byteLength; at += 70_000) yield bytes.subarray(at, at + 70_000)
    }
    const same = [
      bytes,
      new Blob([bytes]),
      pieces(),
      [...[bytes]],
      Readable.from(pieces()),
      ReadableStream.from(pieces()),
    ]
    const added = []
    for (const source of same) added.push(await gateway.add(source))
    assert.equal(new Set(added.map(({ path }) => path)).size, 1)
    const [first] = added
    assert.equal(first?.path, `/ipfs/${first?.cid}`)
    assert.ok((await buffer((await gateway.get(first?.path ?? '')).bytes)).equals(bytes))
    const { path } = await gateway.add('{"a":"ä"}')
    const got = await gateway.get(path)
    assert.deepEqual([got.type, await text(got.bytes)], ['application/json', '{"a":"ä"}'])
  })

  it('add: same refusals as POST /add', async () => {
    assert.equal(await kindOf(gateway.add(new Uint8Array(2 * 1024 * 1024 + 1))), 'too-large')
    assert.equal(await kindOf(gateway.add('')), 'malformed')
    assert.equal(await kindOf(gateway.add(5 as never)), 'malformed')
    assert.equal(await kindOf(gateway.add(Readable.from(['text'], { objectMode: true }))), 'malformed')
    assert.equal(await kindOf(gateway.add('{}', { schema: 'none' })), 'malformed')
    assert.match((await failure(gateway.add('{}', { schema: 'evidence' }))).message, /name|description/)
    const broken = new Error('the source broke')
    const source = (async function* () {
      yield bytesOf('x')
      throw broken
    })()
    const { kind, cause } = await failure(gateway.add(source))
    assert.deepEqual([kind, cause], ['internal', broken])
  })

  it('stuck upload source → ends by timeout or signal', async () => {
    const stuck = async function* () {
      yield bytesOf('x')
      await new Promise(() => {})
    }
    const reason = new Error('enough')
    const controller = new AbortController()
    const adding = gateway.add(stuck(), { signal: controller.signal })
    controller.abort(reason)
    await assert.rejects(adding, (error) => error === reason)
    const own = await startedGateway(said({ upload: { idleTimeout: '50ms' } }), { log: silentLog })
    assert.equal(await kindOf(own.add(stuck())), 'timeout')
    await own.close()
  })

  it('thin mode or no providers → explained failure', async () => {
    const none = await startedGateway(said({ pinning: { providers: [] } }), { log: silentLog })
    assert.match((await failure(none.add('x'))).message, /provider/)
    await none.close()
    const thin = await startedGateway(said({ upload: { forwardTo: 'http://127.0.0.1:1/api/v0' } }), { log: silentLog })
    assert.match((await failure(thin.add('x'))).message, /thin mode .* add to 127\.0\.0\.1:1 itself/)
    await thin.close()
  })

  it('waits for a start; fails before start and after close', async () => {
    const folder = await tempFolder()
    const own = createGateway(said({ data: folder }), { log: silentLog })
    assert.match((await failure(own.get('/ipfs/bafkqaaa'))).message, /call its start\(\)/)
    const starting = own.start()
    const got = own.get('/ipfs/bafkqaatine')
    await starting
    assert.equal((await buffer((await got).bytes)).byteLength, 2)
    const { bytes } = await own.get(`/ipfs/${all.files.deepV0.cid}`)
    await own.close()
    const cut = await failure(Array.fromAsync(bytes))
    assert.deepEqual([cut.kind, cut.message], ['overloaded', 'this gateway is closed'])
    assert.match((await failure(own.add('x'))).message, /is closed/)
    await rm(folder, { recursive: true })
  })

  it('resolves names; web mode → browser media types', async () => {
    const dns = await startDnsServer()
    const links = { 'site.example': `/ipfs/${all.directory}` }
    const log: LogLine[] = []
    const own = await startedGateway(
      said({ names: { dns: [dns.address], static: links }, responses: { types: 'web' } }),
      {
        log: (level, event, facts = {}) => void log.push({ level, event, facts }),
      },
    )
    const got = await own.get('/ipns/site.example/readme.txt')
    assert.deepEqual([got.type, await text(got.bytes)], ['text/plain; charset=utf-8', 'read me'])
    await own.close()
    await dns.close()
    assert.deepEqual(
      log.filter(({ event }) => event === 'request.error'),
      [],
    )
  })
})
