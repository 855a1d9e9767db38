// How long one upstream takes to show a first proved byte: an estimate that jumps up at once and sinks with the answers,
// and what is usual among the last of them.
import type { Clock } from '../../core/clock.ts'
import { createLastFew } from '../last-few.ts'

const kept = 64
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
  const { add, quantile } = createLastFew(kept)
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
