// Faults of the process itself, for the fault matrix: it is killed, ended, loaded anew, held, blocked, its clock is set, nothing reads its
// log, its heap is small.
import { writeFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import type { GatewayProcess } from '../../../soak/gateway-process.ts'
import { fetchAll } from '../../../support/gateway.ts'
import { inMs } from '../rows.ts'
import type { Outcome } from './ask.ts'
import type { Bend } from './bent.ts'
import type { Outage } from './tally.ts'
import type { InFlightIndex } from './under-way.ts'

/** The gateway that runs now: a fault may end one and start another. */
export type World = {
  gateway: GatewayProcess
  start(): Promise<GatewayProcess>
  /** Where the gateway reads it at its next reload: other upstreams, tiers and rules for uploads, as far as it can tell. */
  writeAnother(): Promise<void>
  /** Requests that have begun; what does not end complete breaks a promise. */
  beginUnderWay(): Promise<InFlightIndex>
  readonly outages: Outage[]
  /** What a fault wants to be told of. */
  readonly notes: string[]
  readonly broken: string[]
  /** What bent.ts reads. */
  readonly bentBy: string
}

export type ProcessFault = {
  readonly name: string
  readonly promised: string
  readonly make: (world: World) => Promise<unknown>
  /** What clients may meet while no gateway runs, and in the moment before that. `later`: a request that was sent after the signal. */
  readonly may: Readonly<Partial<Record<Exclude<Outcome, 'answered'>, true | 'later'>>>
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
    const outage = begin(world)
    world.gateway.signal('SIGKILL')
    await world.gateway.stopping
    await startAgain(world, outage)
  }
}

function begin({ outages }: World): Outage {
  const outage = { from: performance.now(), to: Number.POSITIVE_INFINITY }
  outages.push(outage)
  return outage
}

async function startAgain(world: World, outage: Outage): Promise<void> {
  world.gateway = await world.start()
  outage.to = performance.now()
}

async function stopped(world: World): Promise<void> {
  let worst = 0
  for (let count = 0; count < 3; count++) {
    await sleep(500 + Math.random() * 1000)
    const { gateway } = world
    const inProgress = await world.beginUnderWay()
    const outage = begin(world)
    gateway.signal('SIGTERM')
    const ended = inProgress.goOn()
    const turned = await untilNot(`${gateway.admin}/readyz`, 200)
    if (turned.status !== 503) world.broken.push(`/readyz was ${turned.status} before 503`)
    await gateway.stopping
    if (!gateway.ended?.includes('exit code 0')) world.broken.push(`it ended with ${gateway.ended}`)
    worst = Math.max(worst, performance.now() - outage.from)
    world.broken.push(...(await ended))
    await startAgain(world, outage)
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

const reloads = 15

async function reloaded(world: World): Promise<void> {
  const { gateway } = world
  const inProgress: Promise<readonly string[]>[] = []
  for (let count = 0; count < reloads; count++) {
    const begun = count % 5 === 0 ? await world.beginUnderWay() : undefined
    await world.writeAnother()
    gateway.reload()
    if (begun) inProgress.push(begun.goOn())
    await sleep(200)
  }
  for (const broken of await Promise.all(inProgress)) world.broken.push(...broken)
  const { body } = await fetchAll(`${gateway.admin}/metrics`)
  const taken = /^cidgate_config_reloads_total\{outcome="accepted"\} (\d+)/m.exec(body.toString())?.[1]
  if (Number(taken) !== reloads) world.broken.push(`${taken} configurations were accepted`)
}

const held =
  (ms: number) =>
  async ({ gateway }: World) => {
    gateway.signal('SIGSTOP')
    await sleep(ms)
    gateway.signal('SIGCONT')
    await sleep(1000)
  }

async function bend({ gateway, bentBy }: World, how: Bend): Promise<void> {
  await writeFile(bentBy, JSON.stringify(how))
  gateway.signal('SIGUSR2')
}

const hour = 3_600_000
const year = 365 * 24

/** Each for a second; then it is right again. */
const clockSet =
  (...hours: readonly number[]) =>
  async (world: World) => {
    for (const ahead of [...hours, 0]) {
      await bend(world, { aheadMs: ahead * hour })
      if (!(await isDatedBy(world, ahead * hour))) world.broken.push(`its clock was not set by ${ahead} hours`)
      await sleep(1000)
    }
  }

/** An answer without a block behind it, which has the date of the gateway. */
async function isDatedBy({ gateway }: World, aheadMs: number): Promise<boolean> {
  for (const began = performance.now(); performance.now() - began < 10_000; await sleep(20)) {
    const got = await fetchAll(`${gateway.url}/ipfs/bafkqaaa`).catch(() => undefined)
    const date = Date.parse(String(got?.headers.date))
    if (Math.abs(date - Date.now() - aheadMs) < hour / 2) return true
  }
  return false
}

const blocked = async (world: World) => {
  for (let count = 0; count < 3; count++) {
    await sleep(300)
    await bend(world, { blockMs: 1000 })
    await sleep(1200)
  }
}

export const processFaults: readonly ProcessFault[] = [
  { name: 'nothing, for comparison', promised: 'no answer is cut or refused', make: () => sleep(3000), may: {} },
  {
    name: 'kill -9 five times, at random',
    promised: 'nothing acknowledged is lost',
    make: killed,
    may: { cut: true, reset: true, refused: true },
  },
  {
    name: 'SIGTERM three times, at random',
    promised: '/readyz says 503 first; what is under way, or was sent before the signal, ends complete; exit code 0',
    make: stopped,
    may: { reset: 'later', refused: true },
    limits: { shutdownDelay: '1s' },
  },
  {
    name: 'SIGTERM three times, at random, without a lame duck',
    promised: '/readyz says 503 first; what is under way ends complete; exit code 0',
    make: stopped,
    may: { reset: true, refused: true },
  },
  {
    name: 'another configuration is loaded, fifteen times',
    promised: 'no answer is cut or refused; what is under way ends complete',
    make: reloaded,
    may: {},
  },
  { name: 'held for 5 s (SIGSTOP, SIGCONT)', promised: 'no answer is cut or refused', make: held(5000), may: {} },
  {
    name: 'its event loop is blocked for 1 s, three times',
    promised: 'no answer is cut or refused',
    make: blocked,
    may: {},
  },
  {
    name: 'its clock is set ahead by a year, and back to the right time',
    promised: 'no answer is cut or refused',
    make: clockSet(year),
    may: {},
  },
  {
    name: 'its clock is set back by a year, and to the right time again',
    promised: 'no answer is cut or refused',
    make: clockSet(-year),
    may: {},
  },
  {
    name: 'its clock jumps by an hour, to and fro',
    promised: 'no answer is cut or refused',
    make: clockSet(1, -1, 1, -1),
    may: {},
  },
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
