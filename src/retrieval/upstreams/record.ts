// What is known of one upstream's work, which loses its weight with time: how quick it begins and goes on, how often it has what it is
// asked for, how many questions it bears at once, and what it did not bring lately.
import type { Clock } from '../../core/clock.ts'
import { createLastFew } from '../last-few.ts'

// How long one upstream takes to show a first proved byte: an estimate that jumps up at once and sinks with the answers,
// and what is usual among the last of them.

const keptAnswers = 64
const sinkMs = 10_000 // an old bad moment has lost two thirds of its weight after this long

export interface Latency {
  /** An answer after this long. */
  note(ms: number): void
  /** No answer yet after this long: it can only be worse. */
  atLeast(ms: number): void
  /** What to fear now; undefined before the first answer. */
  readonly costMs: number | undefined
  /** One of ten of the last answers came within this. */
  readonly leastMs: number | undefined
  /** Half of the last answers came within this. */
  readonly typicalMs: number | undefined
  /** Clearly more than is usual: what takes longer than this is late. Undefined before the first answer. */
  readonly usualMs: number | undefined
}

export function createLatency(clock: Clock): Latency {
  const { add, quantile } = createLastFew(keptAnswers)
  let cost: number | undefined
  let at = clock.monotonic()

  return {
    note(ms) {
      const now = clock.monotonic()
      add(ms)
      // Peak EWMA: worse news is believed at once, better news by the time that has passed (and a tenth per answer).
      const weight = Math.max(0.1, 1 - Math.exp(-(now - at) / sinkMs))
      cost = cost === undefined || ms > cost ? ms : cost + (ms - cost) * weight
      at = now
    },
    atLeast(ms) {
      cost = Math.max(cost ?? 0, ms)
      at = clock.monotonic()
    },
    get costMs() {
      return cost
    },
    get leastMs() {
      return quantile(0.1)
    },
    get typicalMs() {
      return quantile(0.5) ?? cost
    },
    get usualMs() {
      const [half, most] = [quantile(0.5), quantile(0.9)]
      return half === undefined || most === undefined ? undefined : Math.max(2 * half, 1.25 * most)
    },
  }
}

// How one upstream does one kind of work: when it begins, how fast it goes on while readers wait, and how often it
// finishes what it began. What was bad loses its weight with time, and what is known of an upstream that was not asked
// for long has to be found out anew.

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

// How often an upstream has what it is asked for, and what it costs to hear that it does not.

export interface Hits {
  has(): void
  /** The upstream lacks what another one has. */
  lacks(): void
  /** The upstream said no, after this long. */
  saidNo(ms: number): void
  /** The time that misses of this upstream add to a question, on average. */
  readonly costMs: number
}

const teaches = 0.05
const leastRate = 0.05

export function createHits(): Hits {
  let rate = 1
  let noMs: number | undefined
  return {
    has() {
      rate += (1 - rate) * teaches
    },
    lacks() {
      rate -= rate * teaches
    },
    saidNo(ms) {
      noMs = noMs === undefined ? ms : noMs + (ms - noMs) * teaches
    },
    get costMs() {
      return ((1 - rate) / Math.max(leastRate, rate)) * (noMs ?? 0)
    },
  }
}

// What an upstream was asked for lately and brought nothing, or nothing true: asked for again, it may be nowhere, and has to be
// content with the slots that others leave; or another upstream has to answer.

export interface Doubts {
  has(key: string): boolean
  add(key: string): void
  delete(key: string): void
  /** How long it is still doubted. */
  leftMs(key: string): number
  readonly size: number
}

const mostKept = 10_000

export function createDoubts(clock: Clock, keptMs: number): Doubts {
  /** When each is over. All are kept equally long, so the oldest come first, and nothing that is over takes room. */
  const ends = new Map<string, number>()
  const leftMs = (key: string): number => Math.max(0, (ends.get(key) ?? 0) - clock.monotonic())

  function forgetOldest(): void {
    for (const [key, end] of ends) {
      if (end > clock.monotonic() && ends.size <= mostKept) return
      ends.delete(key)
    }
  }

  return {
    has: (key) => leftMs(key) > 0,
    add(key) {
      ends.delete(key)
      ends.set(key, clock.monotonic() + keptMs)
      forgetOldest()
    },
    delete(key) {
      ends.delete(key)
    },
    leftMs,
    get size() {
      return ends.size
    },
  }
}

// How many questions an upstream bears at once, learned as TCP learns a window: it grows with answers while it is full,
// and shrinks when answers get late or fail.

export interface Window {
  /** How many may wait for their first byte at once. */
  readonly size: number
  /** The window has shrunk just now because answers were late. */
  readonly isCrowded: boolean
  /** A question was answered. `wasFull`: it was asked when the window was full. */
  answered(ms: number, beganAt: number, wasFull: boolean): void
  /** The upstream failed at a question, or throttled it. */
  failed(beganAt: number): void
  /** The upstream is out: the window grows again from one question. */
  close(): void
  /** A probe found the upstream well. */
  open(): void
}

const firstSize = 16
// Gateways search: even late answers never take a window below this, only failures do.
const leastWhenLate = 4
const lateLeastMs = 500
const lateTimes = 3
const lateAnswers = 8
const lateShrinks = 0.75
const failureShrinks = 0.5
const steepLeast = 8
const crowdedMs = 5_000
const spellMs = 60_000

export function createWindow(most: number, clock: Clock): Window {
  let size = Math.min(firstSize, most)
  let steepUntil = most // below this it doubles with each round of answers
  let lateAt = Number.NEGATIVE_INFINITY
  let shrunkAt = Number.NEGATIVE_INFINITY
  // What an answer takes at least while there is no crowd, in this spell and the one before.
  let before: number | undefined
  let least: number | undefined
  let spell = createLatency(clock)
  let spellAt = clock.monotonic()
  let last: number[] = []

  const isCrowded = () => clock.monotonic() - lateAt < crowdedMs

  /**
   * Some answers take long because of what is asked for; late is an upstream from which no quick ones come any more.
   */
  function isLate(ms: number): boolean {
    const now = clock.monotonic()
    if (now - spellAt > spellMs && !isCrowded()) {
      before = least
      least = undefined
      spell = createLatency(clock)
      spellAt = now
    }
    spell.note(ms)
    last = [...last, ms].slice(-lateAnswers)
    if (last.length < lateAnswers) return false
    least = Math.min(least ?? Number.POSITIVE_INFINITY, spell.leastMs ?? ms)
    return Math.min(...last) > Math.max(lateLeastMs, Math.min(before ?? least, least) * lateTimes)
  }

  /** Once for all that were under way at that moment. */
  function shrink(beganAt: number, share: number, least: number): void {
    if (beganAt < shrunkAt) return
    shrunkAt = clock.monotonic()
    size = Math.min(size, Math.max(Math.min(least, most), size * share))
    steepUntil = Math.max(size, steepLeast)
  }

  return {
    get size() {
      return Math.max(1, Math.floor(size))
    },
    get isCrowded() {
      return isCrowded()
    },
    answered(ms, beganAt, wasFull) {
      if (isLate(ms)) {
        lateAt = clock.monotonic()
        return shrink(beganAt, lateShrinks, leastWhenLate)
      }
      if (wasFull) size = Math.min(most, size + (size < steepUntil ? 1 : 1 / size))
    },
    failed: (beganAt) => shrink(beganAt, failureShrinks, 1),
    open() {
      size = Math.max(size, Math.min(steepLeast, most))
    },
    close() {
      size = 1
      steepUntil = most
      shrunkAt = clock.monotonic()
    },
  }
}
