// Fault: all upstreams are down, and stores corrupt data. What was read before is served, and only unchanged.
import assert from 'node:assert/strict'
import { readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { fetchAll, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { patientClock } from '../support/shifted-clock.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'

let all: Fixtures
let data: string
let upstream: ProgrammableUpstream
before(async () => {
  all = await fixtures()
  data = await tempFolder()
  upstream = await startUpstream({ blocks: all.blocks })
})
after(async () => {
  await upstream.close()
  await rm(data, { recursive: true, force: true })
})

const tiers = {
  cache: {
    responses: { maxBytes: 0 },
    tiers: [
      { use: 'memory', maxBytes: '1MiB' },
      { use: 'disk', maxBytes: '1GiB' },
    ],
  },
}
const start = (): Promise<TestGateway> =>
  startGateway({ data, clock: patientClock, config: tiers, upstreams: [{ name: 'one', url: upstream.url }] })
const paths = () => [
  ...Object.values(all.files).map(({ cid, bytes }) => ({ path: `/ipfs/${cid}`, bytes })),
  { path: `/ipfs/${all.directory}/sub/big.bin`, bytes: all.names['sub/big.bin'] },
  { path: `/ipfs/${all.hamt}/file-700.txt`, bytes: all.manyNames['file-700.txt'] as Uint8Array },
]
const files = async (): Promise<string[]> =>
  (await readdir(join(data, 'cache'), { recursive: true, withFileTypes: true }))
    .filter((one) => one.isFile())
    .map((one) => join(one.parentPath, one.name))

describe('every upstream is down', () => {
  test('read before → served from disk, by a new process too', async () => {
    const before = await start()
    for (const { path, bytes } of paths()) assert.ok((await fetchAll(`${before.url}${path}`)).body.equals(bytes), path)
    await before.close()
    upstream.fault = { kind: 'refuse' }
    const asked = upstream.seen.length
    const again = await start()
    try {
      for (const { path, bytes } of paths()) {
        const answer = await fetchAll(`${again.url}${path}`)
        assert.equal(answer.status, 200, path)
        assert.ok(answer.body.equals(bytes), path)
        assert.match(String(answer.headers['cache-status']), /hit/)
      }
      assert.equal(upstream.seen.length, asked)
    } finally {
      await again.close()
      upstream.fault = undefined
    }
  })
})

describe('damaged blocks in the disk tier', () => {
  beforeEach(() => rm(join(data, 'cache'), { recursive: true, force: true }))

  const damage: [name: string, change: (bytes: Buffer) => Uint8Array][] = [
    ['a bit is flipped', (bytes) => bytes.map((byte, index) => (index === bytes.length >> 1 ? byte ^ 1 : byte))],
    ['files are huge', () => new Uint8Array(3 * 1024 * 1024)],
  ]
  for (const [name, change] of damage) {
    test(`${name}: never served; right bytes served and stored`, async () => {
      const { cid, bytes } = all.files.chunkedV0
      const fill = await start()
      await fetchAll(`${fill.url}/ipfs/${cid}`)
      await fill.close()
      const touched = await files()
      assert.ok(touched.length >= 2)
      for (const file of touched) await writeFile(file, change(await readFile(file)))
      const at = await start()
      assert.ok((await fetchAll(`${at.url}/ipfs/${cid}`)).body.equals(bytes))
      await at.close()
      upstream.fault = { kind: 'refuse' }
      const offline = await start()
      try {
        assert.ok((await fetchAll(`${offline.url}/ipfs/${cid}`)).body.equals(bytes))
      } finally {
        await offline.close()
        upstream.fault = undefined
      }
    })
  }
})
