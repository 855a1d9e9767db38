// Whether an upstream may be asked at all. It is out only for what it did, and no longer than it takes to see that it is
// well again: failures of one moment are one failure, and a rest ends with the first good answer or probe.
import type { Clock } from '../../core/clock.ts'
import { type Failure, wordsOf } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'

export const healthStates = ['ready', 'rate-limited', 'unhealthy', 'quarantined', 'incompatible'] as const
export type HealthState = (typeof healthStates)[number]

export interface Health {
  readonly state: HealthState
  /** When that may end by itself; undefined: not before a probe. */
  readonly untilMs: number | undefined
  /** The upstream cools down, and said nothing of how long: that it may not be asked is a guess. */
  readonly isGuess: boolean
  /** The upstream brought proved bytes just now, and has not failed since: that says more than a probe. */
  readonly isProven: boolean
  /** For how long the upstream has rested, all in all. */
  readonly outMs: number
  /** How long until the next probe of an upstream that rests. */
  readonly lookAgainMs: number
  readonly told: Told
  /** The upstream answered a question that began then. */
  answered(beganAt: number): void
  /** The upstream failed at a question that began then. */
  failed(error: unknown, beganAt: number): void
  /** The upstream throttled a question that began then. */
  throttled(error: Failure, beganAt: number): void
  lied(): void
  /** A probe found the upstream usable, or not. */
  looked(usable: boolean, findings: readonly string[]): void
  /** A probe got no good answer. */
  unreachable(error: unknown): void
}

const momentsToRest = 3
const firstRestMs = 1_000
const mostRestMs = 60_000
const looksPerRest = 4
// With jitter, less than five seconds: so long after an outage, however long it was, it is asked again.
const mostLookMs = 3_500
const jitter = 0.25
const calmMs = 10_000
// All bytes are proved, so an upstream that lies costs time and nothing else: out for a moment the first time, for long when it goes on.
const quarantineMs = 5_000
const mostQuarantineMs = 3_600_000
const forgiveLiesMs = 600_000
// Most upstreams say 429 without a Retry-After: the cool-down is a guess then, and doubles with each that follows.
const firstGuessMs = 1_000
const maxGuessMs = 60_000
const trustedMs = 600_000
const provenMs = 30_000
// A Retry-After above this is taken for a mistake and cut to it.
const mostThrottleMs = 3_600_000
const lie = 'it sent bytes that do not hash to their CID'

export function createHealth(options: {
  readonly name: string
  readonly clock: Clock
  readonly log: Log
  readonly random?: (() => number) | undefined
}): Health {
  const { name, clock, log, random = Math.random } = options
  let moments = 0 // in which it failed, since it last answered
  let failedAt = Number.NEGATIVE_INFINITY
  let rests = 0 // since it last answered
  let restedAt = Number.NEGATIVE_INFINITY
  let restUntil = 0
  let outSince = 0
  let wellAt = Number.NEGATIVE_INFINITY // when a look found it well
  let coolUntil = 0
  let cooledAt = Number.NEGATIVE_INFINITY
  let guesses = 0 // of cool-downs, since it last answered
  let guessUntil = 0
  let quarantineUntil = 0
  let lies = 0
  let isUnusable = false
  let broughtAt = Number.NEGATIVE_INFINITY // what was proved
  let isTold = false
  const telling = createTelling(clock)
  const restMs = () => Math.min(mostRestMs, firstRestMs * 2 ** (rests - 1))

  /** An upstream that was well for a while after a rest has a clean record. */
  function forgive(): void {
    if (wellAt > restedAt && clock.monotonic() - wellAt > calmMs) moments = rests = 0
  }

  function rest(error: unknown): void {
    forgive()
    rests++
    restedAt = clock.monotonic()
    if (rests === 1 || wellAt > outSince) outSince = restedAt
    restUntil = restedAt + restMs() * (1 + jitter * random())
    telling.out(error)
    if (isTold) return
    isTold = true
    log('warn', 'upstream.unhealthy', { upstream: name, why: wordsOf(error) })
  }

  function answered(beganAt: number): void {
    moments = rests = restUntil = quarantineUntil = 0
    if (beganAt >= cooledAt) guesses = guessUntil = 0
    isUnusable = false
    broughtAt = clock.monotonic()
    // One that comes and goes is told of once.
    if (!isTold || clock.monotonic() - restedAt < calmMs) return
    isTold = false
    log('info', 'upstream.recovered', { upstream: name })
  }

  const until = (now: number): { state: HealthState; at: number } | undefined => {
    if (quarantineUntil > now) return { state: 'quarantined', at: quarantineUntil }
    if (isUnusable) return { state: 'incompatible', at: Number.POSITIVE_INFINITY }
    const cooledBy = Math.max(coolUntil, guessUntil)
    if (cooledBy > now) return { state: 'rate-limited', at: cooledBy }
    return restUntil > now ? { state: 'unhealthy', at: restUntil } : undefined
  }

  return {
    get state() {
      return until(clock.monotonic())?.state ?? 'ready'
    },
    get untilMs() {
      const now = clock.monotonic()
      const at = until(now)?.at ?? now
      return Number.isFinite(at) ? at - now : undefined
    },
    get isGuess() {
      return coolUntil <= clock.monotonic()
    },
    get isProven() {
      return moments === 0 && clock.monotonic() - broughtAt < provenMs
    },
    get outMs() {
      return rests === 0 ? 0 : clock.monotonic() - outSince
    },
    get lookAgainMs() {
      const ms = Math.min(mostLookMs, restMs() / looksPerRest)
      return Math.max(firstRestMs / looksPerRest, ms) * (1 + jitter * (2 * random() - 1))
    },
    told: telling,
    answered,
    failed(error, beganAt) {
      telling.noted(error)
      // What was under way when it last failed, or went to rest, fails of the same cause.
      if (beganAt < failedAt || beganAt < restedAt) return
      forgive()
      failedAt = clock.monotonic()
      moments++
      if (moments >= momentsToRest) rest(error)
    },
    throttled(error, beganAt) {
      telling.out(error)
      const now = clock.monotonic()
      const isNew = Math.max(coolUntil, guessUntil) <= now
      const { retryAfterMs } = error
      // Several refusals of one moment are one.
      if (retryAfterMs === undefined && beganAt < cooledAt) return
      const ms =
        retryAfterMs === undefined
          ? Math.min(maxGuessMs, firstGuessMs * 2 ** guesses++)
          : Math.min(mostThrottleMs, retryAfterMs)
      cooledAt = now
      if (retryAfterMs === undefined) guessUntil = Math.max(guessUntil, now + ms)
      else coolUntil = Math.max(coolUntil, now + ms)
      if (isNew) log('warn', 'upstream.rate-limited', { upstream: name, forMs: ms })
    },
    lied() {
      telling.out(lie)
      const now = clock.monotonic()
      // Several false answers under way at once are one lie.
      if (quarantineUntil > now) return
      if (now - quarantineUntil > forgiveLiesMs) lies = 0
      const ms = Math.min(mostQuarantineMs, quarantineMs * 2 ** lies)
      lies++
      quarantineUntil = now + ms
      log('error', 'upstream.quarantined', { upstream: name, forMs: ms, why: lie })
    },
    looked(isProbeHappy, findings) {
      // What it has just brought says more than a probe: some do not know the empty block that a probe asks for.
      const usable = isProbeHappy || clock.monotonic() - broughtAt < trustedMs
      if (isUnusable !== !usable)
        log(usable ? 'info' : 'warn', usable ? 'upstream.compatible' : 'upstream.incompatible', {
          upstream: name,
          findings,
        })
      isUnusable = !usable
      // The upstream may be asked again; how it answers then decides whether it had recovered.
      if (!usable) return telling.out(findings.join('; ') || 'a probe found it unusable')
      restUntil = 0
      if (wellAt < restedAt) wellAt = clock.monotonic()
    },
    unreachable: rest,
  }
}

// What an upstream is out for, and what it last did wrong, in words for the operator.

/** `at`: milliseconds since the epoch. */
export type Trouble = { readonly at: number; readonly why: string }

export interface Told {
  /** Why it is out, or was last; undefined: it never was. */
  readonly why: string | undefined
  readonly lastTrouble: Trouble | undefined
}

export interface Telling extends Told {
  /** It did something wrong. */
  noted(error: unknown): void
  /** It did something wrong, and is out for it. */
  out(error: unknown): void
}

const longestWhy = 500

export function createTelling(clock: Clock): Telling {
  let why: string | undefined
  let lastTrouble: Trouble | undefined
  const noted = (error: unknown): Trouble => {
    lastTrouble = { at: clock.now(), why: wordsOf(error).slice(0, longestWhy) }
    return lastTrouble
  }
  return {
    noted,
    out(error) {
      why = noted(error).why
    },
    get why() {
      return why
    },
    get lastTrouble() {
      return lastTrouble
    },
  }
}
