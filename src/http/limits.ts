// Limits on the requests of one client, of all, and of all instances. Requests are counted, not
// sockets: one socket can carry thousands.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { LRUCache } from 'lru-cache'
import { upTo } from '../core/cache.ts'
import type { Clock } from '../core/clock.ts'
import { type Budget, createBudget, type OwnBudget } from '../core/counting/budget.ts'
import type { Counted, Telling } from '../core/counting/telling.ts'
import { Failure } from '../core/failure.ts'
import { clientOf } from './wire/client.ts'
import { connectionOf, type RequestHead } from './wire/request.ts'

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

/** `misses`: content that no tier has. `exports`: CAR and tar. */
export type CostlyKind = 'misses' | 'exports' | 'uploads'
export type Kind = 'requests' | CostlyKind

/** Requests per minute. */
export type PerClient = {
  readonly perMinute?: number | undefined
  readonly burst?: number | undefined
} & { readonly [Costly in CostlyKind]?: number | undefined }

export interface ClientBudgets {
  /** True if this kind is limited. */
  limits(kind: Kind): boolean
  /** Undefined if this client is not limited. */
  of(kind: Kind, address: string): Budget | undefined
}

export type ClientBudgetOptions = {
  readonly perClient: 'none' | PerClient
  /** Token buckets shared with sibling processes. Default: those of this process. */
  readonly budgets?:
    | ((limit: { readonly size: number; readonly perSecond: number }) => (client: string) => Budget)
    | undefined
  /** Rate limits shared by instances. Default: each instance counts alone. */
  readonly together?: Together | undefined
  readonly clock: Clock
}

const maxClients = 100_000
const none: ClientBudgets = { limits: () => false, of: () => undefined }

function createClientBudgets({ perClient, budgets, together, clock }: ClientBudgetOptions): ClientBudgets {
  if (perClient === 'none') return none
  const made = new LRUCache<string, Budget>(upTo(maxClients))
  const limits = limitsOf(perClient)

  function make(limit: Limit, key: string): Budget {
    if (together) return together.budget(key, limit)
    return budgets ? budgets(limit)(key) : createBudget({ ...limit, clock })
  }

  return {
    limits: (kind) => limits[kind] !== undefined,
    of(kind, address) {
      const limit = limits[kind]
      if (!limit) return undefined
      const client = clientOf(address)
      const key = kind === 'requests' ? client : `${kind} ${client}`
      let budget = made.get(key)
      if (!budget) {
        budget = make(limit, key)
        made.set(key, budget)
      }
      return budget
    },
  }
}

type Limit = { readonly size: number; readonly perSecond: number }

function limitsOf({ perMinute, burst, misses, exports, uploads }: PerClient): { readonly [One in Kind]?: Limit } {
  const limit = (most: number | undefined, size?: number) =>
    most === undefined ? undefined : { size: size ?? Math.max(1, Math.ceil(most / 4)), perSecond: most / 60 }
  const all = {
    requests: limit(perMinute, burst),
    misses: limit(misses),
    exports: limit(exports),
    uploads: limit(uploads),
  }
  return Object.fromEntries(Object.entries(all).filter(([, one]) => one !== undefined))
}

const words: Readonly<Record<Kind, string>> = {
  requests: 'too many requests from this address (rate limit)',
  misses: 'too many requests from this address for content that is not here yet (rate limit)',
  exports: 'too many CAR and tar exports from this address (rate limit)',
  uploads: 'too many uploads from this address (rate limit)',
}

export const tooMany = (kind: Kind, budget: Budget): Failure =>
  new Failure('throttled', `${words[kind]}; retry later`, { source: 'client', retryAfterMs: budget.waitMs })

export interface LearnedRoom {
  /** The current limit of concurrent requests. */
  most(): number
}

export type LearnedRoomOptions = {
  readonly most: number
  /** The number of requests in progress. */
  readonly inFlight: () => number
  /** The maximum event-loop delay; 0 disables the limit. */
  readonly lateMs: number
  readonly clock: Clock
}

/** The minimum of the limit: so few requests are not what delays the loop. */
export const minRoom = 128

const everyMs = 50
// A single delay may be garbage collection; this many in a row are load.
const lateLooks = 3
const shrink = 0.7
const grow = 1.03

function createLearnedRoom({ most, inFlight, lateMs, clock }: LearnedRoomOptions): LearnedRoom {
  const least = Math.min(most, minRoom)
  let room = most
  let isWatched = false
  let late = 0

  function look(dueAt: number): void {
    if (clock.monotonic() - dueAt >= lateMs) {
      if (++late >= lateLooks) room = Math.max(least, Math.floor(Math.min(room, inFlight()) * shrink))
    } else {
      late = 0
      room = Math.min(most, Math.ceil(room * grow))
    }
    // The timer stops when there are few requests and the limit is at its maximum.
    if (room < most || inFlight() >= least) watch()
    else isWatched = false
  }

  function watch(): void {
    isWatched = true
    const dueAt = clock.monotonic() + everyMs
    clock.after(everyMs, () => look(dueAt))
  }

  return {
    most() {
      if (!isWatched && lateMs > 0 && inFlight() >= least) {
        late = 0
        watch()
      }
      return room
    },
  }
}

export interface Together {
  budget(key: string, limit: { readonly size: number; readonly perSecond: number }): Budget
}

/** Per window, up to a second of the others' requests may be lost. */
const windowMs = 10_000
const maxShared = 100_000

export function createTogether({ telling, clock }: { telling: Telling; clock: Clock }): Together {
  /**
   * The last known total of each client: without it, requests that were subtracted before would be
   * subtracted again.
   */
  const counts = new LRUCache<string, Counted & { readonly at: number }>(upTo(maxShared))

  function countOf(key: string, budget: OwnBudget): Counted {
    const known = counts.get(key)
    if (known && clock.monotonic() - known.at <= windowMs) return known
    const count = createCount(budget, clock)
    counts.set(key, count)
    return count
  }

  return {
    budget(key, limit) {
      const own = createBudget({ ...limit, clock })
      return {
        ...own,
        take() {
          const isTaken = own.take()
          if (isTaken) telling.note(key, 1, countOf(key, own))
          return isTaken
        },
        get waitMs() {
          return own.waitMs
        },
      }
    },
  }
}

function createCount(budget: OwnBudget, clock: Clock): Counted & { readonly at: number } {
  let before = 0
  let at = clock.monotonic()
  return {
    keptMs: windowMs,
    /** The time of the last update. */
    get at() {
      return at
    },
    heard(told, total) {
      // A smaller total means that the counter expired and restarted.
      const byOthers = total - told - (total >= before + told ? before : 0)
      before = total
      at = clock.monotonic()
      if (byOthers > 0) budget.spend(byOthers)
    },
  }
}
