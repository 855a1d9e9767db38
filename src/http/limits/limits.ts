// How much one client, and all of them, may ask at once. Requests are counted, not sockets: one socket can bring thousands.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Failure } from '../../core/failure.ts'
import { connectionOf } from '../wire/own-server.ts'
import type { RequestHead } from '../wire/request-head.ts'
import { type ClientBudgetOptions, type CostlyKind, createClientBudgets, type Kind, tooMany } from './client-budgets.ts'
import { createLearnedRoom } from './learned-room.ts'

export interface Limits {
  /** Lets a request in, or says why not. It is counted until its response is closed. `atHand`: its answer costs next to
   * nothing, so that a late event loop is no reason to refuse it. */
  enter(request: IncomingMessage, response: ServerResponse, atHand?: boolean): Failure | undefined
  /** Lets in what the program itself asks, which is no client, or throws a Failure. What it gives ends it, once. */
  hold(): () => void
  /** Whether `enter` would refuse this one, whose answer is at hand; takes nothing from the client's budget. */
  wouldRefuse(request: IncomingMessage): boolean
  /** Counts a hot answer that is being compressed, or that its client has not read, until what it gives is called. */
  holdUnread(): () => void
  /** For a hot answer: whether this client is over its rate, or too many hot answers were not
   * read. If so, the request goes through `enter`. */
  refuses(request: RequestHead): boolean
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
}

export type LimitOptions = Pick<ClientBudgetOptions, 'perClient' | 'budgets' | 'together' | 'clock'> & {
  readonly inFlight: number
  /** How late the event loop may be before fewer requests are let in. 0: as late as it likes. */
  readonly loopDelay?: number
  /** The client's address, also behind the operator's own proxies. */
  readonly addressOf?: (request: RequestHead) => string
  /** Whether other instances are to count the same clients, and cannot be told. */
  readonly isAlone?: () => boolean
  /** Whether the connection of a request may bring those of many clients. */
  readonly isShared?: ((request: IncomingMessage) => boolean) | undefined
}

const socketAddress = ({ socket }: RequestHead): string => socket.remoteAddress ?? ''

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
  const budgetOf = (request: RequestHead) => (countsRequests ? clients.of('requests', addressOf(request)) : undefined)

  const isOver = (request: RequestHead): boolean => {
    const budget = budgetOf(request)
    return budget !== undefined && !budget.take()
  }

  /** One client is not to wait for another one of its proxy. */
  function tellLater(request: IncomingMessage, response: ServerResponse): void {
    if (!isShared(request)) connectionOf(request)?.refused(response)
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
    holdUnread() {
      inFlight++
      unread++
      return leaveUnread
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
        tellLater(request, response)
        return refusalFor(full)
      }
      const budget = budgetOf(request)
      if (budget && !budget.take()) {
        throttledBy.requests++
        tellLater(request, response)
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
  }
}

function fullWith(room: number, most: number): Failure {
  const why =
    room < most ? `this gateway keeps up with ${room} requests at a time` : `too many requests in progress (${most})`
  return new Failure('overloaded', `${why}; retry in a second`, { source: 'ours', retryAfterMs: 1000 })
}
