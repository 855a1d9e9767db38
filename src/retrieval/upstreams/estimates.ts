// Estimates of one upstream: how quick it is, how many questions it can work on at once, and what
// is left of its budget of requests. Bad news counts at once; good news and time heal it.
import type { Clock } from '../../core/clock.ts'
import { createLastFew } from '../last-few.ts'

export const minuteMs = 60_000
const healMs = 300_000 // an estimate has lost two thirds of its weight after so long without evidence
const peakHealMs = 10_000
const keptAnswers = 64
/** For an upstream of which nothing is known. */
export const guessedFirstMs = 300
const guessedRate = 2048 // bytes a millisecond
const rateWindow = { ms: 500, bytes: 8 * 1024 * 1024, minMs: 100, minBytes: 64 * 1024 } as const
const breakOffMs = 1000 // added to the cost of an upstream that breaks off, stalls or falls behind others

/** The speed of one upstream at one kind of question. */
export class Estimate {
  readonly #clock: Clock
  /** Milliseconds until the first bytes. */
  readonly #firsts = createLastFew(keptAnswers)
  /**
   * A peak EWMA of the same: a slower answer counts in full, a faster one by the time since the
   * last.
   */
  #peakMs: number | undefined
  #peakAt: number
  #probeMs: number | undefined
  /** The wait and the bytes of the last pieces, weighted by age. */
  #window = { ms: 0, bytes: 0 }
  #penaltyMs = 0
  #pending = 0
  /** The time of the newest evidence. */
  #at: number

  constructor(clock: Clock) {
    this.#clock = clock
    this.#at = this.#peakAt = clock.monotonic()
  }

  /** A running question may still change what is known, so nothing heals before its end. */
  asked(now: number): void {
    this.#penaltyMs *= this.#weight(now)
    this.#pending++
    this.#at = now
  }

  ended(now: number): void {
    this.#pending--
    this.#at = now
  }

  began(ms: number, now: number): void {
    this.#firsts.add(ms)
    const peak = this.#peakMs
    const weight = Math.max(0.1, 1 - Math.exp((this.#peakAt - now) / peakHealMs))
    this.#peakMs = peak === undefined || ms > peak ? ms : peak + (ms - peak) * weight
    this.#peakAt = now
  }

  /** No answer after this long. */
  notYet(ms: number, now: number): void {
    this.#peakMs = Math.max(this.#peakMs ?? 0, ms)
    this.#peakAt = this.#at = now
  }

  /** More bytes, for which readers waited so long. */
  moved(bytes: number, waitedMs: number): void {
    const weight = Math.exp(-waitedMs / rateWindow.ms - bytes / rateWindow.bytes)
    this.#window = { ms: this.#window.ms * weight + waitedMs, bytes: this.#window.bytes * weight + bytes }
  }

  /** The answer ended well, or a probe did. */
  finished(): void {
    this.#penaltyMs *= 0.8
  }

  /** It broke off in the middle, stalled or fell behind others. */
  brokeOff(): void {
    this.#penaltyMs += breakOffMs
  }

  probed(ms: number): void {
    this.#probeMs = ms
    this.finished()
  }

  /** The time until an answer counts as late; undefined before the first one. */
  get typicalMs(): number | undefined {
    const half = this.#firsts.quantile(0.5)
    return half === undefined ? undefined : Math.max(2 * half, 1.25 * (this.#firsts.quantile(0.9) ?? half))
  }

  /** Bytes a millisecond while readers wait; undefined while unknown. */
  get rate(): number | undefined {
    const { ms, bytes } = this.#window
    if (bytes < rateWindow.minBytes && ms < rateWindow.minMs) return undefined
    const rate = Math.max(bytes, 1) / Math.max(ms, 0.1)
    // Only a slow one heals: a fast upstream does not get slower by not being asked.
    return rate >= guessedRate ? rate : guessedRate * (rate / guessedRate) ** this.#weight(this.#clock.monotonic())
  }

  expectedMs(bytes: number): number {
    const firstMs = this.#firsts.quantile(0.5) ?? this.#peakMs ?? this.#probeMs ?? guessedFirstMs
    return firstMs + bytes / (this.rate ?? guessedRate)
  }

  /** The expected time and the risk, in milliseconds. */
  costMs(bytes: number, now: number): number {
    return (
      Math.max(this.#peakMs ?? 0, this.expectedMs(0)) +
      bytes / (this.rate ?? guessedRate) +
      this.#penaltyMs * this.#weight(now)
    )
  }

  /** Nothing is known, or nothing new, and no running question will tell. */
  isUntried(now: number): boolean {
    return this.#pending === 0 && (this.#peakMs === undefined || now - this.#at > healMs)
  }

  #weight(now: number): number {
    return this.#pending > 0 ? 1 : Math.exp((this.#at - now) / healMs)
  }
}

const initialWindow = 16
// Gateways search: late answers alone never take the window below this.
const minLateWindow = 4
const lateAnswers = 8
const minLateMs = 500
const lateFactor = 3
const crowdedMs = 5_000

/**
 * The number of questions that an upstream works on at once, learned as TCP learns its congestion window: it grows with answers while
 * it is full, and halves when answers get late or fail.
 */
export class ConcurrencyWindow {
  readonly #max: number
  #size: number
  /** Below this it doubles with each round of answers. */
  #slowStartUntil: number
  #shrunkAt = Number.NEGATIVE_INFINITY
  #lateAt = Number.NEGATIVE_INFINITY
  /** The quickest of the last answers when there was no crowd; creeps up with time. */
  #baseMs = Number.POSITIVE_INFINITY
  #baseAt = 0
  readonly #last: number[] = []

  constructor(max: number) {
    this.#max = max
    this.#size = Math.min(initialWindow, max)
    this.#slowStartUntil = max
  }

  get size(): number {
    return Math.max(1, Math.floor(this.#size))
  }

  /** Answers were late just now: the upstream is asked for more than it can do. */
  isCrowded(now: number): boolean {
    return now - this.#lateAt < crowdedMs
  }

  /** `wasFull`: the window was full when the question was asked. */
  answered(ms: number, now: number, wasFull: boolean): void {
    if (this.#isLate(ms, now)) {
      this.#lateAt = now
      return this.#halve(now - ms, now, minLateWindow)
    }
    if (!wasFull) return
    this.#size = Math.min(this.#max, this.#size + (this.#size < this.#slowStartUntil ? 1 : 1 / this.#size))
  }

  failed(beganAt: number, now: number): void {
    this.#halve(beganAt, now, 1)
  }

  /** The upstream is out: the window starts again from one. */
  close(now: number): void {
    this.#size = 1
    this.#slowStartUntil = this.#max
    this.#shrunkAt = now
  }

  /** A probe succeeded. */
  open(): void {
    this.#size = Math.max(this.#size, Math.min(minLateWindow, this.#max))
  }

  /**
   * Some answers take long because of their content; a crowded upstream gives no quick ones any
   * more.
   */
  #isLate(ms: number, now: number): boolean {
    this.#last.push(ms)
    if (this.#last.length < lateAnswers) return false
    if (this.#last.length > lateAnswers) this.#last.shift()
    const best = Math.min(...this.#last)
    if (best < this.#baseMs) this.#baseMs = best
    else if (!this.isCrowded(now)) this.#baseMs += (best - this.#baseMs) * Math.min(1, (now - this.#baseAt) / healMs)
    this.#baseAt = now
    return best > Math.max(minLateMs, this.#baseMs * lateFactor)
  }

  /** Once for all questions that were under way at that moment. */
  #halve(beganAt: number, now: number, min: number): void {
    if (beganAt < this.#shrunkAt) return
    this.#shrunkAt = now
    this.#size = Math.min(this.#size, Math.max(min, this.#size / 2))
    this.#slowStartUntil = Math.max(this.#size, minLateWindow)
  }
}

/**
 * At most so many requests in any minute: freely while half of them are left, then ever more slowly, so that some are left for the rest
 * of the minute.
 */
export class MinuteBudget {
  readonly perMinute: number
  /** The times of the requests of the last minute. */
  readonly #taken: number[] = []

  constructor(perMinute: number) {
    this.perMinute = perMinute
  }

  used(now: number): number {
    while (now - (this.#taken[0] ?? now) >= minuteMs) this.#taken.shift()
    return this.#taken.length
  }

  /** Until the next one may go. */
  waitMs(now: number): number {
    const left = this.perMinute - this.used(now)
    if (left * 2 > this.perMinute) return 0
    const [oldest = now] = this.#taken
    if (left <= 0) return oldest + minuteMs - now
    // A ninth of what is left is spread over the minute.
    return Math.max(0, Math.ceil((this.#taken.at(-1) ?? now) + minuteMs / (9 * left) - now))
  }

  take(now: number): void {
    this.#taken.push(now)
  }
}
