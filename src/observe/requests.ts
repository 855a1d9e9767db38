// The record of one request, which is the source of Cache-Status (RFC 9211), of the `attempts` of an error and
// of metrics; and the counts of all: requests, uploads and provider responses, the distributions of their
// times, and the most recent failed requests. The counts are shared by successive gateways.
import { type Failure, isFailure } from '../core/failure.ts'
import type { HistogramSample, Sample } from './metrics.ts'

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

/** A finished response. */
export type Answered = {
  readonly route: string
  readonly method: string
  readonly status: number
  /** `responses` (the cache), a tier, `upstream`, or `none` if no block was needed. */
  readonly source: string
  /** True if the client received all of it. */
  readonly isComplete: boolean
  /** Undefined if no status was sent. */
  readonly firstByteSeconds: number | undefined
  readonly seconds: number
  readonly bytesIn: number
  readonly bytesOut: number
}

/** Counts of the fast path, where a request must cost only additions. */
export type CachedCounts = { get: number; getUnchanged: number; head: number; headUnchanged: number; bytes: number }

/** The slowest source that was needed. */
export const sourceOf = ({ fetches, tier }: Partial<RequestRecord> = {}): string =>
  fetches ? 'upstream' : (tier ?? 'none')

/** Counts by route and source. */
type RouteCounts = {
  readonly labels: Readonly<Record<string, string>>
  bytesOut: number
  readonly firstByte: Histogram
  readonly duration: Histogram
}

/** Adds method and status: one lookup per request finds all its counters. */
type Cell = {
  readonly place: RouteCounts
  readonly status: number
  readonly labels: Readonly<Record<'route' | 'method' | 'status' | 'source', string>>
  value: number
}

const methods: ReadonlySet<string> = new Set(['GET', 'HEAD', 'POST', 'OPTIONS', 'PUT', 'DELETE', 'PATCH'])

export type RequestCounts = ReturnType<typeof createRequestCounts>

export function createRequestCounts() {
  const hot: CachedCounts = { get: 0, getUnchanged: 0, head: 0, headUnchanged: 0, bytes: 0 }
  const cells = new Map<string, Cell>()
  /** Most responses are counted as the one before. */
  let last: Cell | undefined
  const places = new Map<string, RouteCounts>()
  const cut = createTally()
  const bytesIn = createTally()
  const programReads = createTally()
  const failures = createTally()

  function cellOf({ route, method: given, status, source }: Answered): Cell {
    // Other methods share a series, since clients may send any word.
    const method = methods.has(given) ? given : 'other'
    const { labels } = last ?? {}
    if (last?.status === status && labels?.route === route && labels.source === source && labels.method === method)
      return last
    const key = `${route} ${method} ${status} ${source}`
    const known = cells.get(key)
    if (known) return (last = known)
    const placeKey = `${route} ${source}`
    const place: RouteCounts = places.get(placeKey) ?? {
      labels: { route, source },
      bytesOut: 0,
      firstByte: createHistogram(),
      duration: createHistogram(),
    }
    places.set(placeKey, place)
    const cell = { place, status, labels: { route, method, status: String(status), source }, value: 0 }
    cells.set(key, cell)
    return cell
  }

  function* ofHot(): Iterable<Sample> {
    const sample = (method: string, status: string, value: number) => ({
      labels: { route: 'ipfs', method, status, source: 'responses' },
      value,
    })
    if (hot.get > 0) yield sample('GET', '200', hot.get)
    if (hot.getUnchanged > 0) yield sample('GET', '304', hot.getUnchanged)
    if (hot.head > 0) yield sample('HEAD', '200', hot.head)
    if (hot.headUnchanged > 0) yield sample('HEAD', '304', hot.headUnchanged)
  }

  return {
    hot,
    answered(answer: Answered): void {
      const cell = cellOf(answer)
      const { place } = cell
      cell.value++
      place.bytesOut += answer.bytesOut
      if (answer.firstByteSeconds !== undefined) place.firstByte.observe(answer.firstByteSeconds)
      place.duration.observe(answer.seconds)
      if (!answer.isComplete) cut.add(1, { route: answer.route })
      if (answer.bytesIn > 0) bytesIn.add(answer.bytesIn, { route: answer.route })
    },
    /** Counts a read by the library, which has no status. */
    read: (record: RequestRecord): void => programReads.add(1, { source: sourceOf(record) }),
    failed: ({ kind }: Failure): void => failures.add(1, { kind }),
    *requests(): Iterable<Sample> {
      yield* ofHot()
      yield* cells.values()
    },
    cut: cut.read,
    bytesIn: bytesIn.read,
    *bytesOut(): Iterable<Sample> {
      if (hot.bytes > 0) yield { labels: { route: 'ipfs', source: 'responses' }, value: hot.bytes }
      for (const { labels, bytesOut } of places.values()) if (bytesOut > 0) yield { labels, value: bytesOut }
    },
    programReads: programReads.read,
    failures: failures.read,
    *firstByte(): Iterable<HistogramSample> {
      for (const { labels, firstByte } of places.values()) yield { labels, histogram: firstByte }
    },
    *duration(): Iterable<HistogramSample> {
      for (const { labels, duration } of places.values()) yield { labels, histogram: duration }
    },
  }
}

/** Sums by labels. */

function createTally() {
  const all = new Map<string, { readonly labels: Readonly<Record<string, string>>; value: number }>()
  return {
    add(value: number, labels: Readonly<Record<string, string>>): void {
      const key = Object.values(labels).join('\n')
      const one = all.get(key)
      if (one) one.value += value
      else all.set(key, { labels, value })
    },
    read: () => all.values(),
  }
}

export interface Histogram {
  readonly bounds: readonly number[]
  /**
   * Observations up to each bound and above the previous one; the last count is above all bounds.
   */
  readonly counts: Readonly<Float64Array>
  readonly sum: number
  observe(value: number): void
}

/** From a millisecond (memory) to five minutes (a large file over a slow line). */
export const secondsBounds: readonly number[] = [
  0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
]

export function createHistogram(bounds: readonly number[] = secondsBounds): Histogram {
  const counts = new Float64Array(bounds.length + 1)
  let sum = 0
  return {
    bounds,
    counts,
    get sum() {
      return sum
    },
    observe(value) {
      let at = 0
      while (at < bounds.length && value > (bounds[at] as number)) at++
      counts[at] = (counts[at] as number) + 1
      sum += value
    },
  }
}

/** Estimates the quantile `share`; undefined without observations. */
export function quantileOf(bounds: readonly number[], counts: ArrayLike<number>, share: number): number | undefined {
  let all = 0
  for (let at = 0; at < counts.length; at++) all += counts[at] ?? 0
  if (all === 0) return undefined
  let below = 0
  for (const [at, bound] of bounds.entries()) {
    const count = counts[at] ?? 0
    if (count > 0 && below + count >= share * all) {
      const from = bounds[at - 1] ?? 0
      return from + ((bound - from) * (share * all - below)) / count
    }
    below += count
  }
  return bounds.at(-1)
}

/** The median and p95 in milliseconds; none without observations. */
export function timesOf(bounds: readonly number[], counts: ArrayLike<number>): { p50Ms?: number; p95Ms?: number } {
  const [p50, p95] = [quantileOf(bounds, counts, 0.5), quantileOf(bounds, counts, 0.95)]
  return { ...(p50 !== undefined && { p50Ms: p50 * 1000 }), ...(p95 !== undefined && { p95Ms: p95 * 1000 }) }
}

/** Histograms of one kind, keyed by their labels. */
export function createHistograms<Labels extends Readonly<Record<string, string>>>(
  bounds: readonly number[] = secondsBounds,
) {
  const all = new Map<string, { readonly labels: Labels; readonly histogram: Histogram }>()
  return {
    observe(labels: Labels, value: number): void {
      const key = Object.values(labels).join('\n')
      let one = all.get(key)
      if (!one) all.set(key, (one = { labels, histogram: createHistogram(bounds) }))
      one.histogram.observe(value)
    },
    read: () => all.values(),
  }
}

type ProviderAttempt = {
  readonly provider: string
  readonly isHeld: boolean
  readonly ms: number
  readonly class?: string
}

export type UploadCounts = ReturnType<typeof createUploadCounts>

export function createUploadCounts() {
  const outcomes = createTally()
  const attempts = createTally()
  const took = createHistograms<{ readonly provider: string }>()
  let bytes = 0

  const refused = (error: unknown) => outcomes.add(1, { outcome: isFailure(error) ? error.kind : 'internal' })

  return {
    /** Counts the outcome of an upload; returns the result of `work`. */
    async over<Answer>(
      work: () => Promise<Answer>,
      addedOf?: (answer: Answer) => readonly { readonly dagBytes: number }[],
    ): Promise<Answer> {
      try {
        const answer = await work()
        outcomes.add(1, { outcome: 'accepted' })
        for (const { dagBytes } of addedOf?.(answer) ?? []) bytes += dagBytes
        return answer
      } catch (error) {
        refused(error)
        throw error
      }
    },
    refused,
    attempt({ provider, isHeld, ms, class: kind = 'transient' }: ProviderAttempt): void {
      attempts.add(1, { provider, outcome: isHeld ? 'pinned' : kind })
      took.observe({ provider }, ms / 1000)
    },
    outcomes: outcomes.read,
    bytes: () => bytes,
    attempts: attempts.read,
    took,
  }
}

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

export type RecentFailures = ReturnType<typeof createRecentFailures>

const maxKept = 100
const longestWhy = 500

/** For the dashboard; the access log has all of them. */
export function createRecentFailures(max = maxKept) {
  const ring: FailedRequest[] = []
  let next = 0
  return {
    note(failed: FailedRequest): void {
      ring[next] = failed.why === undefined ? failed : { ...failed, why: failed.why.slice(0, longestWhy) }
      next = (next + 1) % max
    },
    /** Newest first. */
    list: (): readonly FailedRequest[] => [...ring.slice(next), ...ring.slice(0, next)].reverse(),
  }
}
