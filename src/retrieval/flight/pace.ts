// The pace of one upstream in a flight, on the clock of the flight's readers, and the rule by which
// it is late: compared with its own earlier pace, and with what another upstream could bring in the
// same time.
import { maxBlockBytes } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'

// The clock of the readers hardly runs while this process is busy: bytes that an upstream has sent
// may lie in our own buffer then.
const busyShare = 0.1

/** The time for which readers waited for upstreams: it runs only while a reader waits. */
export class Stopwatch {
  readonly #clock: Clock
  readonly #isIdleOnly: boolean
  #sum = 0
  #since: number | undefined

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
const rateWindowMs = 250

export class Pace {
  readonly beganAt: number
  /** The number of wanted blocks that came. */
  blocks = 0
  /** When the newest wanted block came, on the clock of the readers. */
  cameAt: number
  /** Wanted bytes a millisecond of waiting, lately; undefined while too little came to say. */
  rate: number | undefined
  readonly #watch: Stopwatch
  #firstAt = 0
  #blockBytes = 0
  #windowAt: number
  #windowBytes = 0

  constructor(watch: Stopwatch) {
    this.#watch = watch
    this.beganAt = this.cameAt = this.#windowAt = watch.ms
  }

  /** A wanted block came. */
  came(bytes: number): void {
    const now = this.#watch.ms
    // The first block is a beginning, which is known of each upstream; the pace is what comes after
    // it.
    if (this.blocks++ > 0) this.#windowBytes += bytes
    else this.#firstAt = this.#windowAt = now
    this.cameAt = now
    this.#blockBytes = Math.max(this.#blockBytes, bytes)
    if (now - this.#windowAt < rateWindowMs) return
    this.rate = this.#windowBytes / (now - this.#windowAt)
    this.#windowAt = now
    this.#windowBytes = 0
  }

  /** Milliseconds without a wanted block, counted from `since` at the earliest. */
  silentMs(since = this.beganAt): number {
    return this.#watch.ms - Math.max(this.cameAt, since)
  }

  /** Milliseconds without a block after which another upstream is asked for the rest. */
  stallAfterMs(other: Alternative | undefined): number {
    if (this.blocks <= 1) return minStallMs
    const ownMs = ((this.cameAt - this.#firstAt) / (this.blocks - 1)) * slowFactor
    const otherMs = other ? other(this.#blockBytes) * slowFactor : maxStallMs
    return Math.min(maxStallMs, Math.max(minStallMs, Math.min(ownMs, otherMs)))
  }

  /** Another upstream would have brought the same in half the time. */
  isSlow(other: Alternative | undefined): boolean {
    if (this.rate === undefined || other === undefined) return false
    return maxBlockBytes / this.rate > other(maxBlockBytes) * slowFactor
  }
}
