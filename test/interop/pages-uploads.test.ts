// What docs/uploads.md, docs/pinning.md, docs/deploy.md and docs/monitoring.md show in a shell, run as it is printed beside a gateway, a
// real Kubo and a provider that is gone.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { type Said, type Served, startServed } from '../support/served.ts'
import { startKubo } from './support/kubo.ts'
import { commandsOf, type Shell, shellForPages, startProcess, until, upload } from './support/page.ts'
import { freePort } from './support/processes.ts'

let shell: Shell
let kubo: Awaited<ReturnType<typeof startKubo>>
let served: Served
let said: (...more: Said[]) => Said

before(async () => {
  shell = await shellForPages()
  kubo = await startKubo()
  const gone = `http://127.0.0.1:${await freePort()}`
  const pinata = { name: 'pinata', use: 'pinata', token: 'a-token-of-pinata', uploadsUrl: gone, apiUrl: gone }
  said = (...more) => ({
    pinning: { acceptWhileUnavailable: true, providers: [{ name: 'local', use: 'embedded' }, pinata, ...more] },
  })
  served = await startServed(said())
})
after(async () => {
  await served?.close()
  await kubo?.stop()
  await shell?.remove()
})

const file = (name: string, bytes: Uint8Array | string) => writeFile(join(shell.path, name), bytes)
const cidsOf = (text: string) => [...text.matchAll(/"\/ipfs\/(\w+)"/g)].map(([, cid = '']) => cid)

test('uploads.md: every command and abort → works', async () => {
  const [doors, folder, car, waiting, checked] = await commandsOf('docs/uploads.md')
  await file('policy.json', '{"name":"a policy"}')
  for (const name of ['a.png', 'b.png']) await file(name, randomBytes(300_000))
  const site = await upload(served, randomBytes(600_000))
  await file('site.car', (await served.get(`${site}?format=car`)).body)
  const lines = await shell.run(served, doors, { UPLOAD_TOKEN: 'a-token-of-sixteen-characters' })
  const answers = lines.trim().split(/(?<=\})\s*(?=\{)/)
  assert.deepEqual(
    answers.map((answer) => cidsOf(answer).length),
    [1, 1, 2, 2, 1, 1, 1, 1],
    lines,
  )
  assert.equal(answers[4], JSON.stringify({ cids: [site] }))
  // The CID alone is that of the same file.
  assert.equal(answers[6], answers[5])
  const directory = cidsOf(answers[3] ?? '').at(-1)
  assert.equal((await served.get(`/ipfs/${directory}/images/a.png`)).status, 200)

  await mkdir(join(shell.path, 'dist'))
  await file('dist/index.html', '<h1>Hello</h1>')
  await file('dist/site.css', 'h1 { color: red }')
  const website = cidsOf(await shell.run(served, folder)).at(-1)
  assert.equal((await served.get(`/ipfs/${website}/css/site.css`)).body.toString(), 'h1 { color: red }')
  assert.deepEqual(cidsOf(await shell.run(served, car)), [site.replace('/ipfs/', '')])

  await file('evidence.json', '{"name":"Evidence","description":"what happened"}')
  const [evidence = ''] = cidsOf(await shell.run(served, checked))
  assert.equal((await served.get(`/ipfs/${evidence}`)).headers['content-type'], 'application/json')
  await file('evidence.json', '{"description":"without a name"}')
  assert.match(await shell.run(served, checked), /"status":400[\s\S]*"name"/)

  // Pinata never answers: what waits for it is given up on.
  const isWaiting = async () => (await served.admin('/uploads')).body.toString().includes(evidence)
  assert.ok(await isWaiting())
  const told = await shell.run(served, waiting, { CID: evidence })
  assert.match(told, /pinata/)
  await until(async () => !(await isWaiting()), told)
})

test('pinning.md: list, verify, sync, delete, take down → work', async () => {
  const [commands, byHttp, takedown] = await commandsOf('docs/pinning.md')
  const CID = (await upload(served, randomBytes(700_000))).replace('/ipfs/', '')
  assert.ok(await served.reload(said({ name: 'kubo', use: 'kubo', url: kubo.rpc })))
  // Line by line: the fourth deletes what the others speak of.
  const lines = (commands ?? '').trim().split('\n')
  assert.equal(lines.length, 5)
  const [list, verify, sync, remove, deny] = lines
  assert.match(await shell.run(served, list), new RegExp(CID))
  await shell.run(served, verify).catch((error: { stdout: string }) => {
    // Pinata cannot be asked, which is not well.
    assert.match(error.stdout, /pinata/)
  })
  await shell.run(served, sync)
  const heldBy = async () => JSON.stringify(JSON.parse((await served.admin(`/pins/${CID}`)).body.toString()))
  await until(async () => /"kubo"[^}]*"pinned"/.test(await heldBy()), 'Kubo does not get it')
  assert.ok(kubo.ipfs(['pin', 'ls', '--type=recursive', '--quiet']).includes(CID), 'Kubo holds it')

  const answers = await shell.run(served, byHttp, { CID })
  assert.ok(answers.startsWith('{"pins":[{'), answers)
  assert.match(answers, new RegExp(`${CID}[\\s\\S]*"removed"`))
  assert.ok(!kubo.ipfs(['pin', 'ls', '--type=recursive']).includes(CID), 'Kubo holds it no more')

  const again = (await upload(served, randomBytes(1000))).replace('/ipfs/', '')
  await shell
    .run(served, remove, { CID: again })
    .catch((error: { stdout: string }) => assert.match(error.stdout, /pinata/))
  assert.equal((await served.admin(`/pins/${again}`)).status, 404)
  for (const [command, status] of [
    [deny, 410],
    [takedown, 451],
  ] as const) {
    const one = await upload(served, randomBytes(1000))
    await shell
      .run(served, command, { CID: one.replace('/ipfs/', '') })
      .catch((error: { stdout: string }) => assert.match(error.stdout, /pinata/))
    assert.equal((await served.get(one)).status, status)
  }
})

test('deploy.md: check, then SIGHUP → new configuration', async () => {
  const [commands] = (await commandsOf('docs/deploy.md')).slice(2)
  const configuration = (types: string) =>
    [
      'listen: 127.0.0.1:0',
      'admin: false',
      'log: { level: info }',
      `data: ${shell.path}/reloaded`,
      'retrieval: { upstreams: [] }',
      `responses: { types: ${types} }`,
      'pinning: { providers: [{ name: local, use: embedded }] }',
    ].join('\n')
  await file('my.yaml', configuration('api'))
  const gateway = await startProcess(join(shell.path, 'my.yaml'))
  try {
    const { url, pid } = gateway
    const form = new FormData()
    form.append('data', new Blob(['<h1>Hello</h1>']), 'index.html')
    const { cids } = (await (await fetch(`${url}/add?wrap=true`, { method: 'POST', body: form })).json()) as {
      cids: string[]
    }
    const typeOf = async () => (await fetch(`${url}${cids.at(-1)}/index.html`)).headers.get('content-type')
    assert.equal(await typeOf(), 'application/octet-stream')
    await file('my.yaml', configuration('web'))
    const reloaded = gateway.saying(/config\.reloaded/)
    assert.match(await shell.run(served, commands, { PID: pid }), /valid/)
    await reloaded
    assert.match(String(await typeOf()), /^text\/html/)
  } finally {
    await gateway.stop()
  }
})

test('monitoring.md: dashboard API → answers programs', async () => {
  const [commands] = await commandsOf('docs/monitoring.md')
  const answers = await shell.run(served, commands)
  assert.match(answers, /"upstreams"[\s\S]*bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e/)
})
