// What the admin address says of a gateway that runs: the answer of GET /status, which the dashboard draws and programs read.
// Imports nothing that needs Node, so that the scripts of the page can be checked against it. Times are milliseconds since the epoch.

import type { Attempt } from '../../observe/account.ts'
import type { Placed } from '../../observe/placed.ts'
import type { FailedRequest } from '../../observe/recent-failures.ts'
import type { ProviderState } from '../../upload/pins/told.ts'

/** Milliseconds; undefined where nothing was measured. */
export type Times = { readonly p50Ms?: number; readonly p95Ms?: number }

export type Status = {
  readonly version: string
  readonly startedAt: number
  readonly ready: boolean
  readonly draining: boolean
  /** Whether uploads can be confirmed; undefined: not known yet. */
  readonly uploads?: boolean | undefined
  /** Of an upload at this address (POST /add); undefined: none is taken. */
  readonly takes?: { readonly mostBytes: number } | undefined
  readonly checks: readonly Check[]
  /** Where several are wanted. What follows of tiers and upstreams is that of the first one alone. */
  readonly processes?: Processes | undefined
  readonly requests: Requests
  /** The last ten minutes, the oldest first. */
  readonly history: readonly HistorySpan[]
  readonly upstreams: readonly Upstream[]
  /** Gateways that routers named; each is called `<host> via <router>`. */
  readonly found: readonly Upstream[]
  readonly routers: readonly Router[]
  /** Absent: this gateway announces nothing. */
  readonly announced?: Announced | undefined
  readonly tiers: readonly Tier[]
  readonly hot: { readonly bytes: number; readonly limitBytes: number; readonly items: number }
  readonly providers: readonly Provider[]
  readonly journal: Journal
  /** By the last count; undefined in thin mode, which keeps none. */
  readonly pins?: { readonly pins: number | undefined; readonly bytes: number | undefined } | undefined
  readonly disk?: { readonly freeBytes: number; readonly bytes: number } | undefined
  /** The newest first. */
  readonly failures: readonly FailedRequest[]
}

export type Check = { readonly name: string; readonly ok: boolean; readonly why?: string; readonly ms?: number }

export type Processes = { readonly wanted: number; readonly answering: number; readonly restarts: number }

export type Requests = {
  readonly total: number
  readonly inProgress: number
  /** Refused because limits.inFlight, or limits.perClient, was reached. */
  readonly shed: number
  readonly throttled: number
  /** `2xx`, `4xx` … */
  readonly byStatus: Readonly<Record<string, number>>
  /** Content that was answered well, by where its bytes came from: `hot`, a tier, `upstream`, or `none`. */
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
}

export type Router = {
  readonly name: string
  readonly lookups: number
  /** Look-ups that named a gateway that may be asked. */
  readonly named: number
  readonly failures: number
  readonly lastFailure?: string | undefined
  /** How long it is left alone after a failure. */
  readonly restsMs: number
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
  /** For how long it has not taken the newest advertisement. */
  readonly lagMs: number
  readonly lastError?: string | undefined
}

export type Upstream = {
  readonly name: string
  /** `ready`, `cooling-down`, `resting`, `quarantined`, `unusable` or `over-budget`. */
  readonly state: string
  /** Why it is not ready. */
  readonly why?: string | undefined
  /** When that may end by itself. */
  readonly until?: number | undefined
  readonly asked: number
  readonly won: number
  readonly lost: number
  readonly notFound: number
  readonly throttled: number
  readonly failed: number
  readonly falseBytes: number
  readonly pending: number
  readonly bytes: number
  /** To the first proved bytes of its last answers. */
  readonly firstByte: Times
  /** What it may be asked a minute, and how much of that it was. */
  readonly budget?: { readonly perMinute: number; readonly used: number } | undefined
  readonly lastTrouble?: { readonly at: number; readonly why: string } | undefined
}

export type Tier = {
  readonly name: string
  readonly bytes?: number | undefined
  readonly limitBytes?: number | undefined
  readonly blocks?: number | undefined
  readonly hits: number
  readonly misses: number
  readonly outages: number
  /** Blocks that wait to be written to it. */
  readonly queued: number
  readonly dropped: number
  readonly failedWrites: number
  readonly corrupt: number
  /** Its breaker is open: reads pass it over. */
  readonly isDown: boolean
  readonly reads: Times
}

export type Provider = {
  readonly name: string
  /** How its last check went; undefined: it was not checked yet. */
  readonly ok?: boolean | undefined
  readonly why?: string | undefined
  readonly held: number
  /** By the class of the failure. */
  readonly failed: Readonly<Record<string, number>>
  /** Uploads that it is still to get. */
  readonly waiting: number
  readonly took: Times
}

export type Journal = {
  readonly open: number
  readonly bytes: number
  readonly oldestAt?: number | undefined
  /** The oldest first; not more than a page shows. */
  readonly uploads: readonly Upload[]
}

export type Upload = {
  readonly cid: string
  readonly at: string
  readonly bytes: number
  readonly providers: Readonly<Record<string, ProviderState>>
  /** Shared tiers that lack blocks of it. */
  readonly owed?: readonly string[]
}

/** The answer of GET /why: what became of a path that was read now. */
export type Why = {
  readonly path: string
  /** As a client would be told. */
  readonly status: number
  readonly ms: number
  /** Every block that the path was resolved by, the root's first. */
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

/** The answer of GET /blocks: the same, and where the first blocks lie; undefined: not one was found on the way. */
export type Blocks = { readonly why: Why; readonly placed?: Placed | undefined }

export type Step = {
  readonly cid: string
  readonly bytes: number
  readonly ms: number
  /** A tier, or an upstream; undefined: it took none, or was at hand. */
  readonly from?: string | undefined
  /** Whether an upstream had to be asked. */
  readonly isFetched: boolean
}
