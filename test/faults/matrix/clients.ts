// Rows of the fault matrix: what one client does to all others. The gateway is a process of its own with a heap of 256 MiB, and
// a second client asks for a hot file all the time. Linux alone: it reads /proc.
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { get as httpGet } from 'node:http'
import { connect, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { type GatewayProcess, startGateway } from '../../soak/gateway-process.ts'
import { addBlock, addFile, type BlockMap, text } from '../../support/fixtures.ts'
import { fetchAll, percentile } from '../../support/gateway.ts'
import { startUpstream } from '../../support/upstream.ts'
import { addEmptyLists, addUnfolding } from './bombs/content.ts'
import type { HotTold } from './hot-client.ts'
import { inMs, type Row } from './rows.ts'

type Attack = {
  readonly name: string
  /** Most that a hot answer waits, for 99 of 100. */
  readonly hotMs: number
  readonly run: (target: Target) => Promise<unknown>
}
type Target = { readonly url: string; readonly port: number; readonly content: Content }
type Content = Awaited<ReturnType<typeof makeContent>>

const attackMs = 8000
const mostResidentMiB = 600
const mib = 1024 * 1024

/** Reads what comes, for as long as the attack lasts, as fast as it can. */
async function download(url: string): Promise<void> {
  const endsAt = performance.now() + attackMs
  while (performance.now() < endsAt) {
    await new Promise<void>((resolve) => {
      const request = httpGet(url, { agent: false }, (response) => void response.resume())
      const timer = setTimeout(() => request.destroy(), endsAt - performance.now())
      request.on('error', () => {})
      request.on('close', () => {
        clearTimeout(timer)
        resolve()
      })
    })
    await sleep(10)
  }
}

const fourTimes = (path: (content: Content) => string) => (target: Target) =>
  Promise.all(Array.from({ length: 4 }, () => download(target.url + path(target.content))))

/** Many requests in one piece, and no answer is ever read. */
async function flood({ port, content }: Target): Promise<void> {
  const request = `GET /ipfs/${content.hot} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`
  const all = Buffer.from(request.repeat(1000))
  const sockets: Socket[] = []
  for (let count = 0; count < 400; count++) {
    const socket = connect(port, '127.0.0.1')
    socket.on('error', () => {})
    socket.pause()
    socket.write(all)
    sockets.push(socket)
  }
  await sleep(attackMs)
  for (const socket of sockets) socket.destroy()
}

export const attacks: readonly Attack[] = [
  { name: 'nothing, for comparison', hotMs: 100, run: () => sleep(attackMs) },
  { name: '400 connections, 1,000 hot requests in each at once, no answer read', hotMs: 500, run: flood },
  { name: '100^30 as TAR, four at once', hotMs: 100, run: fourTimes(({ bomb }) => `/ipfs/${bomb}?format=tar`) },
  {
    name: '100^30 as CAR with `dups=y`, four at once',
    hotMs: 100,
    run: fourTimes(({ bomb }) => `/ipfs/${bomb}?format=car&car-dups=y`),
  },
  {
    name: '2 MiB of dag-cbor, a path in it, four at once',
    hotMs: 100,
    run: fourTimes(({ document }) => `/ipfs/${document}/nowhere`),
  },
  {
    name: '2 MiB of dag-json as CAR, four at once',
    hotMs: 100,
    run: fourTimes(({ json }) => `/ipfs/${json}?format=car`),
  },
]

async function makeContent(blocks: BlockMap) {
  const hot = (await addFile(blocks, text(JSON.stringify({ some: 'x'.repeat(1000) })))).cid
  const [bomb, document] = [addUnfolding(blocks), addEmptyLists(blocks)]
  const json = addBlock(blocks, 0x0129, Buffer.from(`[${'{"a":0},'.repeat(mib / 4 - 2)}0]`))
  return { hot, bomb, document, json }
}

/** Undefined: the process ended. */
export async function residentUntil(gateway: GatewayProcess, over: Promise<unknown>): Promise<number | undefined> {
  let most = 0
  let isOver = false
  const stop = () => {
    isOver = true
  }
  void over.then(stop, stop)
  while (!isOver && gateway.ended === undefined) {
    most = Math.max(most, gateway.residentMiB())
    await sleep(50)
  }
  return gateway.ended === undefined ? most : undefined
}

export async function clientRow({ name, hotMs, run }: Attack): Promise<Row> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-faults-'))
  const blocks: BlockMap = new Map()
  const content = await makeContent(blocks)
  const upstream = await startUpstream({ blocks })
  // It would unfold what is a bomb in this process.
  upstream.fault = { kind: 'noCar', status: 406 }
  const config = {
    listen: '127.0.0.1:0',
    admin: false,
    data: join(folder, 'data'),
    log: { level: 'error' },
    limits: { perClient: { perMinute: 10_000_000 } },
    retrieval: { upstreams: [{ name: 'well', url: upstream.url }] },
    cache: {
      tiers: [
        { use: 'memory', maxBytes: '16MiB' },
        { use: 'disk', maxBytes: '256MiB' },
      ],
    },
  }
  const gateway = await startGateway(folder, config, ['--max-old-space-size=256'])
  try {
    const { url } = gateway
    const hotUrl = `${url}/ipfs/${content.hot}`
    for (let count = 0; count < 20; count++) await fetchAll(hotUrl)
    const hot = new Worker(new URL('hot-client.ts', import.meta.url), { workerData: hotUrl })
    await once(hot, 'message')
    const running = run({ url, port: Number(new URL(url).port), content })
    const resident = await residentUntil(gateway, running)
    hot.postMessage('over')
    const [{ times, refused }] = (await once(hot, 'message')) as [HotTold]
    const mendedMs = await untilHot(hotUrl)
    const [p99, worst] = [percentile(times, 0.99), percentile(times, 1)]
    const broken = [
      ...(resident === undefined ? [`the process ended: ${gateway.ended}`] : []),
      ...(resident !== undefined && resident > mostResidentMiB ? [`${Math.round(resident)} MiB resident`] : []),
      ...(p99 > hotMs ? [`hot answers wait ${inMs(p99)}`] : []),
      ...(refused > 0 ? [`${refused} hot requests were refused`] : []),
    ]
    const measured = `${times.length} hot answers: p99 ${inMs(p99)}, longest ${inMs(worst)}`
    return {
      fault: name,
      promised: `p99 of hot answers below ${inMs(hotMs)}; at most ${mostResidentMiB} MiB resident; none refused`,
      cells: [
        { measured, broken },
        { measured: resident === undefined ? 'the process ended' : `${Math.round(resident)} MiB`, broken: [] },
        {
          measured: `hot again after ${inMs(mendedMs)}`,
          broken: mendedMs > 5000 ? ['not as good as new in time'] : [],
        },
      ],
    }
  } finally {
    await gateway.stop()
    await upstream.close()
    await rm(folder, { recursive: true, force: true })
  }
}

async function untilHot(url: string): Promise<number> {
  const began = performance.now()
  while (performance.now() - began < 30_000) {
    const asked = performance.now()
    const got = await fetchAll(url).catch(() => undefined)
    if (got?.status === 200 && performance.now() - asked < 100) return performance.now() - began
    await sleep(20)
  }
  return Number.POSITIVE_INFINITY
}
