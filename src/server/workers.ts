// The processes of a gateway: the owner starts the workers that the newest configuration requires; a
// worker serves the listening sockets that the owner shares, and each serves an internal socket for
// requests forwarded by the others. Supervision and messages: team/workers.ts; the choice of the
// process for a request: `createOwnerForwarder` of wiring/public.ts; shared counts and indexes:
// team/shared-files.ts; a worker's gateway, and its share of the limits: wiring/worker.ts.
import type { ChildProcess } from 'node:child_process'
import { rmSync } from 'node:fs'
import type { RequestListener } from 'node:http'
import { Server as NetServer } from 'node:net'
import { type Config, configOf, inputOf } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { fromInternalSocket } from '../team/forward-request.ts'
import { inPlace, removeOtherPlaces, socketPathOf } from '../team/shared-files.ts'
import type { OwnerTeam, WorkerTeam } from '../team/team.ts'
import {
  createWorkerSupervisor,
  type Orders,
  shutdownDelayMs,
  type WorkerClient,
  type WorkerSupervisor,
} from '../team/workers.ts'
import { noteConnections } from '../wiring/admin.ts'
import { processesOf } from '../wiring/worker.ts'
import { connectionLimits, createConnections, createFullLog, descriptorsLeft } from './connections.ts'
import { Front, type Served } from './front.ts'
import { createReload, type Replaceable, whileBusy } from './serve.ts'

export type Processes = ReturnType<typeof createProcesses>

type ProcessesOptions = {
  readonly clock: Clock
  readonly log: Log
  /** Starts a process of this program that waits for its orders. */
  readonly start: () => ChildProcess
}

type FollowedGateway = { readonly config: Config; readonly listen: Front; readonly handler: RequestListener }

type Group = {
  readonly data: string
  readonly folder: string
  readonly supervisor: WorkerSupervisor
  socket: Front | undefined
}

/** The margin above the timeout of the gateway itself. */
const timeoutMarginMs = 2000

export function createProcesses({ clock, log, start }: ProcessesOptions) {
  let group: Group | undefined
  let next: Group | undefined
  /** Workers of data folders that are no longer used. */
  const ending = new Set<Promise<void>>()
  let deadlineMs = 0

  function begin(data: string, size: number): Group {
    const firstByteTimeoutMs = () => deadlineMs + timeoutMarginMs
    const { folder, made } = inPlace(data, (at) =>
      createWorkerSupervisor({ folder: at, clock, log, start, size, firstByteTimeoutMs }),
    )
    return { data, folder, supervisor: made, socket: undefined }
  }

  function end(old: Group, graceMs: number): void {
    const ended = old.supervisor.stop(graceMs, shutdownDelayMs).then(() => leave(old))
    ending.add(ended)
    void ended.finally(() => ending.delete(ended))
  }

  function leave({ supervisor, socket, folder }: Group): void {
    supervisor.close()
    void socket?.close()
    socket?.destroy()
    rmSync(folder, { recursive: true, force: true })
  }

  return {
    /** The team for a gateway of this configuration; undefined if it always was a single process. */
    teamFor(config: Config): OwnerTeam | undefined {
      deadlineMs = Math.max(deadlineMs, config.retrieval.timeout)
      const size = processesOf(config)
      if (group?.data === config.data) next = group
      else next = size === 1 ? undefined : begin(config.data, size)
      return next?.supervisor.team
    },
    /** Reverts the last `teamFor`, because its gateway could not be created. */
    abandon(): void {
      if (next && next !== group) leave(next)
      next = group
    },
    /** Adjusts the workers to the configuration of the running gateway. */
    async follow({ config, listen, handler }: FollowedGateway): Promise<void> {
      const old = group
      group = next
      if (old && old !== group) end(old, config.limits.shutdownTimeout)
      if (!group) return
      // This process owns the data folder now, so folders in it are stale.
      if (!group.socket) removeOtherPlaces(group.data, group.folder)
      group.socket ??= await openInternalSocket(socketPathOf(group.folder, 0), handler)
      const graceMs = config.limits.shutdownTimeout
      await group.supervisor.set({ size: processesOf(config), input: inputOf(config), listen: listen.servers, graceMs })
    },
    /** The number of connections above this process's share. */
    beyondShare: (open: number): number =>
      group?.supervisor.team.connectionBalance.beyondShare(open, group.supervisor.team.size) ?? 0,
    /** `shutdownDelayMs`: the time in which clients receive `Connection: close` with their responses. */
    async stop(graceMs: number, shutdownDelayMs: number): Promise<void> {
      await Promise.all([group?.supervisor.stop(graceMs, shutdownDelayMs), ...ending])
    },
    close(): void {
      // From a reload that the shutdown overtook.
      if (next && next !== group) leave(next)
      if (group) leave(group)
      group = undefined
    },
  }
}

/** Headers with which a sibling process describes the client. */
const peerBytes = 2048
const headersMs = 60_000

async function openInternalSocket(path: string, handler: RequestListener): Promise<Front> {
  // A stale file of a killed process; nobody else uses this folder.
  rmSync(path, { force: true })
  const socket = new Front(fromInternalSocket(handler), { moreHeaderBytes: peerBytes })
  // The other process closes idle connections.
  socket.setTimeouts({ headersTimeout: headersMs, keepAliveTimeout: 0 })
  await socket.listen((server, backlog) => server.listen({ path, backlog }))
  return socket
}

type ServeWorkerOptions<Running extends Replaceable> = {
  readonly member: WorkerClient
  readonly create: (
    config: Config,
    options: { readonly previous?: Running | undefined; readonly team: WorkerTeam },
  ) => Promise<Running>
  readonly log: Log
  readonly clock: Clock
}

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
  const served: Served = {}
  const gateways = createReload(await create(config, { team }), log, served)
  const descriptors = descriptorsLeft()
  const onFull = createFullLog(log, clock)
  const connections = createConnections(connectionLimits(config, descriptors), { clock, onFull })
  if (gateways.current.kept) noteConnections(gateways.current.kept, connections)
  /** The newest front, and earlier ones whose clients are still reading. */
  const fronts: Front[] = []
  const over = Promise.withResolvers<void>()

  function open(): Front {
    const front = new Front(gateways.handler, {
      ...{ served, connections, clock },
      beyondShare: () => team.connectionBalance.beyondShare(connections.size, team.size),
    })
    front.setTimeouts(config.limits)
    return front
  }

  function leave(front: Front): void {
    void front.close().then(() => fronts.splice(fronts.indexOf(front), 1))
  }

  member.follow('listen', (body, handle) => {
    const { isFirst, isUnix } = body as { readonly isFirst: boolean; readonly isUnix: boolean }
    if (!(handle instanceof NetServer)) return
    if (served.isEnding) return void handle.close()
    if (isFirst) {
      for (const old of [...fronts]) leave(old)
      fronts.push(open())
    }
    fronts.at(-1)?.share(handle, isUnix)
  })
  member.follow('reload', async (body) => {
    const { input, size } = body as Pick<Orders, 'input' | 'size'>
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
  member.follow('stop', async (body) => {
    const { graceMs, shutdownDelayMs } = body as { readonly graceMs: number; readonly shutdownDelayMs: number }
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
