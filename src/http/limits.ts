// How much one client, and all of them, may ask at once. Requests are counted, not sockets: one socket can bring thousands.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { LRUCache } from 'lru-cache'
import { type Budget, createBudget } from '../core/budget.ts'
import type { Clock } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import { upTo } from '../core/lru.ts'
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
  readonly inFlight: number
  /** The most that may be in progress now: fewer than the operator said while the event loop is late. */
  readonly room: number
  readonly shed: number
  readonly throttled: number
  /** How often a connection was not read for a while, because its client heeded no `Retry-After`. */
  readonly held: number
}

export type LimitOptions = {
  readonly inFlight: number
  /** How late the event loop may be before fewer requests are let in. 0: as late as it likes. */
  readonly loopDelay?: number
  readonly perClient: 'none' | { readonly perMinute: number; readonly burst?: number | undefined }
  /** The client's address, also behind the operator's own proxies. */
  readonly addressOf?: (request: IncomingMessage) => string
  /** Budgets that other processes of this gateway count on, too. Absent: those of this one. */
  readonly budgets?:
    | ((limit: { readonly size: number; readonly perSecond: number }) => (client: string) => Budget)
    | undefined
  /** Whether the connection of a request may bring those of many clients. */
  readonly isShared?: ((request: IncomingMessage) => boolean) | undefined
  readonly clock: Clock
}

const socketAddress = ({ socket }: IncomingMessage): string => socket.remoteAddress ?? ''

const mostClients = 100_000

export function createLimits(options: LimitOptions): Limits {
  const {
    inFlight: most,
    loopDelay = 0,
    perClient,
    addressOf = socketAddress,
    budgets,
    isShared = () => false,
    clock,
  } = options
  const learned = createLearnedRoom({ most, inFlight: () => inFlight, lateMs: loopDelay, clock })
  const heedless = createHeedless({ clock, isShared })
  const clients = perClient === 'none' ? undefined : new LRUCache<string, Budget>(upTo(mostClients))
  let inFlight = 0
  let shed = 0
  let throttled = 0
  let unread = 0
  let refusal: { readonly room: number; readonly failure: Failure } | undefined
  const leave = () => {
    inFlight--
  }
  const leaveUnread = () => {
    inFlight--
    unread--
  }

  function budgetOf(address: string): Budget | undefined {
    if (!clients || perClient === 'none') return undefined
    const key = clientOf(address)
    let budget = clients.get(key)
    if (!budget) {
      const { perMinute, burst: size = Math.max(1, Math.ceil(perMinute / 4)) } = perClient
      const perSecond = perMinute / 60
      budget = budgets ? budgets({ size, perSecond })(key) : createBudget({ size, perSecond, clock })
      clients.set(key, budget)
    }
    return budget
  }

  const isOver = (request: IncomingMessage): boolean => {
    const budget = clients && budgetOf(addressOf(request))
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
    refuses: (request) => unread >= most || (clients !== undefined && isOver(request)),
    wouldRefuse: (request) =>
      inFlight >= most || (clients !== undefined && (budgetOf(addressOf(request))?.waitMs ?? 0) > 0),
    enter(request, response, atHand) {
      const full = lookForRoom(atHand)
      if (full !== undefined) {
        heedless.refused(request, response)
        return refusalFor(full)
      }
      const budget = clients && budgetOf(addressOf(request))
      if (budget && !budget.take()) {
        throttled++
        heedless.refused(request, response)
        return new Failure('throttled', 'too many requests from this address (rate limit); retry later', {
          source: 'client',
          retryAfterMs: budget.waitMs,
        })
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
      return throttled
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

/** An IPv4 address, or the /64 of an IPv6 one, since a client usually has all of it. */
export function clientOf(address: string): string {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1]
  if (mapped || !address.includes(':')) return mapped ?? address
  const [head = '', tail] = address.split('%')[0]?.split('::') ?? []
  const groups = head.split(':').filter(Boolean)
  if (tail === undefined) return groups.slice(0, 4).join(':')
  const behind = tail.split(':').filter(Boolean)
  const whole = [
    ...groups,
    ...Array.from({ length: Math.max(0, 8 - groups.length - behind.length) }, () => '0'),
    ...behind,
  ]
  return whole.slice(0, 4).join(':')
}
