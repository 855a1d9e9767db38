// The pace of one upstream in a flight, on the clock of the flight's readers, and the rule by which it is late: compared with its own
// earlier pace, and with what another upstream could bring in the same time.
import type { Clock } from '../../core/clock.ts'

/** Time for which readers waited for upstreams: it runs only while a reader waits. */
export interface Stopwatch {
  run(): void
  stop(): void
  readonly ms: number
}

// It hardly runs while this process is busy: bytes that an upstream has sent may lie in our own buffer then.
const busyShare = 0.1

export function createStopwatch(clock: Clock): Stopwatch {
  let sum = 0
  let since: number | undefined
  const now = (): number => clock.idle() * (1 - busyShare) + clock.monotonic() * busyShare
  return {
    run() {
      since ??= now()
    },
    stop() {
      if (since !== undefined) sum += now() - since
      since = undefined
    },
    get ms() {
      return sum + (since === undefined ? 0 : now() - since)
    },
  }
}

/** How long another upstream would take for so many bytes, if asked now. */
export type Alternative = (bytes: number) => number

export const minStallMs = 100
export const maxStallMs = 400
const unknownStallMs = 100
const stallFactor = 4
const slowFactor = 2
const comparedBytes = 1024 * 1024
// An answer that stalled for so long has failed: asking another upstream then is no hedge.
export const failedMs = 1000
const rateWindowMs = 250
const learning = 0.2

export class Pace {
  readonly #watch: Stopwatch
  readonly #beganAt: number
  #blocks = 0
  #cameAt = 0
  #usualMs: number | undefined
  #rate: number | undefined
  #blockBytes = 0
  #windowAt = 0
  #windowBytes = 0

  constructor(watch: Stopwatch) {
    this.#watch = watch
    this.#beganAt = this.#cameAt = this.#windowAt = watch.ms
  }

  /** A wanted block came. */
  came(bytes: number): void {
    const now = this.#watch.ms
    const ms = now - this.#cameAt
    // The first block is a beginning, which is known of each upstream; the pace is what comes after it.
    if (this.#blocks++ > 0)
      this.#usualMs = this.#usualMs === undefined ? ms : this.#usualMs + (ms - this.#usualMs) * learning
    else this.#windowAt = now
    this.#cameAt = now
    this.#blockBytes = Math.max(this.#blockBytes, bytes)
    if (this.#blocks > 1) this.#windowBytes += bytes
    if (now - this.#windowAt < rateWindowMs) return
    this.#rate = this.#windowBytes / (now - this.#windowAt)
    this.#windowAt = now
    this.#windowBytes = 0
  }

  /** How many wanted blocks came. */
  get blocks(): number {
    return this.#blocks
  }

  /** When its last wanted block came, on the clock of the readers. */
  get cameAt(): number {
    return this.#cameAt
  }

  /** Wanted bytes a millisecond of waiting, lately; undefined while too little came to say. */
  get rate(): number | undefined {
    return this.#rate
  }

  /** How long no wanted block came, counted from `since` at the earliest. */
  silentMs(since = this.#beganAt): number {
    return this.#watch.ms - Math.max(this.#cameAt, since)
  }

  /** How long no block may come before another upstream is asked for the rest. */
  stallAfterMs(other: Alternative | undefined): number {
    if (this.#usualMs === undefined) return unknownStallMs
    const worth = Math.min(
      this.#usualMs * stallFactor,
      other ? other(this.#blockBytes) * slowFactor : Number.POSITIVE_INFINITY,
    )
    return Math.min(maxStallMs, Math.max(minStallMs, worth))
  }

  /** Another upstream would have brought the same in half the time. */
  isSlow(other: Alternative | undefined): boolean {
    return (
      this.#rate !== undefined && other !== undefined && comparedBytes / this.#rate > other(comparedBytes) * slowFactor
    )
  }
}
