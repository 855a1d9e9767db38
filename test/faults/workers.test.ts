// Several processes of one gateway look like one: an upload, a takedown, a limit and a counter of one of them hold in all. They come,
// go, hang and are killed, nothing that was acknowledged is lost, and no other process stays behind. One start for all of it, because a
// process is most of a second of a processor: each test goes on where the last one ended.
import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import type { Status } from '../../src/admin/dashboard/shape.ts'
import { addFile, type BlockMap, distinctFiles, noise } from '../support/fixtures.ts'
import {
  formOf,
  formType,
  type Line,
  openLine,
  type Processes,
  startProcesses,
  until,
} from '../support/several-processes.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

/** A CID whose name is too long for a file. */
const longest = CID.createV1(0x55, createDigest(0x12, Uint8Array.from(noise(200, 5)))).toString()

describe('worker processes', () => {
  const blocks: BlockMap = new Map()
  let upstream: ProgrammableUpstream
  let all: Processes
  let owner: Line
  let worker: Line
  const settings = ({ limits = '', more = '' } = {}) => `
upload: { maxBytes: 8MiB, auth: open }
retrieval:
  timeout: 5s
  backgroundSearch: 0s
  probeEvery: 0
  upstreams: [{ url: "${upstream.url}", allowPrivate: true }]
  negativeCache: { initialTtl: 60s, maxTtl: 60s }
limits: { shutdownTimeout: 10s, shutdownDelay: 0s${limits} }
${more}`

  before(async () => {
    upstream = await startUpstream({ blocks })
    all = await startProcesses(settings())
    await meet()
  })
  after(async () => {
    await all.close()
    await upstream.close()
  })

  async function meet(): Promise<void> {
    ;[owner, worker] = (await all.lines()) as [Line, Line]
  }

  /** Asks for a file, until the upstream is asked for it. */
  async function ask(line: Line, seed: number, delayMs: number) {
    const [file] = await distinctFiles(blocks, 1, seed)
    upstream.delayMs = delayMs
    const path = `/ipfs/${file?.cid}`
    const answer = line.get(path)
    // Who waits for it comes later.
    answer.catch(() => {})
    await until(
      () => upstream.asked.some(({ url }) => url.includes(String(file?.cid))),
      () => 'nothing was asked',
    )
    return { answer, path, bytes: Buffer.from(file?.bytes ?? []) }
  }

  /** Until there is another worker in the place of this one. */
  async function replaced(pid: number): Promise<void> {
    await until(
      () => all.workerPid(1) !== pid && !isAlive(pid),
      () => all.said(),
    )
    await all.ready()
  }

  it('upload at one process → readable at the other at once', async () => {
    for (const [one, other] of [
      [owner, worker],
      [worker, owner],
    ] as const)
      for (const bytes of [noise(700, 1), noise(3_000_000, 2), '{"a":1}']) {
        const path = await one.add(bytes)
        for (const line of [other, one]) assert.deepEqual((await line.get(path)).body, Buffer.from(bytes))
      }
  })

  it('upload → cached 404 is dropped everywhere', async () => {
    const content = noise(900, 3)
    const { cid } = await addFile(new Map(), content)
    const path = `/ipfs/${cid}`
    for (const line of [worker, owner, worker]) assert.equal((await line.get(path)).status, 404)
    await owner.add(content)
    assert.equal((await worker.get(path)).status, 200)
  })

  it('requests at both → one upstream response', async () => {
    const [file] = await distinctFiles(blocks, 1, 40_000)
    upstream.delayMs = 1500
    // A probe may come in between.
    const asked = () => upstream.asked.filter((one) => JSON.stringify(one).includes(String(file?.cid)))
    const first = owner.get(`/ipfs/${file?.cid}`)
    await until(
      () => asked().length > 0,
      () => 'nothing was asked',
    )
    try {
      for (const { status, body } of [await worker.get(`/ipfs/${file?.cid}`), await first]) {
        assert.equal(status, 200)
        assert.deepEqual(body, Buffer.from(file?.bytes ?? []))
      }
    } finally {
      upstream.delayMs = 0
    }
    assert.equal(asked().length, 1)
  })

  it('file fetched by one process → others read it from disk', async () => {
    const [file] = await distinctFiles(blocks, 1, 50_001)
    assert.equal((await worker.get(`/ipfs/${file?.cid}`)).status, 200)
    const before = upstream.asked.length
    await until(
      async () => (await owner.get(`/ipfs/${file?.cid}`, { 'cache-control': 'only-if-cached' })).status === 200,
      () => 'it does not come to the disk',
    )
    assert.equal(upstream.asked.length, before)
  })

  it('upload too large → refused, client reads why', async () => {
    const told = await worker.send('/add', formOf(Buffer.alloc(9 * 1024 * 1024)), formType)
    assert.equal(told.status, 413)
    assert.match(told.body.toString(), /8388608|8 ?MiB/)
    await meet()
  })

  it('malformed, unknown and other paths → same response everywhere', async () => {
    for (const path of [
      '/ipfs/nonsense',
      '/ipfs/%zz',
      '/nope',
      '/ipns/nonsense',
      '/',
      '/openapi.json',
      '/robots.txt',
      `/ipfs/${longest}?format=raw`,
    ]) {
      const [one, other] = [await owner.get(path), await worker.get(path)]
      assert.equal(other.status, one.status, path)
      assert.equal(other.headers['content-type'], one.headers['content-type'], path)
    }
    assert.equal((await worker.send('/ipfs/bafkqaaa', '', {}, 'DELETE')).status, 405)
  })

  it('each request is counted once', async () => {
    const name = 'cidgate_http_requests_total'
    for (const line of [owner, worker]) {
      const { headers } = await line.get('/ipfs/bafkqaaa')
      for (let times = 0; times < 10; times++)
        assert.equal((await line.get('/ipfs/bafkqaaa', { 'if-none-match': String(headers.etag) })).status, 304)
      // Handed on, and counted where it is answered.
      assert.equal((await line.send('/ipfs/bafkqaaa', '', {}, 'PUT')).status, 405)
    }
    const counts = async () => [await all.metric(name, 'status="304"'), await all.metric(name, 'method="PUT"')].join()
    await until(
      async () => (await counts()) === '20,2',
      () => 'another number of requests',
    )
    const status = (await (await fetch(`${all.admin}/status`)).json()) as Status
    assert.ok(status.requests.total >= 24)
    assert.deepEqual(status.processes, { wanted: 2, answering: 2, restarts: 0 })
  })

  it('failure at a worker → reported to the owner', async () => {
    const { headers } = await worker.get('/ipfs/bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku')
    const id = headers['x-request-id']
    await until(
      async () => (await (await fetch(`${all.admin}/status`)).text()).includes(String(id)),
      () => 'the dashboard does not know it',
    )
  })

  it('takedown → applies everywhere before its response', async () => {
    const content = noise(600_000, 4)
    const path = await owner.add(content)
    for (const line of [owner, worker]) assert.equal((await line.get(path)).status, 200)
    const taken = await fetch(`${all.admin}/deny/${path.slice(6)}`, { method: 'POST' })
    assert.equal(taken.status, 200, await taken.text())
    for (const line of [worker, owner]) assert.equal((await line.get(path)).status, 410)
  })

  it('worker killed → replaced, takedowns still apply', async () => {
    await meet()
    const kept = await owner.add('kept')
    const gone = await owner.add('gone')
    await fetch(`${all.admin}/deny/${gone.slice(6)}`, { method: 'POST' })
    const requests = await all.metric('cidgate_http_requests_total')
    const killed = all.workerPid(1)
    const { answer, path } = await ask(worker, 60_007, 4500)
    const other = owner.get(path)
    // What was handed on and is not begun is answered here. How many a worker answers it tells each second.
    await until(
      async () => (await all.metric('cidgate_http_requests_in_progress')) >= 2,
      () => 'it was not handed on',
    )
    upstream.delayMs = 0
    process.kill(killed, 'SIGKILL')
    assert.equal((await other).status, 200)
    await assert.rejects(answer)
    await replaced(killed)
    assert.equal(await all.metric('cidgate_worker_restarts_total'), 1)
    assert.ok((await all.metric('cidgate_http_requests_total')) >= requests, 'what was counted stays')
    await meet()
    assert.equal((await worker.get(kept)).status, 200)
    assert.equal((await worker.get(gone)).status, 410)
  })

  it('worker hangs during a takedown → killed and replaced', async () => {
    const bytes = noise(3000, 2)
    const path = await owner.add(bytes)
    assert.equal((await worker.get(path)).status, 200)
    const hung = all.workerPid(1)
    process.kill(hung, 'SIGSTOP')
    const late = worker.get(path).then(
      ({ status }) => status,
      () => 'cut',
    )
    assert.equal((await fetch(`${all.admin}/deny/${path.slice(6)}`, { method: 'POST' })).status, 200)
    assert.equal(isAlive(hung), false)
    assert.equal(await late, 'cut')
    await replaced(hung)
    await meet()
    for (const line of [owner, worker]) assert.equal((await line.get(path)).status, 410)
  })

  it('configuration refused → processes stay as they are', async () => {
    const wrong = settings({ more: `denylists: [${all.folder}/nothing-there]` })
    await all.reload(wrong, { workers: 4, outcome: 'config.refused' })
    assert.equal(await all.metric('cidgate_processes_wanted'), 2)
    await all.reload(settings())
  })

  it('new response cache, then takedown → applies at a worker', async () => {
    const path = await owner.add('{"small":1}')
    const reload = async (more: string) => {
      const count = () => all.said().split('config.reloaded').length
      const before = count()
      await all.reload(settings({ more }))
      // The worker follows its owner.
      await until(
        () => count() >= before + 2,
        () => all.said(),
      )
    }
    for (let times = 0; times < 3; times++) assert.equal((await worker.get(path)).status, 200)
    await reload('cache: { responses: { maxBytes: 1MiB } }')
    assert.equal((await worker.get(path)).status, 200)
    assert.equal((await fetch(`${all.admin}/deny/${path.slice(6)}`, { method: 'POST' })).status, 200)
    for (const line of [worker, owner]) assert.equal((await line.get(path)).status, 410)
    await reload('')
  })

  it('new configuration → followed, shared limits, more workers', async () => {
    await all.reload(settings({ limits: ', perClient: { perMinute: 1, burst: 30 }' }), { workers: 3 })
    await all.ready(3)
    // Connections that were accepted before are gone on with.
    let served = 0
    for (let times = 0; times < 30; times++)
      for (const line of [owner, ...Array.from({ length: 4 }, () => openLine(all.url))]) {
        const { status } = await line.get('/ipfs/bafkqaaa')
        if (status === 200) served++
        else assert.equal(status, 429)
        if (line !== owner) line.close()
      }
    assert.ok(served >= 28 && served <= 33, `${served} of a budget of 30`)
  })

  it('workers reduced to one and back → uploads stay readable', async () => {
    const workers = [all.workerPid(1), all.workerPid(2)]
    const requests = await all.metric('cidgate_http_requests_total')
    await all.reload(settings(), { workers: 1 })
    await until(
      () => !workers.some(isAlive),
      () => all.said(),
    )
    assert.equal(await all.metric('cidgate_processes'), 1)
    assert.ok((await all.metric('cidgate_http_requests_total')) >= requests, 'what was counted stays')
    const bytes = noise(5000, 1)
    const path = await owner.add(bytes)
    for (let times = 0; times < 5; times++) {
      const line = openLine(all.url)
      assert.deepEqual((await line.get(path)).body, Buffer.from(bytes))
      line.close()
    }
    await all.reload(settings())
    await all.ready(2)
    await meet()
    for (const line of [owner, worker]) assert.deepEqual((await line.get(path)).body, Buffer.from(bytes))
  })

  it('data folder and address move → running responses finish', async () => {
    const { answer, bytes } = await ask(worker, 60_001, 1500)
    const before = all.workerPid(1)
    const upload = owner.beginAdd(noise(3000, 6))
    await all.reload(settings({ more: 'trustedProxies: [unix]' }), { data: 'moved', socket: 'public.sock' })
    await replaced(before)
    const { status: added, body: why } = await upload.finish()
    assert.equal(added, 200, why.toString())
    const { status, body } = await answer
    assert.deepEqual([status, body.equals(bytes)], [200, true])
    upstream.delayMs = 0
    await meet()
    const path = await worker.add(bytes)
    for (const line of [owner, worker])
      for (const where of [path, '/openapi.json']) {
        const told = await line.get(where, { 'x-request-id': 'of-the-proxy' })
        assert.equal(told.status, 200)
        assert.equal(told.headers['x-request-id'], 'of-the-proxy', 'what comes over the socket comes from the proxy')
      }
    assert.deepEqual((await worker.get(path)).body, bytes)
    assert.equal(all.exitCode, null, all.said())
  })

  it('owner killed → workers exit, uploads stay', async () => {
    const bytes = Buffer.from(noise(4000, 3))
    const path = await worker.add(bytes)
    const pid = all.workerPid(1)
    all.signal('SIGKILL')
    await until(
      () => !isAlive(pid),
      () => 'the worker goes on',
    )
    await assert.rejects(openLine(all.url).get(path), /ECONNREFUSED/)
    await all.startAgain()
    await meet()
    for (const line of [owner, worker]) assert.deepEqual((await line.get(path)).body, bytes)
    assert.equal(await all.metric('cidgate_worker_restarts_total'), 0, all.said())
  })

  it('stop → running responses finish, all exit', async () => {
    const pids = [all.pid, all.workerPid(1)]
    const { answer, bytes } = await ask(worker, 70_001, 700)
    // A reload just before the end begins no worker anew.
    all.signal('SIGHUP')
    all.signal('SIGTERM')
    const { status, body } = await answer
    assert.deepEqual([status, body.equals(bytes)], [200, true])
    await until(
      () => all.exitCode !== null && pids.every((pid) => !isAlive(pid)),
      () => all.said(),
    )
    assert.equal(all.exitCode, 0, all.said())
  })
})
