// A worker as a server: it answers on the listening sockets that the owner shares with it, and at a door of its own for what the
// other processes hand on. What it does and when it ends, the owner says.
import type { RequestListener, Server } from 'node:http'
import { Server as NetServer } from 'node:net'
import { type Config, configOf } from '../../config/load.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { ParserRefusal } from '../../http/wire/refusal.ts'
import type { CrewMember } from '../../team/crew-member.ts'
import { doorOf } from '../../team/shared/place.ts'
import type { WorkerTeam } from '../../team/team.ts'
import type { Orders } from '../../team/worker-process.ts'
import { noteConnections } from '../../wiring/admin.ts'
import { connectionLimits, tellFull } from '../connection-limits.ts'
import { createConnections, descriptorsLeft } from '../connections.ts'
import { createReload, type Replaceable } from '../generations.ts'
import { createHttpServer, isAnswering } from '../http-server.ts'
import { openDoor } from './door.ts'
import { createLettingGo } from './letting-go.ts'
import { type Shared, shareListening } from './share-listening.ts'

export type ServeWorkerOptions<Running extends Replaceable> = {
  readonly member: CrewMember
  readonly create: (
    config: Config,
    options: { readonly previous?: Running | undefined; readonly team: WorkerTeam },
  ) => Promise<Running>
  readonly log: Log
  readonly clock: Clock
}

const patienceBeyondMs = 2000
const idleLookMs = 50

/** Resolves when the owner has told it to end, and all is answered. */
export async function serveWorker<Running extends Replaceable>({
  member,
  create,
  log,
  clock,
}: ServeWorkerOptions<Running>): Promise<void> {
  const orders = await member.orders
  let config = configOf(orders.input)
  const { team, setSize } = member.join(orders, () => config.retrieval.deadline + patienceBeyondMs)
  const gateways = createReload(await create(config, { team }), log)
  const descriptors = descriptorsLeft()
  const connections = createConnections(connectionLimits(config, descriptors), isAnswering, { clock })
  if (gateways.current.kept) noteConnections(gateways.current.kept, connections)
  const lettingGo = createLettingGo(clock, () => team.crowd.beyondShare(connections.size, team.size))
  let closing = false
  const front: RequestListener = (request, response) => {
    if (closing || lettingGo.next()) response.shouldKeepAlive = false
    gateways.handler(request, response)
  }
  const sockets: Shared[] = []
  /** Those that a reload left. */
  const left: Shared[] = []
  const over = Promise.withResolvers<void>()

  function open(): Server {
    const server = createHttpServer(front, {
      tunnels: (host) => gateways.current.serves(host),
      connections: tellFull(connections, log, clock),
      onRefused: (refusal: ParserRefusal) => gateways.current.refused?.(refusal),
    })
    server.headersTimeout = config.limits.headers
    server.keepAliveTimeout = config.limits.keepAlive
    return server
  }

  member.follow('listen', (said, handle) => {
    const { isFirst, isUnix } = said as { readonly isFirst: boolean; readonly isUnix: boolean }
    if (!(handle instanceof NetServer)) return
    if (closing) return void handle.close()
    if (isFirst)
      for (const old of sockets.splice(0)) {
        old.close()
        left.push(old)
      }
    sockets.push(shareListening(handle, open(), isUnix))
  })
  member.follow('reload', async (said) => {
    const { input, size } = said as Pick<Orders, 'input' | 'size'>
    const next = configOf(input)
    setSize(size)
    const isNew = await gateways.replace(() => create(next, { previous: gateways.current, team }), config.limits.grace)
    if (!isNew) throw new Error('the configuration could not be followed; the log has the reasons')
    config = next
    connections.set(connectionLimits(next, descriptors))
    for (const { server } of sockets) {
      server.headersTimeout = next.limits.headers
      server.keepAliveTimeout = next.limits.keepAlive
    }
  })
  member.follow('stop', async (said) => {
    const { graceMs, lameMs } = said as { readonly graceMs: number; readonly lameMs: number }
    closing = true
    const ending = sockets.splice(0)
    for (const one of ending) one.stopAccepting()
    if (lameMs > 0) await clock.sleep(lameMs)
    for (const one of ending) one.close()
    // A connection whose answer was under way may be kept by its client: it is closed when it is idle.
    const closed = gateways.close(graceMs).then(() => (isClosed = true))
    let isClosed = false
    while (!isClosed) {
      for (const { server } of [...ending, ...left]) server.closeIdleConnections()
      await Promise.race([closed, clock.sleep(idleLookMs)])
    }
    for (const { server } of [...ending, ...left]) server.closeAllConnections()
    over.resolve()
  })

  await openDoor(doorOf(orders.folder, orders.index), gateways.handler)
  member.begun()
  await over.promise
}
