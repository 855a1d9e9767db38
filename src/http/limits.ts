// Limits on the requests of one client, of all, and of all instances. Requests are counted, not
// sockets: one socket can carry thousands.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { LRUCache } from 'lru-cache'
import { upTo } from '../core/cache.ts'
import type { Clock } from '../core/clock.ts'
import type { CounterSync, SharedCounter } from '../core/counting/counter-sync.ts'
import { createTokenBucket, type TokenBucket } from '../core/counting/token-bucket.ts'
import { Failure } from '../core/failure.ts'
import { clientOf, connectionOf, type RequestHead } from './wire/request.ts'

export type Limits = ReturnType<typeof createLimits>

type LimitOptions = {
  readonly perClient: 'none' | PerClient
  /** Token buckets shared with sibling processes. Default: those of this process. */
  readonly budgets?: ((limit: Limit) => (client: string) => TokenBucket) | undefined
  /** Rate limits shared by instances. Default: each instance counts alone. */
  readonly shared?: SharedRateLimits | undefined
  readonly clock: Clock
  readonly inFlight: number
  /** The maximum event-loop delay before fewer requests are admitted; 0 disables it. */
  readonly loopDelay?: number
  /** The client of a request, also behind trusted proxies. */
  readonly clientOf?: (request: RequestHead) => string
  /** True while the shared rate-limit store is unreachable. */
  readonly isStoreDown?: () => boolean
  /** True for a request that no limit of its client refuses. */
  readonly isExempt?: ((request: RequestHead) => boolean) | undefined
  /** True if the connection may carry requests of many clients. */
  readonly isShared?: ((request: IncomingMessage) => boolean) | undefined
}

const peerOf = ({ socket }: RequestHead): string => clientOf(socket.remoteAddress ?? '')

export function createLimits(options: LimitOptions) {
  const {
    inFlight: max,
    loopDelay = 0,
    isShared = () => false,
    isStoreDown = () => false,
    isExempt = () => false,
    clock,
  } = options
  const currentLimit = createAdaptiveConcurrency(max, () => inFlight, loopDelay, clock)
  const bucketOf = createClientBuckets(options)
  let inFlight = 0
  let shed = 0
  const rateLimited: Record<Kind, number> = { requests: 0, misses: 0, exports: 0, uploads: 0 }
  let pending = 0
  let refusal: { readonly limit: number; readonly failure: Failure } | undefined
  const leave = () => {
    inFlight--
  }
  const leavePending = () => {
    inFlight--
    pending--
  }

  /** Throttling a shared connection would punish other clients of the same proxy. */
  function throttleLater(request: IncomingMessage, response: ServerResponse): void {
    if (!isShared(request)) connectionOf(request)?.refused(response)
  }

  /** Returns the limit that is reached; undefined if the request may enter. */
  function reachedLimit(isInMemory?: () => boolean): number | undefined {
    const limit = currentLimit()
    if (inFlight < limit || (inFlight < max && isInMemory?.())) return undefined
    shed++
    return inFlight < max ? limit : max
  }

  /** Shared by all clients: a gateway under overload has no time to create an error for each. */
  function refusalFor(limit: number): Failure {
    if (refusal?.limit !== limit) refusal = { limit, failure: overloaded(limit, max) }
    return refusal.failure
  }

  return {
    /**
     * Admits a library call. Returns an idempotent release function; throws a Failure if the gateway
     * is full.
     */
    hold() {
      const reached = reachedLimit()
      // A new error, because the calling program may modify it.
      if (reached !== undefined) throw overloaded(reached, max)
      inFlight++
      let isHeld = true
      return () => {
        if (isHeld) inFlight--
        isHeld = false
      }
    },
    /** Counts a cached response that waits for its client; call the returned function at its end. */
    holdPending() {
      inFlight++
      pending++
      return leavePending
    },
    /**
     * For a cached response: true if this client is over its rate, or too many cached responses are
     * pending. The request then goes through `enter`.
     */
    refuses: (request: RequestHead): boolean => pending >= max || bucketOf('requests', request)?.take() === false,
    /** True if `enter` would refuse this request, whose response is cheap; charges nothing. */
    wouldRefuse: (request: IncomingMessage): boolean =>
      inFlight >= max || (bucketOf('requests', request)?.waitMs ?? 0) > 0,
    /**
     * Charges a costly operation to the client of an admitted request. Throws a Failure if the
     * client's budget is empty.
     */
    charge(kind: CostlyKind, request: IncomingMessage): void {
      const bucket = bucketOf(kind, request)
      if (!bucket || bucket.take()) return
      rateLimited[kind]++
      throw tooMany(kind, bucket)
    },
    /**
     * Admits a request, or returns the reason against it. It counts until its response is closed.
     * `isInMemory`, called above the adaptive limit: such a response costs next to nothing, and is
     * admitted.
     */
    enter(request: IncomingMessage, response: ServerResponse, isInMemory?: () => boolean): Failure | undefined {
      const reached = reachedLimit(isInMemory)
      if (reached !== undefined) {
        throttleLater(request, response)
        return refusalFor(reached)
      }
      const bucket = bucketOf('requests', request)
      if (bucket && !bucket.take() && !isExempt(request)) {
        rateLimited.requests++
        throttleLater(request, response)
        return tooMany('requests', bucket)
      }
      inFlight++
      response.once('close', leave)
      return undefined
    },
    get inFlight() {
      return inFlight
    },
    /** The current concurrency limit: below the configured one while the event loop is late. */
    get concurrency() {
      return currentLimit()
    },
    get shed() {
      return shed
    },
    /** Rate-limited requests by the limit that applied. */
    rateLimited: rateLimited as Readonly<Record<Kind, number>>,
    /** True while the shared rate-limit store is unreachable. */
    get isStoreDown() {
      return isStoreDown()
    },
  }
}

function overloaded(limit: number, max: number): Failure {
  const why =
    limit < max
      ? `overloaded: the limit is ${limit} concurrent requests while the event loop is late`
      : `too many requests in progress (${max})`
  return new Failure('overloaded', `${why}; retry in a second`, { source: 'ours', retryAfterMs: 1000 })
}

/** `misses`: content that no tier has. `exports`: CAR and tar. */
export type CostlyKind = 'misses' | 'exports' | 'uploads'
export type Kind = 'requests' | CostlyKind

/** Requests per minute. */
type PerClient = {
  readonly perMinute?: number | undefined
  readonly burst?: number | undefined
} & { readonly [Costly in CostlyKind]?: number | undefined }

const maxClients = 100_000

/** Returns the token bucket of a client; undefined if this kind is not limited. */
function createClientBuckets(options: LimitOptions): (kind: Kind, request: RequestHead) => TokenBucket | undefined {
  const { perClient, budgets, shared, clock, clientOf: clientIn = peerOf } = options
  if (perClient === 'none') return () => undefined
  const made = new LRUCache<string, TokenBucket>(upTo(maxClients))
  const limits = limitsOf(perClient)

  function make(limit: Limit, key: string): TokenBucket {
    if (shared) return shared.budget(key, limit)
    return budgets ? budgets(limit)(key) : createTokenBucket({ ...limit, clock })
  }

  return (kind, request) => {
    const limit = limits[kind]
    if (!limit) return undefined
    const client = clientIn(request)
    const key = kind === 'requests' ? client : `${kind} ${client}`
    let budget = made.get(key)
    if (!budget) made.set(key, (budget = make(limit, key)))
    return budget
  }
}

type Limit = { readonly size: number; readonly perSecond: number }

function limitsOf({ perMinute, burst, misses, exports, uploads }: PerClient): { readonly [One in Kind]?: Limit } {
  const limit = (rate: number | undefined, size?: number) =>
    rate === undefined ? undefined : { size: size ?? Math.max(1, Math.ceil(rate / 4)), perSecond: rate / 60 }
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

export const tooMany = (kind: Kind, budget: TokenBucket): Failure =>
  new Failure('throttled', `${words[kind]}; retry later`, { source: 'client', retryAfterMs: budget.waitMs })

/** The minimum of the adaptive limit: so few requests are not what delays the loop. */
export const minConcurrency = 128

const checkIntervalMs = 50
// A single delay may be garbage collection; this many in a row are load.
const lateChecks = 3
const shrink = 0.7
const grow = 1.03

/**
 * A limit on concurrent requests that follows the delay of the event loop. A fixed limit admits more
 * than a slow machine can handle: every request then waits for all others, and none is answered in
 * time. Shrinks quickly and grows slowly, as TCP does (AIMD).
 */
/** `lateMs`: the maximum event-loop delay; 0 disables the limit. */
function createAdaptiveConcurrency(max: number, inFlight: () => number, lateMs: number, clock: Clock): () => number {
  const min = Math.min(max, minConcurrency)
  let limit = max
  let isWatching = false
  let late = 0

  function check(dueAt: number): void {
    if (clock.monotonic() - dueAt >= lateMs) {
      if (++late >= lateChecks) limit = Math.max(min, Math.floor(Math.min(limit, inFlight()) * shrink))
    } else {
      late = 0
      limit = Math.min(max, Math.ceil(limit * grow))
    }
    // The timer stops when there are few requests and the limit is at its maximum.
    if (limit < max || inFlight() >= min) watch()
    else isWatching = false
  }

  function watch(): void {
    isWatching = true
    const dueAt = clock.monotonic() + checkIntervalMs
    clock.after(checkIntervalMs, () => check(dueAt))
  }

  return () => {
    if (!isWatching && lateMs > 0 && inFlight() >= min) {
      late = 0
      watch()
    }
    return limit
  }
}

type SharedRateLimits = ReturnType<typeof createSharedRateLimits>

/** Per window, up to a second of the others' requests may be lost. */
const windowMs = 10_000

/**
 * Rate limits that instances share. Each decides by its own bucket, from which it subtracts what the
 * others counted: no request waits for the store, and without the store each instance limits alone.
 */
export const createSharedRateLimits = ({ counterSync, clock }: { counterSync: CounterSync; clock: Clock }) => ({
  budget(key: string, limit: Limit): TokenBucket {
    const own = createTokenBucket({ ...limit, clock })
    /** The last total, of which the others' part is subtracted already. */
    let before = 0
    let heardAt = Number.NEGATIVE_INFINITY
    const counter: SharedCounter = {
      keptMs: windowMs,
      heard(sent, total) {
        // The counter expired and restarted.
        if (clock.monotonic() - heardAt > windowMs || total < before + sent) before = 0
        const byOthers = total - sent - before
        before = total
        heardAt = clock.monotonic()
        if (byOthers > 0) own.spend(byOthers)
      },
    }
    return {
      ...own,
      take() {
        const isTaken = own.take()
        if (isTaken) counterSync.note(key, 1, counter)
        return isTaken
      },
      get waitMs() {
        return own.waitMs
      },
    }
  },
})
