// The status of a running gateway: the response of GET /status, which the dashboard shows and
// programs read. Imports nothing that needs Node, so that the scripts of the page can be checked
// against it. Times are milliseconds since the epoch.

import type { Placed } from '../../observe/block-locations.ts'
import type { Attempt, FailedRequest } from '../../observe/requests.ts'
import type { ProviderState } from '../../upload/api-types.ts'

/** Milliseconds; undefined if nothing was measured. */
export type Times = { readonly p50Ms?: number; readonly p95Ms?: number }

export type Status = {
  readonly version: string
  readonly startedAt: number
  readonly ready: boolean
  readonly draining: boolean
  /** True if uploads can be confirmed; undefined if not yet known. */
  readonly uploads?: boolean | undefined
  /** Limits of uploads at this address (POST /add); undefined if it accepts none. */
  readonly takes?: { readonly maxBytes: number } | undefined
  readonly checks: readonly Check[]
  /** The current faults, worst first. */
  readonly alerts: readonly Alert[]
  /**
   * Set if several processes are configured. The following figures of tiers and upstreams are those
   * of the first process.
   */
  readonly processes?: Processes | undefined
  readonly requests: Requests
  /** The last ten minutes, oldest first. */
  readonly history: readonly HistorySpan[]
  readonly upstreams: readonly Upstream[]
  /** Gateways that routers named; each is called `<host> via <router>`. */
  readonly found: readonly Upstream[]
  readonly routers: readonly Router[]
  /** Undefined if this gateway announces nothing. */
  readonly announced?: Announced | undefined
  readonly tiers: readonly Tier[]
  readonly responses: { readonly bytes: number; readonly limitBytes: number; readonly items: number }
  readonly providers: readonly Provider[]
  readonly pending: PendingUploads
  /** As of the last count; undefined in thin mode. */
  readonly pins?: { readonly pins: number | undefined; readonly bytes: number | undefined } | undefined
  readonly disk?: { readonly freeBytes: number; readonly bytes: number } | undefined
  /** Newest first. */
  readonly failures: readonly FailedRequest[]
}

/** `part`: the section of the dashboard with details. `next`: the operator's next step. */
export type Alert = {
  readonly severity: 'bad' | 'warn'
  readonly part: string
  readonly what: string
  readonly next: string
}

export type Check = { readonly name: string; readonly ok: boolean; readonly why?: string; readonly ms?: number }

export type Processes = { readonly wanted: number; readonly answering: number; readonly restarts: number }

export type Requests = {
  readonly total: number
  readonly inProgress: number
  /** Refused because limits.maxConcurrentRequests, or limits.perClient, was reached. */
  readonly shed: number
  readonly rateLimited: number
  /** `2xx`, `4xx` … */
  readonly byStatus: Readonly<Record<string, number>>
  /** Successful responses by source: `responses` (the cache), a tier, `upstream`, or `none`. */
  readonly bySource: Readonly<Record<string, number>>
  readonly bytesOut: number
  readonly bytesIn: number
}

export type HistorySpan = Times & {
  readonly at: number
  readonly seconds: number
  readonly requests: number
  readonly refused: number
  readonly failed: number
  /** Successful content responses; `hits`: without an upstream. */
  readonly content: number
  readonly hits: number
}

export type Router = {
  readonly name: string
  readonly lookups: number
  /** Lookups that named a usable gateway. */
  readonly named: number
  readonly failures: number
  readonly lastFailure?: string | undefined
  /** The backoff after a failure. */
  readonly backoffMs: number
}

export type Announced = {
  readonly peerId: string
  readonly head?: string | undefined
  readonly advertisements: number
  readonly contexts: number
  readonly roots: number
  readonly lastError?: string | undefined
  readonly indexers: readonly Indexer[]
}

export type Indexer = {
  readonly name: string
  readonly announced?: string | undefined
  readonly announcedAt?: number | undefined
  readonly confirmed?: string | undefined
  readonly confirmedAt?: number | undefined
  /** The time for which it has not accepted the newest advertisement. */
  readonly lagMs: number
  readonly lastError?: string | undefined
}

export type Upstream = {
  readonly name: string
  /** `ready`, `rate-limited`, `unhealthy`, `quarantined`, `incompatible` or `budget-exhausted`. */
  readonly state: string
  /** The reason if it is not ready. */
  readonly why?: string | undefined
  /** The time when that may end. */
  readonly until?: number | undefined
  readonly asked: number
  readonly won: number
  readonly lost: number
  readonly notFound: number
  readonly throttled: number
  readonly failed: number
  readonly hashMismatch: number
  readonly pending: number
  readonly bytes: number
  /** Time to the first verified bytes of its recent responses. */
  readonly firstByte: Times
  /** Its request budget per minute, and the used part. */
  readonly budget?: { readonly perMinute: number; readonly used: number } | undefined
  readonly lastError?: { readonly at: number; readonly why: string } | undefined
}

export type Tier = {
  readonly name: string
  readonly bytes?: number | undefined
  readonly limitBytes?: number | undefined
  readonly blocks?: number | undefined
  readonly hits: number
  readonly misses: number
  readonly outages: number
  /** Blocks in its write queue. */
  readonly queued: number
  readonly dropped: number
  readonly failedWrites: number
  readonly corrupt: number
  /** Its circuit breaker is open: reads skip it. */
  readonly isDown: boolean
  readonly reads: Times
}

export type Provider = {
  readonly name: string
  /** The result of its last check; undefined before the first. */
  readonly ok?: boolean | undefined
  readonly why?: string | undefined
  readonly pinned: number
  /** By failure class. */
  readonly failed: Readonly<Record<string, number>>
  /** Uploads that are still to be sent to it. */
  readonly waiting: number
  readonly took: Times
}

export type PendingUploads = {
  readonly open: number
  readonly bytes: number
  readonly oldestAt?: number | undefined
  /** Oldest first, at most one page. */
  readonly uploads: readonly Upload[]
}

export type Upload = {
  readonly cid: string
  readonly at: string
  readonly bytes: number
  readonly providers: Readonly<Record<string, ProviderState>>
  /** Shared tiers that lack blocks of it. */
  readonly pendingTiers?: readonly string[]
}

/** The response of GET /why: the result of reading a path now. */
export type Why = {
  readonly path: string
  /** The status that a client would get. */
  readonly status: number
  readonly ms: number
  /** Every block on the path, the root first. */
  readonly steps: readonly Step[]
  readonly found?: {
    readonly cid: string
    readonly kind: string
    readonly type: string
    readonly bytes?: number | undefined
  }
  readonly failure?: { readonly kind: string; readonly why: string; readonly retryAfterMs?: number | undefined }
  readonly attempts: readonly Attempt[]
}

/**
 * The response of GET /blocks: the explanation, and the location of the first blocks; undefined if
 * none was found.
 */
export type Blocks = { readonly why: Why; readonly placed?: Placed | undefined }

export type Step = {
  readonly cid: string
  readonly bytes: number
  readonly ms: number
  /** A tier or an upstream; undefined if the block took no lookup. */
  readonly from?: string | undefined
  /** True if an upstream had to be asked. */
  readonly isFetched: boolean
}
