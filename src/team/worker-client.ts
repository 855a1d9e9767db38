// The worker's side of the team: messages from and to the owner.
import type { Clock } from '../core/clock.ts'
import { createChannel, createHeartbeat, type Line, type Listen } from './channel.ts'
import { createForwarder } from './forward-request.ts'
import { openShared, socketPathOf } from './shared-folder.ts'
import type { WorkerTeam } from './team.ts'
import type { Orders } from './worker-supervisor.ts'

export interface WorkerClient {
  /** Resolves with the first orders. */
  readonly orders: Promise<Orders>
  /** Joins the team, once the orders have arrived. */
  join(orders: Orders, firstByteTimeoutMs: () => number): { readonly team: WorkerTeam; setSize(size: number): void }
  /** Handles orders. Orders that arrive before `begun` are queued. */
  follow(topic: 'listen' | 'reload' | 'stop', how: Listen): void
  /** Reports that the gateway runs, and handles queued orders. */
  begun(): void
  /** Reports that the orders could not be followed. */
  failed(error: unknown): void
}

export function createWorkerClient(line: Line, clock: Clock): WorkerClient {
  const channel = createChannel(line, clock)
  const orders = Promise.withResolvers<Orders>()
  const ready = Promise.withResolvers<void>()
  ready.promise.catch(() => {})
  channel.on('begin', (said) => {
    orders.resolve(said as Orders)
    return ready.promise
  })

  const listeners = new Map<string, Listen>()
  for (const topic of ['listen', 'reload', 'stop', 'deny', 'purge'] as const)
    channel.on(topic, (said, handle) => ready.promise.then(() => listeners.get(topic)?.(said, handle)))

  return {
    orders: orders.promise,
    follow: (topic, how) => void listeners.set(topic, how),
    begun: () => ready.resolve(),
    failed: (error) => ready.reject(error),
    join({ index, size: first, folder, denied }, firstByteTimeoutMs) {
      const shared = openShared(folder, { index, isNew: false })
      const toOthers = createForwarder(firstByteTimeoutMs)
      const toOwner = createForwarder()
      createHeartbeat(channel, clock, () => toOwner.giveUp('no heartbeat of the owner'))
      let size = first
      const team: WorkerTeam = {
        index,
        get size() {
          return size
        },
        ...shared.team,
        forward: (request, response, to, otherwise) => toOthers(request, response, socketPathOf(folder, to), otherwise),
        toOwner: (request, response, otherwise) => toOwner(request, response, socketPathOf(folder, 0), otherwise),
        on: (topic, heard) => void listeners.set(topic, heard),
        send: channel.send,
        ask: channel.ask,
        denied,
      }
      return {
        team,
        setSize(next) {
          size = next
        },
      }
    },
  }
}
