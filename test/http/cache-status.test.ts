// Where an answer says that it came from, when its blocks came from several tiers.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { test } from 'node:test'
import * as dagPb from '@ipld/dag-pb'
import { blockKey } from '../../src/core/block.ts'
import { fixtures } from '../support/fixtures.ts'
import { fetchAll, startGateway, tempFolder } from '../support/gateway.ts'
import { startUpstream } from '../support/upstream.ts'

test('a path that begins on the disk and ends in memory came from the disk', async () => {
  const { blocks, directory } = await fixtures()
  const { Links } = dagPb.decode(blocks.get(blockKey(directory)) ?? assert.fail())
  const file = Links.find(({ Name }) => Name === 'readme.txt')?.Hash
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
