// The record of one request: the tiers that were read, the upstreams that were tried, and the
// outcomes. Bounded; the source of Cache-Status (RFC 9211), the `attempts` of an error, and the
// metrics.

export type Attempt = {
  readonly upstream: string
  /** `won`, `lost` (another was faster), `skipped: <why>`, or the kind of the Failure. */
  readonly outcome: string
  readonly ms: number
  /** Verified bytes that it sent; absent means none. */
  readonly bytes?: number
}

/** The bytes of a response that one upstream sent. */
export type Brought = { readonly upstream: string; bytes: number }

const maxAttempts = 16

/**
 * A class, because there is one per request: a literal with methods stays in memory until V8's next
 * full collection.
 */
export class RequestRecord {
  readonly attempts: Attempt[] = []
  /** The number of blocks fetched for this request; 0 means a pure hit. */
  fetches = 0
  /** The slowest tier that was needed; undefined without any hit. */
  tier: string | undefined
  /** The upstreams whose verified bytes were used. */
  brought: readonly Brought[] = []
  readonly #tiers: readonly string[]

  /** `tiers`: names, fastest first. */
  constructor(tiers: readonly string[] = []) {
    this.#tiers = tiers
  }

  /** A block came from this tier. */
  tierHit(name: string): void {
    if (this.tier === undefined || this.#tiers.indexOf(name) > this.#tiers.indexOf(this.tier)) this.tier = name
  }

  /** A block was fetched from this upstream for this request, or for the flight that it joined. */
  fetched(upstream: string, bytes = 0): void {
    this.fetches++
    const known = this.brought.find((one) => one.upstream === upstream)
    if (known) known.bytes += bytes
    else this.brought = [...this.brought, { upstream, bytes }]
  }

  attempt(attempt: Attempt): void {
    if (this.attempts.length < maxAttempts) this.attempts.push(attempt)
  }
}

const quoted = (text: string): string => `"${text.replace(/[^\x20-\x7e]|["\\]/g, '')}"`

export function cacheStatus({ fetches, tier, brought }: RequestRecord): string {
  if (fetches === 0) return tier === undefined ? 'cidgate' : `cidgate; hit; detail=${token(tier)}`
  return brought.length === 0 ? 'cidgate; fwd=miss' : `cidgate; fwd=miss; detail=${quoted(broughtBy(brought))}`
}

/** Several upstreams are listed with their share of the bytes so far. */
function broughtBy(brought: readonly Brought[]): string {
  const [only] = brought
  if (only && brought.length === 1) return only.upstream
  const all = brought.reduce((sum, { bytes }) => sum + bytes, 0)
  return brought.map(({ upstream, bytes }) => `${upstream} ${Math.round((100 * bytes) / (all || 1))}%`).join(', ')
}

const token = (text: string): string => (/^[A-Za-z][A-Za-z0-9._-]*$/.test(text) ? text : quoted(text))
