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
const nothing: readonly Brought[] = []

export interface RequestRecord {
  /** A block came from this tier. */
  tierHit(tier: string): void
  /** A block was fetched from this upstream for this request, or for the flight that it joined. */
  fetched(upstream: string, bytes?: number): void
  attempt(attempt: Attempt): void
  /** The number of blocks fetched for this request; 0 means a pure hit. */
  readonly fetches: number
  /** The slowest tier that was needed; undefined without any hit. */
  readonly tier: string | undefined
  /** The upstreams whose verified bytes were used. */
  readonly brought: readonly Brought[]
  readonly attempts: readonly Attempt[]
}

/** `tiers`: names, fastest first. */
export const createRequestRecord = (tiers: readonly string[] = []): RequestRecord => new OneRequestRecord(tiers)

/**
 * A class, because there is one per request: a literal with a getter costs half a microsecond, and
 * stays in memory until V8's next full collection.
 */
export class OneRequestRecord implements RequestRecord {
  readonly attempts: Attempt[] = []
  readonly #tiers: readonly string[]
  #fetches = 0
  #tier: string | undefined
  #brought: Brought[] | undefined

  constructor(tiers: readonly string[]) {
    this.#tiers = tiers
  }

  tierHit(name: string): void {
    if (this.#tier === undefined || this.#tiers.indexOf(name) > this.#tiers.indexOf(this.#tier)) this.#tier = name
  }

  fetched(upstream: string, bytes = 0): void {
    this.#fetches++
    const known = this.#brought?.find((one) => one.upstream === upstream)
    if (known) known.bytes += bytes
    else (this.#brought ??= []).push({ upstream, bytes })
  }

  attempt(attempt: Attempt): void {
    if (this.attempts.length < maxAttempts) this.attempts.push(attempt)
  }

  get fetches(): number {
    return this.#fetches
  }

  get tier(): string | undefined {
    return this.#tier
  }

  get brought(): readonly Brought[] {
    return this.#brought ?? nothing
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
