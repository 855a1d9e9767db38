// Limits on the requests of one client, and of all. Requests are counted, not sockets: one socket
// can carry thousands.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Failure } from '../../core/failure.ts'
import { connectionOf } from '../wire/own-server.ts'
import type { RequestHead } from '../wire/request-head.ts'
import { type ClientBudgetOptions, type CostlyKind, createClientBudgets, type Kind, tooMany } from './client-budgets.ts'
import { createLearnedRoom } from './learned-room.ts'

export interface Limits {
  /**
   * Admits a request, or returns the reason against it. It counts until its response is closed.
   * `isAtHand`, called where a late event loop refuses it: the response costs next to nothing, and is
   * let in all the same.
   */
  enter(request: IncomingMessage, response: ServerResponse, isAtHand?: () => boolean): Failure | undefined
  /**
   * Admits a library call. Returns an idempotent release function; throws a Failure if the gateway
   * is full.
   */
  hold(): () => void
  /** True if `enter` would refuse this request, whose response is cheap; charges nothing. */
  wouldRefuse(request: IncomingMessage): boolean
  /**
   * Counts a cached response that is being compressed or waits for its client; call the returned
   * function at its end.
   */
  holdUnread(): () => void
  /**
   * For a cached response: true if this client is over its rate, or too many cached responses are
   * pending. The request then goes through `enter`.
   */
  refuses(request: RequestHead): boolean
  /**
   * Charges a costly operation to the client of an admitted request. Returns a Failure if the
   * client's budget is empty.
   */
  charge(kind: CostlyKind, request: IncomingMessage): Failure | undefined
  readonly inFlight: number
  /** The current concurrency limit: below the configured one while the event loop is late. */
  readonly room: number
  readonly shed: number
  readonly throttled: number
  /** Rate-limited requests by the limit that applied. */
  readonly throttledBy: Readonly<Record<Kind, number>>
  /** True while the shared rate-limit store is unreachable. */
  readonly isAlone: boolean
}

export type LimitOptions = Pick<ClientBudgetOptions, 'perClient' | 'budgets' | 'together' | 'clock'> & {
  readonly inFlight: number
  /** The maximum event-loop delay before fewer requests are admitted; 0 disables it. */
  readonly loopDelay?: number
  /** The client's address, also behind trusted proxies. */
  readonly addressOf?: (request: RequestHead) => string
  /** True while the shared rate-limit store is unreachable. */
  readonly isAlone?: () => boolean
  /** True for a request that no limit of its client refuses. */
  readonly isExempt?: ((request: RequestHead) => boolean) | undefined
  /** True if the connection may carry requests of many clients. */
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
    isExempt = () => false,
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

  // Runs for each cached response.
  const countsRequests = clients.limits('requests')
  const budgetOf = (request: RequestHead) => (countsRequests ? clients.of('requests', addressOf(request)) : undefined)

  const isOver = (request: RequestHead): boolean => {
    const budget = budgetOf(request)
    return budget !== undefined && !budget.take()
  }

  /** Throttling a shared connection would punish other clients of the same proxy. */
  function tellLater(request: IncomingMessage, response: ServerResponse): void {
    if (!isShared(request)) connectionOf(request)?.refused(response)
  }

  /** Returns the limit that is reached; undefined if the request may enter. */
  function lookForRoom(isAtHand?: () => boolean): number | undefined {
    const room = learned.most()
    if (inFlight < room || (inFlight < most && isAtHand?.())) return undefined
    shed++
    return inFlight < most ? room : most
  }

  /** Shared by all clients: a gateway under overload has no time to create an error for each. */
  function refusalFor(room: number): Failure {
    if (refusal?.room !== room) refusal = { room, failure: fullWith(room, most) }
    return refusal.failure
  }

  return {
    hold() {
      const full = lookForRoom()
      // A new error, because the calling program may modify it.
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
    enter(request, response, isAtHand) {
      const full = lookForRoom(isAtHand)
      if (full !== undefined) {
        tellLater(request, response)
        return refusalFor(full)
      }
      const budget = budgetOf(request)
      if (budget && !budget.take() && !isExempt(request)) {
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
