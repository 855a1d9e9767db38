// The connection limits of a configuration, and the log line while they are reached.
import type { Config } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { createForwarded } from '../http/hosts/forwarded.ts'
import { clientOf } from '../http/limits/client.ts'
import { type ConnectionLimits, type Connections, connectionsWithin } from './connections.ts'

export function connectionLimits({ limits, trustedProxies }: Config, descriptors: number): ConnectionLimits {
  const most = connectionsWithin(limits.maxConnections, descriptors)
  const { maxConnectionsPerClient: connectionsPerClient } = limits
  const forwarded = createForwarded(trustedProxies)
  return {
    most,
    perClient: connectionsPerClient === 'auto' ? Math.max(1, Math.floor(most / 2)) : connectionsPerClient,
    // An empty address means a unix socket, shared by the proxy's clients, or a closed socket.
    clientOf: (address) => (address === '' || forwarded.isProxy(address) ? undefined : clientOf(address)),
  }
}

const tellFullEveryMs = 60_000

/** Logs that the limit is reached, rate-limited. */
export function createTellFull(log: Log, clock: Clock): (connections: Connections) => void {
  let toldAt = Number.NEGATIVE_INFINITY
  return ({ size: open, ended, refused }) => {
    if (clock.monotonic() - toldAt < tellFullEveryMs) return
    toldAt = clock.monotonic()
    log('warn', 'connections.full', { open, ended, refused })
  }
}
