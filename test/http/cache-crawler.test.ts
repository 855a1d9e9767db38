// What readers ask for again and again stays in memory while a crawler asks for everything once.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { fetchAll, startGateway } from '../support/gateway.ts'
import { startUpstream } from '../support/upstream.ts'

const responses = { maxBytes: '256KiB', maxItemBytes: '64KiB' }
const memory = { use: 'memory', maxBytes: '256KiB' }

for (const [name, cache] of [
  ['response cache', { responses, tiers: [] }],
  ['memory tier', { responses: { maxBytes: 0 }, tiers: [memory] }],
] as const)
  test(`${name}, crawler of ten times its size → readers' files stay`, async () => {
    const blocks: BlockMap = new Map()
    const make = async (seed: number) => `/ipfs/${(await addFile(blocks, noise(12 * 1024, seed), 'v1')).cid}`
    const [wanted, crawled] = [[], []] as [string[], string[]]
    for (let seed = 1; seed <= 5; seed++) wanted.push(await make(seed))
    for (let seed = 100; seed < 300; seed++) crawled.push(await make(seed))
    const upstream = await startUpstream({ blocks })
    const gateway = await startGateway({ upstreams: [{ name: 'one', url: upstream.url }], config: { cache } })
    const sourceOf = async (path: string) => (await fetchAll(gateway.url + path)).headers['cache-status']
    try {
      for (let round = 0; round < 3; round++) for (const path of wanted) await sourceOf(path)
      for (const path of crawled) assert.match(String(await sourceOf(path)), /fwd=miss/)
      for (const path of wanted) assert.match(String(await sourceOf(path)), /; hit;/)
    } finally {
      await gateway.close()
      await upstream.close()
    }
  })
