// The shared tiers on their suite, against real servers: Redis, by our tier and by a Keyv adapter an operator names, and an
// S3 server over a folder. An outage is the server's process gone; silence is the process stopped in the middle.
import assert from 'node:assert/strict'
import { readdir } from 'node:fs/promises'
import { test } from 'node:test'
import type { Tier, TierContext } from '../../backends/tiers/contract.ts'
import { tierKinds } from '../../backends/tiers/index.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { bytesOf, cidOf, type TierUnderTest as Store, tierContract } from '../../src/testing/tier.ts'
import { guarded } from '../support/scripted-tier.ts'
import { startRedis, startS3 } from './support/stores.ts'

const clock = systemClock
const log = silentLog

function create(use: string, settings: Record<string, unknown>): Tier {
  const kind = tierKinds[use]
  assert.ok(kind)
  const own = { name: use, userAgent: 'cidgate/test', data: '/nonexistent' }
  const context: TierContext = { ...own, log, clock }
  return kind.create(kind.options.parse(settings), context)
}

const as = (server: Omit<Store, 'tier'>, make: () => Tier): Store => ({
  ...server,
  tier: make(),
  reopen: async () => make(),
})

async function makeRedis(): Promise<Store> {
  const { url, ...server } = await startRedis()
  return as({ ...server, compares: true, forgets: true }, () => create('redis', { url }))
}

async function makeKeyv(): Promise<Store> {
  const { url, ...server } = await startRedis()
  return as(server, () => create('keyv', { module: '@keyv/redis', uri: url }))
}

const makeS3 = (program: Parameters<typeof startS3>[0]) => async (): Promise<Store> => {
  const { bucket, endpoint, region, accessKeyId, secretAccessKey, ...server } = await startS3(program)
  const at = { bucket, endpoint, region, accessKeyId, secretAccessKey, forcePathStyle: true, prefix: 'blocks/' }
  const settings = { ...at, timeout: '3s' } // a store that shares a busy machine is late at times
  // rclone does not look at conditions.
  return as({ ...server, ...(program !== 'rclone' && { compares: true }) }, () => create('s3', settings))
}

const inPlace = (make: () => Promise<Store>) => async (): Promise<Store> => {
  const over = (tier: Tier) => guarded(tier)
  const { reopen, ...store } = await make()
  return { ...store, tier: over(store.tier), reopen: async () => over((await reopen?.()) ?? store.tier) }
}

tierContract('Redis itself', inPlace(makeRedis))
tierContract('Redis itself, by the Keyv adapter', inPlace(makeKeyv))
for (const program of ['versitygw', 'rclone'] as const) tierContract(`S3 of ${program}`, inPlace(makeS3(program)))

test('block → one object under the prefix', async () => {
  const { bucket, endpoint, accessKeyId, secretAccessKey, folder, stop } = await startS3()
  const tier = create('s3', { bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true, prefix: 'here/' })
  try {
    const bytes = bytesOf(1000, 20)
    await tier.put(cidOf(bytes), bytes)
    await tier.put(cidOf(bytes), bytes)
    const files = await readdir(folder, { recursive: true, withFileTypes: true })
    const objects = files.filter((file) => file.isFile())
    assert.equal(objects.length, 1)
    assert.match(objects[0]?.parentPath ?? '', /\/here(\/|$)/)
  } finally {
    await tier.close()
    await stop()
  }
})

test('wrong credentials → reported, not a miss', async () => {
  const { bucket, endpoint, accessKeyId, stop } = await startS3()
  const tier = create('s3', { bucket, endpoint, accessKeyId, secretAccessKey: 'a-wrong-secret', forcePathStyle: true })
  try {
    await assert.rejects(tier.get(cidOf(bytesOf(10))), (error: Error) => !error.message.includes('a-wrong-secret'))
  } finally {
    await tier.close()
    await stop()
  }
})
