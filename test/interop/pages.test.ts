// The commands that pages of the documentation show, run as they are printed, beside a gateway and a real Kubo.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { cp, readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { type Served, startServed } from '../support/served.ts'
import { startKubo } from './support/kubo.ts'
import { commandsOf, root, type Shell, shellForPages, upload as uploadTo } from './support/page.ts'

let shell: Shell
let served: Served
before(async () => {
  shell = await shellForPages()
  served = await startServed({ pinning: { providers: [{ name: 'local', use: 'embedded' }] } })
})
after(async () => {
  await served?.close()
  await shell?.remove()
})

const run = (commands: string | undefined, variables?: Record<string, string>) => shell.run(served, commands, variables)
const upload = (bytes: Uint8Array<ArrayBuffer>) => uploadTo(served, bytes)

test('README.md: first commands → work in an empty folder', async () => {
  for (const name of ['package.json', 'docs']) await cp(join(root, name), join(shell.path, name), { recursive: true })
  const [first] = await commandsOf('README.md')
  const said = await run(first)
  assert.match(said, /^\{"cids":\["\/ipfs\/\w+"\]\}/)
  assert.match(said, /HTTP\/1\.1 200 OK[\s\S]*"name": "cidgate"/)
  assert.match(said, /# Architecture/)
  assert.match(said, /HTTP\/1\.1 304 Not Modified/)
  assert.match(said, /"ready":true/)
  assert.ok((await readdir(shell.path)).some((name) => name.endsWith('.car')))
})

test('backup.md: CAR of a large upload → imported by Kubo', async () => {
  const bytes = randomBytes(3_000_000)
  const path = await upload(bytes)
  const cars = join(served.data, 'uploads')
  const kubo = await startKubo()
  try {
    for (const name of await readdir(cars)) kubo.ipfs(['dag', 'import', join(cars, name)])
    const read = await fetch(kubo.gateway + path)
    assert.ok(bytes.equals(Buffer.from(await read.arrayBuffer())))
    assert.match(kubo.ipfs(['pin', 'ls', '--type=recursive', path.slice('/ipfs/'.length)]), / recursive/)
  } finally {
    await kubo.stop()
  }
})

test('backup.md: copy during uploads → restored with every earlier one', async () => {
  const [copy, restore] = await commandsOf('docs/backup.md')
  const files = new Map<string, Uint8Array>()
  for (let count = 0; count < 30; count++) {
    const bytes = randomBytes(count % 10 === 0 ? 3_000_000 : 2000)
    files.set(await upload(bytes), bytes)
  }
  const backup = join(shell.path, 'backup')
  const there = (commands = '') => commands.replaceAll('/backups/monday', backup)
  let isCopied = false
  const meanwhile = (async () => {
    while (!isCopied) await upload(randomBytes(2000))
  })()
  await run(there(copy), { CIDGATE_DATA: served.data }).finally(() => {
    isCopied = true
  })
  await meanwhile
  const doctor = await run(there(restore))
  assert.match(doctor, /^ok {3}data .*\/backup \(/m)
  assert.match(doctor, /^ok {3}provider local \(/m)
  assert.doesNotMatch(doctor, /^bad/m)

  const again = await startServed({
    data: backup,
    pinning: { providers: [{ name: 'local', use: 'embedded' }] },
  })
  try {
    for (const [path, bytes] of files) assert.ok(Buffer.from(bytes).equals((await again.get(path)).body), path)
  } finally {
    await again.close()
  }
})

test('troubleshoot.md: commands → locate an upload', async () => {
  const CID = (await upload(randomBytes(100))).replace('/ipfs/', '')
  const [why, ask, state] = await commandsOf('docs/troubleshoot.md')
  assert.match(await run(why, { CID }), /200/)
  assert.match(await run(ask, { CID }), /HTTP\/1\.1 200[\s\S]*cache-status/i)
  assert.match(await run(state, { CID }), /ready[\s\S]*"open"/)
})

test('comparison.md: pins of a Kubo → moved and readable', async () => {
  const kubo = await startKubo()
  try {
    const files = new Map<string, Uint8Array>()
    for (const bytes of [randomBytes(10), randomBytes(600_000), randomBytes(3_000_000)]) {
      files.set(kubo.ipfs(['add', '--quiet'], bytes).trim(), bytes)
    }
    const [bring, warm] = await commandsOf('docs/comparison.md')
    await run(bring, { IPFS_PATH: kubo.repo })
    for (const [cid, bytes] of files) assert.ok(Buffer.from(bytes).equals((await served.get(`/ipfs/${cid}`)).body), cid)
    await run(warm, { IPFS_PATH: kubo.repo })
    const done = await readFile(join(shell.path, 'cids.done'), 'utf8')
    for (const cid of files.keys()) assert.ok(done.includes(cid))
  } finally {
    await kubo.stop()
  }
})
