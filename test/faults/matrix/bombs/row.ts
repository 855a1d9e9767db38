// A row of the table of bombs: the gateway as users start it, its upstream in another process, and a client that asks for a hot file all the
// time. Linux alone: it reads /proc.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Worker } from 'node:worker_threads'
import { type GatewayProcess, startGateway } from '../../../soak/gateway-process.ts'
import { fetchAll, percentile } from '../../../support/gateway.ts'
import type { HotTold } from '../clients/hot-client.ts'
import { residentUntil } from '../clients/row.ts'
import { type Cell, inMs, type Row } from '../rows.ts'
import type { Bomb } from './bombs.ts'
import { type Turns, turnsTo } from './turns.ts'
import type { World } from './world.ts'

// A hot answer waits for the rest of one turn, and walks have 5 ms of each. The rest of these bounds is for two processors on which the
// gateway, its upstream and its clients want more than there is. What the gateway itself does at a stretch is held by processor time, of
// which others take nothing.
const [maxHotMs, longestHotMs, maxWorkMs, maxResidentMiB] = [50, 150, 50, 512]

const preload = fileURLToPath(new URL('turns.ts', import.meta.url))

export async function bombRow(bomb: Bomb): Promise<Row> {
  const { name, content, promised, attack, warm, responses, hotMs = maxHotMs, workMs = maxWorkMs } = bomb
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-faults-'))
  const world = fork(fileURLToPath(new URL('world.ts', import.meta.url)), [content])
  let gateway: GatewayProcess | undefined
  try {
    const ended = once(world, 'exit').then(([code]) => Promise.reject(new Error(`the upstream ended with ${code}`)))
    const [{ url: upstream, hot, roots }] = (await Promise.race([once(world, 'message'), ended])) as [World]
    ended.catch(() => {})
    const turnsFile = join(folder, 'turns.json')
    gateway = await startGateway(
      folder,
      {
        listen: '127.0.0.1:0',
        admin: false,
        data: join(folder, 'data'),
        log: { level: 'error' },
        retrieval: { upstreams: [{ name: 'well', url: upstream }] },
        ...(responses && { responses }),
      },
      ['--import', preload],
      { isLaunched: true, env: { [turnsTo]: turnsFile } },
    )
    const { url } = gateway
    const hotUrl = `${url}/ipfs/${hot}`
    for (let count = 0; count < 20; count++) await fetchAll(hotUrl)
    if (warm !== undefined) await fetchAll(`${url}/ipfs/${roots[0]}${warm}`)
    const hotClient = new Worker(new URL('../clients/hot-client.ts', import.meta.url), { workerData: hotUrl })
    await once(hotClient, 'message')
    const before = gateway.residentMiB()
    await turnsOf(gateway, turnsFile)
    const answering = attack({ url, roots })
    const resident = await residentUntil(gateway, answering)
    const answered = await answering
    const turns = resident === undefined ? undefined : await turnsOf(gateway, turnsFile)
    hotClient.postMessage('over')
    const [told] = (await once(hotClient, 'message')) as [HotTold]
    return {
      fault: name,
      promised: `${promised === '' ? '' : `${promised}; `}no turn with more than ${inMs(workMs)} of work; hot answers: p99 below ${inMs(hotMs)}, all below ${inMs(longestHotMs)}; at most ${maxResidentMiB} MiB resident`,
      cells: [answered, turnCell(turns, workMs), hotCell(told, hotMs), residentCell(before, resident, gateway.ended)],
    }
  } finally {
    await gateway?.stop()
    if (world.connected) world.disconnect()
    await rm(folder, { recursive: true, force: true, maxRetries: 20 })
  }
}

/** Since it was asked for the last time. */
async function turnsOf(gateway: GatewayProcess, file: string): Promise<Turns> {
  await rm(file, { force: true })
  gateway.signal('SIGUSR2')
  for (;;) {
    const told = await readFile(file, 'utf8').catch(() => undefined)
    if (told !== undefined) return JSON.parse(told) as Turns
    if (gateway.ended !== undefined) throw new Error(`the gateway ended: ${gateway.ended}`)
    await sleep(5)
  }
}

function turnCell(turns: Turns | undefined, workMs: number): Cell {
  if (!turns) return { measured: '', broken: [] }
  const { longestMs, maxWorkMs: work } = turns
  return {
    measured: `${inMs(longestMs)}, at most ${inMs(work)} of work`,
    broken: work > workMs ? [`a turn of ${inMs(work)} of work`] : [],
  }
}

function hotCell({ times, refused }: HotTold, hotMs: number): Cell {
  const [p99, worst] = [percentile(times, 0.99), percentile(times, 1)]
  return {
    measured: `${times.length}: p99 ${inMs(p99)}, longest ${inMs(worst)}`,
    broken: [
      ...(p99 > hotMs ? [`hot answers wait ${inMs(p99)}`] : []),
      ...(worst > longestHotMs ? [`a hot answer waited ${inMs(worst)}`] : []),
      ...(refused > 0 ? [`${refused} hot requests were refused`] : []),
    ],
  }
}

function residentCell(before: number, most: number | undefined, ended: string | undefined): Cell {
  if (most === undefined) return { measured: 'the process ended', broken: [`the process ended: ${ended}`] }
  return {
    measured: `${Math.round(before)}, then at most ${Math.round(most)} MiB`,
    broken: most > maxResidentMiB ? [`${Math.round(most)} MiB resident`] : [],
  }
}
