// The account of one request: which tiers were read, which upstreams were tried and how it went. Bounded; Cache-Status,
// the `attempts` of an error and the metrics are made from it.

export type Attempt = {
  readonly upstream: string
  /** `won`, `lost` (another was faster), `skipped: <why>`, or the kind of the Failure. */
  readonly outcome: string
  readonly ms: number
}

const mostAttempts = 16

export interface Account {
  /** A block came from this tier. */
  tierHit(tier: string): void
  /** A block was fetched from this upstream for this request (or for the flight it joined). */
  fetched(upstream: string): void
  attempt(attempt: Attempt): void
  /** Blocks this request caused or joined a fetch for: 0 means a pure hit. */
  readonly fetches: number
  /** The slowest tier that was needed; undefined without any hit. */
  readonly tier: string | undefined
  /** The last upstream whose proved bytes were used. */
  readonly winner: string | undefined
  readonly attempts: readonly Attempt[]
}

/** `tiers`: their names, the fastest first. */
export function createAccount(tiers: readonly string[] = []): Account {
  const attempts: Attempt[] = []
  let fetches = 0
  let tier: string | undefined
  let winner: string | undefined
  return {
    tierHit(name) {
      if (tier === undefined || tiers.indexOf(name) > tiers.indexOf(tier)) tier = name
    },
    fetched(upstream) {
      fetches++
      winner = upstream
    },
    attempt(attempt) {
      if (attempts.length < mostAttempts) attempts.push(attempt)
    },
    get fetches() {
      return fetches
    },
    get tier() {
      return tier
    },
    get winner() {
      return winner
    },
    attempts,
  }
}
