// Where an answer says that it came from, when its blocks came from several tiers.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { test } from 'node:test'
import * as dagPb from '@ipld/dag-pb'
import { blockKey } from '../../src/block.ts'
import { fixtures } from '../support/fixtures.ts'
import { fetchAll, startGateway, tempFolder } from '../support/gateway.ts'
import { startUpstream } from '../support/upstream.ts'

test('a file that comes from the disk and ends in memory came from the disk', async () => {
  const { blocks, files } = await fixtures()
  const { cid, bytes } = files.chunkedV0
  const { Links } = dagPb.decode(blocks.get(blockKey(cid)) ?? assert.fail())
  const last = Links.at(-1)?.Hash
  const upstream = await startUpstream({ blocks })
  const data = await tempFolder()
  const start = () =>
    startGateway({
      data,
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
    const cold = await fetchAll(`${first.url}/ipfs/${cid}`)
    await first.close()
    assert.equal(cold.headers['cache-status'], 'cidgate; fwd=miss; detail="one"')
    const again = await start()
    try {
      const from = async (path: string) => (await fetchAll(`${again.url}${path}`)).headers['cache-status']
      assert.equal(await from(`/ipfs/${last}?format=raw`), 'cidgate; hit; detail=disk')
      assert.equal(await from(`/ipfs/${last}?format=raw`), 'cidgate; hit; detail=memory')
      const whole = await fetchAll(`${again.url}/ipfs/${cid}`)
      assert.equal(whole.headers['cache-status'], 'cidgate; hit; detail=disk')
      assert.deepEqual(whole.body, Buffer.from(bytes))
    } finally {
      await again.close()
    }
  } finally {
    await upstream.close()
    await rm(data, { recursive: true, force: true })
  }
})
