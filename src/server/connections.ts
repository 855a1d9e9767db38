// Limits connections in total and per client, below the file descriptors of this process: otherwise
// idle ones could use them all, and no file could be opened. At a limit the longest idle connection
// is closed; if none is idle, the new one is refused. A newly accepted connection is not idle,
// because its first request is on the way. Pauses connections of clients that ignore `Retry-After`.

import { readdirSync, readFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import type { Config } from '../config/load.ts'
import { type Clock, systemClock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { problemMessage } from '../http/wire/problem.ts'
import { clientOf, createForwarded } from '../http/wire/request.ts'

/** A client's connection. */
export interface Admitted {
  readonly socket: Pick<Socket, 'remoteAddress' | 'once' | 'destroy'>
  /** True while a response is in progress. */
  readonly isBusy: boolean
  /** True after its first response. */
  readonly isAnswered: boolean
  /** Closes with this response. */
  end(answer: string): void
}

export type ConnectionLimits = {
  readonly max: number
  readonly perClient: number
  /** The client of an address; undefined for a trusted proxy, which carries many. */
  readonly clientOf: (address: string) => string | undefined
}

export type Connections = ReturnType<typeof createConnections>

/** Named as in `limits`. */
type ConnectionLimit = 'maxConnections' | 'maxConnectionsPerClient'

type ConnectionTally = { ended: number; refused: number }
type Tally = Readonly<Record<ConnectionLimit, Readonly<ConnectionTally>>>

type Open = {
  readonly connection: Admitted
  readonly client: string | undefined
  readonly clientSet: Set<Open> | undefined
  readonly since: number
}

// The time that a client has to send the first request of a connection, in which it is not idle.
const firstRequestMs = 1000

// Connections examined per new one at a limit. Busy ones move to the end, so that they are not
// examined repeatedly.
const maxExamined = 64

// Refused connections whose clients are still reading: they take descriptors too.
const maxTurnedAway = 64
const turnedAwayMs = 1000

type ConnectionsOptions = {
  readonly clock?: Clock | undefined
  /** Called for each connection that is closed or refused because of a limit. */
  readonly onFull?: (full: { readonly size: number; readonly tally: Tally }) => void
}

export function createConnections(
  first: ConnectionLimits,
  { clock = systemClock, onFull = () => {} }: ConnectionsOptions = {},
) {
  const throttle = createThrottle({ clock })
  const turnedAway = new Set<Admitted>()
  const all = new Set<Open>()
  const clients = new Map<string, Set<Open>>()
  let limits = first
  const tally = { maxConnections: { ended: 0, refused: 0 }, maxConnectionsPerClient: { ended: 0, refused: 0 } }

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

  /**
   * Not closed at once: the request on its way would reset the connection and discard the response.
   */
  function refuse(connection: Admitted, limit: ConnectionLimit): void {
    for (const first of turnedAway) {
      if (turnedAway.size < Math.min(maxTurnedAway, Math.ceil(limits.max / 16))) break
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
    connection.end(problemMessage(503, 'overloaded', detail))
  }

  /**
   * Closes an idle connection: of the client with the most, and of those the oldest. If none is
   * idle, closes a new one of a client that has more than the arriving client: otherwise one client
   * could shut out all others.
   */
  function closeOne(line: Set<Open>, limit: ConnectionLimit, comes: Pick<Open, 'clientSet'>): boolean {
    let idle: Open | undefined
    let young: Open | undefined
    let left = maxExamined
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
    onFull({ size: all.size, tally })
    forget(chosen)
    // A client without a response so far may have sent a request by now.
    if (chosen.connection.isAnswered) chosen.connection.socket.destroy()
    else refuse(chosen.connection, limit)
    return true
  }

  /** The limit that is reached; undefined if there is capacity, or was made. */
  function reached(clientSet: Set<Open> | undefined): ConnectionLimit | undefined {
    const comes = { clientSet }
    if (clientSet && clientSet.size >= limits.perClient && !closeOne(clientSet, 'maxConnectionsPerClient', comes))
      return 'maxConnectionsPerClient'
    return all.size >= limits.max && !closeOne(all, 'maxConnections', comes) ? 'maxConnections' : undefined
  }

  return {
    throttle,
    /** Counts by the limit that was reached. */
    tally: tally as Tally,
    /** Counts a new connection. Returns false if there is no capacity, after sending a 503. */
    admit(connection: Admitted): boolean {
      const { socket } = connection
      const client = limits.clientOf(socket.remoteAddress ?? '')
      const clientSet = client === undefined ? undefined : setOf(client)
      const limit = reached(clientSet)
      if (limit) {
        tally[limit].refused++
        onFull({ size: all.size, tally })
        if (client !== undefined && clientSet?.size === 0) clients.delete(client)
        refuse(connection, limit)
        return false
      }
      // The client's own connection may have been closed, which removes its set.
      const since = clock.monotonic()
      const open: Open = { connection, client, clientSet: client === undefined ? undefined : setOf(client), since }
      all.add(open)
      open.clientSet?.add(open)
      socket.once('close', () => forget(open))
      return true
    },
    /** Applies from the next connection on. */
    set(next: ConnectionLimits): void {
      limits = next
    },
    get size() {
      return all.size
    },
    /** The current maximum. */
    get limit() {
      return limits.max
    },
    /** The number of times that a connection was paused. */
    get paused() {
      return throttle.paused
    },
  }
}

/** Reserves a quarter of the descriptors for files, stores and upstreams. */
export function connectionsWithin(wanted: number, descriptors: number): number {
  return Math.min(wanted, Math.max(1, Math.floor(descriptors * 0.75)))
}

/** The number of files that this process may still open; infinite if the system does not tell. */
export function descriptorsLeft(): number {
  try {
    const limit = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1]
    return limit === undefined ? Number.POSITIVE_INFINITY : Number(limit) - readdirSync('/proc/self/fd').length
  } catch {
    return Number.POSITIVE_INFINITY
  }
}

export function connectionLimits({ limits, trustedProxies }: Config, descriptors: number): ConnectionLimits {
  const max = connectionsWithin(limits.maxConnections, descriptors)
  const { maxConnectionsPerClient: connectionsPerClient } = limits
  const forwarded = createForwarded(trustedProxies)
  return {
    max,
    perClient: connectionsPerClient === 'auto' ? Math.max(1, Math.floor(max / 2)) : connectionsPerClient,
    // An empty address means a unix socket, shared by the proxy's clients, or a closed socket.
    clientOf: (address) => (address === '' || forwarded.isProxy(address) ? undefined : clientOf(address)),
  }
}

const fullLogIntervalMs = 60_000

/** Logs that the limit is reached, rate-limited. */
export function createFullLog(log: Log, clock: Clock): NonNullable<ConnectionsOptions['onFull']> {
  let loggedAt = Number.NEGATIVE_INFINITY
  return ({ size: open, tally }) => {
    if (clock.monotonic() - loggedAt < fullLogIntervalMs) return
    loggedAt = clock.monotonic()
    const all = Object.values(tally)
    const sum = (what: keyof ConnectionTally): number => all.reduce((before, one) => before + one[what], 0)
    log('warn', 'connections.full', { open, ended: sum('ended'), refused: sum('refused') })
  }
}

export type Throttle = ReturnType<typeof createThrottle>

/** A connection; `refusals` belongs to `Throttle`. */
export interface Throttled {
  refusals: Refusals | undefined
  /** Pauses reading until `resume` is called. */
  pause(): void
  resume(): void
}

/** Consecutive refusals. `at`: the time of the last one, or of the last resumption. */
export type Refusals = { count: number; at: number; ordinal: number }

/** A page sends a few requests at once. */
const freeRefusals = 2
const initialPauseMs = 100
/** `Retry-After` is at least one second. */
const maxPauseMs = 1000
/** Jitter, so that clients refused together do not return together. */
const jitter = 0.25
/** The maximum resumed per event-loop iteration, which handles them all before other events. */
const maxResumed = 32

/**
 * Pauses connections whose clients ignore `Retry-After`: on a kept connection such a client would be
 * refused as often as the processor allows, which costs the requests of all others.
 */
export function createThrottle({
  clock,
  random = Math.random,
}: {
  readonly clock: Pick<Clock, 'after' | 'monotonic'>
  readonly random?: () => number
}) {
  let over: Throttled[] = []
  let paused = 0

  function resumeSome(): void {
    const now = over.slice(0, maxResumed)
    over = over.slice(maxResumed)
    if (over.length > 0) setImmediate(resumeSome)
    for (const one of now) {
      if (one.refusals) one.refusals.at = clock.monotonic()
      one.resume()
    }
  }

  return {
    /** The response to the `ordinal`th request of this connection had a Retry-After. */
    refused(throttled: Throttled, ordinal: number): void {
      const at = clock.monotonic()
      const before = throttled.refusals
      const isInARow = before && at - before.at <= maxPauseMs && ordinal <= before.ordinal + 1
      throttled.refusals = { count: isInARow ? before.count + 1 : 1, at, ordinal }
    },
    /** Its response was sent, and the connection goes on. */
    answered(throttled: Throttled): void {
      const { count = 0 } = throttled.refusals ?? {}
      if (count <= freeRefusals) return
      paused++
      throttled.pause()
      const ms =
        Math.min(maxPauseMs, initialPauseMs * 2 ** (count - freeRefusals - 1)) * (1 + jitter * (2 * random() - 1))
      clock.after(ms, () => {
        if (over.length === 0) setImmediate(resumeSome)
        over.push(throttled)
      })
    },
    get paused() {
      return paused
    },
  }
}
