// The requests that failed last, for the dashboard: a bounded number of them, the newest first. The access log has them all.
import type { Attempt } from './account.ts'

/** A request that was answered with a status from 400 on, or whose answer was cut. */
export type FailedRequest = {
  /** Milliseconds since the epoch. */
  readonly at: number
  /** As the client was told it (`X-Request-Id`); the log names it too. */
  readonly request: string | undefined
  readonly client: string | undefined
  readonly method: string
  /** Without its query. */
  readonly path: string
  readonly route: string
  /** 499: the client left before there was one. */
  readonly status: number
  readonly isCut: boolean
  readonly ms: number
  /** The kind of the failure, and what the client was told. */
  readonly kind?: string
  readonly why?: string
  readonly attempts?: readonly Attempt[]
}

export interface RecentFailures {
  note(failed: FailedRequest): void
  /** The newest first. */
  list(): readonly FailedRequest[]
}

const mostKept = 100
const longestWhy = 500

export function createRecentFailures(most = mostKept): RecentFailures {
  const ring: FailedRequest[] = []
  let next = 0
  return {
    note(failed) {
      ring[next] = failed.why === undefined ? failed : { ...failed, why: failed.why.slice(0, longestWhy) }
      next = (next + 1) % most
    },
    list: () => [...ring.slice(next), ...ring.slice(0, next)].reverse(),
  }
}
