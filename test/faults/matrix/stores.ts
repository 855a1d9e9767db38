// Rows of the fault matrix: what an S3 does that the gateway's blocks lie in, without any upstream, before a healthy one, and
// after it was mended. The disk and the memory are empty.
import { setTimeout as sleep } from 'node:timers/promises'
import { addFile, type BlockMap, type FileFixture, noise } from '../../support/fixtures.ts'
import { startGateway } from '../../support/gateway.ts'
import { type S3Server, startS3Server } from '../../support/s3-server.ts'
import { startUpstream } from '../../support/upstream.ts'
import { read, untilWhole } from './reading.ts'
import { type Cell, type Form, inMs, type Row } from './rows.ts'

export type StoreFault = {
  readonly name: string
  readonly make: (store: S3Server) => unknown
  readonly alone: 'whole' | '404' | '503'
  readonly isQuick?: true
}

const faulty = (faults: S3Server['faults']) => (store: S3Server) => {
  store.faults = faults
}

export const storeFaults: readonly StoreFault[] = [
  { name: 'refuses connections', make: (store) => store.refuse(), alone: '503', isQuick: true },
  { name: 'accepts and says nothing', make: (store) => store.silence(), alone: '503' },
  { name: 'answers after 100 ms', make: faulty({ slowMs: 100 }), alone: 'whole' },
  { name: 'answers after 4 s', make: faulty({ slowMs: 4000 }), alone: '503' },
  { name: '503 SlowDown', make: faulty({ slowDown: true }), alone: '503' },
  { name: '500 after half a second', make: faulty({ failsAfterMs: 500 }), alone: '503' },
  { name: 'half of each body, then nothing', make: faulty({ stallsBody: true }), alone: '503' },
  { name: 'drips', make: faulty({ drips: { bytes: 64, everyMs: 50 } }), alone: '503' },
  { name: 'reads hang', make: faulty({ hangs: 'GET' }), alone: '503' },
  { name: 'writes hang', make: faulty({ hangs: 'PUT' }), alone: 'whole' },
  { name: 'says 200 and keeps nothing', make: faulty({ losesWrites: true }), alone: 'whole', isQuick: true },
  { name: 'other bytes in each object', make: rot, alone: '404', isQuick: true },
]

function rot(store: S3Server): void {
  for (const [key, object] of store.objects) {
    const copy = Buffer.from(object)
    copy[copy.length >> 1] = (copy[copy.length >> 1] ?? 0) ^ 1
    store.objects.set(key, copy)
  }
}

const fileBytes = 100_000

export async function storeRow({ name, make, alone }: StoreFault, form: Form): Promise<Row> {
  const blocks: BlockMap = new Map()
  const files: FileFixture[] = []
  for (let made = 1; made <= form.files + form.spareFiles; made++)
    files.push(await addFile(blocks, noise(fileBytes, made)))
  const upstream = await startUpstream({ blocks, delayMs: 20 })
  const store = await startS3Server()
  const { bucket, endpoint, accessKeyId, secretAccessKey } = store
  const s3 = { use: 's3', bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true }
  const configWith = (deadlineMs: number) => ({
    retrieval: { deadline: `${deadlineMs}ms` },
    cache: { hot: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '64MiB' }, s3] },
  })
  const well = [{ name: 'well', url: upstream.url }]
  await fill()
  const single = await startGateway({ config: configWith(form.deadlineMs) })
  const both = await startGateway({ upstreams: well, config: configWith(form.deadlineMs) })
  try {
    await make(store)
    const cells = [await aloneCell(), await besideCell(), await afterCell()]
    const words = alone === 'whole' ? 'whole' : `${alone} or cut within ${inMs(form.deadlineMs)}`
    return { fault: name, promised: `${words}; used again within ${inMs(form.mendedWithinMs)}`, cells }
  } finally {
    await mend()
    for (const running of [single, both, upstream]) await running.close()
    await store.stop()
  }

  async function mend(): Promise<void> {
    store.faults = {}
    await store.heal()
  }

  async function fill(): Promise<void> {
    const filling = await startGateway({ upstreams: well, config: configWith(20_000) })
    for (const file of files) await read(filling.url, file)
    const began = performance.now()
    while (store.objects.size < files.length && performance.now() - began < 20_000) await sleep(20)
    await filling.close()
  }

  async function aloneCell(): Promise<Cell> {
    const { outcome, ms } = await read(single.url, files.pop() as FileFixture)
    const isRight = alone === 'whole' ? outcome === 'whole' : [Number(alone), 'cut'].includes(outcome)
    const isLate = form.mostMs !== Number.POSITIVE_INFINITY && ms > form.deadlineMs + form.mostMs
    const broken = [...(isRight ? [] : [`alone: ${outcome}`]), ...(isLate ? [`alone: after ${inMs(ms)}`] : [])]
    return { measured: `${outcome}, ${inMs(ms)}`, broken }
  }

  async function besideCell(): Promise<Cell> {
    let worst = 0
    const broken: string[] = []
    for (let count = 0; count < form.files; count++) {
      const { outcome, ms } = await read(both.url, files.pop() as FileFixture)
      worst = Math.max(worst, ms)
      if (outcome !== 'whole') broken.push(`before a healthy upstream: ${outcome}`)
    }
    const whole = form.files - broken.length
    if (worst > form.mostMs) broken.push(`before a healthy upstream: ${inMs(worst)}`)
    return { measured: `${whole} of ${form.files} whole, at most ${inMs(worst)}`, broken }
  }

  async function afterCell(): Promise<Cell> {
    await mend()
    if (make === rot) rot(store)
    const ms = await untilWhole(single.url, async () => files.pop(), form.mendedWithinMs)
    const isMended = Number.isFinite(ms)
    return {
      measured: isMended ? `whole after ${inMs(ms)}` : 'not',
      broken: isMended ? [] : ['not as good as new in time'],
    }
  }
}
