// Measures the progress of an answer on the clock of its readers: the input of hedging.ts.
import type { Clock } from '../../core/clock.ts'
import type { ProgressSoFar } from './hedging.ts'
import { createStopwatch } from './stopwatch.ts'

export interface Progress {
  /** Whether the readers wait for upstreams now, not for this process. */
  setWaiting(isWaiting: boolean): void
  /** A wanted block came. */
  came(bytes: number): void
  /** On the clock of the readers. */
  readonly now: number
  /** How long nothing came, counted from `since` at the earliest. */
  silentMs(since: number): number
  readonly seen: ProgressSoFar
}

const rateWindowMs = 250
const learning = 0.2

export function createProgress(clock: Clock): Progress {
  const waited = createStopwatch(clock)
  let blocks = 0
  let cameAt = 0
  let usualMs: number | undefined
  let rate: number | undefined
  let blockBytes = 0
  let windowAt = 0
  let windowBytes = 0
  return {
    setWaiting(isWaiting) {
      if (isWaiting) waited.run()
      else waited.stop()
    },
    came(bytes) {
      const now = waited.ms
      const ms = now - cameAt
      // The first block is a beginning, which is known of each upstream; what comes after it is the pace of the answer.
      if (blocks++ > 0) usualMs = usualMs === undefined ? ms : usualMs + (ms - usualMs) * learning
      cameAt = now
      blockBytes = Math.max(blockBytes, bytes)
      windowBytes += bytes
      if (now - windowAt < rateWindowMs) return
      rate = windowBytes / (now - windowAt)
      windowAt = now
      windowBytes = 0
    },
    get now() {
      return waited.ms
    },
    silentMs: (since) => waited.ms - Math.max(cameAt, since),
    get seen() {
      return { usualMs, rate, blockBytes }
    },
  }
}
