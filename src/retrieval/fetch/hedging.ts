// Decides when to start the next upstream in the middle of an answer: a pure function. It compares the answer with its own
// earlier pace, and with what another upstream could bring in the same time.

export type ProgressSoFar = {
  /** How long they usually wait for one; undefined before the second. */
  readonly usualMs: number | undefined
  /** Wanted bytes a millisecond of waiting, lately; undefined while too little came to say. */
  readonly rate: number | undefined
  /** The largest block so far. */
  readonly blockBytes: number
}

/** How long another upstream would take for so many bytes, if asked now. */
export type Alternative = (bytes: number) => number

export const leastStallMs = 100
const mostStallMs = 400
const unknownStallMs = 100
const stallFactor = 4
const slowFactor = 2
const comparedBytes = 1024 * 1024
// An answer that stalled for so long has failed: asking another upstream then is no hedge.
export const failedMs = 1000

/** How long nothing may come before another upstream is asked for the rest. */
export function stallAfterMs({ usualMs, blockBytes }: ProgressSoFar, other: Alternative | undefined): number {
  if (usualMs === undefined) return unknownStallMs
  const worth = Math.min(usualMs * stallFactor, other ? other(blockBytes) * slowFactor : Number.POSITIVE_INFINITY)
  return Math.min(mostStallMs, Math.max(leastStallMs, worth))
}

/** Whether it moves so slowly that another upstream would have brought the same in half the time. */
export function isSlow({ rate }: ProgressSoFar, other: Alternative | undefined): boolean {
  return rate !== undefined && other !== undefined && comparedBytes / rate > other(comparedBytes) * slowFactor
}
