// The most recent failed requests, for the dashboard: bounded, newest first. The access log has all
// of them.
import type { Attempt } from './request-record.ts'

/** A request with a status from 400 on, or a truncated response. */
export type FailedRequest = {
  /** Milliseconds since the epoch. */
  readonly at: number
  /** The `X-Request-Id` of the response, as in the log. */
  readonly request: string | undefined
  readonly client: string | undefined
  readonly method: string
  /** Without its query. */
  readonly path: string
  readonly route: string
  /** 499 if the client left before the response. */
  readonly status: number
  readonly isCut: boolean
  readonly ms: number
  /** The kind of the failure, and the explanation sent to the client. */
  readonly kind?: string
  readonly why?: string
  readonly attempts?: readonly Attempt[]
}

export interface RecentFailures {
  note(failed: FailedRequest): void
  /** Newest first. */
  list(): readonly FailedRequest[]
}

const maxKept = 100
const longestWhy = 500

export function createRecentFailures(max = maxKept): RecentFailures {
  const ring: FailedRequest[] = []
  let next = 0
  return {
    note(failed) {
      ring[next] = failed.why === undefined ? failed : { ...failed, why: failed.why.slice(0, longestWhy) }
      next = (next + 1) % max
    },
    list: () => [...ring.slice(next), ...ring.slice(0, next)].reverse(),
  }
}
