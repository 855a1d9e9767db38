// What we know of one upstream: how quick it is, whether it has what we ask for, and whether it may be asked now.
// Throttling is a cool-down of the length it asked for and no failure; false bytes are a quarantine.
import { LRUCache } from 'lru-cache'
import type { ProbeReport } from '../../backends/upstreams/contract.ts'
import type { Clock } from '../clock.ts'
import { isFailure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { type Budget, createBudget } from './budget.ts'
import { createLatency } from './latency.ts'

export type AskKind = 'block' | 'dag'

export type StandingCount = 'asked' | 'won' | 'notFound' | 'throttled' | 'failed' | 'falseBytes' | 'lost'

export type StandingState = 'ready' | 'cooling-down' | 'resting' | 'quarantined' | 'unusable' | 'over-budget'

/** One question under way; exactly one of the endings is called. */
export interface Ask {
  /** Wanted bytes came, for which readers waited this long since the last ones. The first tell how quick it begins. */
  brought(bytes: number, waitedMs: number): void
  /** It gave all that it was asked for. */
  done(): void
  /** Given up without having failed: others brought enough, or it fell behind what it usually does. */
  letGo(why: 'enough' | 'behind'): void
  failed(error: unknown): void
}

export interface Standing {
  /** Whether it may be asked for this, and if not, why and when again. */
  state(key: string): { readonly state: StandingState; readonly untilMs: number }
  /** A resting one may be tried when there is nobody else: at most once a second. */
  mayTryAnyway(): boolean
  load(kind: AskKind): number
  /** How long it usually takes to begin (p90); undefined while nothing is known. */
  usualMs(kind: AskKind): number | undefined
  /** Wanted bytes a millisecond while readers wait; undefined while nothing is known. */
  rate(kind: AskKind): number | undefined
  ask(kind: AskKind, key: string): Ask
  /** It failed at something that was no question of a race. */
  brokeOff(error: unknown): void
  probed(report: ProbeReport): void
  /** A probe did not get through: not asked until one does, or for a while. */
  unreachable(error: unknown): void
  readonly counts: Readonly<Record<StandingCount, number>>
}

export type StandingOptions = {
  readonly name: string
  readonly clock: Clock
  readonly log: Log
  readonly perMinute?: number | undefined
  readonly perCidPerMinute?: number | undefined
}

const failuresToRest = 5
const restMs = 30_000
const mostRestMs = 300_000
const quarantineMs = 600_000
const mostQuarantineMs = 86_400_000
const throttleDefaultMs = 60_000
const connectionsThatSlow = 32
const leastBytesToJudge = 64 * 1024

export function createStanding({ name, clock, log, perMinute, perCidPerMinute }: StandingOptions): Standing {
  const latency = { block: createLatency(clock), dag: createLatency(clock) }
  const rates: Record<AskKind, number | undefined> = { block: undefined, dag: undefined }
  const counts = { asked: 0, won: 0, notFound: 0, throttled: 0, failed: 0, falseBytes: 0, lost: 0 }
  const bucket = perMinute === undefined ? undefined : minuteBudget(perMinute)
  const perCid = perCidPerMinute === undefined ? undefined : new LRUCache<string, Budget>({ max: 10_000 })
  let pending = 0
  let hitRate = 1 // how often it has what it is asked for, among its clear answers
  let misses = 0 // without a win, in a row: failures and races lost by being slow
  let failures = 0 // in a row
  let rests = 0
  let lies = 0
  let coolUntil = 0
  let restUntil = 0
  let quarantineUntil = 0
  let unusable = false
  let nextAnyway = 0

  function minuteBudget(limit: number): Budget {
    return createBudget({ size: Math.max(1, limit / 4), perSecond: limit / 60, clock })
  }

  function budgetOf(key: string): Budget | undefined {
    if (perCid === undefined || perCidPerMinute === undefined) return undefined
    let budget = perCid.get(key)
    if (!budget) perCid.set(key, (budget = minuteBudget(perCidPerMinute)))
    return budget
  }

  function recovered(): void {
    if (rests > 0) log('info', 'upstream.recovered', { upstream: name })
    failures = misses = rests = 0
  }

  function fail(error: unknown): void {
    counts.failed++
    failures++
    misses++
    if (failures >= failuresToRest) rest(error)
  }

  function rest(error: unknown): void {
    failures = 0
    rests++
    restUntil = clock.monotonic() + Math.min(mostRestMs, restMs * rests)
    log('warn', 'upstream.resting', {
      upstream: name,
      forMs: Math.min(mostRestMs, restMs * rests),
      last: error instanceof Error ? error.message : String(error),
    })
  }

  function lied(): void {
    counts.falseBytes++
    const ms = Math.min(mostQuarantineMs, quarantineMs * 2 ** lies)
    lies++
    quarantineUntil = clock.monotonic() + ms
    log('error', 'upstream.quarantined', {
      upstream: name,
      forMs: ms,
      why: 'it sent bytes that do not hash to their CID',
    })
  }

  /** What every ending has in common; the kind of failure decides whether it is held against the upstream. */
  function judge(error: unknown): void {
    if (!isFailure(error)) return fail(error)
    switch (error.kind) {
      case 'not-found':
      case 'refused':
        counts.notFound++
        hitRate += (0 - hitRate) * 0.05
        failures = 0
        return
      case 'throttled': {
        counts.throttled++
        const ms = error.retryAfterMs ?? throttleDefaultMs
        coolUntil = Math.max(coolUntil, clock.monotonic() + ms)
        log('warn', 'upstream.cooling-down', { upstream: name, forMs: ms })
        return
      }
      case 'false-bytes':
        return lied()
      case 'cancelled':
        return
      default:
        return fail(error)
    }
  }

  return {
    counts,
    state(key) {
      const now = clock.monotonic()
      if (quarantineUntil > now) return { state: 'quarantined', untilMs: quarantineUntil - now }
      if (unusable) return { state: 'unusable', untilMs: 0 }
      if (coolUntil > now) return { state: 'cooling-down', untilMs: coolUntil - now }
      if (restUntil > now) return { state: 'resting', untilMs: restUntil - now }
      const waitMs = Math.max(bucket?.waitMs ?? 0, budgetOf(key)?.waitMs ?? 0)
      return waitMs > 0 ? { state: 'over-budget', untilMs: waitMs } : { state: 'ready', untilMs: 0 }
    },
    mayTryAnyway() {
      const now = clock.monotonic()
      if (quarantineUntil > now || coolUntil > now || unusable || nextAnyway > now) return false
      nextAnyway = now + 1000
      return true
    },
    load(kind) {
      return (latency[kind].costMs * (1 + pending / connectionsThatSlow) * (1 + misses ** 2)) / Math.max(0.05, hitRate)
    },
    usualMs: (kind) => latency[kind].usualMs,
    rate: (kind) => rates[kind],
    ask(kind, key) {
      counts.asked++
      pending++
      bucket?.take()
      budgetOf(key)?.take()
      const at = clock.monotonic()
      let sum = 0
      let waited = 0
      const learnRate = () => {
        if (sum < leastBytesToJudge || waited <= 0) return
        const now = sum / waited
        const before = rates[kind]
        rates[kind] = before === undefined || now < before ? now : before + (now - before) * 0.2
      }
      return {
        brought(bytes, waitedMs) {
          if (sum === 0 && bytes > 0) {
            latency[kind].note(clock.monotonic() - at)
            hitRate += (1 - hitRate) * 0.05
          } else waited += waitedMs
          sum += bytes
        },
        done() {
          pending--
          counts.won++
          learnRate()
          recovered()
        },
        letGo(why) {
          pending--
          if (sum > 0) {
            learnRate()
            if (why === 'behind') misses++
            return
          }
          counts.lost++
          if (why !== 'behind') misses++
          latency[kind].atLeast(clock.monotonic() - at)
        },
        failed(error) {
          pending--
          const ms = clock.monotonic() - at
          if (isFailure(error, 'not-found')) latency[kind].note(ms)
          if (isFailure(error, 'timeout')) latency[kind].atLeast(ms)
          judge(error)
        },
      }
    },
    brokeOff: judge,
    unreachable: (error) => (isFailure(error, 'throttled') ? judge(error) : rest(error)),
    probed(report) {
      if (unusable !== !report.usable) {
        log(report.usable ? 'info' : 'warn', report.usable ? 'upstream.usable' : 'upstream.unusable', {
          upstream: name,
          findings: report.findings,
        })
      }
      unusable = !report.usable
      if (!report.usable) return
      restUntil = 0
      recovered()
    },
  }
}
