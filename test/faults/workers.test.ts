// Processes of one gateway that come, go, hang and are killed: nothing that was acknowledged is lost, and no other process stays behind.
import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { type BlockMap, distinctFiles, noise } from '../support/fixtures.ts'
import { type Line, openLine, type Processes, startProcesses, until } from '../support/several-processes.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

const settings = (workers: number, upstream: ProgrammableUpstream) => `listen: 127.0.0.1:0
workers: ${workers}
retrieval:
  deadline: 5s
  probeEvery: 0
  upstreams: [{ url: "${upstream.url}", allowPrivate: true }]
limits: { grace: 10s, lameDuck: 0s }
`

describe('the processes of a gateway', () => {
  const blocks: BlockMap = new Map()
  let upstream: ProgrammableUpstream
  let all: Processes

  before(async () => {
    upstream = await startUpstream({ blocks })
    all = await startProcesses(settings(2, upstream).replace(/^listen.*\nworkers.*\n/, ''))
  })
  after(async () => {
    await all.close()
    await upstream.close()
  })

  it('become one at a reload, and two again, and what was uploaded stays readable', async () => {
    const bytes = noise(5000, 1)
    const [owner] = (await all.lines()) as [Line]
    const path = await owner.add(bytes)
    const worker = all.workerPid(1)
    const requests = await all.metric('cidgate_http_requests_total')
    await all.reload(settings(1, upstream))
    await until(
      () => !isAlive(worker),
      () => all.said(),
    )
    assert.equal(await all.metric('cidgate_processes'), 1)
    assert.ok((await all.metric('cidgate_http_requests_total')) >= requests, 'what was counted stays')
    for (let times = 0; times < 5; times++) {
      const line = openLine(all.url)
      assert.deepEqual((await line.get(path)).body, Buffer.from(bytes))
      line.close()
    }
    await all.reload(settings(2, upstream))
    await all.ready(2)
    for (const line of await all.lines()) assert.deepEqual((await line.get(path)).body, Buffer.from(bytes))
  })

  it('stay as many as they are when a configuration is refused', async () => {
    const more = `${settings(4, upstream)}denylists: [${all.folder}/nothing-there]\n`
    await all.reload(more, { outcome: 'config.refused' })
    assert.equal(await all.metric('cidgate_processes_wanted'), 2)
    await all.reload(settings(2, upstream))
  })

  it('lose one that hangs when something is taken down: it answers nothing more, and another one is there', async () => {
    const bytes = noise(3000, 2)
    const [owner, worker] = (await all.lines()) as [Line, Line]
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
    await until(
      () => all.workerPid(1) !== hung,
      () => all.said(),
    )
    await all.ready()
    for (const line of await all.lines()) assert.equal((await line.get(path)).status, 410)
  })

  it('follow the data folder to another place while answers are under way, and what was uploaded since is at both', async () => {
    const [file] = await distinctFiles(blocks, 1, 60_001)
    const [owner] = (await all.lines()) as [Line]
    upstream.delayMs = 1500
    const asked = owner.get(`/ipfs/${file?.cid}`)
    await until(
      () => upstream.asked.some(({ url }) => url.includes(String(file?.cid))),
      () => 'nothing was asked',
    )
    const before = all.workerPid(1)
    await all.reload(settings(2, upstream), { data: `${all.folder}/moved` })
    await until(
      () => !isAlive(before) && all.workerPid(1) !== before,
      () => all.said(),
    )
    const { status, body } = await asked
    assert.deepEqual([status, body.equals(file?.bytes ?? Buffer.of())], [200, true])
    upstream.delayMs = 0
    await all.ready()
    const bytes = noise(5000, 9)
    const [first, second] = (await all.lines()) as [Line, Line]
    const path = await second.add(bytes)
    for (const line of [first, second]) assert.deepEqual((await line.get(path)).body, Buffer.from(bytes))
    assert.equal(all.exitCode, null, all.said())
  })

  it('end together, with what is under way answered first', async () => {
    const [file] = await distinctFiles(blocks, 1, 70_001)
    const pids = [all.pid, all.workerPid(1)]
    const [, worker] = (await all.lines()) as [Line, Line]
    upstream.delayMs = 700
    const asked = worker.get(`/ipfs/${file?.cid}`)
    await until(
      () => upstream.asked.some(({ url }) => url.includes(String(file?.cid))),
      () => 'nothing was asked',
    )
    all.signal('SIGTERM')
    const { status, body } = await asked
    assert.deepEqual([status, body.equals(file?.bytes ?? Buffer.of())], [200, true])
    await until(
      () => all.exitCode !== null && pids.every((pid) => !isAlive(pid)),
      () => all.said(),
    )
    assert.equal(all.exitCode, 0, all.said())
  })

  it('listen on one unix socket, end with their owner when that is killed, and leave its address', async () => {
    const other = await startProcesses('upload: { auth: open }\nretrieval: { upstreams: [] }\n', { listen: 'unix' })
    try {
      const line = openLine(other.url)
      const bytes = noise(4000, 3)
      const path = await line.add(bytes)
      const both = async () => {
        for (const one of await other.lines()) assert.deepEqual((await one.get(path)).body, Buffer.from(bytes))
        assert.equal(await other.metric('cidgate_worker_restarts_total'), 0, other.said())
      }
      await both()
      const worker = other.workerPid(1)
      other.signal('SIGKILL')
      await until(
        () => !isAlive(worker),
        () => 'the worker goes on',
      )
      await assert.rejects(openLine(other.url).get(path), /ECONNREFUSED/)
      await other.startAgain()
      await both()
    } finally {
      await other.close()
    }
  })
})
