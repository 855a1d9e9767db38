// Rows of the fault matrix: more idle connections of one address than it may have. The longest idle ones of that address make room, and
// nobody else's: no clock of the gateway is near.
import { Agent } from 'node:http'
import { fetchAll } from '../../../support/gateway.ts'
import { type Cell, full, inMs, type Row } from '../rows.ts'
import { afterCell, besideCell, connectionsOf, inUnits, metric, type Semaphore, withGate } from './gate.ts'
import { attacker, crowd } from './row.ts'
import { type Visit, visit } from './visit.ts'

export type IdleCrowd = { readonly name: string; readonly sockets: number; readonly bystanders: number }

export const idleCrowds: readonly IdleCrowd[] = [
  { name: '5,000 idle connections of one address, with 100 of another', sockets: 5000, bystanders: 100 },
]

const bystander = '127.0.0.3'
const newcomer = '127.0.0.4'
const longMs = 120_000
/** They come in such groups, and in no order within one. */
const groups = 400

export const idleCrowdRow = (fault: IdleCrowd): Promise<Row> =>
  withGate({ headersTimeout: inUnits(longMs), keepAliveTimeout: inUnits(longMs) }, (gate) => rowAt(gate, fault))

async function rowAt(gate: Semaphore, { name, sockets, bystanders }: IdleCrowd): Promise<Row> {
  const before = gate.handles?.() ?? 0
  const port = Number(new URL(gate.url).port)
  const complete = `GET ${gate.paths[0]} HTTP/1.1\r\nHost: gate.example\r\n\r\n`
  const idle = (from: string) => () => visit({ port, said: { complete }, how: 'idles', staysMs: longMs, from })
  const waiting = await crowd(bystanders, idle(bystander))
  await Promise.all(waiting.map(({ ready }) => ready))
  const attack = attackAndNewcomers()
  const beside = besideCell(gate, attack, full)
  const answered = await attack
  return {
    fault: name,
    promised: `what is beyond half of \`limits.maxConnections\` is closed, the longest idle ones first, and none of another address; who comes is answered; hot answers within ${inMs(full.maxMs)}, and none refused`,
    cells: [answered, await beside, await afterCell(gate, before, full)],
  }

  async function attackAndNewcomers(): Promise<Cell> {
    const most = Math.floor((await metric(gate, 'cidgate_connections_limit')) / 2)
    const visits = await crowd(sockets, idle(attacker))
    await Promise.all(visits.map(({ ready }) => ready))
    // The closing of the last ones is told here after the answers of those for which they made room.
    const open = await connectionsOf(gate)
    const statuses = await Promise.all([attacker, newcomer].map((from) => statusFor(from)))
    const closed = visits.filter(isClosed)
    const others = waiting.filter(isClosed).length
    const wrong = [...closedOutOfTurn(visits, sockets - most), ...leftOutOfTurn(visits, sockets - most)]
    const refused = statuses.filter((status) => status !== 200)
    for (const one of [...visits, ...waiting]) one.leave()
    const broken = [
      ...(Math.abs(closed.length - (sockets - most)) > 1
        ? [`${closed.length} are closed, and not ${sockets - most}`]
        : []),
      ...(wrong.length > 0 ? [`${wrong.length} are closed or left out of their turn`] : []),
      ...(others > 0 ? [`${others} of another address are closed`] : []),
      ...refused.map((status) => `a newcomer is ${status}`),
    ]
    const measured = `${closed.length} are closed, ${others} of another address; ${open} open; newcomers: ${statuses.join(', ')}`
    return { measured, broken }
  }

  function statusFor(from: string): Promise<number | 'refused'> {
    const agent = new Agent({ localAddress: from } as object)
    return fetchAll(gate.url + gate.paths[0], {}, agent).then(
      ({ status }) => status,
      () => 'refused' as const,
    )
  }
}

const isClosed = ({ told }: Visit): boolean => told?.outcome === 'closed'

const closedOutOfTurn = (visits: readonly Visit[], count: number): Visit[] =>
  visits.slice(count + groups).filter(isClosed)
const leftOutOfTurn = (visits: readonly Visit[], count: number): Visit[] =>
  visits.slice(0, Math.max(0, count - groups)).filter((one) => !isClosed(one))
