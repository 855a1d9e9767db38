// What we know of one upstream: how quick it is, whether it has what we ask for, and whether it may be asked now.
// Throttling is a cool-down of the length it asked for and no failure; false bytes are a quarantine.
import { LRUCache } from 'lru-cache'
import type { ProbeReport } from '../../backends/upstreams/contract.ts'
import type { Clock } from '../clock.ts'
import { isFailure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { type Budget, createBudget } from './budget.ts'
import { createPerformance } from './performance.ts'

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
  /** Whether a resting one may be tried when there is nobody else: at most once a second. */
  readonly mayTryAnyway: boolean
  /** What asking it now is expected to cost, for 1 MiB of a DAG or one block: with hope for the unknown. */
  load(kind: AskKind): number
  /** How long it may take to begin without being late; undefined while nothing is known. */
  usualMs(kind: AskKind): number | undefined
  /** Wanted bytes a millisecond while readers wait; undefined while nothing is known. */
  rate(kind: AskKind): number | undefined
  /** How long it should take to bring so many bytes if it were asked now: with guesses for the unknown. */
  expectedMs(kind: AskKind, bytes: number): number
  /** For how long it has owed an answer without giving any to anybody. */
  readonly silentMs: number
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
const anywayEveryMs = 1000
const connectionsThatSlow = 32
const usualBytes = { block: 256 * 1024, dag: 1024 * 1024 }
const hitTeaches = 0.05
const leastHitRate = 0.05
// Falling behind others is less than giving out: the others may just have been very quick.
const behindWeight = 0.3

export function createStanding({ name, clock, log, perMinute, perCidPerMinute }: StandingOptions): Standing {
  const work = { block: createPerformance(clock), dag: createPerformance(clock) }
  const counts = { asked: 0, won: 0, notFound: 0, throttled: 0, failed: 0, falseBytes: 0, lost: 0 }
  const bucket = perMinute === undefined ? undefined : minuteBudget(perMinute)
  const perCid = perCidPerMinute === undefined ? undefined : new LRUCache<string, Budget>({ max: 10_000 })
  const unanswered = new Set<{ readonly at: number }>() // the oldest first
  let pending = 0
  let answeredAt = Number.NEGATIVE_INFINITY
  let hitRate = 1 // how often it has what it is asked for, among its clear answers
  let missMs = 0 // how long it takes to say that it does not
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

  function silentMs(): number {
    // Questions are in the order in which they began: those before the newest answer say nothing.
    for (const { at } of unanswered) if (at >= answeredAt) return clock.monotonic() - at
    return 0
  }

  function recovered(): void {
    if (rests > 0) log('info', 'upstream.recovered', { upstream: name })
    failures = rests = 0
  }

  function fail(error: unknown): void {
    counts.failed++
    failures++
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
        hitRate -= hitRate * hitTeaches
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
    get mayTryAnyway() {
      const now = clock.monotonic()
      return quarantineUntil <= now && coolUntil <= now && !unusable && nextAnyway <= now
    },
    load(kind) {
      const cost = Math.max(work[kind].costMs(usualBytes[kind]), silentMs())
      const misses = (1 - hitRate) / Math.max(leastHitRate, hitRate)
      return cost * (1 + pending / connectionsThatSlow) + misses * missMs
    },
    usualMs: (kind) => work[kind].usualMs,
    rate: (kind) => work[kind].rate,
    expectedMs: (kind, bytes) => Math.max(work[kind].expectedMs(bytes), silentMs()),
    get silentMs() {
      return silentMs()
    },
    ask(kind, key) {
      counts.asked++
      pending++
      bucket?.take()
      budgetOf(key)?.take()
      const at = clock.monotonic()
      if (restUntil > at) nextAnyway = at + anywayEveryMs
      const question = { at }
      unanswered.add(question)
      const performance = work[kind]
      performance.asked()
      let isBegun = false
      const answered = () => {
        unanswered.delete(question)
        answeredAt = clock.monotonic()
      }
      const end = () => {
        pending--
        unanswered.delete(question)
        performance.ended()
        return clock.monotonic() - at
      }
      return {
        brought(bytes, waitedMs) {
          if (isBegun) return performance.moved(bytes, waitedMs)
          if (bytes === 0) return
          isBegun = true
          answered()
          performance.began(answeredAt - at)
          hitRate += (1 - hitRate) * hitTeaches
        },
        done() {
          end()
          counts.won++
          performance.finished()
          recovered()
        },
        letGo(why) {
          const ms = end()
          if (isBegun) {
            if (why === 'behind') performance.gaveOut(behindWeight)
            return
          }
          counts.lost++
          performance.notYet(ms)
        },
        failed(error) {
          const ms = end()
          const isSilence = isFailure(error, 'timeout')
          if (!isSilence && !isFailure(error, 'cancelled')) answered()
          if (isFailure(error, 'not-found')) missMs += (ms - missMs) * (missMs === 0 ? 1 : 0.1)
          if (isBegun && !isFailure(error, 'cancelled')) performance.gaveOut(1)
          else if (isSilence) performance.notYet(ms)
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
      // A probe of a gateway that can do both asks two questions, one after the other.
      const ms = report.car ? report.ms / 2 : report.ms
      for (const performance of Object.values(work)) performance.probed(ms)
      restUntil = 0
      recovered()
    },
  }
}
