// Bounds the connections of clients, in all and from one address, below the file descriptors of this process: idle ones would
// take them all, and then no file is opened and no client gets in. At a bound the longest idle connection makes room; where
// none is idle, the new one is refused. A connection that was accepted just now is not idle: its first request is on the way.
import { readdirSync, readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { type Clock, systemClock } from '../core/clock.ts'
import { createTurnAway, type TurnAway } from './turn-away.ts'

export type ConnectionLimits = {
  readonly most: number
  readonly perClient: number
  /** Which client a connection is from. Undefined: a proxy of the operator, which brings many. */
  readonly clientOf: (address: string) => string | undefined
}

export interface Connections {
  /** Counts a new connection. False: there is no room for it, and it was answered with a 503. */
  admit(socket: Socket): boolean
  /** Applies from the next connection on. */
  set(limits: ConnectionLimits): void
  readonly size: number
  /** The most there may be. */
  readonly most: number
  /** Idle connections that were ended to make room. */
  readonly ended: number
  readonly refused: number
  /** The same, by the limit that was reached. */
  readonly tally: Readonly<Record<ConnectionLimit, Readonly<ConnectionTally>>>
}

/** As the operator sets them in `limits`. */
export type ConnectionLimit = 'connections' | 'connectionsPerClient'

export type ConnectionTally = { ended: number; refused: number }

type Open = {
  readonly socket: Socket
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

export type ConnectionsOptions = { readonly clock?: Clock; readonly turnAway?: TurnAway }

/** `isBusy`: an answer of this connection is under way. */
export function createConnections(
  first: ConnectionLimits,
  isBusy: (socket: Socket) => boolean,
  { clock = systemClock, turnAway = createTurnAway(clock) }: ConnectionsOptions = {},
): Connections {
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
  const isNew = ({ socket, since }: Open): boolean =>
    socket.bytesWritten === 0 && clock.monotonic() - since < firstRequestMs
  const refuse = (socket: Socket, limit: ConnectionLimit) =>
    turnAway(socket, limit, Math.min(mostTurnedAway, Math.ceil(limits.most / 16)))

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
      if (isBusy(open.socket)) {
        line.delete(open)
        line.add(open)
      } else if (isNew(open)) {
        if (sizeOf(open) > Math.max(sizeOf(comes) + 1, young ? sizeOf(young) : 0)) young = open
      } else if (!idle || sizeOf(open) > sizeOf(idle)) idle = open
    }
    const chosen = idle ?? young
    if (!chosen) return false
    tally[limit].ended++
    forget(chosen)
    // One that was never answered may have asked by now.
    if (chosen.socket.bytesWritten === 0) refuse(chosen.socket, limit)
    else chosen.socket.destroy()
    return true
  }

  /** The limit that leaves no room for one more; undefined: there is room, or was made. */
  function reached(clientSet: Set<Open> | undefined): ConnectionLimit | undefined {
    const comes = { clientSet }
    if (clientSet && clientSet.size >= limits.perClient && !makeRoom(clientSet, 'connectionsPerClient', comes))
      return 'connectionsPerClient'
    return all.size >= limits.most && !makeRoom(all, 'connections', comes) ? 'connections' : undefined
  }

  return {
    tally,
    admit(socket) {
      const client = limits.clientOf(socket.remoteAddress ?? '')
      const clientSet = client === undefined ? undefined : setOf(client)
      const limit = reached(clientSet)
      if (limit) {
        tally[limit].refused++
        if (client !== undefined && clientSet?.size === 0) clients.delete(client)
        refuse(socket, limit)
        return false
      }
      // Its own connection may have made room, and the set of the client been taken out with it.
      const since = clock.monotonic()
      const open: Open = { socket, client, clientSet: client === undefined ? undefined : setOf(client), since }
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
  }
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
