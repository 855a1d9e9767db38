// Several processes of one gateway look like one: an upload, a takedown, a limit and a counter of one of them hold in all.
import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import type { Status } from '../../src/admin/dashboard/shape.ts'
import { addFile, type BlockMap, distinctFiles, noise } from '../support/fixtures.ts'
import { formOf, formType, type Line, type Processes, startProcesses, until } from '../support/several-processes.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

describe('two processes of one gateway', () => {
  const blocks: BlockMap = new Map()
  let upstream: ProgrammableUpstream
  let all: Processes
  let owner: Line
  let worker: Line
  const settings = (more = '') => `
upload: { maxBytes: 8MiB }
retrieval:
  deadline: 2s
  keepLooking: 0s
  probeEvery: 0
  upstreams: [{ url: "${upstream.url}", allowPrivate: true }]
  notFound: { first: 60s, most: 60s }
limits: { grace: 10s }
${more}`

  before(async () => {
    upstream = await startUpstream({ blocks })
    all = await startProcesses(settings())
    const lines = await all.lines()
    owner = lines[0] as Line
    worker = lines[1] as Line
  })
  after(async () => {
    await all.close()
    await upstream.close()
  })

  it('read what either of them was given, at once', async () => {
    for (const [one, other] of [
      [owner, worker],
      [worker, owner],
    ] as const)
      for (const bytes of [noise(700, 1), noise(3_000_000, 2), '{"a":1}']) {
        const path = await one.add(bytes)
        for (const line of [other, one]) assert.deepEqual((await line.get(path)).body, Buffer.from(bytes))
      }
  })

  it('forget a remembered 404 when an upload brings the content', async () => {
    const content = noise(900, 3)
    const { cid } = await addFile(new Map(), content)
    const path = `/ipfs/${cid}`
    for (const line of [worker, owner, worker]) assert.equal((await line.get(path)).status, 404)
    await owner.add(content)
    assert.equal((await worker.get(path)).status, 200)
  })

  it('take one answer of an upstream for requests that come to both', async () => {
    const [file] = await distinctFiles(blocks, 1, 40_000)
    upstream.delayMs = 1500
    const before = upstream.asked.length
    const first = owner.get(`/ipfs/${file?.cid}`)
    await until(
      () => upstream.asked.length > before,
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
    assert.equal(upstream.asked.length - before, 1)
  })

  it('read from the disk what the other one fetched', async () => {
    const [file] = await distinctFiles(blocks, 1, 50_001)
    assert.equal((await worker.get(`/ipfs/${file?.cid}`)).status, 200)
    const before = upstream.asked.length
    await until(
      async () => (await owner.get(`/ipfs/${file?.cid}`, { 'cache-control': 'only-if-cached' })).status === 200,
      () => 'it does not come to the disk',
    )
    assert.equal(upstream.asked.length, before)
  })

  it('refuse an upload that is too large, and the client reads why', async () => {
    const told = await worker.send('/add', formOf(Buffer.alloc(9 * 1024 * 1024)), formType)
    assert.equal(told.status, 413)
    assert.match(told.body.toString(), /8388608|8 ?MiB/)
    worker = (await all.lines())[1] as Line
  })

  it('answer what is malformed, unknown or no content alike', async () => {
    for (const path of [
      '/ipfs/nonsense',
      '/ipfs/%zz',
      '/nope',
      '/ipns/nonsense',
      '/',
      '/openapi.json',
      '/robots.txt',
    ]) {
      const [one, other] = [await owner.get(path), await worker.get(path)]
      assert.equal(other.status, one.status, path)
      assert.equal(other.headers['content-type'], one.headers['content-type'], path)
    }
    assert.equal((await worker.send('/ipfs/bafkqaaa', '', {}, 'DELETE')).status, 405)
  })

  it('count each request once', async () => {
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

  it('tell the owner of what failed at a worker', async () => {
    const { headers } = await worker.get('/ipfs/bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku')
    const id = headers['x-request-id']
    await until(
      async () => (await (await fetch(`${all.admin}/status`)).text()).includes(String(id)),
      () => 'the dashboard does not know it',
    )
  })

  it('deny what is taken down, with what lies below it, from the moment in which that is answered', async () => {
    const content = noise(600_000, 4)
    const path = await owner.add(content)
    for (const line of [owner, worker]) assert.equal((await line.get(path)).status, 200)
    const taken = await fetch(`${all.admin}/deny/${path.slice(6)}`, { method: 'POST' })
    assert.equal(taken.status, 200, await taken.text())
    for (const line of [worker, owner]) assert.equal((await line.get(path)).status, 410)
  })

  it('have a new worker in the place of one that is killed, which denies what was taken down before', async () => {
    const kept = await owner.add('kept')
    const gone = await owner.add('gone')
    await fetch(`${all.admin}/deny/${gone.slice(6)}`, { method: 'POST' })
    const requests = await all.metric('cidgate_http_requests_total')
    const old = all.workerPid(1)
    process.kill(old, 'SIGKILL')
    await until(
      () => all.workerPid(1) !== old,
      () => all.said(),
    )
    await all.ready()
    assert.equal(await all.metric('cidgate_worker_restarts_total'), 1)
    assert.ok((await all.metric('cidgate_http_requests_total')) >= requests)
    ;[owner, worker] = (await all.lines()) as [Line, Line]
    assert.equal((await worker.get(kept)).status, 200)
    assert.equal((await worker.get(gone)).status, 410)
  })

  it('answer in the place of one that stops in the middle', async () => {
    const [file] = await distinctFiles(blocks, 1, 60_007)
    upstream.delayMs = 3000
    const old = all.workerPid(1)
    const first = worker.get(`/ipfs/${file?.cid}`).catch((error: unknown) => error)
    await until(
      () => upstream.asked.some(({ url }) => url.includes(String(file?.cid))),
      () => 'nothing was asked',
    )
    const second = owner.get(`/ipfs/${file?.cid}`)
    // It was handed on by now; what was handed on and is not begun is answered here.
    await new Promise((resolve) => setTimeout(resolve, 200))
    upstream.delayMs = 0
    process.kill(old, 'SIGKILL')
    assert.equal((await second).status, 200)
    assert.ok((await first) instanceof Error)
    await until(
      () => all.workerPid(1) !== old,
      () => all.said(),
    )
    await all.ready()
  })

  it('follow a new configuration, with limits that hold for all of them, and more of them', async () => {
    await all.reload(
      `listen: 127.0.0.1:0\nworkers: 3\n${settings()}`.replace(
        'grace: 10s',
        'grace: 10s, perClient: { perMinute: 1, burst: 30 }',
      ),
    )
    await until(
      async () => (await fetch(`${all.admin}/metrics`)).status === 200,
      () => 'no metrics',
    )
    await all.ready(3)
    // Connections that were accepted before are gone on with.
    let served = 0
    for (let times = 0; times < 30; times++)
      for (const line of [owner, ...(await manyLines(all.url, 4))]) {
        const { status } = await line.get('/ipfs/bafkqaaa')
        if (status === 200) served++
        else assert.equal(status, 429)
        if (line !== owner) line.close()
      }
    assert.ok(served >= 28 && served <= 33, `${served} of a budget of 30`)
  })
})

async function manyLines(url: string, count: number): Promise<Line[]> {
  const { openLine } = await import('../support/several-processes.ts')
  return Array.from({ length: count }, () => openLine(url))
}
