// Rows of the fault matrix: what an S3 or a Redis does that the gateway's blocks lie in, without any upstream, before a healthy one, and
// after it was recovered. The disk and the memory are empty. Dead connections stay dead: new ones are what is recovered of them.
import { setTimeout as sleep } from 'node:timers/promises'
import { addFile, type BlockMap, type FileFixture, noise } from '../../support/fixtures.ts'
import { startGateway } from '../../support/gateway.ts'
import { type RedisServer, startRedisServer } from '../../support/redis-server.ts'
import { type S3Server, startS3Server } from '../../support/s3-server.ts'
import type { StoreServer } from '../../support/store-server.ts'
import { startUpstream } from '../../support/upstream.ts'
import { read, untilWhole } from './reading.ts'
import { type Cell, type Form, inMs, type Row } from './rows.ts'

type Store = StoreServer & { faults: object }

export type StoreFault<One extends Store> = {
  readonly name: string
  readonly make: (store: One) => unknown
  readonly alone: 'complete' | '404' | '503'
  /** Where the gateway takes a new connection in time. */
  readonly orWhole?: boolean
  /** It is so before the gateway starts. */
  readonly isFirst?: boolean
  readonly isQuick?: true
}

type StoreKind<One extends Store> = {
  readonly start: () => Promise<One>
  /** As the file names it. */
  readonly tierOf: (store: One) => Record<string, unknown>
  readonly count: (store: One) => number
}

const s3: StoreKind<S3Server> = {
  start: startS3Server,
  tierOf({ bucket, endpoint, accessKeyId, secretAccessKey }) {
    return { use: 's3', bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true }
  },
  count: ({ objects }) => objects.size,
}

const redis: StoreKind<RedisServer> = {
  start: startRedisServer,
  tierOf: ({ url }) => ({ use: 'redis', url }),
  count: ({ values }) => values.size,
}

const silentFirst = {
  name: 'accepts and stays silent, from before the start',
  make: (store: Store) => store.silence(),
  isFirst: true,
} as const
const stranded = {
  name: 'connections that are open are dead, without a word',
  make: (store: Store) => store.strand(),
  orWhole: true,
} as const

const faulty = (faults: S3Server['faults']) => (store: S3Server) => {
  store.faults = faults
}

export const storeFaults: readonly StoreFault<S3Server>[] = [
  { name: 'refuses connections', make: (store) => store.refuse(), alone: '503', isQuick: true },
  { name: 'accepts and stays silent', make: (store) => store.silence(), alone: '503' },
  { ...silentFirst, alone: '503' },
  { ...stranded, alone: '503' },
  { name: 'answers after 100 ms', make: faulty({ slowMs: 100 }), alone: 'complete' },
  { name: 'answers after 4 s', make: faulty({ slowMs: 4000 }), alone: '503' },
  {
    name: '403 InvalidAccessKeyId',
    make: faulty({ denies: 'InvalidAccessKeyId' }),
    alone: '503',
    isQuick: true,
  },
  {
    name: '403 SignatureDoesNotMatch',
    make: faulty({ denies: 'SignatureDoesNotMatch' }),
    alone: '503',
  },
  { name: '503 SlowDown', make: faulty({ slowDown: true }), alone: '503' },
  { name: '500 after half a second', make: faulty({ failsAfterMs: 500 }), alone: '503' },
  { name: 'half of each body, then nothing', make: faulty({ stallsBody: true }), alone: '503' },
  { name: 'drips', make: faulty({ drips: { bytes: 64, everyMs: 50 } }), alone: '503' },
  { name: 'reads hang', make: faulty({ hangs: 'GET' }), alone: '503' },
  { name: 'writes hang', make: faulty({ hangs: 'PUT' }), alone: 'complete' },
  { name: 'answers 200 and keeps nothing', make: faulty({ losesWrites: true }), alone: 'complete', isQuick: true },
  { name: 'other bytes in each object', make: rot, alone: '404', isQuick: true },
]

const redisFaulty = (faults: RedisServer['faults']) => (store: RedisServer) => {
  store.faults = faults
}

export const redisFaults: readonly StoreFault<RedisServer>[] = [
  { name: 'refuses connections', make: (store) => store.refuse(), alone: '503', isQuick: true },
  { name: 'accepts and stays silent', make: (store) => store.silence(), alone: '503' },
  { ...silentFirst, alone: '503' },
  { ...stranded, alone: '503' },
  { name: 'answers after 100 ms', make: redisFaulty({ slowMs: 100 }), alone: 'complete' },
  { name: 'answers after 4 s', make: redisFaulty({ slowMs: 4000 }), alone: '503' },
  { name: 'LOADING', make: redisFaulty({ error: 'LOADING Redis is loading the dataset in memory' }), alone: '503' },
  {
    name: 'OOM',
    make: redisFaulty({ error: 'OOM command not allowed when used memory > maxmemory' }),
    alone: '503',
  },
  {
    name: 'BUSY',
    make: redisFaulty({
      error: 'BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.',
    }),
    alone: '503',
    isQuick: true,
  },
  { name: 'max number of clients reached', make: crowd, alone: '503' },
  { name: 'wants another password', make: redisFaulty({ password: 'another' }), alone: '503' },
  { name: 'answers OK and keeps nothing', make: redisFaulty({ losesWrites: true }), alone: 'complete', isQuick: true },
  { name: 'other bytes under each key', make: rotRedis, alone: '404', isQuick: true },
]

/** Once more, they are as they were. */
function turned(bytes: Buffer): Buffer {
  const copy = Buffer.from(bytes)
  copy[copy.length >> 1] = (copy[copy.length >> 1] ?? 0) ^ 1
  return copy
}

function rot({ objects }: S3Server): void {
  for (const [key, object] of objects) objects.set(key, turned(object))
}

function rotRedis({ values }: RedisServer): void {
  for (const [key, held] of values) values.set(key, { ...held, value: turned(held.value) })
}

/** The gateway was cut off, and others came first. */
async function crowd(store: RedisServer): Promise<void> {
  await store.refuse()
  store.faults = { full: true }
  await store.heal()
}

const fileBytes = 100_000

export const storeRow = (fault: StoreFault<S3Server>, form: Form): Promise<Row> => rowOf(s3, fault, form)
export const redisRow = (fault: StoreFault<RedisServer>, form: Form): Promise<Row> => rowOf(redis, fault, form)

async function rowOf<One extends Store>(
  { start, tierOf, count }: StoreKind<One>,
  { name, make, alone, orWhole = false, isFirst = false }: StoreFault<One>,
  form: Form,
): Promise<Row> {
  const isRot = name.startsWith('other bytes')
  const blocks: BlockMap = new Map()
  const files: FileFixture[] = []
  for (let made = 1; made <= form.files + form.spareFiles; made++)
    files.push(await addFile(blocks, noise(fileBytes, made)))
  const upstream = await startUpstream({ blocks, delayMs: 20 })
  const store = await start()
  const configWith = (deadlineMs: number) => ({
    retrieval: { timeout: `${deadlineMs}ms` },
    cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'memory', maxBytes: '64MiB' }, tierOf(store)] },
  })
  const well = [{ name: 'well', url: upstream.url }]
  await fill()
  if (isFirst) await make(store)
  const single = await startGateway({ config: configWith(form.deadlineMs) })
  const both = await startGateway({ upstreams: well, config: configWith(form.deadlineMs) })
  try {
    if (!isFirst) await make(store)
    const cells = [await aloneCell(), await besideCell(), await afterCell()]
    const words =
      alone === 'complete'
        ? 'complete'
        : `${alone} or cut${orWhole ? ', or complete,' : ''} within ${inMs(form.deadlineMs)}`
    return { fault: name, promised: `${words}; used again within ${inMs(form.recoveredWithinMs)}`, cells }
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
    while (count(store) < files.length && performance.now() - began < 20_000) await sleep(20)
    await filling.close()
  }

  async function aloneCell(): Promise<Cell> {
    const { outcome, ms } = await read(single.url, files.pop() as FileFixture)
    const isWhole = outcome === 'complete'
    const isRight = alone === 'complete' ? isWhole : [Number(alone), 'cut'].includes(outcome) || (orWhole && isWhole)
    const isLate = form.maxMs !== Number.POSITIVE_INFINITY && ms > form.deadlineMs + form.maxMs
    const broken = [...(isRight ? [] : [`alone: ${outcome}`]), ...(isLate ? [`alone: after ${inMs(ms)}`] : [])]
    return { measured: `${outcome}, ${inMs(ms)}`, broken }
  }

  async function besideCell(): Promise<Cell> {
    let worst = 0
    const broken: string[] = []
    for (let count = 0; count < form.files; count++) {
      const { outcome, ms } = await read(both.url, files.pop() as FileFixture)
      worst = Math.max(worst, ms)
      if (outcome !== 'complete') broken.push(`before a healthy upstream: ${outcome}`)
    }
    const complete = form.files - broken.length
    if (worst > form.maxMs) broken.push(`before a healthy upstream: ${inMs(worst)}`)
    return { measured: `${complete} of ${form.files} complete, at most ${inMs(worst)}`, broken }
  }

  async function afterCell(): Promise<Cell> {
    await mend()
    if (isRot) await make(store)
    const ms = await untilWhole(single.url, async () => files.pop(), form.recoveredWithinMs)
    const isMended = Number.isFinite(ms)
    return {
      measured: isMended ? `complete after ${inMs(ms)}` : 'not',
      broken: isMended ? [] : ['not as good as new in time'],
    }
  }
}
