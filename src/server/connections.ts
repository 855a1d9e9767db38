// Bounds the connections of clients, in all and from one address, below the file descriptors of this process: idle ones would
// take them all, and then no file is opened and no client gets in. At a bound the longest idle connection makes room; where
// none is idle, the new one is refused.
import { readFileSync } from 'node:fs'
import type { Socket } from 'node:net'

export type ConnectionLimits = {
  readonly most: number
  readonly perClient: number
  /** Which client a connection is from. Undefined: a proxy of the operator, which brings many. */
  readonly clientOf: (address: string) => string | undefined
}

export interface Connections {
  /** Counts a new connection. False: there is no room for it. */
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

type Open = { readonly socket: Socket; readonly client: string | undefined; readonly clientSet: Set<Open> | undefined }

// Looked at for each new connection at a bound. Busy ones go to the end of the line, so that they are not looked at again
// and again.
const looks = 64

/** `isBusy`: an answer of this connection is under way. */
export function createConnections(first: ConnectionLimits, isBusy: (socket: Socket) => boolean): Connections {
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

  /** Ends an idle connection of the line: of the client that has most, and of those the oldest. */
  function makeRoom(line: Set<Open>, counts: ConnectionTally): boolean {
    let chosen: Open | undefined
    let left = looks
    for (const open of line) {
      if (left-- === 0) break
      if (isBusy(open.socket)) {
        line.delete(open)
        line.add(open)
      } else if (!chosen || (open.clientSet?.size ?? 0) > (chosen.clientSet?.size ?? 0)) chosen = open
    }
    if (!chosen) return false
    counts.ended++
    forget(chosen)
    chosen.socket.destroy()
    return true
  }

  /** The limit that leaves no room for one more; undefined: there is room, or was made. */
  function reached(clientSet: Set<Open> | undefined): ConnectionLimit | undefined {
    if (clientSet && clientSet.size >= limits.perClient && !makeRoom(clientSet, tally.connectionsPerClient))
      return 'connectionsPerClient'
    return all.size >= limits.most && !makeRoom(all, tally.connections) ? 'connections' : undefined
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
        return false
      }
      // Its own connection may have made room, and the set of the client been taken out with it.
      const open: Open = { socket, client, clientSet: client === undefined ? undefined : setOf(client) }
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

/** A quarter of the descriptors is left to files, stores and upstreams. Where the system does not tell, `wanted` holds. */
export function connectionsWithin(wanted: number, descriptors = mostDescriptors()): number {
  return Math.min(wanted, Math.max(1, Math.floor(descriptors * 0.75)))
}

function mostDescriptors(): number {
  try {
    return (
      Number(/^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1] ?? Number.NaN) || Infinity
    )
  } catch {
    return Number.POSITIVE_INFINITY
  }
}
