// Fault: kill -9 of the gateway at random moments while it publishes. Every head that was announced stays in the chain, without a gap,
// and in the end the chain names what is pinned. CIDGATE_KILLS sets how often.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { stringify } from 'yaml'
import { hexOf, startIndexer } from '../support/indexer.ts'
import { byNode, kill, launch, until } from '../support/launched.ts'

const kills = Number(process.env['CIDGATE_KILLS'] ?? 2)

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}

/** Uploads and unpins until the gateway is gone. */
async function use(url: string, admin: string): Promise<void> {
  const pinned: string[] = []
  for (;;) {
    const body = new FormData()
    body.append('data', new Blob([Uint8Array.from(randomBytes(16))]), 'x')
    const { cids } = (await (await fetch(`${url}/add`, { method: 'POST', body })).json()) as { cids: string[] }
    pinned.push(cids[0]?.slice('/ipfs/'.length) ?? assert.fail())
    if (pinned.length < 4) continue
    const [cid] = pinned.splice(Math.floor(Math.random() * pinned.length), 1)
    await fetch(`${admin}/pins/${cid}`, { method: 'DELETE' })
  }
}

async function pinsAt(admin: string): Promise<string[]> {
  const { pins } = (await (await fetch(`${admin}/pins?limit=1000`)).json()) as { pins: { cid: string }[] }
  return pins.map(({ cid }) => cid)
}

it(`${kills} kills while publishing → no gap, fork or reused context`, { timeout: 600_000 }, async () => {
  const data = await mkdtemp(join(tmpdir(), 'cidgate-announce-'))
  const indexer = await startIndexer()
  const started: number[] = []
  const [port, adminPort] = [await freePort(), await freePort()]
  const [url, admin] = [`http://127.0.0.1:${port}`, `http://127.0.0.1:${adminPort}`]
  const config = join(data, 'cidgate.yaml')
  await writeFile(
    config,
    stringify({
      ...{ data: join(data, 'kept'), listen: `127.0.0.1:${port}`, admin: `127.0.0.1:${adminPort}`, public: url },
      announce: { every: '100ms', indexers: [{ name: 'test', url: indexer.url }] },
      retrieval: { upstreams: [], routers: [] },
    }),
  )
  const whole = async () => {
    const announced = [...indexer.announced]
    const answer = await fetch(`${url}/ipni/v1/ad/head`)
    if (answer.status === 204) return assert.deepEqual(announced, [])
    const { head } = (await answer.json()) as { head: { '/': string } }
    const { heads } = await indexer.walk(url, head['/'])
    for (const one of announced) assert.ok(heads.has(one), `${one} was announced and is not in the chain`)
  }
  try {
    for (let killed = 0; killed < kills; killed++) {
      const { pid, child } = await launch(byNode, { config, started })
      await whole()
      const using = use(url, admin).catch(() => {})
      const before = indexer.announced.length
      await until(() => indexer.announced.length > before, 'nothing is announced')
      await sleep(Math.random() * 500)
      const ended = once(child, 'close')
      kill(pid, 'SIGKILL')
      await Promise.all([ended, using])
    }
    await launch(byNode, { config, started })
    await whole()
    const pinned = (await pinsAt(admin)).map(hexOf).sort()
    await until(async () => {
      const { known } = await indexer.walk(url)
      return JSON.stringify([...known].sort()) === JSON.stringify(pinned)
    }, 'the chain does not name what is pinned')
    await whole()
  } finally {
    for (const pid of started) kill(pid, 'SIGKILL')
    await indexer.close()
    await rm(data, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
  }
})
