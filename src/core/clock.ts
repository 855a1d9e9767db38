// Time as an argument, so that tests can control it. Imports nothing from `src`.

/** The gateway's source of time: `systemClock`, or a fake one in tests. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number
  /** Milliseconds of a monotonic clock, for measuring. */
  monotonic(): number
  /** Milliseconds on that clock in which the event loop was idle. */
  idle(): number
  /**
   * Runs `action` once after `ms`; returns a function that cancels it. A pending timer never keeps
   * the process alive.
   */
  after(ms: number, action: () => void): () => void
  /** Resolves after `ms`; rejects with the signal's reason as soon as it aborts. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  idle: () => performance.eventLoopUtilization().idle,
  after(ms, action) {
    const timer = setTimeout(action, ms)
    timer.unref()
    return () => clearTimeout(timer)
  },
  sleep(ms, signal) {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason)
      const onAbort = () => {
        clearTimeout(timer)
        reject(signal?.reason)
      }
      const timer = setTimeout(() => {
        signal?.removeEventListener('abort', onAbort)
        resolve()
      }, ms)
      signal?.addEventListener('abort', onAbort, { once: true })
    })
  },
}
