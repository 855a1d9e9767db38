// A token bucket: a rate limit that allows short bursts.
import type { Clock } from '../clock.ts'

export interface TokenBucket {
  /** Takes one token if one is available. */
  take(): boolean
  /** Adds a fraction of a token, up to the bucket's size. */
  earn(tokens: number): void
  /** Milliseconds until a token is available; 0 if one is. */
  readonly waitMs: number
}

/** A bucket of this process alone. */
export interface LocalTokenBucket extends TokenBucket {
  /** Takes tokens even if the bucket is empty; its debt is bounded by its size. */
  spend(tokens: number): void
}

export function createTokenBucket(options: { size: number; perSecond: number; clock: Clock }): LocalTokenBucket {
  const { size, perSecond, clock } = options
  let tokens = size
  let at = clock.monotonic()
  const refill = () => {
    const now = clock.monotonic()
    tokens = Math.min(size, tokens + ((now - at) / 1000) * perSecond)
    at = now
  }
  return {
    take() {
      refill()
      if (tokens < 1) return false
      tokens--
      return true
    },
    earn(more) {
      refill()
      tokens = Math.min(size, tokens + more)
    },
    spend(taken) {
      refill()
      tokens = Math.max(-size, tokens - taken)
    },
    get waitMs() {
      refill()
      return tokens >= 1 ? 0 : Math.ceil(((1 - tokens) / perSecond) * 1000)
    },
  }
}
