// What a change of the configuration leaves behind is said: by `check` before it is made, by `doctor`, and in the log when it
// was made.
import assert from 'node:assert/strict'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { checkCommand } from '../../src/cli/check.ts'
import { runDoctor } from '../../src/cli/doctor-checks.ts'
import { loadConfig, parseConfig } from '../../src/config/load.ts'
import type { Log } from '../../src/core/log.ts'
import type { Gateway } from '../../src/gateway.ts'
import { type Serving, serve } from '../../src/server/serve.ts'
import { multipart, post } from '../support/adding.ts'
import { startedGateway, tempFolder } from '../support/gateway.ts'
import { keptIn } from '../support/kept.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../support/providers.ts'

let data: string
let kubo: StandIn
let serving: Serving | undefined
let lines: string[]
beforeEach(async () => {
  data = await tempFolder()
  kubo = await startStandIn(kuboApi)
  lines = []
})
afterEach(async () => {
  await serving?.close()
  serving = undefined
  await kubo.close()
  await rm(data, { recursive: true, force: true })
})

const log: Log = (_level, event, facts = {}) => {
  if (/orphaned|folder-changed/.test(event)) lines.push(`${event}: ${facts['why'] ?? facts['error']}`)
}
type Providers = readonly Record<string, unknown>[]
const said = (providers: Providers, more: object = {}) => ({
  data,
  listen: '127.0.0.1:0',
  admin: false,
  retrieval: { upstreams: [] },
  cache: { tiers: [{ use: 'memory' }] },
  pinning: { minConfirmations: 1, probeEvery: 0, providers },
  ...more,
})
const local = { name: 'local', use: 'embedded' }
const remote = (more: object = {}) => ({ name: 'kubo', use: 'kubo', url: kubo.url, auth: { bearer: token }, ...more })

async function start(providers: Providers, more: object = {}): Promise<Serving> {
  await serving?.close()
  const config = parseConfig(said(providers, more))
  serving = await serve<Gateway>({ config, log, create: (next, before) => startedGateway(next, { log, ...before }) })
  return serving
}
const reload = ({ reload: load }: Serving, providers: Providers, more: object = {}) =>
  load(() => parseConfig(said(providers, more)))

async function add({ listen }: Serving, body = 'a text'): Promise<void> {
  const answer = await post(`http://${listen}/add`, multipart([{ fileName: 'a', body }]))
  assert.equal(answer.status, 200, answer.body)
}

async function until(what: RegExp): Promise<void> {
  for (const end = Date.now() + 10_000; !what.test(lines.join('\n')); await sleep(5))
    assert.ok(Date.now() < end, `it was never said: ${what}, but: ${lines.join('\n')}`)
}

/** The lines that begin with `note`. */
async function notes(command: 'check' | 'doctor', providers: Providers, more: object = {}): Promise<string[]> {
  const file = join(data, 'next.yaml')
  await writeFile(file, JSON.stringify(said(providers, more)))
  const printed: string[] = []
  const { write } = process.stdout
  process.stdout.write = ((text: string) => printed.push(text) > 0) as never
  try {
    await (command === 'check' ? checkCommand(file, { io: process }) : runDoctor(loadConfig(file)))
  } finally {
    process.stdout.write = write
  }
  return printed
    .join('')
    .split('\n')
    .filter((line) => line.startsWith('note'))
}

describe('content that is not read back', () => {
  test('provider without a gateway → reported; with one → not', async () => {
    const told = await notes('check', [
      local,
      remote(),
      { name: 'cluster', use: 'cluster', url: 'http://127.0.0.1:9094' },
      { name: 'pinata', use: 'pinata', token: 't' },
      { name: 'filebase', use: 'filebase', bucket: 'b', accessKeyId: 'a', secretAccessKey: 'b' },
      { name: 'elsewhere', use: 'filebase', endpoint: kubo.url, bucket: 'b', accessKeyId: 'a', secretAccessKey: 'b' },
      { name: 'forward', use: 'forward', url: 'https://gateway.example.org/add' },
      { name: 'home', use: 'psa', url: 'https://psa.example.org', token: 't' },
      { name: 'known', use: 'psa', url: 'https://psa.example.org', token: 't', gateway: 'https://gateway.example.org' },
      { name: 'wanted', use: 'psa', url: 'https://psa.example.org', token: 't', gateway: false },
    ])
    const nowhere = 'cidgate cannot read back what this provider holds; set its `gateway`, or set `gateway: false`'
    assert.deepEqual(told, [
      `note: pinning.providers[2] (cluster): ${nowhere}`,
      'note: pinning.providers[3] (pinata): cidgate does not read back from it: files of more than 2 MiB: name a gateway that gives blocks or CARs',
      `note: pinning.providers[5] (elsewhere): ${nowhere}`,
      `note: pinning.providers[7] (home): ${nowhere}`,
    ])
  })
})

describe('former embedded pins', () => {
  test('reported by check, doctor, and the log after reload', async () => {
    const own = { ...local, path: join(data, 'pins') }
    const running = await start([own])
    await add(running)
    assert.deepEqual(await notes('check', [own]), [])
    const folder = `the folder ${join(data, 'pins')} holds uploads of an earlier configuration, which no provider writes to now: cidgate reads from it until it is removed`
    assert.deepEqual(await notes('check', [remote()]), [`note: ${folder}`])
    assert.deepEqual(await notes('doctor', [remote()]), [`note ${folder}`])
    assert.ok(await reload(running, [remote()]))
    await until(/^uploads\.orphaned-store: the folder .+pins holds uploads/)
    // What lies there is read, whatever the provider was called.
    assert.ok(lines.includes(`uploads.orphaned-store: ${folder}`))
  })

  test("only the provider's name changed → not reported", async () => {
    const running = await start([local])
    await add(running)
    const renamed = { ...local, name: 'disk' }
    assert.deepEqual(await notes('check', [renamed]), [])
    assert.ok(await reload(running, [renamed]))
    await nothingIsSaid()
  })
})

/** Nothing is on its way any more, so that no record moves while it is looked at. */
const settled = async (): Promise<void> => {
  for (const end = Date.now() + 10_000; (await keptIn(data)).waiting.length > 0; await sleep(5))
    assert.ok(Date.now() < end)
}

/** There is nothing to wait for but a moment in which it would be said. */
async function nothingIsSaid(): Promise<void> {
  await sleep(300)
  assert.deepEqual(lines, [])
}

describe('uploads only at a former provider', () => {
  const alone =
    '2 uploads are held only by kubo, which is not configured: they are readable only if an upstream has them'

  test('counted until the provider is configured again', async () => {
    const running = await start([remote()])
    await add(running, 'one')
    await add(running, 'two')
    await settled()
    assert.deepEqual(await notes('check', [local]), [`note: ${alone}`])
    assert.deepEqual(await notes('doctor', [local]), [`note ${alone}`])
    assert.ok(await reload(running, [local]))
    await until(new RegExp(`^uploads.orphaned: ${alone}$`, 'm'))
    // Also after a restart, and by a reload for other reasons.
    lines = []
    const again = await start([local])
    await until(/held only by kubo/)
    lines = []
    assert.ok(await reload(again, [local, remote()]))
    await nothingIsSaid()
    assert.deepEqual(await notes('check', [local, remote()]), [])
  })

  test('another provider holds it → not reported', async () => {
    const running = await start([local, remote()], {
      pinning: { minConfirmations: 'all', providers: [local, remote()] },
    })
    await add(running)
    await settled()
    assert.deepEqual(await notes('check', [local]), [])
    assert.ok(await reload(running, [local]))
    await nothingIsSaid()
  })

  test('pending deliveries → counted too', async () => {
    kubo.script = () => ({ status: 503 })
    const running = await start([local, remote()])
    await add(running)
    const waiting =
      '1 upload is pending at kubo, which is not configured: configure it, or abandon them (DELETE /uploads/<cid>/kubo)'
    assert.deepEqual(await notes('check', [local]), [`note: ${waiting}`])
    assert.ok(await reload(running, [local]))
    await until(/1 upload is pending at kubo/)
  })
})

test('reload with another data folder → reports what stays behind', async () => {
  const other = await tempFolder()
  try {
    const running = await start([local])
    await add(running)
    assert.ok(await reload(running, [local], { data: other }))
    await until(/^data\.folder-changed: data was .+ and is .+ holds 1 uploads, and cidgate no longer reads them$/m)
    await serving?.close()
    serving = undefined
  } finally {
    await rm(other, { recursive: true, force: true })
  }
})
