// For bench/stores.ts, in a process of its own: an upstream of 10 ms and an S3, both with what is wanted of them on command.

import { blockKey } from '../src/core/cid.ts'
import { addFile, type BlockMap, distinctFiles, noise } from '../test/support/fixtures.ts'
import { startS3Server } from '../test/support/s3-server.ts'
import { startUpstream } from '../test/support/upstream.ts'

export type Command =
  | { readonly do: 's3'; readonly slowMs: number }
  | { readonly do: 'silence' | 'heal' | 'clear' | 'count' }
  | { readonly do: 'upstream'; readonly isThere: boolean }

const blocks: BlockMap = new Map()

/** A file, and the keys of its blocks, its root first. */
async function largeFile(seed: number): Promise<{ cid: string; keys: string[] }> {
  const own: BlockMap = new Map()
  const { cid } = await addFile(own, noise(20 * 1024 * 1024, seed), 'v0')
  for (const [key, bytes] of own) blocks.set(key, bytes)
  const root = blockKey(cid)
  return { cid: cid.toString(), keys: [root, ...[...own.keys()].filter((key) => key !== root)] }
}

const large = [await largeFile(1), await largeFile(2)]
const small = await distinctFiles(blocks, 64, 1000)
const [store, upstream] = [await startS3Server(), await startUpstream({ blocks, delayMs: 10 })]

async function obey(command: Command): Promise<number> {
  if (command.do === 's3') store.faults = { slowMs: command.slowMs }
  if (command.do === 'silence') store.silence()
  if (command.do === 'heal') await store.heal()
  if (command.do === 'clear') store.objects.clear()
  if (command.do === 'upstream') upstream.fault = command.isThere ? undefined : { kind: 'refuse' }
  return store.objects.size
}

process.on('message', (command: Command) => void obey(command).then((count) => process.send?.(count)))
const { bucket, endpoint, accessKeyId, secretAccessKey } = store
process.send?.({
  upstream: upstream.url,
  s3: { use: 's3', bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true, timeout: '3s' },
  large,
  small: small.map(({ cid }) => cid.toString()),
})
