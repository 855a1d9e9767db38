// `npm run demo`, for some seconds: it answers under load, says what happens, and leaves nothing behind.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

const demo = fileURLToPath(new URL('../demo/main.ts', import.meta.url))

test('the demo plays all of its acts, answers, and leaves nothing behind', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-interop-'))
  try {
    const args = [demo, '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0', '--seconds', '75']
    const { status, stdout, stderr } = spawnSync(process.execPath, args, {
      env: { ...process.env, TMPDIR: folder },
      encoding: 'utf8',
      timeout: 120_000,
    })
    assert.equal(status, 0, stderr)
    for (const line of stderr.split('\n').filter(Boolean)) assert.equal(JSON.parse(line).event, 'upstream.quarantined')
    assert.match(stdout, /gateway +http:\/\/127/)
    assert.match(stdout, /0:00 ── all three upstreams are well/)
    assert.match(stdout, /0:08 ── `liar` sends false bytes/)
    // What the service did not get while it was down it gets when it is back, at the pace of its retries.
    const owed = [...stdout.matchAll(/^ +(\d+):(\d+) .* (\d+) owed$/gm)].map(([, minute, second, count]) => ({
      at: Number(minute) * 60 + Number(second),
      count: Number(count),
    }))
    assert.ok(
      owed.some(({ at, count }) => at > 36 && at <= 50 && count > 0),
      stdout,
    )
    assert.ok(
      owed.some(({ at, count }) => at > 50 && count === 0),
      stdout,
    )
    assert.match(stdout, /200 × \d+.* · .*hot \d+ %.* · half in \d+ ms/)
    assert.doesNotMatch(stdout, /cut × |50\d × /)
    assert.deepEqual(await readdir(folder), [])
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})
