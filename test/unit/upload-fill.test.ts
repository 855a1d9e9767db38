// The blocks of an upload into the tiers, while one gateway takes over from another.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CID } from 'multiformats/cid'
import type { Upload } from '../../backends/pinning/contract.ts'
import { type Block, blockKey } from '../../src/core/cid.ts'
import { silentLog } from '../../src/core/log.ts'
import { fillTiers } from '../../src/upload/confirm.ts'
import type { UploadFanout } from '../../src/upload/provider-requests.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addBlock, type BlockMap, text } from '../support/fixtures.ts'

const blocks: Block[] = ['one', 'two', 'three'].map((word) => {
  const map: BlockMap = new Map()
  return { cid: addBlock(map, 0x55, text(word)), bytes: text(word) }
})
const upload = {
  cid: blocks[0]?.cid,
  bytes: 11,
  async *blocks() {
    yield* blocks
  },
} as unknown as Upload

const rest = { forget() {}, sharedTiers: [], bring: async () => {} }

const fill = (retrieval: UploadFanout) =>
  fillTiers(upload, { retrieval, clock: createFakeClock(), log: silentLog }, new AbortController().signal)

test('tiers added during an upload get all blocks', async () => {
  const tiers = [new Set<string>()]
  let joined = 1
  const retrieval: UploadFanout = {
    get joined() {
      return joined
    },
    async store(cid: CID) {
      for (const tier of tiers) tier.add(blockKey(cid))
      if (joined > 1 || !cid.equals(blocks[1]?.cid)) return []
      tiers.push(new Set())
      joined++
      return []
    },
    ...rest,
  }
  await fill(retrieval)
  for (const tier of tiers) assert.equal(tier.size, blocks.length)
})

test('unchanged tiers are written once', async () => {
  let stored = 0
  await fill({
    joined: 1,
    async store() {
      stored++
      return []
    },
    ...rest,
  })
  await fill({
    async store() {
      stored++
      return []
    },
    ...rest,
  })
  assert.equal(stored, 2 * blocks.length)
})

test('shared tier lacks a block → reported; all after timeout', async () => {
  const stored = (lacking: (cid: CID) => string[]): UploadFanout => ({ ...rest, store: async (cid) => lacking(cid) })
  assert.deepEqual(await fill(stored((cid) => (cid.equals(blocks[1]?.cid) ? ['s3'] : []))), ['s3'])
  const clock = createFakeClock()
  const hangs: UploadFanout = { ...rest, sharedTiers: ['s3', 'redis'], store: () => new Promise(() => {}) }
  const filled = fillTiers(upload, { retrieval: hangs, clock, log: silentLog }, new AbortController().signal)
  await clock.advance(60_000)
  assert.deepEqual(await filled, ['s3', 'redis'])
})
