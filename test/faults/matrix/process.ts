// Rows of the fault matrix: what happens to the process itself while clients read hot files and cold ones, and upload. It is a process
// of its own, with pins and a tier on the disk. Linux alone.
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type GatewayProcess, startGateway } from '../../soak/gateway-process.ts'
import { multipart, post } from '../../support/adding.ts'
import { addFile, type BlockMap, type FileFixture, noise } from '../../support/fixtures.ts'
import { fetchAll, percentile } from '../../support/gateway.ts'
import { startUpstream } from '../../support/upstream.ts'
import { type Cell, full, inMs, type Row } from './rows.ts'

type Told = { readonly path: string; readonly body: Uint8Array }

/** The gateway that runs now: a fault may end one and start another. */
type World = {
  gateway: GatewayProcess
  start(): Promise<GatewayProcess>
  /** What a fault wants to be told of. */
  readonly notes: string[]
  readonly broken: string[]
}

export type ProcessFault = {
  readonly name: string
  readonly promised: string
  readonly make: (world: World) => Promise<unknown>
  /** What clients may meet while it lasts. */
  readonly may: { readonly cut?: true; readonly refused?: true }
  readonly flags?: readonly string[]
  readonly limits?: object
}

const statusAt = (url: string): Promise<number | 'refused'> =>
  fetchAll(url).then(
    ({ status }) => status,
    () => 'refused' as const,
  )

async function killed(world: World): Promise<void> {
  for (let count = 0; count < 5; count++) {
    await sleep(500 + Math.random() * 1000)
    world.gateway.signal('SIGKILL')
    await world.gateway.stopping
    world.gateway = await world.start()
  }
}

async function stopped(world: World): Promise<void> {
  let worst = 0
  for (let count = 0; count < 3; count++) {
    await sleep(500 + Math.random() * 1000)
    const { gateway } = world
    const began = performance.now()
    gateway.signal('SIGTERM')
    const turned = await untilNot(`${gateway.admin}/readyz`, 200)
    if (turned.status !== 503) world.broken.push(`/readyz was ${turned.status} before 503`)
    await gateway.stopping
    if (!gateway.ended?.includes('exit code 0')) world.broken.push(`it ended with ${gateway.ended}`)
    worst = Math.max(worst, performance.now() - began)
    world.gateway = await world.start()
  }
  world.notes.push(`each ended within ${inMs(worst)}`)
}

async function untilNot(url: string, status: number) {
  const began = performance.now()
  for (;;) {
    const got = await statusAt(url)
    if (got !== status || performance.now() - began > 5000) return { status: got, ms: performance.now() - began }
    await sleep(5)
  }
}

async function reloaded({ gateway }: World): Promise<void> {
  for (let count = 0; count < 15; count++) {
    gateway.reload()
    await sleep(200)
  }
}

const held =
  (ms: number) =>
  async ({ gateway }: World) => {
    gateway.signal('SIGSTOP')
    await sleep(ms)
    gateway.signal('SIGCONT')
    await sleep(1000)
  }

export const processFaults: readonly ProcessFault[] = [
  { name: 'nothing, for comparison', promised: 'no answer is cut or refused', make: () => sleep(3000), may: {} },
  {
    name: 'kill -9 five times, at random',
    promised: 'nothing acknowledged is lost',
    make: killed,
    may: { cut: true, refused: true },
  },
  {
    name: 'SIGTERM three times, at random',
    promised: '/readyz says 503 first; what is under way ends whole; exit code 0',
    make: stopped,
    may: { refused: true },
    limits: { lameDuck: '300ms' },
  },
  {
    name: 'the configuration is loaded fifteen times',
    promised: 'no answer is cut or refused',
    make: reloaded,
    may: {},
  },
  { name: 'held for 5 s (SIGSTOP, SIGCONT)', promised: 'no answer is cut or refused', make: held(5000), may: {} },
  {
    name: 'the reader of its output and of its log is gone',
    promised: 'no answer is cut or refused',
    make: async ({ gateway }) => {
      gateway.leaveOutput()
      await sleep(3000)
    },
    may: {},
  },
  {
    name: 'a heap of 64 MiB',
    promised: 'no answer is cut or refused',
    make: () => sleep(5000),
    may: {},
    flags: ['--max-old-space-size=64'],
  },
]

const readers = 16
const uploaders = 4

export async function processRow(fault: ProcessFault): Promise<Row> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-faults-'))
  const blocks: BlockMap = new Map()
  const files: FileFixture[] = []
  for (let made = 1; made <= 24; made++)
    files.push(await addFile(blocks, noise(made % 12 === 0 ? 2_000_000 : 50_000, made)))
  const upstream = await startUpstream({ blocks, delayMs: 20 })
  const config = {
    listen: '127.0.0.1:0',
    admin: '127.0.0.1:0',
    data: join(folder, 'data'),
    log: { level: 'debug' },
    limits: { perClient: { perMinute: 10_000_000 }, loopDelay: 0, ...fault.limits },
    retrieval: { upstreams: [{ name: 'well', url: upstream.url }] },
    cache: {
      tiers: [
        { use: 'memory', maxBytes: '8MiB' },
        { use: 'disk', maxBytes: '64MiB' },
      ],
    },
    pinning: { providers: [{ name: 'local', use: 'embedded' }] },
  }
  const start = () => startGateway(folder, config, fault.flags, { isMute: true })
  // `uploads`: those that were not acknowledged.
  const counts = { whole: 0, cut: 0, false: 0, refused: 0, uploads: 0 }
  const waits: number[] = []
  const acknowledged: Told[] = []
  const world: World = { gateway: await start(), start, notes: [], broken: [] }
  let isOver = false
  try {
    const load = [...Array.from({ length: readers }, reader), ...Array.from({ length: uploaders }, uploader)]
    await fault.make(world)
    isOver = true
    await Promise.all(load)
    const after = await afterCell()
    return { fault: fault.name, promised: fault.promised, cells: [readCell(), uploadCell(), after] }
  } finally {
    await world.gateway.stop()
    await upstream.close()
    await rm(folder, { recursive: true, force: true, maxRetries: 20 })
  }

  async function reader(): Promise<void> {
    while (!isOver) {
      const file = files[Math.floor(Math.random() * files.length)] as FileFixture
      const began = performance.now()
      const outcome = await ask(`${world.gateway.url}/ipfs/${file.cid}`, file.bytes)
      counts[outcome]++
      waits.push(performance.now() - began)
      // A client that is refused leaves the processor to the gateway that starts.
      await sleep(outcome === 'refused' ? 200 : 10)
    }
  }

  async function uploader(): Promise<void> {
    for (let made = 0; !isOver; made++) {
      const body = randomBytes(made % 10 === 9 ? 1_000_000 : 20_000)
      const sent = await post(`${world.gateway.url}/add`, multipart([{ fileName: 'a', body }])).catch(() => undefined)
      if (sent?.status === 200) acknowledged.push({ path: (sent.json['cids'] as [string])[0], body })
      else counts.uploads++
      await sleep(sent?.status === 200 ? 10 : 200)
    }
  }

  function readCell(): Cell {
    const { whole, cut, refused } = counts
    const broken = [
      ...world.broken,
      ...(counts.false > 0 ? [`${counts.false} answers with other bytes`] : []),
      ...(cut > 0 && !fault.may.cut ? [`${cut} answers were cut`] : []),
      ...(refused > 0 && !fault.may.refused ? [`${refused} requests were refused`] : []),
    ]
    const told = [`${whole} whole`, `${cut} cut`, `${refused} refused`, `p99 ${inMs(percentile(waits, 0.99))}`]
    return { measured: [...told, ...world.notes].join(', '), broken }
  }

  function uploadCell(): Cell {
    const isBroken = counts.uploads > 0 && !fault.may.refused
    return {
      measured: `${acknowledged.length} acknowledged, ${counts.uploads} not`,
      broken: isBroken ? [`${counts.uploads} uploads failed`] : [],
    }
  }

  /** Once more by a process that has nothing in memory: what was acknowledged is on the disk. */
  async function afterCell(): Promise<Cell> {
    const first = files[0] as FileFixture
    const began = performance.now()
    const isLate = () => performance.now() - began > full.mendedWithinMs
    let got = await ask(`${world.gateway.url}/ipfs/${first.cid}`, first.bytes)
    for (; got !== 'whole' && !isLate(); await sleep(20))
      got = await ask(`${world.gateway.url}/ipfs/${first.cid}`, first.bytes)
    const ms = performance.now() - began
    await world.gateway.stop()
    world.gateway = await start()
    let lost = 0
    for (const { path, body } of acknowledged) if ((await ask(world.gateway.url + path, body)) !== 'whole') lost++
    const broken = [
      ...(got === 'whole' ? [] : ['not as good as new in time']),
      ...(lost > 0 ? [`${lost} acknowledged uploads are lost`] : []),
    ]
    return { measured: `whole after ${inMs(ms)}; ${lost} lost`, broken }
  }
}

/** Refused: another status, or no answer at all. Cut: an answer that has begun and breaks off. */
function ask(url: string, bytes: Uint8Array): Promise<'whole' | 'cut' | 'false' | 'refused'> {
  return new Promise((resolve) => {
    const request = get(url, { agent: false }, (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', () => resolve('cut'))
      response.on('end', () => {
        if (!response.complete) resolve('cut')
        else if (response.statusCode !== 200) resolve('refused')
        else resolve(Buffer.concat(pieces).equals(bytes) ? 'whole' : 'false')
      })
    })
    request.on('error', () => resolve('refused'))
  })
}
