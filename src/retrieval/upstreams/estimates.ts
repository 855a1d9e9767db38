// Estimates of one upstream: its speed at one kind of question, the number of questions that it can
// work on at once, and the rest of its budget of requests. Bad news counts at once.

export const minuteMs = 60_000
/** For so long evidence holds: a speed, an absence, proved bytes, a hash mismatch. */
export const memoryMs = 10 * minuteMs
/** For an upstream of which nothing is known. */
export const guessedFirstMs = 300
const guessedRate = 2048 // bytes a millisecond
export const rateMs = 500
export const minRateBytes = 64 * 1024
const newestWeight = 1 / 4
// An answer is late when so many of 1 came sooner; the hedge budget covers the others.
const lateQuantile = 0.93
// Above this it is no slow answer, but one that never comes.
const maxLateFactor = 4
/** The next upstream is asked after so long a silence; that is also what a failure costs. */
export const stalledMs = 1000

/** The last measurements, also in order: each of thousands a second is looked at right after it came. */
export class LastFew {
  readonly #max: number
  readonly #inTurn: number[] = []
  readonly #sorted: number[] = []

  constructor(max: number) {
    this.#max = max
  }

  add(value: number): void {
    const sorted = this.#sorted
    this.#inTurn.push(value)
    if (this.#inTurn.length > this.#max) sorted.splice(sorted.indexOf(this.#inTurn.shift() as number), 1)
    let place = sorted.length
    while (place > 0 && (sorted[place - 1] as number) > value) place--
    sorted.splice(place, 0, value)
  }

  /** So many of 1 are not larger than this; undefined before the first. */
  quantile(share: number): number | undefined {
    return this.#sorted[Math.min(this.#sorted.length - 1, Math.floor(this.#sorted.length * share))]
  }
}

/** Bytes a millisecond of waiting: the last pieces, weighted by age. */
export class Rate {
  #ms = 0
  #bytes = 0

  /** More bytes, for which readers waited so long. */
  moved(bytes: number, waitedMs: number): void {
    const weight = Math.exp(-waitedMs / rateMs)
    this.#ms = this.#ms * weight + waitedMs
    this.#bytes = this.#bytes * weight + bytes
  }

  /** Undefined while too little came to say. */
  get value(): number | undefined {
    const isKnown = this.#bytes >= minRateBytes || this.#ms >= rateMs / 5
    return isKnown ? Math.max(this.#bytes, 1) / Math.max(this.#ms, 0.1) : undefined
  }
}

/** The speed of one upstream at one kind of question. */
export class Estimate {
  /** Milliseconds until the first bytes, or until a late question was given up. */
  readonly #firsts = new LastFew(64)
  #rate = new Rate()
  /** The time that a question may lose here beyond the half of them, a moving average. */
  #lossMs = 0
  #pending = 0
  /** The time of the newest evidence. */
  #at = Number.NEGATIVE_INFINITY

  asked(now: number): void {
    // This question tells whether the old evidence holds.
    if (this.isUntried(now)) {
      this.#lossMs /= 2
      this.#rate = new Rate()
    }
    this.#pending++
    this.#at = now
  }

  ended(now: number): void {
    this.#pending--
    this.#at = now
  }

  began(ms: number): void {
    this.#firsts.add(ms)
    this.#average(ms)
  }

  /** No answer after this long. */
  notYet(ms: number): void {
    if (ms > (this.typicalMs ?? Number.POSITIVE_INFINITY)) this.#firsts.add(ms)
    if (ms > this.expectedMs(0)) this.#average(ms)
  }

  #average(ms: number): void {
    this.#lossMs += (Math.max(0, ms - this.expectedMs(0)) - this.#lossMs) * newestWeight
  }

  /** More bytes, for which readers waited so long. */
  moved(bytes: number, waitedMs: number): void {
    this.#rate.moved(bytes, waitedMs)
  }

  /** So much time was lost by it. */
  lost(ms: number): void {
    this.#lossMs += ms
  }

  probed(ms: number): void {
    if (this.#firsts.quantile(0) === undefined) this.#firsts.add(ms)
    this.#average(0)
  }

  /** The time until an answer counts as late; undefined before the first one. */
  get typicalMs(): number | undefined {
    const half = this.#firsts.quantile(0.5)
    if (half === undefined) return undefined
    const lateMs = this.#firsts.quantile(lateQuantile) ?? half
    return Math.min(maxLateFactor * half, lateMs)
  }

  /** Bytes a millisecond while readers wait; undefined while unknown. */
  get rate(): number | undefined {
    return this.#rate.value
  }

  expectedMs(bytes: number): number {
    return (this.#firsts.quantile(0.5) ?? guessedFirstMs) + bytes / (this.rate ?? guessedRate)
  }

  /** The expected time and the risk, in milliseconds. */
  costMs(bytes: number): number {
    return this.expectedMs(bytes) + this.#lossMs
  }

  /** Nothing is known, or nothing new, and no running question will tell. */
  isUntried(now: number): boolean {
    return this.#pending === 0 && now - this.#at > memoryMs
  }
}

const initialWindow = 16
// Gateways search: late answers never take the window below this.
const minWindow = 4
const minLateMs = 500
const lateFactor = 3
const crowdedMs = 5_000

/**
 * The number of questions that an upstream works on at once, learned as TCP learns its congestion
 * window: it grows with answers while it is full, and halves when answers get late or fail.
 */
export class ConcurrencyWindow {
  readonly #max: number
  #shrunkAt = Number.NEGATIVE_INFINITY
  #lateAt = Number.NEGATIVE_INFINITY
  readonly #last = new LastFew(8)
  /** The answers while there was no crowd. */
  readonly #calm = new LastFew(64)
  size: number

  constructor(max: number) {
    this.#max = max
    this.size = Math.min(initialWindow, max)
  }

  /** Answers were late just now: the upstream is asked for more than it can do. */
  isCrowded(now: number): boolean {
    return now - this.#lateAt < crowdedMs
  }

  answered(ms: number, now: number, isFull: boolean): void {
    this.#last.add(ms)
    if (!this.isCrowded(now)) this.#calm.add(ms)
    // Some answers take long because of their content; a crowded upstream gives no quick ones.
    const [best, base] = [this.#last.quantile(0) ?? 0, this.#calm.quantile(0) ?? 0]
    if (best > Math.max(minLateMs, base * lateFactor)) {
      this.#lateAt = now
      this.failed(now - ms, now)
    } else if (isFull) this.size = Math.min(this.#max, this.size + 1)
  }

  /** Halves it, once for all questions that were under way at that moment. */
  failed(beganAt: number, now: number): void {
    if (beganAt >= this.#shrunkAt) this.#shrink(this.size / 2, now)
  }

  /** The upstream is out. */
  close(now: number): void {
    this.#shrink(0, now)
  }

  #shrink(size: number, now: number): void {
    this.#shrunkAt = now
    this.size = Math.min(this.size, Math.max(minWindow, Math.floor(size)))
  }
}

/** At most so many requests in any minute. */
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
    return this.used(now) < this.perMinute ? 0 : (this.#taken[0] ?? now) + minuteMs - now
  }

  take(now: number): void {
    this.#taken.push(now)
  }
}
