// Fault: a second process is started over the data folder of a running one: by mistake, by two supervisors, or because the first one
// seems dead. The second one says so and touches nothing; where the first one is really dead, it takes over.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { silentLog } from '../../src/core/log.ts'
import { below, multipart, post } from '../support/adding.ts'
import { fetchAll, startedGateway, tempFolder } from '../support/gateway.ts'
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
beforeEach(async () => {
  folder = await tempFolder()
  data = join(folder, 'data')
  kubo = await startStandIn(kuboApi)
  processes = []
})
afterEach(async () => {
  for (const { child, code } of processes) {
    child.kill('SIGKILL')
    await code
  }
  await kubo.close()
  await rm(folder, { recursive: true, force: true })
})

async function start(listen = '127.0.0.1:0'): Promise<Process> {
  const file = join(folder, `config-${randomBytes(4).toString('hex')}.yaml`)
  const lines = [
    `listen: ${listen}`,
    'admin: false',
    `data: ${data}`,
    'retrieval: { upstreams: [] }',
    'cache: { tiers: [{ use: memory, maxBytes: 4MiB }] }',
    `pinning: { queue: true, providers: [{ name: kubo, use: kubo, url: "${kubo.url}", auth: { bearer: ${token} } }] }`,
  ]
  await writeFile(file, lines.join('\n'))
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

describe('a second process over a data folder in use', { timeout: 120_000 }, () => {
  it('ends with one line that names the folder and the process, and no upload is lost', async () => {
    kubo.script = () => ({ status: 503 })
    const first = await start()
    const url = (await first.url) as string
    const added = new Map<string, Buffer>()
    let isOver = false
    const clients = [1, 2, 3].map(async () => {
      while (!isOver) {
        const body = randomBytes(100 + Math.floor(Math.random() * 5000))
        added.set(await add(url, body), body)
        await sleep(40)
      }
    })
    try {
      for (const listen of ['127.0.0.1:0', url.slice('http://'.length)]) {
        const second = await start(listen)
        assert.equal(await second.url, undefined)
        const isSamePort = listen !== '127.0.0.1:0'
        assert.equal(await second.ended, isSamePort ? 1 : 2, second.said())
        if (isSamePort) assert.match(second.said(), /cannot be listened on: EADDRINUSE/)
        else {
          assert.match(
            second.said(),
            new RegExp(`^config: data: ${data} is in use by another cidgate: process ${first.child.pid} on `),
          )
          assert.equal(second.said().trim().split('\n').length, 1)
        }
      }
    } finally {
      isOver = true
    }
    await Promise.all(clients)
    assert.ok(added.size > 10)
    for (const [path, body] of added) assert.ok((await fetchAll(url + path)).body.equals(body), path)
    const entries = (await below(join(data, 'journal', 'open'))).filter((name) => name.endsWith('.json'))
    assert.equal(entries.length, added.size)
  })

  it('takes the folder over at once after the first process was killed', async () => {
    kubo.script = () => ({ status: 503 })
    const first = await start()
    const body = randomBytes(2000)
    const path = await add((await first.url) as string, body)
    first.child.kill('SIGKILL')
    await first.code
    assert.equal(JSON.parse(await readFile(join(data, 'owner.json'), 'utf8')).pid, first.child.pid)
    const second = await start()
    const url = await second.url
    assert.ok(url, second.said())
    assert.ok((await fetchAll(url + path)).body.equals(body))
    assert.equal(JSON.parse(await readFile(join(data, 'owner.json'), 'utf8')).pid, second.child.pid)
  })

  it('starts at the same moment as others after a kill: exactly one of them runs', async () => {
    const first = await start()
    await first.url
    first.child.kill('SIGKILL')
    await first.code
    const all = await Promise.all([start(), start(), start()])
    const urls = await Promise.all(all.map(({ url }) => url))
    assert.equal(urls.filter((url) => url !== undefined).length, 1, all.map((one) => one.said()).join(''))
    for (const [index, { code, said }] of all.entries())
      if (urls[index] === undefined) assert.equal(await code, 2, said())
  })

  it('is refused while the first process is only paused (SIGSTOP)', async () => {
    const first = await start()
    await first.url
    first.child.kill('SIGSTOP')
    const second = await start()
    assert.equal(await second.ended, 2, second.said())
    first.child.kill('SIGCONT')
  })

  it('may start after the first process has stopped', async () => {
    const first = await start()
    await first.url
    first.child.kill('SIGTERM')
    assert.equal(await first.code, 0)
    assert.ok(!(await below(data)).includes('owner.json'))
    const second = await start()
    assert.ok(await second.url, second.said())
  })
})

describe('several gateways in one process', { timeout: 60_000 }, () => {
  it('share a data folder, and release it with the last of them', async () => {
    const config = { data, admin: false, retrieval: { upstreams: [] } } as const
    const one = await startedGateway(config, { log: silentLog })
    const other = await startedGateway(config, { log: silentLog })
    await one.close()
    const third = await start()
    assert.equal(await third.ended, 2, third.said())
    assert.match(third.said(), new RegExp(`process ${process.pid} on `))
    await other.close()
    const fourth = await start()
    assert.ok(await fourth.url, fourth.said())
    await assert.rejects(startedGateway(config, { log: silentLog }), /is in use by another cidgate/)
  })
})
