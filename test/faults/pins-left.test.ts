// Fault: the configuration names another provider or another folder, and earlier uploads lie in the old folder. They are read from
// there for as long as it exists.
import assert from 'node:assert/strict'
import { readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterEach, beforeEach, test } from 'node:test'
import { runDoctor } from '../../src/cli/doctor-checks.ts'
import { backupCommand, salvageCommand } from '../../src/cli/stores.ts'
import { loadConfig, parseConfig } from '../../src/config/load.ts'
import { silentLog } from '../../src/core/log.ts'
import type { Gateway } from '../../src/gateway.ts'
import { type Serving, serve } from '../../src/server/serve.ts'
import { multipart, post } from '../support/adding.ts'
import { noise } from '../support/fixtures.ts'
import { fetchAll, startedGateway, tempFolder } from '../support/gateway.ts'
import { kuboApi, type StandIn, startStandIn, token } from '../support/providers.ts'

const bytes = noise(1_500_000, 31)

let data: string
let kubo: StandIn
let serving: Serving | undefined
beforeEach(async () => {
  data = await tempFolder()
  kubo = await startStandIn(kuboApi)
})
afterEach(async () => {
  await serving?.close()
  await kubo.close()
  await rm(data, { recursive: true, force: true })
})

/** Too little memory for anything, and no disk tier: what is not in a store of pins is nowhere. */
const configOf = (pinning: Record<string, unknown>, more: Record<string, unknown> = {}) =>
  parseConfig({
    data,
    listen: '127.0.0.1:0',
    admin: false,
    retrieval: { upstreams: [] },
    cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '1KiB' }] },
    pinning: { probeEvery: 0, ...pinning },
    ...more,
  })

const start = async (config: ReturnType<typeof configOf>): Promise<Serving> => {
  await serving?.close()
  const create = (next: typeof config, before: object) => startedGateway(next, { log: silentLog, ...before })
  serving = await serve<Gateway>({ config, log: silentLog, create })
  return serving
}

async function add({ listen }: Serving): Promise<string> {
  const { status, json, body } = await post(`http://${listen}/add`, multipart([{ fileName: 'a', body: bytes }]))
  assert.equal(status, 200, body)
  return (json['cids'] as [string])[0]
}

async function isWhole({ listen }: Serving, path: string): Promise<void> {
  const { status, body, headers } = await fetchAll(`http://${listen}${path}`)
  assert.equal(status, 200, body.toString(undefined, 0, 300))
  assert.ok(body.equals(bytes))
  assert.match(String(headers['cache-status']), /cidgate; hit/)
}

const other = () => ({ providers: [{ use: 'kubo', url: kubo.url, auth: { bearer: token }, gateway: false }] })
const folders: Readonly<Record<string, () => Record<string, unknown>>> = {
  'the usual folder': () => ({ use: 'embedded' }),
  'a folder of its own': () => ({ use: 'embedded', path: join(data, 'elsewhere') }),
}

for (const [what, embedded] of Object.entries(folders))
  test(`former pins in ${what} → readable whatever pins now`, async () => {
    const first = await start(configOf({ providers: [embedded()] }))
    const path = await add(first)
    await isWhole(first, path)
    assert.equal(await first.reload(() => configOf(other())), true)
    await isWhole(first, path)
    await isWhole(await start(configOf(other())), path)
    await isWhole(await start(configOf({ providers: [] })), path)
    await isWhole(await start(configOf({ providers: [] }, { upload: { forwardTo: `${kubo.url}/api/v0` } })), path)
  })

test('two former folders → readable with the current one', async () => {
  const paths: string[] = []
  for (const path of ['one', 'two']) {
    const { listen } = await start(configOf({ providers: [{ use: 'embedded', path: join(data, path) }] }))
    const body = multipart([{ fileName: 'a', body: noise(5000, path.length + paths.length) }])
    paths.push(((await post(`http://${listen}/add`, body)).json['cids'] as [string])[0])
  }
  const { listen } = await start(configOf({ providers: [{ use: 'embedded' }] }))
  for (const path of paths) assert.equal((await fetchAll(`http://${listen}${path}`)).status, 200)
})

const silent = { stdout: { write: () => true } } as never

/** A store in a former folder, and a configuration file that does not name it. */
async function withFormer(): Promise<{ path: string; former: string; file: string }> {
  const former = join(data, 'former')
  const first = await start(configOf({ providers: [{ use: 'embedded', path: former }] }))
  const path = await add(first)
  await first.close()
  serving = undefined
  const file = join(data, 'cidgate.yaml')
  await writeFile(file, JSON.stringify({ data, pinning: { providers: [{ use: 'embedded' }] } }))
  return { path, former, file }
}

test('backup includes former folders, and is readable without them', async () => {
  const { path, former, file } = await withFormer()
  const [to, moved] = [`${data}-backup`, `${data}-moved`]
  try {
    assert.equal(await backupCommand(file, to, silent), 0)
    await rm(former, { recursive: true })
    await rename(to, moved)
    await isWhole(await start(configOf({ providers: [{ use: 'embedded' }] }, { data: moved })), path)
  } finally {
    for (const one of [to, moved, `${to}-folders`]) await rm(one, { recursive: true, force: true })
  }
})

test('database with zeroed pages → doctor and backup fail, salvage repairs', async () => {
  const { path, former, file } = await withFormer()
  const database = join(former, 'cidgate.sqlite')
  const bytes = await readFile(database)
  await writeFile(database, bytes.fill(0, 4096))
  const lines: string[] = []
  assert.equal(await runDoctor(loadConfig(file), { print: (line) => lines.push(line) }), 1)
  assert.match(lines.join('\n'), /^bad {2}pins .*former.*doctor --salvage/m)
  try {
    await assert.rejects(backupCommand(file, `${data}-damaged`, silent), /malformed/)
  } finally {
    for (const end of ['', '-folders']) await rm(`${data}-damaged${end}`, { recursive: true, force: true })
  }
  assert.equal(await salvageCommand(file, silent), 0)
  await isWhole(await start(configOf({ providers: [{ use: 'embedded' }] })), path)
})
