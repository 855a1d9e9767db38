// Whoever signals the process that a person or a supervisor started reaches the gateway, and no gateway outlives it.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Collector, startCollector } from '../support/collector.ts'
import {
  answers,
  asOldNode,
  byNode,
  byNpm,
  byOldNode,
  kill,
  launch,
  root,
  until,
  type Way,
} from '../support/launched.ts'

describe('signals', () => {
  let folder = ''
  let config = ''
  let waiting: ServerResponse | undefined
  let collector: Collector
  const upstream = createServer((_request, response) => {
    waiting = response
  })
  const pids: number[] = []
  /** Those of gateways that serve more than one test. */
  const ofAll: number[] = []

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cidgate-signals-'))
    collector = await startCollector()
    config = join(folder, 'config.yaml')
    await once(upstream.listen(0, '127.0.0.1'), 'listening')
    const { port } = upstream.address() as AddressInfo
    await writeFile(
      config,
      `
listen: 127.0.0.1:0
admin: 127.0.0.1:0
data: ${folder}/data
retrieval: { probeEvery: 0, upstreams: [{ url: "http://127.0.0.1:${port}", allowPrivate: true }] }
limits: { shutdownTimeout: 60s }
log: { level: info }
`,
    )
  })
  afterEach(() => {
    waiting?.destroy()
    waiting = undefined
    for (const pid of pids.splice(0)) kill(pid, 'SIGKILL')
  })
  after(async () => {
    for (const pid of ofAll) kill(pid, 'SIGKILL')
    upstream.close()
    upstream.closeAllConnections()
    await collector.close()
    await rm(folder, { recursive: true, force: true, maxRetries: 5 })
  })

  const start = (way: Way, started = pids) =>
    launch(way, {
      config,
      // One way tells its spans: to load what sends them costs a start a third more.
      env: { ...process.env, ...(way === byNode && { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url }) },
      started,
    })

  // The interop suite tries the other ones (test/interop/signals.test.ts): each is two or three starts.
  it(`SIGKILL to ${byNpm.name} → gateway stops`, async () => {
    const { child, url } = await start(byNpm)
    child.kill('SIGKILL')
    await until(async () => !(await answers(url)), 'the gateway still answers')
  })

  for (const way of [byNode, byOldNode, byNpm]) {
    // A gateway that has loaded its configuration again is asked to end: one start for both, which is what costs here.
    let one: ReturnType<typeof start> | undefined
    const startOnce = () => {
      one ??= start(way, ofAll)
      return one
    }

    if (way !== byNpm)
      it(`SIGHUP to ${way.name} → reload`, async () => {
        const { child, said, url } = await startOnce()
        child.kill('SIGHUP')
        await until(() => said.err.includes('config.reloaded'), 'nothing was loaded')
        assert.ok(await answers(url))
      })

    it(`${way.name} → exits with 0 after running requests`, async () => {
      const { child, said, url, pid } = await startOnce()
      const before = collector.spans.length
      const asked = fetch(`${url}/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e`)
      await until(() => waiting !== undefined, 'nothing was asked')
      // A terminal signals every process in it, and a launcher passes on what it got as well.
      child.kill('SIGINT')
      if (pid !== child.pid) kill(pid, 'SIGINT')
      await until(async () => !(await answers(url)), 'the gateway takes new requests')
      assert.equal(child.exitCode, null, said.err)
      waiting?.writeHead(404).end()
      assert.ok((await asked).status >= 400)
      await until(() => child.exitCode !== null, 'it does not end')
      assert.equal(child.exitCode, 0)
      await until(() => said.err.includes('server.stopped'), said.err)
      for (const event of ['server.stopping', 'server.waiting']) assert.ok(said.err.includes(event), said.err)
      if (way !== byNode) return
      // What was recorded is sent before the process ends, after a reload as well.
      const sent = collector.spans.slice(before).map(({ name, parentSpanId }) => [name, parentSpanId !== undefined])
      assert.ok(
        sent.some(([name, isBelow]) => name === 'GET ipfs' && !isBelow),
        JSON.stringify(sent),
      )
    })
  }

  it('second stop signal → exits at once', async () => {
    const { child, url } = await start(byNode)
    void fetch(`${url}/ipfs/bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e`).catch(() => {})
    await until(() => waiting !== undefined, 'nothing was asked')
    child.kill('SIGINT')
    await until(async () => !(await answers(url)), 'the gateway takes new requests')
    // What comes within a second of the first, which it has seen by now, is the same wish.
    await sleep(1000)
    child.kill('SIGINT')
    await until(() => child.exitCode !== null, 'it does not end')
    assert.equal(child.exitCode, 130)
  })

  it('Node too old → explained, by npm start too', async () => {
    const env = { ...process.env, NODE_OPTIONS: asOldNode.join(' ').replaceAll("'", '`') }
    for (const [command, args] of [
      [byNpm.command, byNpm.args],
      [byNode.command, byNode.args],
    ] as const) {
      const [code, err] = await new Promise<[unknown, string]>((resolve) => {
        execFile(command, [...args], { cwd: root, env }, (error, _out, err) => resolve([error?.code, err]))
      })
      assert.equal(code, 1, err)
      assert.match(
        err,
        /^cidgate: Node 20\.1\.0 is too old \(expected 22\.23 or later; install one with npm i node\)$/m,
      )
    }
  })
})
