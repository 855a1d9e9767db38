// Manages the worker processes that the newest configuration requires.
import type { ChildProcess } from 'node:child_process'
import { rmSync } from 'node:fs'
import type { RequestListener } from 'node:http'
import { type Config, inputOf } from '../../config/load.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import { fromInternalSocket } from '../../team/forward-request.ts'
import { inPlace, removeOtherPlaces, socketPathOf } from '../../team/shared-folder.ts'
import type { OwnerTeam } from '../../team/team.ts'
import { createWorkerSupervisor, shutdownDelayMs, type WorkerSupervisor } from '../../team/worker-supervisor.ts'
import { processesOf } from '../../wiring/worker.ts'
import { createFront, type Front } from '../front.ts'

export interface Processes {
  /** The team for a gateway of this configuration; undefined if it always was a single process. */
  teamFor(config: Config): OwnerTeam | undefined
  /** Reverts the last `teamFor`, because its gateway could not be created. */
  abandon(): void
  /** Adjusts the workers to the configuration of the running gateway. */
  follow(gateway: { readonly config: Config; readonly listen: Front; readonly handler: RequestListener }): Promise<void>
  /** The number of connections above this process's share. */
  beyondShare(open: number): number
  /** `shutdownDelayMs`: the time in which clients receive `Connection: close` with their responses. */
  stop(graceMs: number, shutdownDelayMs: number): Promise<void>
  close(): void
}

type ProcessesOptions = {
  readonly clock: Clock
  readonly log: Log
  /** Starts a process of this program that waits for its orders. */
  readonly start: () => ChildProcess
}

type Group = {
  readonly data: string
  readonly folder: string
  readonly supervisor: WorkerSupervisor
  socket: Front | undefined
}

/** The margin above the timeout of the gateway itself. */
const timeoutMarginMs = 2000

export function createProcesses({ clock, log, start }: ProcessesOptions): Processes {
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
    teamFor(config) {
      deadlineMs = Math.max(deadlineMs, config.retrieval.timeout)
      const size = processesOf(config)
      if (group?.data === config.data) next = group
      else next = size === 1 ? undefined : begin(config.data, size)
      return next?.supervisor.team
    },
    abandon() {
      if (next && next !== group) leave(next)
      next = group
    },
    async follow({ config, listen, handler }) {
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
    beyondShare: (open) => group?.supervisor.team.connectionBalance.beyondShare(open, group.supervisor.team.size) ?? 0,
    async stop(graceMs, shutdownDelayMs) {
      await Promise.all([group?.supervisor.stop(graceMs, shutdownDelayMs), ...ending])
    },
    close() {
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

export async function openInternalSocket(path: string, handler: RequestListener): Promise<Front> {
  // A stale file of a killed process; nobody else uses this folder.
  rmSync(path, { force: true })
  const socket = createFront(fromInternalSocket(handler), { moreHeaderBytes: peerBytes })
  // The other process closes idle connections.
  socket.setTimeouts({ headersTimeout: headersMs, keepAliveTimeout: 0 })
  await socket.listen((server, backlog) => server.listen({ path, backlog }))
  return socket
}
