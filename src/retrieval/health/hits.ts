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
