// For the soak, in a process of its own: three upstreams, the slowest of which is always well, an S3, and the content of all of them.
// It writes each file into a folder, from which the clients compare what they get.
import { createHash, randomInt } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { addFile, type BlockMap, noise } from '../support/fixtures.ts'
import { type S3Faults, startS3Server } from '../support/s3-server.ts'
import { type Fault, startUpstream } from '../support/upstream.ts'

export type SoakFile = { readonly cid: string; readonly bytes: number; readonly sha256: string }
export type World = {
  readonly upstreams: readonly { readonly name: string; readonly url: string }[]
  readonly s3: Record<string, unknown>
  readonly files: readonly SoakFile[]
}
/** What the world tells the soak: what it is, and then each fault that it makes. */
export type Told = { readonly world: World } | { readonly fault: string }

const sizes = [
  { count: 1500, bytes: 900 },
  { count: 300, bytes: 40_000 },
  { count: 60, bytes: 1_500_000 },
  { count: 4, bytes: 12_000_000 },
]

const upstreamFaults: readonly Fault[] = [
  { kind: 'refuse' },
  { kind: 'silent' },
  { kind: 'slowFirstByte', ms: 3000 },
  { kind: 'drip', bytes: 512, everyMs: 50 },
  { kind: 'pace', bytesPerSecond: 100_000 },
  { kind: 'cut', after: 5000 },
  { kind: 'stall', after: 200 },
  { kind: 'stall', after: 300_000 },
  { kind: 'noCar', status: 406 },
  { kind: 'noCar', status: 500 },
  { kind: 'endsEarly', after: 3000 },
  { kind: 'wrongLength' },
  { kind: 'wrongBytes', block: 0 },
  { kind: 'html' },
  { kind: 'notFound' },
  { kind: 'throttle', retryAfter: '3' },
  { kind: 'status', status: 500 },
  { kind: 'status', status: 503 },
  { kind: 'endless' },
  { kind: 'gzipBomb' },
  { kind: 'emptyCar' },
  { kind: 'skipBlock', block: 1 },
  { kind: 'foreignBlock' },
]

const storeFaults: readonly S3Faults[] = [
  { slowMs: 30 },
  { slowMs: 100 },
  { slowMs: 4000 },
  { slowDown: true },
  { missing403: true },
  { losesWrites: true },
  { stallsBody: true },
  { drips: { bytes: 4096, everyMs: 20 } },
  { failsAfterMs: 500 },
  { hangs: 'GET' },
  { hangs: 'PUT' },
]

const oneOf = <Of>(all: readonly Of[]): Of => all[randomInt(all.length)] as Of

async function makeFiles(blocks: BlockMap, folder: string): Promise<SoakFile[]> {
  const files: SoakFile[] = []
  for (const { count, bytes } of sizes)
    for (let made = 0; made < count; made++) {
      const body = noise(bytes, files.length + 1)
      const { cid } = await addFile(blocks, body, made % 2 ? 'v1' : 'v0')
      await writeFile(join(folder, cid.toString()), body)
      const sha256 = createHash('sha256').update(body).digest('hex')
      files.push({ cid: cid.toString(), bytes, sha256 })
    }
  return files
}

const [folder = '.', everyMs = '1000'] = process.argv.slice(2)
const blocks: BlockMap = new Map()
const files = await makeFiles(blocks, folder)
const upstreams = [
  await startUpstream({ blocks, delayMs: 60 }),
  await startUpstream({ blocks, delayMs: 5 }),
  await startUpstream({ blocks, delayMs: 20 }),
]
const store = await startS3Server()
store.faults = { slowMs: 30 }
const tell = (told: Told): void => void process.send?.(told)

/** One fault or one cure a second. The bytes of an object rot as well. */
async function trouble(): Promise<void> {
  for (const one of upstreams) {
    one.seen.length = 0
    one.asked.length = 0
  }
  store.requests.length = 0
  const target = 1 + randomInt(upstreams.length)
  const upstream = upstreams[target]
  if (!upstream) {
    await store.heal()
    const roll = randomInt(6)
    if (roll === 0) await store.refuse()
    else if (roll === 1) store.silence()
    else if (roll === 2) rot()
    else store.faults = roll === 3 ? { slowMs: 30 } : oneOf(storeFaults)
    const names = ['refuses', 'silent', 'rots', 'well', '', '']
    tell({ fault: `s3: ${names[roll] || JSON.stringify(store.faults)}` })
    return
  }
  upstream.fault = upstream.fault === undefined || randomInt(2) ? oneOf(upstreamFaults) : undefined
  tell({ fault: `${name(target)}: ${JSON.stringify(upstream.fault) ?? 'well'}` })
}

function rot(): void {
  if (store.objects.size === 0) return
  const [key, object] = oneOf([...store.objects])
  if (object.length === 0) return
  const copy = Buffer.from(object)
  const at = randomInt(copy.length)
  copy[at] = (copy[at] ?? 0) ^ 1
  store.objects.set(key, copy)
}

const name = (index: number): string => `upstream-${index}`
const { bucket, endpoint, accessKeyId, secretAccessKey } = store
tell({
  world: {
    upstreams: upstreams.map(({ url }, index) => ({ name: name(index), url })),
    s3: { use: 's3', bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true, timeout: '3s' },
    files,
  },
})
for (;;) {
  await sleep(Number(everyMs))
  await trouble()
}
