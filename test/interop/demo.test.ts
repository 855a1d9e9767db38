// `npm run demo`, for some seconds: it answers under load, says what happens, and leaves nothing behind.
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { get } from 'node:http'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

const demo = fileURLToPath(new URL('../demo/main.ts', import.meta.url))

/** Its media type and its text. Not every resolver knows names below localhost. */
async function pageAt(host: string, port: number): Promise<string> {
  const [answer] = await once(
    get({ host: '127.0.0.1', port, path: '/', headers: { host: `${host}:${port}` } }),
    'response',
  )
  return `${answer.headers['content-type']} ${Buffer.concat(await Array.fromAsync(answer as AsyncIterable<Buffer>))}`
}

test('demo, port taken → one line with the next step', async () => {
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  const address = `127.0.0.1:${(taken.address() as AddressInfo).port}`
  const args = [demo, '--listen', address, '--admin', '127.0.0.1:0']
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8', timeout: 60_000 })
  taken.close()
  assert.deepEqual([status, stdout], [2, ''])
  assert.match(
    stderr,
    new RegExp(`^config: listen: ${address} [^\\n]+; name other ports: npm run demo -- --listen [^\\n]+\\n$`),
  )
})

test('demo → plays every act, leaves nothing behind', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-interop-'))
  try {
    const args = [demo, '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0', '--seconds', '75']
    const child = spawn(process.execPath, args, { env: { ...process.env, TMPDIR: folder }, timeout: 120_000 })
    let [stdout, stderr] = ['', '']
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr += text
    })
    let site: Promise<string> | undefined
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text
      const [, host = '', port = ''] = /a website +http:\/\/([\w.]+):(\d+)\/\n/.exec(stdout) ?? []
      if (host !== '') site ??= pageAt(host, Number(port))
    })
    const [status] = await once(child, 'close')
    assert.equal(status, 0, stderr)
    assert.match((await site) ?? '', /^text\/html.*<h1>Every byte of this page was proved/s)
    for (const line of stderr.split('\n').filter(Boolean)) assert.equal(JSON.parse(line).event, 'upstream.quarantined')
    assert.match(stdout, /gateway +http:\/\/127/)
    assert.match(stdout, /0:00 ── all three upstreams are well/)
    assert.match(stdout, /0:08 ── `liar` sends false bytes/)
    // What the service did not get while it was down it gets when it is back, at the pace of its retries.
    const pending = [...stdout.matchAll(/^ +(\d+):(\d+) .* (\d+) pending$/gm)].map(([, minute, second, count]) => ({
      at: Number(minute) * 60 + Number(second),
      count: Number(count),
    }))
    assert.ok(
      pending.some(({ at, count }) => at > 36 && at <= 50 && count > 0),
      stdout,
    )
    assert.ok(
      pending.some(({ at, count }) => at > 50 && count === 0),
      stdout,
    )
    assert.match(stdout, /200 × \d+.* · .*responses \d+ %.* · half in \d+ ms/)
    const fromUpstreams = [...stdout.matchAll(/^ +1:1\d .*upstream (\d+) %/gm)].map(([, share]) => Number(share))
    assert.ok(fromUpstreams.length > 1 && Math.min(...fromUpstreams) > 5, `it races no more: ${stdout}`)
    // 504: a CID of nobody, asked for while an upstream is silent.
    assert.doesNotMatch(stdout, /cut × |50[0-3] × /)
    assert.deepEqual(await readdir(folder), [])
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})
