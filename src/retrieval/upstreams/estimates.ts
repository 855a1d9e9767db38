// Estimates of one upstream: its speed at one kind of question, the number of questions that it can
// work on at once, and the rest of its budget of requests. Bad news counts at once.

export const minuteMs = 60_000
/** After so long without evidence an upstream is tried again. */
const staleMs = 5 * minuteMs
const peakHealMs = 10_000
/** For an upstream of which nothing is known. */
export const guessedFirstMs = 300
const guessedRate = 2048 // bytes a millisecond
const rateMs = 500
const minRateBytes = 64 * 1024
export const breakOffMs = 1000 // the loss by an upstream that breaks off, stalls or falls behind others

/** The speed of one upstream at one kind of question. */
export class Estimate {
  /** Milliseconds until the first bytes. */
  readonly #firsts = createLastFew(64)
  /**
   * A peak EWMA of the same: a slower answer counts in full, a faster one by the time since the
   * last.
   */
  #peakMs: number | undefined
  #peakAt = 0
  /** The wait and the bytes of the last pieces, weighted by age. */
  #window = { ms: 0, bytes: 0 }
  /** The time that a question may lose here, for the next one to bring the content. */
  #lossMs = 0
  #pending = 0
  /** The time of the newest evidence. */
  #at = Number.NEGATIVE_INFINITY

  asked(now: number): void {
    // This question tells whether the old evidence holds.
    if (this.isUntried(now)) {
      this.#lossMs /= 2
      this.#window = { ms: 0, bytes: 0 }
    }
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
    this.#peakAt = now
  }

  /** More bytes, for which readers waited so long. */
  moved(bytes: number, waitedMs: number): void {
    const weight = Math.exp(-waitedMs / rateMs)
    this.#window = { ms: this.#window.ms * weight + waitedMs, bytes: this.#window.bytes * weight + bytes }
  }

  /** So much time was lost by it; none where an answer or a probe ended well. */
  lost(ms: number): void {
    this.#lossMs = ms === 0 ? this.#lossMs * 0.8 : this.#lossMs + ms
  }

  probed(ms: number): void {
    this.#peakMs ??= ms
    this.lost(0)
  }

  /** The time until an answer counts as late; undefined before the first one. */
  get typicalMs(): number | undefined {
    const half = this.#firsts.quantile(0.5)
    return half === undefined ? undefined : Math.max(2 * half, 1.25 * (this.#firsts.quantile(0.9) ?? half))
  }

  /** Bytes a millisecond while readers wait; undefined while unknown. */
  get rate(): number | undefined {
    const { ms, bytes } = this.#window
    return bytes < minRateBytes && ms < rateMs / 5 ? undefined : Math.max(bytes, 1) / Math.max(ms, 0.1)
  }

  expectedMs(bytes: number): number {
    const firstMs = this.#firsts.quantile(0.5) ?? this.#peakMs ?? guessedFirstMs
    return firstMs + bytes / (this.rate ?? guessedRate)
  }

  /** The expected time and the risk, in milliseconds. */
  costMs(bytes: number): number {
    const slowerMs = (this.#peakMs ?? 0) - this.expectedMs(0)
    return this.expectedMs(bytes) + Math.max(0, slowerMs) + this.#lossMs
  }

  /** Nothing is known, or nothing new, and no running question will tell. */
  isUntried(now: number): boolean {
    return this.#pending === 0 && now - this.#at > staleMs
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
  readonly #last = createLastFew(8)
  /** The answers while there was no crowd. */
  readonly #calm = createLastFew(64)
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

/**
 * At most so many requests in any minute: freely while half of them are left, then ever more slowly,
 * so that some are left for the rest of the minute.
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

/** The last measurements, kept in order: each of thousands a second is looked at right after it came. */
export interface LastFew {
  add(value: number): void
  /** So many of 1 are not larger than this; undefined before the first. */
  quantile(share: number): number | undefined
  clear(): void
}

export function createLastFew(kept: number): LastFew {
  const inTurn: number[] = []
  const sorted: number[] = []
  let next = 0

  /** The first place of a value that is not smaller. */
  function placeOf(value: number): number {
    let [low, high] = [0, sorted.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if ((sorted[middle] as number) < value) low = middle + 1
      else high = middle
    }
    return low
  }

  return {
    add(value) {
      if (inTurn.length === kept) sorted.splice(placeOf(inTurn[next] as number), 1)
      inTurn[next] = value
      next = (next + 1) % kept
      sorted.splice(placeOf(value), 0, value)
    },
    quantile: (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))],
    clear() {
      inTurn.length = sorted.length = next = 0
    },
  }
}
