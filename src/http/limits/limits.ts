// How much one client, and all of them, may ask at once. Requests are counted, not sockets: one socket can bring thousands.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Failure } from '../../core/failure.ts'
import { type ClientBudgetOptions, type CostlyKind, createClientBudgets, type Kind, tooMany } from './client-budgets.ts'
import { createHeedless } from './heedless.ts'
import { createLearnedRoom } from './learned-room.ts'

export interface Limits {
  /** Lets a request in, or says why not. It is counted until its response is closed. `atHand`: its answer costs next to
   * nothing, so that a late event loop is no reason to refuse it. */
  enter(request: IncomingMessage, response: ServerResponse, atHand?: boolean): Failure | undefined
  /** Lets in what the program itself asks, which is no client, or throws a Failure. What it gives ends it, once. */
  hold(): () => void
  /** Whether `enter` would refuse this one, whose answer is at hand; takes nothing from the client's budget. */
  wouldRefuse(request: IncomingMessage): boolean
  /** For the fast path: counts an answer that is being compressed, or that its client has not read, until it is closed. */
  holdUnread(response: ServerResponse): void
  /** For the fast path: whether this client is over its rate, or too many hot answers were not
   * read. If so, the request goes through `enter`. */
  refuses(request: IncomingMessage): boolean
  /** Counts what costs more than other requests, for the client of this one, which is let in already, or says why it may not. */
  charge(kind: CostlyKind, request: IncomingMessage): Failure | undefined
  readonly inFlight: number
  /** The most that may be in progress now: fewer than the operator said while the event loop is late. */
  readonly room: number
  readonly shed: number
  readonly throttled: number
  /** The same, by what the client had too much of. */
  readonly throttledBy: Readonly<Record<Kind, number>>
  /** Other instances are to count the same clients, and cannot be told. */
  readonly isAlone: boolean
  /** How often a connection was not read for a while, because its client heeded no `Retry-After`. */
  readonly held: number
}

export type LimitOptions = Pick<ClientBudgetOptions, 'perClient' | 'budgets' | 'together' | 'clock'> & {
  readonly inFlight: number
  /** How late the event loop may be before fewer requests are let in. 0: as late as it likes. */
  readonly loopDelay?: number
  /** The client's address, also behind the operator's own proxies. */
  readonly addressOf?: (request: IncomingMessage) => string
  /** Whether other instances are to count the same clients, and cannot be told. */
  readonly isAlone?: () => boolean
  /** Whether the connection of a request may bring those of many clients. */
  readonly isShared?: ((request: IncomingMessage) => boolean) | undefined
}

const socketAddress = ({ socket }: IncomingMessage): string => socket.remoteAddress ?? ''

export function createLimits(options: LimitOptions): Limits {
  const {
    inFlight: most,
    loopDelay = 0,
    addressOf = socketAddress,
    isShared = () => false,
    isAlone = () => false,
    clock,
  } = options
  const learned = createLearnedRoom({ most, inFlight: () => inFlight, lateMs: loopDelay, clock })
  const heedless = createHeedless({ clock, isShared })
  const clients = createClientBudgets(options)
  let inFlight = 0
  let shed = 0
  const throttledBy: Record<Kind, number> = { requests: 0, misses: 0, exports: 0, uploads: 0 }
  let unread = 0
  let refusal: { readonly room: number; readonly failure: Failure } | undefined
  const leave = () => {
    inFlight--
  }
  const leaveUnread = () => {
    inFlight--
    unread--
  }

  // Each hot answer comes by here.
  const countsRequests = clients.limits('requests')
  const budgetOf = (request: IncomingMessage) =>
    countsRequests ? clients.of('requests', addressOf(request)) : undefined

  const isOver = (request: IncomingMessage): boolean => {
    const budget = budgetOf(request)
    return budget !== undefined && !budget.take()
  }

  /** The room that is full. */
  function lookForRoom(atHand = false): number | undefined {
    const room = atHand ? most : learned.most()
    if (inFlight < room) return undefined
    shed++
    return room
  }

  /** The same one for all clients: a gateway that refuses much has no time to make an error for each. */
  function refusalFor(room: number): Failure {
    if (refusal?.room !== room) refusal = { room, failure: fullWith(room, most) }
    return refusal.failure
  }

  return {
    hold() {
      const full = lookForRoom()
      // A program may write into what it is handed.
      if (full !== undefined) throw fullWith(full, most)
      inFlight++
      let isHeld = true
      return () => {
        if (isHeld) inFlight--
        isHeld = false
      }
    },
    holdUnread(response) {
      inFlight++
      unread++
      response.once('close', leaveUnread)
    },
    refuses: (request) => unread >= most || isOver(request),
    wouldRefuse: (request) => inFlight >= most || (budgetOf(request)?.waitMs ?? 0) > 0,
    charge(kind, request) {
      const budget = clients.limits(kind) ? clients.of(kind, addressOf(request)) : undefined
      if (!budget || budget.take()) return undefined
      throttledBy[kind]++
      return tooMany(kind, budget)
    },
    enter(request, response, atHand) {
      const full = lookForRoom(atHand)
      if (full !== undefined) {
        heedless.refused(request, response)
        return refusalFor(full)
      }
      const budget = budgetOf(request)
      if (budget && !budget.take()) {
        throttledBy.requests++
        heedless.refused(request, response)
        return tooMany('requests', budget)
      }
      inFlight++
      response.once('close', leave)
      return undefined
    },
    get inFlight() {
      return inFlight
    },
    get room() {
      return learned.most()
    },
    get shed() {
      return shed
    },
    get throttled() {
      return Object.values(throttledBy).reduce((sum, count) => sum + count, 0)
    },
    throttledBy,
    get isAlone() {
      return isAlone()
    },
    get held() {
      return heedless.held
    },
  }
}

function fullWith(room: number, most: number): Failure {
  const why =
    room < most ? `this gateway keeps up with ${room} requests at a time` : `too many requests in progress (${most})`
  return new Failure('overloaded', `${why}; retry in a second`, { source: 'ours', retryAfterMs: 1000 })
}
