// What docs/upstreams.md, docs/pinning.md and docs/read-after-upload.md show in a shell, run as it is printed.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { addFile, type Fixtures, fixtures, noise } from '../support/fixtures.ts'
import { fetchAll } from '../support/gateway.ts'
import { startRedisServer } from '../support/redis-server.ts'
import { startServed } from '../support/served.ts'
import { startUpstream } from '../support/upstream.ts'
import { startKubo } from './support/kubo.ts'
import { commandsOf, type Shell, shellForPages, startProcess, until, upload } from './support/page.ts'

let shell: Shell
let all: Fixtures
before(async () => {
  shell = await shellForPages()
  all = await fixtures()
})
after(() => shell?.remove())

const file = (name: string, text: string) => writeFile(join(shell.path, name), text)

test('upstreams.md: commands → try, ask and warm upstreams', async () => {
  const [commands] = await commandsOf('docs/upstreams.md')
  const source = await startUpstream({ blocks: all.blocks })
  const upstreams = [{ name: 'own', url: source.url, allowPrivate: true }]
  const served = await startServed({ retrieval: { upstreams } })
  try {
    const large = await addFile(all.blocks, noise(3_000_000, 71))
    await file('my.yaml', JSON.stringify({ retrieval: { upstreams } }))
    await file('cids.txt', `${large.cid}\n${all.directory}\n`)
    const said = await shell.run(served, commands, { CID: String(all.files.hello.cid) })
    assert.match(said, /^ok +upstream own/m)
    assert.match(said, /200/)
    const done = await readFile(join(shell.path, 'cids.done'), 'utf8')
    for (const cid of [large.cid, all.directory]) assert.ok(done.includes(String(cid)))
    await source.close()
    assert.ok((await served.get(`/ipfs/${large.cid}`)).body.equals(large.bytes), 'it came into the tiers')
  } finally {
    await served.close()
    await source.close()
  }
})

test('pinning.md: uploads switch providers, the old one stops → all readable', async () => {
  const [bring, look, takeOut] = (await commandsOf('docs/pinning.md')).slice(3)
  const [old, fresh] = [await startKubo(), await startKubo()]
  const configuration = (...providers: object[]) =>
    JSON.stringify({
      ...{ listen: '127.0.0.1:0', admin: '127.0.0.1:0', data: join(shell.path, 'switched'), log: { level: 'info' } },
      retrieval: { upstreams: [] },
      pinning: { minConfirmations: 1, providers },
    })
  const one = { name: 'pinata', use: 'kubo', url: old.rpc }
  const other = { name: 'kubo', use: 'kubo', url: fresh.rpc }
  await file('my.yaml', configuration(one))
  const gateway = await startProcess(join(shell.path, 'my.yaml'))
  const reload = async (how: () => Promise<unknown> | unknown) => {
    const reloaded = gateway.saying(/config\.reloaded/)
    await how()
    await reloaded
  }
  try {
    const files = new Map<string, Buffer>()
    for (const bytes of [randomBytes(10), randomBytes(600_000), randomBytes(3_000_000)])
      files.set(await upload(gateway, bytes), bytes)
    await file('my.yaml', configuration(one, other))
    await reload(() => process.kill(Number(gateway.pid), 'SIGHUP'))
    await shell.run(gateway, bring)
    const isAllThere = async () => /"open": ?0/.test(await shell.run(gateway, look))
    await until(isAllThere, 'uploads are on their way')
    const absent = await shell.run(gateway, look?.split('\n')[1])
    assert.equal(absent.trim(), '')

    await file('my.yaml', configuration(other))
    await reload(() => shell.run(gateway, takeOut, { PID: gateway.pid }))
    await old.stop()
    const pinned = fresh.ipfs(['pin', 'ls', '--type=recursive', '--quiet'])
    for (const [path, bytes] of files) {
      assert.ok(pinned.includes(path.replace('/ipfs/', '')), path)
      assert.ok((await fetchAll(gateway.url + path)).body.equals(bytes), path)
    }
  } finally {
    await gateway.stop()
    await old.stop()
    await fresh.stop()
  }
})

test('read-after-upload.md: cached 404, then upload → hit everywhere', async () => {
  const [commands] = await commandsOf('docs/read-after-upload.md')
  const redis = await startRedisServer()
  const said = (providers: object[]) => ({
    cache: { tiers: [{ use: 'redis', url: redis.url }] },
    pinning: { providers },
  })
  const one = await startServed(said([{ name: 'local', use: 'embedded' }]))
  const other = await startServed(said([]))
  try {
    const { cid } = await addFile(new Map(), new TextEncoder().encode('{"name":"evidence"}'))
    for (const at of [one, other]) assert.equal((await at.get(`/ipfs/${cid}`)).status, 404)
    await file('evidence.json', '{"name":"evidence"}')
    const told = await shell.run(one, commands)
    assert.match(told, /HTTP\/1\.1 200[\s\S]*"name":"evidence"/)
    assert.match(told, new RegExp(String(cid)))
    assert.equal((await other.get(`/ipfs/${cid}`)).status, 200)
  } finally {
    await one.close()
    await other.close()
    await redis.stop()
  }
})
