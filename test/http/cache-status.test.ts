// Where an answer says that it came from, when its blocks came from several tiers.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { test } from 'node:test'
import * as dagPb from '@ipld/dag-pb'
import { blockKey } from '../../src/core/cid.ts'
import { eventually } from '../../src/testing/tier.ts'
import { addFile, fixtures, text } from '../support/fixtures.ts'
import { fetchAll, startGateway, tempFolder } from '../support/gateway.ts'
import { patientClock } from '../support/shifted-clock.ts'
import { startUpstream } from '../support/upstream.ts'

test('path from disk, file from memory → source is the disk', async () => {
  const { blocks, directory } = await fixtures()
  const { Links } = dagPb.decode(blocks.get(blockKey(directory)) ?? assert.fail())
  const file = Links.find(({ Name }) => Name === 'readme.txt')?.Hash
  const upstream = await startUpstream({ blocks })
  const data = await tempFolder()
  const start = () =>
    startGateway({
      data,
      clock: patientClock,
      upstreams: [{ name: 'one', url: upstream.url }],
      config: {
        cache: {
          tiers: [
            { use: 'memory', maxBytes: '64MiB' },
            { use: 'disk', maxBytes: '64MiB' },
          ],
        },
      },
    })
  try {
    const first = await start()
    const cold = await fetchAll(`${first.url}/ipfs/${directory}/readme.txt`)
    await first.close()
    assert.equal(cold.headers['cache-status'], 'cidgate; fwd=miss; detail="one"')
    const again = await start()
    try {
      const from = async (path: string) => (await fetchAll(`${again.url}${path}`)).headers['cache-status']
      assert.equal(await from(`/ipfs/${file}?format=raw`), 'cidgate; hit; detail=disk')
      assert.equal(await from(`/ipfs/${file}?format=raw`), 'cidgate; hit; detail=memory')
      assert.equal(await from(`/ipfs/${directory}/readme.txt`), 'cidgate; hit; detail=disk')
    } finally {
      await again.close()
    }
  } finally {
    await upstream.close()
    await rm(data, { recursive: true, force: true })
  }
})

test('cached leaf → same headers, limits, denylists and bytes', async () => {
  const { blocks, files } = await fixtures()
  const document = await addFile(blocks, text('{"a":1}'), 'v1')
  const upstream = await startUpstream({ blocks })
  const at = await startGateway({
    upstreams: [{ name: 'one', url: upstream.url }],
    config: { cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'disk', maxBytes: '64MiB' }] } },
  })
  try {
    for (const { cid, bytes } of [files.hello, { cid: document.cid, bytes: text('{"a":1}') }]) {
      const path = `${at.url}/ipfs/${cid}`
      const usual = async () => {
        const { status, headers, body } = await fetchAll(path, { Range: 'bytes=0-999999999' })
        const { 'content-range': _, ...rest } = headers
        return { status, headers: rest, body }
      }
      await fetchAll(path)
      const isHit = async () => (await usual()).headers['cache-status'] === 'cidgate; hit; detail=disk'
      await eventually('it is on the disk', isHit, 20_000)
      for (let time = 0; time < 3; time++) {
        const straight = await fetchAll(path)
        assert.equal(straight.status, 200)
        assert.ok(straight.body.equals(bytes))
        const [{ headers: one }, { headers: other }] = [straight, await usual()]
        assert.ok(one['x-request-id'])
        for (const headers of [one, other]) for (const name of ['x-request-id', 'date']) delete headers[name]
        assert.deepEqual(one, other)
      }
    }
  } finally {
    await at.close()
    await upstream.close()
  }
})
