// How long one upstream takes to show a first proved byte: an estimate that jumps up at once, sinks with time, and a
// p90 over the last answers.
import type { Clock } from '../clock.ts'

const kept = 64
const sinkMs = 10_000 // an old bad moment has lost two thirds of its weight after this long
const forgetMs = 300_000 // and nothing is held for or against one that was not asked for so long
const neutralMs = 200

export interface Latency {
  /** An answer after this long. */
  note(ms: number): void
  /** No answer yet after this long: it can only be worse. */
  atLeast(ms: number): void
  /** What to expect now. */
  readonly costMs: number
  /** 90 of 100 answers came within this; undefined before the first. */
  readonly usualMs: number | undefined
}

export function createLatency(clock: Clock): Latency {
  const last: number[] = []
  let cost: number | undefined
  let at = clock.monotonic()

  return {
    note(ms) {
      const now = clock.monotonic()
      if (last.push(ms) > kept) last.shift()
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
      if (cost === undefined) return neutralMs
      return neutralMs + (cost - neutralMs) * Math.exp(-(clock.monotonic() - at) / forgetMs)
    },
    get usualMs() {
      if (last.length === 0) return undefined
      const sorted = [...last].sort((one, other) => one - other)
      return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.9))]
    },
  }
}
