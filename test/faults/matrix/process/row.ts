// Rows of the fault matrix: what happens to the process itself, alone with one client and what that uploaded, and while clients read hot
// files and cold ones, and upload. It is a process of its own, with pins and a tier on the disk. Linux alone.
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { startGateway } from '../../../soak/gateway-process.ts'
import { multipart, post } from '../../../support/adding.ts'
import { addFile, type BlockMap, type FileFixture, noise } from '../../../support/fixtures.ts'
import { percentile } from '../../../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../../../support/upstream.ts'
import { type Cell, full, inMs, type Row } from '../rows.ts'
import { bentBy } from './bent.ts'
import type { ProcessFault, World } from './faults.ts'

type Told = { readonly path: string; readonly body: Uint8Array }

const readers = 16
const uploaders = 4
const preload = fileURLToPath(new URL('bent.ts', import.meta.url))

export async function processRow(fault: ProcessFault): Promise<Row> {
  const alone = await withProcess(fault, aloneCell)
  const beside = await withProcess(fault, besideCells)
  return { fault: fault.name, promised: fault.promised, cells: [alone, ...beside] }
}

type Run = {
  readonly fault: ProcessFault
  readonly world: World
  readonly files: readonly FileFixture[]
  readonly upstream: ProgrammableUpstream
}

async function withProcess<Made>(fault: ProcessFault, measure: (run: Run) => Promise<Made>): Promise<Made> {
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
  const file = join(folder, 'bend.json')
  const flags = ['--import', preload, ...(fault.flags ?? [])]
  const start = () => startGateway(folder, config, flags, { isMute: true, env: { [bentBy]: file } })
  const world: World = { gateway: await start(), start, notes: [], broken: [], bentBy: file }
  try {
    return await measure({ fault, world, files, upstream })
  } finally {
    await world.gateway.stop()
    await upstream.close()
    await rm(folder, { recursive: true, force: true, maxRetries: 20 })
  }
}

type Counts = { whole: number; cut: number; false: number; refused: number }
const noCounts = (): Counts => ({ whole: 0, cut: 0, false: 0, refused: 0 })

const brokenBy = (counts: Counts, { may }: ProcessFault): string[] => [
  ...(counts.false > 0 ? [`${counts.false} answers with other bytes`] : []),
  ...(counts.cut > 0 && !may.cut ? [`${counts.cut} answers were cut`] : []),
  ...(counts.refused > 0 && !may.refused ? [`${counts.refused} requests were refused`] : []),
]

async function sendNew(url: string, bytes: number): Promise<Told | undefined> {
  const body = randomBytes(bytes)
  const sent = await post(`${url}/add`, multipart([{ fileName: 'a', body }])).catch(() => undefined)
  return sent?.status === 200 ? { path: (sent.json['cids'] as [string])[0], body } : undefined
}

const pinned = 8

/** One client, which reads what it uploaded, and no upstream. */
async function aloneCell({ fault, world, upstream }: Run): Promise<Cell> {
  const known: Told[] = []
  for (let made = 0; made < pinned; made++) {
    const told = await sendNew(world.gateway.url, made === 0 ? 1_000_000 : 20_000)
    if (!told) throw new Error(`${fault.name}: an upload before it is refused`)
    known.push(told)
  }
  upstream.fault = { kind: 'refuse' }
  const counts = noCounts()
  let isOver = false
  const reading = (async () => {
    for (let at = 0; !isOver; at++) {
      const { path, body } = known[at % pinned] as Told
      const outcome = await ask(world.gateway.url + path, body)
      counts[outcome]++
      await sleep(outcome === 'refused' ? 100 : 10)
    }
  })()
  await fault.make(world)
  isOver = true
  await reading
  let lost = 0
  for (const { path, body } of known) if ((await ask(world.gateway.url + path, body)) !== 'whole') lost++
  const told = `${counts.whole} whole, ${counts.cut} cut, ${counts.refused} refused; ${lost} of ${pinned} lost`
  const notes = world.notes.map((note) => `, ${note}`).join('')
  const broken = [
    ...world.broken,
    ...brokenBy(counts, fault),
    ...(lost > 0 ? [`${lost} acknowledged uploads are lost`] : []),
  ]
  return { measured: told + notes, broken }
}

async function besideCells({ fault, world, files }: Run): Promise<Cell[]> {
  const counts = noCounts()
  let failedUploads = 0
  const waits: number[] = []
  const acknowledged: Told[] = []
  let isOver = false
  const load = [...Array.from({ length: readers }, reader), ...Array.from({ length: uploaders }, uploader)]
  await fault.make(world)
  isOver = true
  await Promise.all(load)
  const after = await afterCell()
  return [readCell(), uploadCell(), after]

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
      const told = await sendNew(world.gateway.url, made % 10 === 9 ? 1_000_000 : 20_000)
      if (told) acknowledged.push(told)
      else failedUploads++
      await sleep(told ? 10 : 200)
    }
  }

  function readCell(): Cell {
    const { whole, cut, refused } = counts
    const broken = [...world.broken, ...brokenBy(counts, fault)]
    const told = [`${whole} whole`, `${cut} cut`, `${refused} refused`, `p99 ${inMs(percentile(waits, 0.99))}`]
    return { measured: [...told, ...world.notes].join(', '), broken }
  }

  function uploadCell(): Cell {
    const isBroken = failedUploads > 0 && !fault.may.refused
    return {
      measured: `${acknowledged.length} acknowledged, ${failedUploads} not`,
      broken: isBroken ? [`${failedUploads} uploads failed`] : [],
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
    world.gateway = await world.start()
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
