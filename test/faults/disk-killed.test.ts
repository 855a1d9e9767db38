// Fault: processes are killed (-9) while they write to one folder of the disk tier, and while they drop segments there. Nothing
// false is served afterwards, and the tier goes on. CIDGATE_KILLS sets how often.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, rm, stat, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import { after, test } from 'node:test'
import type { Tier } from '../../backends/tiers/contract.ts'
import { disk } from '../../backends/tiers/disk.ts'
import { proves } from '../../src/core/cid.ts'
import { silentLog } from '../../src/core/log.ts'
import { cidOf } from '../../src/testing/tier.ts'
import { tempFolder } from '../support/gateway.ts'
import { patientClock } from '../support/shifted-clock.ts'

const rounds = Number(process.env['CIDGATE_KILLS'] ?? 5)
const blocks = 600
const maxBytes = 4 << 20
const path = await tempFolder()
after(() => rm(path, { recursive: true, force: true }))

const lengthOf = (seed: number): number => (seed * 7919) % (seed % 10 === 0 ? 200_000 : 9000)
const bytesOf = (seed: number): Buffer => Buffer.alloc(lengthOf(seed), `block ${seed} `)
const cids = Array.from({ length: blocks }, (_, seed) => cidOf(bytesOf(seed)))

function open(): Tier {
  const context = { name: 'disk', userAgent: 'cidgate/test', data: path, log: silentLog, clock: patientClock }
  return disk.create({ path, maxBytes }, context)
}

const here = new URL('.', import.meta.url).href
const writer = `
  const { disk } = await import('${here}../../backends/tiers/disk.ts')
  const { cidOf } = await import('${here}../../src/testing/tier.ts')
  const { systemClock } = await import('${here}../../src/core/clock.ts')
  const tier = disk.create({ path: process.env.FOLDER, maxBytes: ${maxBytes} }, { name: 'disk', userAgent: 'cidgate/test', data: '', log() {}, clock: systemClock })
  const lengthOf = ${lengthOf}
  const bytesOf = ${bytesOf}
  for (let count = 0; ; count++) {
    const seeds = Array.from({ length: 8 }, () => Math.floor(Math.random() * ${blocks}))
    await Promise.all(seeds.map(async (seed) => {
      const bytes = bytesOf(seed)
      if (seed % 3 === 0) await tier.get(cidOf(bytes))
      else if (seed % 50 === 1) await tier.delete(cidOf(bytes))
      else await tier.put(cidOf(bytes), bytes)
    }))
    if (count === 20) console.log('writing')
  }`

async function startWriter(): Promise<() => Promise<void>> {
  const child = spawn(process.execPath, ['--input-type=module', '-e', writer], {
    env: { ...process.env, FOLDER: path },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  await once(child.stdout, 'data')
  return async () => {
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
}

async function bytesInFolder(): Promise<number> {
  const sizes = (await readdir(path)).map(async (name) => (await stat(join(path, name))).size)
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0)
}

test('killed while writing and evicting → no wrong bytes, tier works', async () => {
  let served = 0
  for (let round = 0; round < rounds; round++) {
    const kills = await Promise.all([startWriter(), startWriter()])
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 300))
    await Promise.all(kills.map((kill) => kill()))
    // What a killed process left is old by the next start.
    const longAgo = new Date(Date.now() - 3_600_000)
    for (const name of await readdir(path)) await utimes(join(path, name), longAgo, longAgo)
    const tier = open()
    for (const cid of cids) {
      const read = await tier.get(cid)
      if (!read) continue
      assert.ok(proves(cid, read), `round ${round}: other bytes`)
      served++
    }
    for (let seed = 0; seed < 5; seed++) {
      await tier.put(cids[seed] as (typeof cids)[0], bytesOf(seed))
      assert.ok(proves(cids[seed] as (typeof cids)[0], (await tier.get(cids[seed] as (typeof cids)[0])) as Buffer))
    }
    await tier.close()
    assert.ok((await bytesInFolder()) <= maxBytes, `round ${round}: ${await bytesInFolder()} bytes`)
  }
  assert.ok(served > rounds * 20, `${served} blocks`)
})
