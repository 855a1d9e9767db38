// The gateway of the requests table, as an operator runs it: with its clocks, its bounds of connections and its admin address.
import { mkdtemp, rm } from 'node:fs/promises'
import { Agent } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startGateway } from '../../../soak/gateway-process.ts'
import { multipart, post } from '../../../support/adding.ts'
import { addFile, type BlockMap, noise } from '../../../support/fixtures.ts'
import { fetchAll } from '../../../support/gateway.ts'
import { startUpstream } from '../../../support/upstream.ts'
import { type Cell, type Form, inMs } from '../rows.ts'

export type Semaphore = {
  readonly url: string
  readonly admin: string
  /** Of a hot file, and of a large one. */
  readonly paths: readonly [hot: string, large: string]
  /** Files and sockets that it has open; of a gateway in this process nobody can say. */
  readonly handles?: () => number
  /** What it told as an error. */
  readonly errors: () => string
}

/** What ends a client that is slow. */
export const clockMs = 2000
/** Heads are looked at each second, and an idle connection is kept for a second longer than said. */
export const slackMs = 3000

export const inUnits = (ms: number): string => `${ms}ms`

export async function withGate<Made>(limits: object, use: (gate: Semaphore) => Promise<Made>): Promise<Made> {
  const blocks: BlockMap = new Map()
  const [hot, large] = [await addFile(blocks, noise(1000, 1)), await addFile(blocks, noise(8 * 1024 * 1024, 2))]
  const paths = [`/ipfs/${hot.cid}`, `/ipfs/${large.cid}`] as const
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-faults-'))
  const upstream = await startUpstream({ blocks })
  const config = {
    listen: '127.0.0.1:0',
    admin: '127.0.0.1:0',
    data: join(folder, 'data'),
    log: { level: 'error' },
    limits: { maxEventLoopDelay: 0, ...limits },
    upload: { idleTimeout: inUnits(clockMs), auth: 'open' },
    retrieval: { probeEvery: 0, upstreams: [{ name: 'well', url: upstream.url }] },
    cache: { tiers: [{ use: 'memory', maxBytes: '64MiB' }] },
  }
  const gateway = await startGateway(folder, config, [], { isMute: true })
  const { url, admin = '', handles, errors } = gateway
  try {
    for (const path of [paths[0], ...paths]) await fetchAll(url + path, {}, new Agent())
    return await use({ url, admin, paths, handles, errors })
  } finally {
    await gateway.stop()
    await upstream.close()
    await rm(folder, { recursive: true, force: true })
  }
}

/** Of its page of metrics; 0 where it has none of that name. */
export async function metric({ admin }: Semaphore, name: string): Promise<number> {
  const { body } = await fetchAll(`${admin}/metrics`)
  const lines = body.toString().split('\n')
  const values = lines.filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`))
  return values.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0)
}

export const connectionsOf = (gate: Semaphore): Promise<number> => metric(gate, 'cidgate_connections')

/** Until it is over: what other clients get, one that keeps its connection, and one that comes anew each time. */
export async function besideCell(
  { url, paths }: Semaphore,
  over: Promise<unknown>,
  { maxMs }: Pick<Form, 'maxMs'>,
  alsoUploads = false,
): Promise<Cell> {
  let isOver = false
  const end = () => {
    isOver = true
  }
  void over.then(end, end)
  const kept = new Agent({ keepAlive: true })
  const ways = [kept, new Agent()]
  let [worst, refused, uploads, notTaken] = [0, 0, 0, 0]
  do {
    for (const agent of ways) {
      const began = performance.now()
      const got = await fetchAll(url + paths[0], {}, agent).catch(() => undefined)
      if (got?.status !== 200) refused++
      worst = Math.max(worst, performance.now() - began)
    }
    if (alsoUploads) {
      const body = multipart([{ fileName: 'a', body: Buffer.from(noise(1000, 10 + uploads++)) }])
      if ((await post(`${url}/add`, body).catch(() => undefined))?.status !== 200) notTaken++
    }
    await sleep(20)
  } while (!isOver)
  kept.destroy()
  const broken = [
    ...(refused > 0 ? [`${refused} refused`] : []),
    ...(notTaken > 0 ? [`${notTaken} of ${uploads} uploads were not accepted`] : []),
    ...(worst > maxMs ? [`hot after ${inMs(worst)}`] : []),
  ]
  return { measured: `at most ${inMs(worst)}${alsoUploads ? `; ${uploads} uploads taken` : ''}`, broken }
}

/** Files of tiers and connections to upstreams may have come; never so many as there were clients. */
const fewHandles = 8

/** Its connections are let go, and their descriptors with them. */
export async function afterCell(
  gate: Semaphore,
  before: number,
  { recoveredWithinMs }: Pick<Form, 'recoveredWithinMs'>,
) {
  const began = performance.now()
  const handles = () => gate.handles?.() ?? before
  let open = await connectionsOf(gate)
  for (; open > 0 || handles() > before + fewHandles; open = await connectionsOf(gate)) {
    if (performance.now() - began > recoveredWithinMs) break
    await sleep(20)
  }
  const ms = performance.now() - began
  const more = handles() - before
  const { status } = await fetchAll(gate.url + gate.paths[0], {}, new Agent())
  const said = gate.errors().trim()
  const broken = [
    ...(open > 0 ? [`${open} connections are left`] : []),
    ...(more > fewHandles ? [`${more} descriptors are left`] : []),
    ...(status === 200 ? [] : [`a hot file is ${status}`]),
    ...(said ? [`it told an error: ${said.slice(0, 300)}`] : []),
  ]
  const left = gate.handles ? 'no connection and no descriptor' : 'no connection'
  return { measured: `${broken.length > 0 ? broken.join(', ') : left} left after ${inMs(ms)}`, broken }
}
