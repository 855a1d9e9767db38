// `node bench/bill.ts`: counts the requests to S3 and to an upstream for a thousand reads and
// uploads, at stand-ins for both.
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { multipart, post } from '../test/support/adding.ts'
import { addFile, type BlockMap, distinctFiles, noise } from '../test/support/fixtures.ts'
import { startGateway, type TestGateway } from '../test/support/gateway.ts'
import { startS3Server } from '../test/support/s3-server.ts'
import { startUpstream } from '../test/support/upstream.ts'

const [smallCount, largeCount, addCount] = [500, 10, 200]
const mib = 1024 * 1024
const blocks: BlockMap = new Map()
const small = (await distinctFiles(blocks, smallCount, 4096)).map(({ cid }) => cid.toString())
const large: string[] = []
for (let at = 0; at < largeCount; at++) large.push((await addFile(blocks, noise(8 * mib, at + 1), 'v1')).cid.toString())
const [store, upstream] = [await startS3Server(), await startUpstream({ blocks })]
const { bucket, endpoint, accessKeyId, secretAccessKey } = store
const s3 = { use: 's3', bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true }
const start = (): Promise<TestGateway> =>
  startGateway({
    upstreams: [{ name: 'upstream', url: upstream.url }],
    config: {
      cache: { tiers: [{ use: 'memory', maxBytes: '256MiB' }, { use: 'disk', maxBytes: '1GiB' }, s3] },
    },
  })

/** Waits until the store gets no more requests. */
async function quiet(): Promise<void> {
  for (let before = -1, same = 0; same < 10; await sleep(50)) {
    const now = [...store.asked.values()].reduce((sum, one) => sum + one, 0)
    same = now === before ? same + 1 : 0
    before = now
  }
}

async function count(name: string, times: number, work: () => Promise<void>): Promise<void> {
  await quiet()
  const before = new Map(store.asked)
  const asked = upstream.asked.length
  await work()
  await quiet()
  const each = (words: number) => ((words / times) * 1000).toFixed(0)
  const methods = ['GET', 'HEAD', 'PUT'].map((one) => each((store.asked.get(one) ?? 0) - (before.get(one) ?? 0)))
  process.stdout.write(`| ${name} | ${methods.join(' | ')} | ${each(upstream.asked.length - asked)} |\n`)
}

async function readAll(at: TestGateway, cids: readonly string[], atOnce = 8): Promise<void> {
  for (let from = 0; from < cids.length; from += atOnce)
    await Promise.all(
      cids.slice(from, from + atOnce).map(async (cid) => {
        const answer = await fetch(`${at.url}/ipfs/${cid}`)
        await answer.arrayBuffer()
        if (answer.status !== 200) throw new Error(`${cid}: ${answer.status}`)
      }),
    )
}

process.stdout.write('| per thousand | S3 GET | S3 HEAD | S3 PUT | requests to upstreams |\n|---|---|---|---|---|\n')
const first = await start()
await count('files of 4 KB that are nowhere yet', smallCount, () => readAll(first, small))
await count('files of 8 MiB that are nowhere yet', largeCount, () => readAll(first, large, 1))
await count('the same small ones, from memory', smallCount, () => readAll(first, small))
await count('uploads of 4 KB', addCount, async () => {
  for (let at = 0; at < addCount; at++) {
    const { status } = await post(`${first.url}/add`, multipart([{ fileName: 'a', body: randomBytes(4096) }]))
    if (status !== 200) throw new Error(`an upload was answered ${status}`)
  }
})
await first.close()
// Another instance, whose blocks are in S3.
const second = await start()
upstream.fault = { kind: 'refuse' }
await count('files of 4 KB that S3 has', smallCount, () => readAll(second, small))
await count('files of 8 MiB that S3 has', largeCount, () => readAll(second, large, 1))
upstream.fault = undefined
const absent = await distinctFiles(new Map(), smallCount, 4097)
await count('files that nobody has', smallCount, async () => {
  for (const { cid } of absent) await (await fetch(`${second.url}/ipfs/${cid}`)).arrayBuffer()
})
await second.close()
await Promise.all([store.stop(), upstream.close()])
