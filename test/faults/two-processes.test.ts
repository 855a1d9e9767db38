// Fault: a second process is started over the data folder of a running one: by mistake, by two supervisors, or because the first one
// seems dead. The second one says so and touches nothing; where the first one is really dead, it takes over.

import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { silentLog } from '../../src/core/log.ts'
import { below, multipart, post } from '../support/adding.ts'
import { fetchAll, startedGateway, startGateway, tempFolder } from '../support/gateway.ts'
import { keptIn } from '../support/kept.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../support/providers.ts'

const program = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))

type Process = {
  readonly child: ChildProcess
  /** Where it listens, or undefined: it ended. */
  readonly url: Promise<string | undefined>
  readonly code: Promise<number | null>
  /** Its exit code, or that it does not end. */
  readonly ended: Promise<number | 'it runs' | null>
  said(): string
}

let folder: string
let data: string
let kubo: StandIn
let processes: Process[]

/** For one suite. */
function overOneFolder(): void {
  before(async () => {
    folder = await tempFolder()
    data = join(folder, 'data')
    kubo = await startStandIn(kuboApi)
    processes = []
  })
  after(async () => {
    for (const { child, code } of processes) {
      child.kill('SIGKILL')
      await code
    }
    await kubo.close()
    await rm(folder, { recursive: true, force: true })
  })
}

const configOf = (kubo: string) => ({
  cache: { tiers: [{ use: 'memory', maxBytes: '4MiB' }] },
  pinning: {
    acceptWhileUnavailable: true,
    providers: [{ name: 'kubo', use: 'kubo', url: kubo, auth: { bearer: token } }],
  },
})

async function start(listen = '127.0.0.1:0'): Promise<Process> {
  const file = join(folder, `config-${randomBytes(4).toString('hex')}.yaml`)
  // What is JSON is YAML.
  await writeFile(
    file,
    JSON.stringify({ listen, admin: false, data, retrieval: { upstreams: [] }, ...configOf(kubo.url) }),
  )
  const child = spawn(process.execPath, [program, 'serve', '--config', file], { stdio: ['ignore', 'pipe', 'pipe'] })
  let out = ''
  let err = ''
  child.stderr.on('data', (chunk) => {
    err += chunk
  })
  const code = once(child, 'close').then(([status]) => status as number | null)
  const answers = new Promise<string>((resolve) => {
    child.stdout.on('data', (chunk) => {
      out += chunk
      const url = /http:\/\/\S+/.exec(out)?.[0]
      if (url) resolve(url)
    })
  })
  // One that should have ended and runs is told so here, and not by a test that never ends.
  const ended = Promise.race([answers.then(() => 'it runs' as const), code])
  const one = { child, ended, url: Promise.race([answers, code.then(() => undefined)]), code, said: () => err }
  processes.push(one)
  return one
}

async function add(url: string, body: Uint8Array): Promise<string> {
  const { status, json, body: text } = await post(`${url}/add`, multipart([{ fileName: 'a', body }]))
  assert.equal(status, 200, text)
  return (json['cids'] as [string])[0]
}

// A process is half a second of a processor: these are the days of one folder, each begins where the last one ended.
describe('second process over a data folder in use', { timeout: 120_000 }, () => {
  overOneFolder()
  const added = new Map<string, Buffer>()
  let owner: Process
  let url: string
  before(async () => {
    kubo.script = () => ({ status: 503 })
    owner = await start()
    url = (await owner.url) as string
  })

  it('exits, naming folder and process; no upload lost', async () => {
    let isOver = false
    const clients = [1, 2, 3].map(async () => {
      while (!isOver) {
        const body = randomBytes(100 + Math.floor(Math.random() * 5000))
        added.set(await add(url, body), body)
        // Each of them is taken up again by each process that follows.
        await sleep(200)
      }
    })
    try {
      for (const listen of ['127.0.0.1:0', url.slice('http://'.length)]) {
        const second = await start(listen)
        assert.equal(await second.url, undefined)
        const isSamePort = listen !== '127.0.0.1:0'
        assert.equal(await second.ended, 2, second.said())
        if (isSamePort) assert.match(second.said(), /cannot be listened on: EADDRINUSE/)
        else {
          assert.match(
            second.said(),
            new RegExp(`^config: data: ${data} is in use by another cidgate: process ${owner.child.pid} on `),
          )
          assert.equal(second.said().trim().split('\n').length, 1)
        }
      }
    } finally {
      isOver = true
      await Promise.allSettled(clients)
    }
    await Promise.all(clients)
    assert.ok(added.size > 10)
    await answersAll()
    assert.equal((await keptIn(data)).waiting.length, added.size)
  })

  it('first process paused (SIGSTOP) → refused', async () => {
    owner.child.kill('SIGSTOP')
    const second = await start()
    assert.equal(await second.ended, 2, second.said())
    owner.child.kill('SIGCONT')
    await answersAll()
  })

  it('first process killed → exactly one successor takes over', async () => {
    owner.child.kill('SIGKILL')
    await owner.code
    assert.equal((await ownerFile()).pid, owner.child.pid)
    const all = await Promise.all([start(), start()])
    const urls = await Promise.all(all.map((one) => one.url))
    assert.equal(urls.filter((one) => one !== undefined).length, 1, all.map((one) => one.said()).join(''))
    for (const [index, { code, said }] of all.entries())
      if (urls[index] === undefined) assert.equal(await code, 2, said())
    const one = urls.findIndex((is) => is !== undefined)
    owner = all[one] as Process
    url = urls[one] as string
    assert.equal((await ownerFile()).pid, owner.child.pid)
    await answersAll()
  })

  it('first process stopped → next one has everything', async () => {
    const next = () => startGateway({ data, config: configOf(kubo.url) })
    await assert.rejects(next(), /is in use by another cidgate/)
    owner.child.kill('SIGTERM')
    assert.equal(await owner.code, 0)
    assert.ok(!(await below(data)).includes('owner.json'))
    const one = await next()
    url = one.url
    try {
      await answersAll()
    } finally {
      await one.close()
    }
  })

  const ownerFile = async () => JSON.parse(await readFile(join(data, 'owner.json'), 'utf8')) as { pid: number }
  async function answersAll() {
    for (const [path, body] of added) assert.ok((await fetchAll(url + path)).body.equals(body), path)
  }
})

describe('several gateways in one process', { timeout: 60_000 }, () => {
  overOneFolder()
  it('share a data folder; the last one releases it', async () => {
    const config = { data, admin: false, retrieval: { upstreams: [] } } as const
    const one = await startedGateway(config, { log: silentLog })
    const other = await startedGateway(config, { log: silentLog })
    await one.close()
    assert.ok((await below(data)).includes('owner.json'))
    await other.close()
    assert.ok(!(await below(data)).includes('owner.json'))
  })
})
