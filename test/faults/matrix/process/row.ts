// Rows of the fault matrix: what happens to the process itself, alone with one client and what that uploaded, and while clients read hot
// files and cold ones, and upload. It is a process of its own, with pins and a tier on the disk. Linux alone.
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { startGateway } from '../../../soak/gateway-process.ts'
import { boundary, multipart } from '../../../support/adding.ts'
import { addFile, type BlockMap, type FileFixture, noise } from '../../../support/fixtures.ts'
import { percentile } from '../../../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../../../support/upstream.ts'
import { type Cell, full, inMs, type Row } from '../rows.ts'
import { type Asked, ask } from './ask.ts'
import { bentBy } from './bent.ts'
import type { ProcessFault, World } from './faults.ts'
import { createTally, summed, type Tally } from './tally.ts'
import { beginUnderWay, type Told } from './under-way.ts'

const readers = 16
const uploaders = 4
const preload = fileURLToPath(new URL('bent.ts', import.meta.url))

export async function processRow(fault: ProcessFault): Promise<Row> {
  const alone = await withProcess(fault, aloneCell, 'alone')
  const beside = await withProcess(fault, besideCells)
  return { fault: fault.name, promised: fault.promised, cells: [alone, ...beside] }
}

type Run = {
  readonly fault: ProcessFault
  readonly world: World
  readonly files: readonly FileFixture[]
  readonly upstream: ProgrammableUpstream
  /** Uploads that were answered with 200. */
  readonly acknowledged: Told[]
}

async function withProcess<Made>(
  fault: ProcessFault,
  measure: (run: Run) => Promise<Made>,
  isAlone?: 'alone',
): Promise<Made> {
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
    limits: { perClient: { perMinute: 10_000_000 }, maxEventLoopDelay: 0, ...fault.limits },
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
  const acknowledged: Told[] = []
  let others = 0
  const world: World = {
    ...{ gateway: await start(), start, notes: [], broken: [], bentBy: file, outages: [] },
    async writeAnother() {
      const number = ++others
      const upstreams = [{ name: 'well', url: upstream.url, maxConnections: 32 + number }]
      const tiers = config.cache.tiers.map((tier) => ({ ...tier, maxBytes: `${8 + number}MiB` }))
      const another = {
        ...config,
        retrieval: { upstreams },
        cache: { tiers },
        upload: { idleTimeout: `${30 + number}s` },
      }
      await writeFile(join(folder, 'config.json'), JSON.stringify(another))
    },
    beginUnderWay: () =>
      beginUnderWay({ url: world.gateway.url, upstream: isAlone ? undefined : upstream, acknowledged }),
  }
  try {
    return await measure({ fault, world, files, upstream, acknowledged })
  } finally {
    await world.gateway.stop()
    await upstream.close()
    await rm(folder, { recursive: true, force: true, maxRetries: 20 })
  }
}

/** `tally`: it is noted there. */
async function sendNew(url: string, bytes: number, tally?: Tally): Promise<Told | undefined> {
  const body = randomBytes(bytes)
  const headers = { 'Content-Type': `multipart/form-data; boundary=${boundary}` }
  const sent = await ask(`${url}/add`, { body: multipart([{ fileName: 'a', body }]), headers })
  tally?.note(sent)
  if (sent.status !== 200 || sent.outcome !== 'answered') return undefined
  const { cids } = JSON.parse(sent.body.toString()) as { cids: [string] }
  return { path: cids[0], body }
}

const isWhole = ({ outcome, status, body }: Asked, bytes: Uint8Array): boolean =>
  outcome === 'answered' && status === 200 && body.equals(bytes)

async function lostOf(url: string, told: readonly Told[]): Promise<number> {
  let lost = 0
  for (const { path, body } of told) if (!isWhole(await ask(url + path), body)) lost++
  return lost
}

const pinned = 8

/** One client, which reads what it uploaded, and no upstream. */
async function aloneCell({ fault, world, upstream, acknowledged }: Run): Promise<Cell> {
  const known: Told[] = []
  for (let made = 0; made < pinned; made++) {
    const told = await sendNew(world.gateway.url, made === 0 ? 1_000_000 : 20_000)
    if (!told) throw new Error(`${fault.name}: an upload before it is refused`)
    known.push(told)
  }
  upstream.fault = { kind: 'refuse' }
  const tally = createTally(fault, world.outages)
  let isOver = false
  const reading = (async () => {
    for (let at = 0; !isOver; at++) {
      const { path, body } = known[at % pinned] as Told
      const asked = await ask(world.gateway.url + path)
      tally.note(asked, body)
      await sleep(asked.outcome === 'answered' ? 10 : 100)
    }
  })()
  await fault.make(world)
  isOver = true
  await reading
  const all = [...known, ...acknowledged]
  const lost = await lostOf(world.gateway.url, all)
  const notes = world.notes.map((note) => `, ${note}`).join('')
  const broken = [
    ...summed(world.broken),
    ...tally.broken,
    ...(lost > 0 ? [`${lost} acknowledged uploads are lost`] : []),
  ]
  return { measured: `${tally.told}; ${lost} of ${all.length} lost${notes}`, broken }
}

async function besideCells({ fault, world, files, acknowledged }: Run): Promise<Cell[]> {
  const [reads, uploads] = [createTally(fault, world.outages), createTally(fault, world.outages)]
  const waits: number[] = []
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
      const asked = await ask(`${world.gateway.url}/ipfs/${file.cid}`)
      reads.note(asked, file.bytes)
      waits.push(asked.endedAt - asked.beganAt)
      // A client that is refused leaves the processor to the gateway that starts.
      await sleep(asked.outcome === 'answered' ? 10 : 200)
    }
  }

  async function uploader(): Promise<void> {
    for (let made = 0; !isOver; made++) {
      const told = await sendNew(world.gateway.url, made % 10 === 9 ? 1_000_000 : 20_000, uploads)
      if (told) acknowledged.push(told)
      await sleep(told ? 10 : 200)
    }
  }

  function readCell(): Cell {
    const told = [reads.told, `p99 ${inMs(percentile(waits, 0.99))}`, ...world.notes]
    return { measured: told.join(', '), broken: [...summed(world.broken), ...reads.broken] }
  }

  function uploadCell(): Cell {
    return { measured: `${acknowledged.length} acknowledged, ${uploads.failed} not`, broken: uploads.broken }
  }

  /** Once more by a process that has nothing in memory: what was acknowledged is on the disk. */
  async function afterCell(): Promise<Cell> {
    const first = files[0] as FileFixture
    const began = performance.now()
    const isWell = async () => isWhole(await ask(`${world.gateway.url}/ipfs/${first.cid}`), first.bytes)
    let got = await isWell()
    for (; !got && performance.now() - began < full.recoveredWithinMs; await sleep(20)) got = await isWell()
    const ms = performance.now() - began
    await world.gateway.stop()
    world.gateway = await world.start()
    const lost = await lostOf(world.gateway.url, acknowledged)
    const broken = [
      ...(got ? [] : ['not as good as new in time']),
      ...(lost > 0 ? [`${lost} acknowledged uploads are lost`] : []),
    ]
    return { measured: `complete after ${inMs(ms)}; ${lost} lost`, broken }
  }
}
