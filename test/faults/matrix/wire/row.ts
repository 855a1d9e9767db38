// Rows of the fault matrix: what comes over a socket that no usual client sends, with what the gateway is to do about it, and what other
// clients feel of it.
import { setTimeout as sleep } from 'node:timers/promises'
import { type Cell, type Form, full, inMs, type Row } from '../rows.ts'
import type { WireFault } from './faults.ts'
import { afterCell, besideCell, clockMs, connectionsOf, inUnits, type Semaphore, slackMs, withGate } from './gate.ts'
import { type Told, type Visit, visit } from './visit.ts'

/** Of another address than those beside it. */
export const attacker = '127.0.0.2'
/** So many come at once: more would wait for the system, and not for the gateway. */
const atOnce = 200
/** Of the clients beside it, which are there all the time. */
const others = 2

export const wireRow = (fault: WireFault): Promise<Row> =>
  withGate(
    { headersTimeout: inUnits(clockMs), keepAliveTimeout: inUnits(clockMs), writeTimeout: inUnits(clockMs) },
    (gate) => wireRowAt(gate, fault, full),
  )

export async function wireRowAt(gate: Semaphore, fault: WireFault, form: Form): Promise<Row> {
  const { right, clock, alsoUploads } = fault
  const before = gate.handles?.() ?? 0
  const attack = attackBy(fault, gate)
  const beside = besideCell(gate, attack, form, alsoUploads)
  const { told, heldMs } = await attack
  const within = clock ? `, by \`${clock}\` within ${inMs(clockMs + slackMs)}` : ''
  const also = alsoUploads ? ', nor an upload' : ''
  const most = Number.isFinite(form.maxMs) ? ` within ${inMs(form.maxMs)}` : ''
  return {
    fault: fault.name,
    promised: `${right.join(' or ')}${within}; hot answers${most}, and none refused${also}`,
    cells: [answeredCell(fault, told, heldMs), await beside, await afterCell(gate, before, form)],
  }
}

type Attacked = {
  readonly told: readonly Told[] /** How long the gateway held the last of them. */
  readonly heldMs: number
}

async function attackBy({ says, sockets = 1, how, clock }: WireFault, gate: Semaphore): Promise<Attacked> {
  const port = Number(new URL(gate.url).port)
  const staysMs = clockMs + slackMs
  const from = sockets > 1 ? attacker : undefined
  const visits = await crowd(sockets, () => visit({ port, said: says(...gate.paths), how, staysMs, from }))
  const heldMs = clock ? await heldFor(gate, visits) : 0
  return { told: await Promise.all(visits.map(({ over }) => over)), heldMs }
}

export async function crowd(sockets: number, come: () => Visit): Promise<Visit[]> {
  const visits: Visit[] = []
  while (visits.length < sockets) {
    const next = Array.from({ length: Math.min(atOnce, sockets - visits.length) }, come)
    visits.push(...next)
    if (visits.length < sockets) await Promise.all(next.map(({ ready, over }) => Promise.race([ready, over])))
  }
  return visits
}

/** By its own count: a client that does not read is not told that it was cut off. */
async function heldFor(gate: Semaphore, visits: readonly Visit[]): Promise<number> {
  const began = performance.now()
  const past = () => performance.now() - began
  const held = () => connectionsOf(gate)
  while ((await held()) <= others && visits.some(({ told }) => told === undefined)) await sleep(10)
  while (past() < clockMs + slackMs && (await held()) > others) await sleep(50)
  return past()
}

function answeredCell({ right, clock }: WireFault, told: readonly Told[], heldMs: number): Cell {
  const outcomes = [...new Set(told.map(({ outcome }) => outcome))]
  const wrong = outcomes.filter((outcome) => !right.includes(outcome))
  const soonest = Math.min(...told.map(({ ms }) => ms))
  const broken = [
    ...wrong.map(
      (outcome) => `${told.filter((one) => one.outcome === outcome).length} of ${told.length} are ${outcome}`,
    ),
    ...(clock && soonest < 0.9 * clockMs ? [`one is ended after ${inMs(soonest)}`] : []),
    ...(clock && heldMs >= clockMs + slackMs ? [`some are held for ${inMs(heldMs)}`] : []),
  ]
  const measured = `${outcomes.join(', ')}${clock ? `, none is held after ${inMs(heldMs)}` : ''}`
  return { measured: broken.length > 0 ? `${measured}; ${broken.join(', ')}` : measured, broken }
}
