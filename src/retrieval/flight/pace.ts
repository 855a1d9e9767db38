// The pace of one upstream in a flight, on the clock of the flight's readers, and the rule by which
// it is late: compared with its own earlier pace, and with what another upstream could bring in the
// same time.
import { maxBlockBytes } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { Rate, rateMs } from '../upstreams/estimates.ts'

// The clock of the readers hardly runs while this process is busy: bytes that an upstream has sent
// may lie in our own buffer then.
const busyShare = 0.1

/** The time for which readers waited for upstreams: it runs only while a reader waits. */
export class Stopwatch {
  readonly #clock: Clock
  readonly #isIdleOnly: boolean
  #sum = 0
  #since: number | undefined

  /** `isIdleOnly`: not for a single block, which is hedged in a busy process too. */
  constructor(clock: Clock, isIdleOnly: boolean) {
    this.#clock = clock
    this.#isIdleOnly = isIdleOnly
  }

  get #now(): number {
    const now = this.#clock.monotonic()
    return this.#isIdleOnly ? this.#clock.idle() * (1 - busyShare) + now * busyShare : now
  }

  run(): void {
    this.#since ??= this.#now
  }

  stop(): void {
    this.#sum = this.ms
    this.#since = undefined
  }

  get ms(): number {
    return this.#sum + (this.#since === undefined ? 0 : this.#now - this.#since)
  }
}

/** Returns how long another upstream would take for so many bytes, if asked now. */
type Alternative = (bytes: number) => number

export const minStallMs = 100
export const maxStallMs = 400
const slowFactor = 2

export class Pace {
  /** When its upstream was asked. */
  beganAt: number
  /** The number of wanted blocks that came. */
  blocks = 0
  /** When the newest wanted block came, on the clock of the readers. */
  cameAt: number
  readonly #watch: Stopwatch
  readonly #rate = new Rate()
  #firstAt = 0
  #blockBytes = 0

  constructor(watch: Stopwatch) {
    this.#watch = watch
    this.beganAt = this.cameAt = watch.ms
  }

  /** A wanted block came. */
  came(bytes: number): void {
    const now = this.#watch.ms
    // The first block is a beginning, which is known of each upstream; the pace is what comes after
    // it.
    if (this.blocks++ > 0) this.#rate.moved(bytes, now - this.cameAt)
    else this.#firstAt = now
    this.cameAt = now
    this.#blockBytes = Math.max(this.#blockBytes, bytes)
  }

  /** Wanted bytes a millisecond of waiting, lately; undefined while too little came to say. */
  get rate(): number | undefined {
    return this.cameAt - this.#firstAt < rateMs / 2 ? undefined : this.#rate.value
  }

  /** Milliseconds without a wanted block, counted from `since` at the earliest. */
  silentMs(since = this.beganAt): number {
    return this.#watch.ms - Math.max(this.cameAt, since)
  }

  /** Milliseconds without a block after which another upstream is asked for the rest. */
  stallAfterMs(other: Alternative | undefined): number {
    if (this.blocks <= 1) return minStallMs
    const ownMs = (this.cameAt - this.#firstAt) / (this.blocks - 1)
    const otherMs = other ? other(this.#blockBytes) : Number.POSITIVE_INFINITY
    return Math.min(maxStallMs, Math.max(minStallMs, Math.min(ownMs, otherMs) * slowFactor))
  }

  /** Another upstream would have brought the same in half the time. */
  isSlow(other: Alternative | undefined): boolean {
    const { rate } = this
    return rate !== undefined && other !== undefined && maxBlockBytes / rate > other(maxBlockBytes) * slowFactor
  }
}
