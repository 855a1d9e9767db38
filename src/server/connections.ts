// Bounds the connections of clients, in all and from one address, below the file descriptors of this process: idle ones would
// take them all, and then no file is opened and no client gets in. At a bound the longest idle connection makes room; where
// none is idle, the new one is refused. A connection that was accepted just now is not idle: its first request is on the way.
import { randomUUID } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { type Clock, systemClock } from '../core/clock.ts'
import { problemText } from './problem-text.ts'
import { createThrottle, type Throttle } from './throttle.ts'

/** A connection of a client. */
export interface Admitted {
  readonly socket: Pick<Socket, 'remoteAddress' | 'once' | 'destroy'>
  /** An answer is under way. */
  readonly isBusy: boolean
  /** It was answered before. */
  readonly isAnswered: boolean
  /** Ends it with this answer. */
  end(answer: string): void
}

export type ConnectionLimits = {
  readonly most: number
  readonly perClient: number
  /** Which client a connection is from. Undefined: a proxy of the operator, which brings many. */
  readonly clientOf: (address: string) => string | undefined
}

export interface Connections {
  readonly throttle: Throttle
  /** Counts a new connection. False: there is no room for it, and it was answered with a 503. */
  admit(connection: Admitted): boolean
  /** Applies from the next connection on. */
  set(limits: ConnectionLimits): void
  readonly size: number
  /** The most there may be. */
  readonly most: number
  /** Idle connections that were ended to make room. */
  readonly ended: number
  readonly refused: number
  /** How often a connection was not read for a while. */
  readonly held: number
  /** The same, by the limit that was reached. */
  readonly tally: Readonly<Record<ConnectionLimit, Readonly<ConnectionTally>>>
}

/** As the operator sets them in `limits`. */
export type ConnectionLimit = 'connections' | 'connectionsPerClient'

export type ConnectionTally = { ended: number; refused: number }

type Open = {
  readonly connection: Admitted
  readonly client: string | undefined
  readonly clientSet: Set<Open> | undefined
  readonly since: number
}

// So long the first request of a connection is waited for: the time that a client needs to send it.
const firstRequestMs = 1000

// Looked at for each new connection at a bound. Busy ones go to the end of the line, so that they are not looked at again
// and again.
const looks = 64

// Connections that were refused and whose clients still read that: they take descriptors, too.
const mostTurnedAway = 64
const turnedAwayMs = 1000

export type ConnectionsOptions = {
  readonly clock?: Clock | undefined
  /** Called for each connection that is ended or refused for a limit. */
  readonly onFull?: (connections: Connections) => void
}

export function createConnections(
  first: ConnectionLimits,
  { clock = systemClock, onFull = () => {} }: ConnectionsOptions = {},
): Connections {
  const throttle = createThrottle({ clock })
  const turnedAway = new Set<Admitted>()
  const all = new Set<Open>()
  const clients = new Map<string, Set<Open>>()
  let limits = first
  const tally = { connections: { ended: 0, refused: 0 }, connectionsPerClient: { ended: 0, refused: 0 } }
  const inAll = (what: keyof ConnectionTally) => tally.connections[what] + tally.connectionsPerClient[what]

  function setOf(client: string): Set<Open> {
    let set = clients.get(client)
    if (!set) clients.set(client, (set = new Set()))
    return set
  }

  function forget(open: Open): void {
    all.delete(open)
    if (!open.clientSet?.delete(open)) return
    if (open.clientSet.size === 0 && open.client !== undefined) clients.delete(open.client)
  }

  const sizeOf = ({ clientSet }: Pick<Open, 'clientSet'>): number => clientSet?.size ?? 0
  const isNew = ({ connection, since }: Open): boolean =>
    !connection.isAnswered && clock.monotonic() - since < firstRequestMs

  /** Closed at once, it would be reset by the request that is on its way, and the answer would be gone with it. */
  function refuse(connection: Admitted, limit: ConnectionLimit): void {
    for (const first of turnedAway) {
      if (turnedAway.size < Math.min(mostTurnedAway, Math.ceil(limits.most / 16))) break
      turnedAway.delete(first)
      first.socket.destroy()
    }
    turnedAway.add(connection)
    const stop = clock.after(turnedAwayMs, () => connection.socket.destroy())
    connection.socket.once('close', () => {
      turnedAway.delete(connection)
      stop()
    })
    const detail = `too many connections (limits.${limit}); retry in a second`
    connection.end(problemText(503, { kind: 'overloaded', detail, requestId: randomUUID() }, [['Retry-After', '1']]))
  }

  /**
   * Ends a connection of the line: of the idle ones that of the client that has most, and of those the oldest. Where none is idle, a
   * new one of a client that has more than the client that comes: else one client would shut out all others.
   */
  function makeRoom(line: Set<Open>, limit: ConnectionLimit, comes: Pick<Open, 'clientSet'>): boolean {
    let idle: Open | undefined
    let young: Open | undefined
    let left = looks
    for (const open of line) {
      if (left-- === 0) break
      if (open.connection.isBusy) {
        line.delete(open)
        line.add(open)
      } else if (isNew(open)) {
        if (sizeOf(open) > Math.max(sizeOf(comes) + 1, young ? sizeOf(young) : 0)) young = open
      } else if (!idle || sizeOf(open) > sizeOf(idle)) idle = open
    }
    const chosen = idle ?? young
    if (!chosen) return false
    tally[limit].ended++
    onFull(connections)
    forget(chosen)
    // One that was never answered may have asked by now.
    if (chosen.connection.isAnswered) chosen.connection.socket.destroy()
    else refuse(chosen.connection, limit)
    return true
  }

  /** The limit that leaves no room for one more; undefined: there is room, or was made. */
  function reached(clientSet: Set<Open> | undefined): ConnectionLimit | undefined {
    const comes = { clientSet }
    if (clientSet && clientSet.size >= limits.perClient && !makeRoom(clientSet, 'connectionsPerClient', comes))
      return 'connectionsPerClient'
    return all.size >= limits.most && !makeRoom(all, 'connections', comes) ? 'connections' : undefined
  }

  const connections: Connections = {
    throttle,
    tally,
    admit(connection) {
      const { socket } = connection
      const client = limits.clientOf(socket.remoteAddress ?? '')
      const clientSet = client === undefined ? undefined : setOf(client)
      const limit = reached(clientSet)
      if (limit) {
        tally[limit].refused++
        onFull(connections)
        if (client !== undefined && clientSet?.size === 0) clients.delete(client)
        refuse(connection, limit)
        return false
      }
      // Its own connection may have made room, and the set of the client been taken out with it.
      const since = clock.monotonic()
      const open: Open = { connection, client, clientSet: client === undefined ? undefined : setOf(client), since }
      all.add(open)
      open.clientSet?.add(open)
      socket.once('close', () => forget(open))
      return true
    },
    set(next) {
      limits = next
    },
    get size() {
      return all.size
    },
    get most() {
      return limits.most
    },
    get ended() {
      return inAll('ended')
    },
    get refused() {
      return inAll('refused')
    },
    get held() {
      return throttle.held
    },
  }
  return connections
}

/** A quarter of the descriptors is left to files, stores and upstreams. */
export function connectionsWithin(wanted: number, descriptors: number): number {
  return Math.min(wanted, Math.max(1, Math.floor(descriptors * 0.75)))
}

/** The files that this process may open beyond those that it has open. Infinite where the system does not tell. */
export function descriptorsLeft(): number {
  try {
    const most = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1]
    return most === undefined ? Number.POSITIVE_INFINITY : Number(most) - readdirSync('/proc/self/fd').length
  } catch {
    return Number.POSITIVE_INFINITY
  }
}
