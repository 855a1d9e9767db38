// How one upstream does one kind of work: when it begins, how fast it goes on while readers wait, and how often it
// finishes what it began. What was bad loses its weight with time, and what is known of an upstream that was not asked
// for long has to be found out anew.
import type { Clock } from '../../core/clock.ts'
import { createLatency } from './latency.ts'

export interface Performance {
  /** A question is under way: nothing heals until it tells how it went. */
  asked(): void
  ended(): void
  /** The first wanted bytes came after this long. */
  began(ms: number): void
  /** None have come after this long: it can only be worse. */
  notYet(ms: number): void
  /** So many more wanted bytes, for which readers waited so long. */
  moved(bytes: number, waitedMs: number): void
  finished(): void
  /** The upstream began to answer, and then it failed, stalled (weight 1) or fell behind (less). */
  gaveOut(weight: number): void
  /** A probe was answered after this long. */
  probed(ms: number): void
  /** How long an answer may be waited for without impatience; undefined while nothing is known. */
  readonly usualMs: number | undefined
  /** Wanted bytes a millisecond while readers wait; undefined while nothing is known. */
  readonly rate: number | undefined
  /** How long the upstream should take to bring so many bytes; sensible guesses for what is not known. */
  expectedMs(bytes: number): number
  /**
   * The cost of choosing this upstream for so many bytes: the expected time, with a pessimistic share and the risk of
   * a failure.
   */
  costMs(bytes: number): number
  /** Nothing is known, or nothing new, and no question is under way that would tell. */
  readonly isUntried: boolean
}

const healMs = 300_000
const guessedFirstMs = 300
const guessedRate = 2 * 1024 * 1.024 // 2 MiB/s, in bytes a millisecond
const mostRate = 1024 ** 2
// The rate is a mean over about so much waiting, or so many bytes.
const rateWindowMs = 500
const rateWindowBytes = 8 * 1024 * 1024
const leastBytesToJudge = 64 * 1024
const leastMsToJudge = 100
const giveOutMs = 2000 // what it costs when a source gives out in the middle
const finishedTeaches = 0.2
const gaveOutTeaches = 0.6
const probeTeaches = 0.25
const leastReliability = 0.02

export function createPerformance(clock: Clock): Performance {
  const latency = createLatency(clock)
  let windowBytes = 0
  let windowMs = 0
  let reliability = 1
  let pending = 0
  let probeMs: number | undefined
  let at = clock.monotonic() // of the newest evidence

  /** 1 for what was just learned, towards 0 as it gets old. */
  const weight = () => (pending > 0 ? 1 : Math.exp(-(clock.monotonic() - at) / healMs))
  const rate = (): number | undefined => {
    if (windowBytes < leastBytesToJudge && windowMs < leastMsToJudge) return undefined
    return Math.min(mostRate, Math.max(windowBytes, 1) / Math.max(windowMs, 0.001))
  }
  const learn = () => {
    reliability = 1 - (1 - reliability) * weight()
    at = clock.monotonic()
  }

  return {
    asked() {
      learn()
      pending++
    },
    ended() {
      pending--
      at = clock.monotonic()
    },
    began(ms) {
      latency.note(ms)
      at = clock.monotonic()
    },
    notYet(ms) {
      latency.atLeast(ms)
      at = clock.monotonic()
    },
    moved(bytes, waitedMs) {
      const kept = Math.exp(-waitedMs / rateWindowMs)
      windowBytes = windowBytes * kept + bytes
      windowMs = windowMs * kept + waitedMs
      const surplus = windowBytes / rateWindowBytes
      if (surplus > 1) {
        windowBytes /= surplus
        windowMs /= surplus
      }
      at = clock.monotonic()
    },
    finished() {
      learn()
      reliability += (1 - reliability) * finishedTeaches
    },
    gaveOut(share) {
      learn()
      reliability -= reliability * gaveOutTeaches * share
    },
    probed(ms) {
      probeMs = ms
      reliability += (1 - reliability) * probeTeaches
    },
    get usualMs() {
      return latency.usualMs
    },
    get rate() {
      const known = rate()
      // Only what is slow heals: what is fast is not made slower by being left alone.
      return known === undefined || known >= guessedRate ? known : guessedRate * (known / guessedRate) ** weight()
    },
    expectedMs(bytes) {
      const firstMs = latency.typicalMs ?? probeMs ?? guessedFirstMs
      return firstMs + bytes / (this.rate ?? guessedRate)
    },
    costMs(bytes) {
      const sure = 1 - (1 - reliability) * weight()
      const risk = ((1 - sure) / Math.max(leastReliability, sure)) * giveOutMs
      return Math.max(latency.costMs ?? 0, this.expectedMs(0)) + bytes / (this.rate ?? guessedRate) + risk
    },
    get isUntried() {
      return pending === 0 && (latency.costMs === undefined || clock.monotonic() - at > healMs)
    },
  }
}
