// The server of a worker: serves the listening sockets that the owner shares, and an internal
// socket for requests forwarded by siblings. The owner controls it.
import { Server as NetServer } from 'node:net'
import { type Config, configOf } from '../../config/load.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { socketPathOf } from '../../team/shared-folder.ts'
import type { WorkerTeam } from '../../team/team.ts'
import type { WorkerClient } from '../../team/worker-client.ts'
import type { Orders } from '../../team/worker-supervisor.ts'
import { noteConnections } from '../../wiring/admin.ts'
import { connectionLimits, createConnections, createFullLog, descriptorsLeft } from '../connections.ts'
import { createFront, type Front, type Served } from '../front.ts'
import { createReload, type Replaceable, whileBusy } from '../serve.ts'
import { openInternalSocket } from './processes.ts'

type ServeWorkerOptions<Running extends Replaceable> = {
  readonly member: WorkerClient
  readonly create: (
    config: Config,
    options: { readonly previous?: Running | undefined; readonly team: WorkerTeam },
  ) => Promise<Running>
  readonly log: Log
  readonly clock: Clock
}

const timeoutMarginMs = 2000

/** Resolves when the owner has ordered it to end, and all requests are answered. */
export async function serveWorker<Running extends Replaceable>({
  member,
  create,
  log,
  clock,
}: ServeWorkerOptions<Running>): Promise<void> {
  const orders = await member.orders
  let config = configOf(orders.input)
  const { team, setSize } = member.join(orders, () => config.retrieval.timeout + timeoutMarginMs)
  const gateways = createReload(await create(config, { team }), log)
  const descriptors = descriptorsLeft()
  const onFull = createFullLog(log, clock)
  const connections = createConnections(connectionLimits(config, descriptors), { clock, onFull })
  if (gateways.current.kept) noteConnections(gateways.current.kept, connections)
  const served: Served = { hot: gateways.current.hot }
  /** The newest front, and earlier ones whose clients are still reading. */
  const fronts: Front[] = []
  const over = Promise.withResolvers<void>()

  function open(): Front {
    const front = createFront(gateways.handler, {
      ...{ served, connections, clock },
      tunnels: (host) => gateways.current.serves(host),
      onRefused: (refusal) => gateways.current.refused?.(refusal),
      beyondShare: () => team.connectionBalance.beyondShare(connections.size, team.size),
    })
    front.setTimeouts(config.limits)
    return front
  }

  function leave(front: Front): void {
    void front.close().then(() => fronts.splice(fronts.indexOf(front), 1))
  }

  member.follow('listen', (said, handle) => {
    const { isFirst, isUnix } = said as { readonly isFirst: boolean; readonly isUnix: boolean }
    if (!(handle instanceof NetServer)) return
    if (served.isEnding) return void handle.close()
    if (isFirst) {
      for (const old of [...fronts]) leave(old)
      fronts.push(open())
    }
    fronts.at(-1)?.share(handle, isUnix)
  })
  member.follow('reload', async (said) => {
    const { input, size } = said as Pick<Orders, 'input' | 'size'>
    const next = configOf(input)
    setSize(size)
    const isNew = await gateways.replace(
      () => create(next, { previous: gateways.current, team }),
      config.limits.shutdownTimeout,
    )
    if (!isNew) throw new Error('the configuration could not be followed; the log has the reasons')
    config = next
    connections.set(connectionLimits(next, descriptors))
    for (const front of fronts) front.setTimeouts(next.limits)
  })
  member.follow('stop', async (said) => {
    const { graceMs, shutdownDelayMs } = said as { readonly graceMs: number; readonly shutdownDelayMs: number }
    served.isEnding = true
    for (const front of fronts) front.stopAccepting()
    if (shutdownDelayMs > 0) await clock.sleep(shutdownDelayMs)
    const closed = fronts.map((front) => front.close())
    const until = clock.monotonic() + graceMs
    await gateways.close(graceMs)
    await whileBusy(fronts, until, clock)
    for (const front of fronts) front.destroy()
    await Promise.all(closed)
    over.resolve()
  })

  await openInternalSocket(socketPathOf(orders.folder, orders.index), gateways.handler)
  member.begun()
  await over.promise
}
