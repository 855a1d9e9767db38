// Time as an argument, so that tests can control it: the clock, and what waits by it.
import type { Failure } from './failure.ts'

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
    // A longer timer of Node would fire at once.
    const timer = setTimeout(action, Math.min(ms, 2 ** 31 - 1))
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

type DeadlineOptions = {
  readonly ms: number
  readonly clock: Clock
  /** The caller's signal; the call rejects with its reason. */
  readonly signal?: AbortSignal | undefined
  readonly late: () => Failure
}

export async function withDeadline<T>(options: DeadlineOptions, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const { signal } = options
  signal?.throwIfAborted()
  const own = new AbortController()
  const stopped = Promise.withResolvers<never>()
  const stop = (reason: unknown) => {
    own.abort(reason)
    stopped.reject(reason)
  }
  const leave = () => stop(signal?.reason)
  const cancel = options.clock.after(options.ms, () => stop(options.late()))
  signal?.addEventListener('abort', leave, { once: true })
  try {
    return await Promise.race([work(own.signal), stopped.promise])
  } finally {
    cancel()
    signal?.removeEventListener('abort', leave)
  }
}

/** Stops waiting for shared work when this caller leaves; the work goes on for the others. */
export function orAborted<T>(signal: AbortSignal | undefined, work: Promise<T>): Promise<T> {
  if (!signal) return work
  return new Promise((resolve, reject) => {
    const leave = () => reject(signal.reason)
    const stop = () => signal.removeEventListener('abort', leave)
    work.then(
      (value) => {
        stop()
        resolve(value)
      },
      (error: unknown) => {
        stop()
        reject(error)
      },
    )
    if (signal.aborted) leave()
    else signal.addEventListener('abort', leave, { once: true })
  })
}

const stallMs = 50
const graceMs = 250

/**
 * A timer with a grace period after a stall of this process, so that input which arrived during the
 * stall is read first.
 */
export function onceLate(clock: Clock, ms: number, action: () => void): () => void {
  const dueAt = clock.monotonic() + ms
  let stop = clock.after(ms, () => {
    if (clock.monotonic() - dueAt < stallMs) return action()
    stop = clock.after(Math.min(ms, graceMs), action)
  })
  return () => stop()
}

export interface Backoff {
  /** Until it may be tried again; 0: now. */
  readonly remainingMs: number
  /**
   * `askedMs`: the wait that the other side asked for, which counts instead of ours, up to the same
   * bound.
   */
  failed(askedMs?: number): void
  succeeded(): void
}

export function createBackoff({
  clock,
  firstMs,
  maxMs,
}: {
  readonly clock: Clock
  readonly firstMs: number
  readonly maxMs: number
}): Backoff {
  let nextMs = firstMs
  let until = Number.NEGATIVE_INFINITY
  return {
    get remainingMs() {
      return Math.max(0, until - clock.monotonic())
    },
    failed(askedMs) {
      until = clock.monotonic() + Math.min(maxMs, askedMs ?? nextMs)
      nextMs = Math.min(maxMs, nextMs * 2)
    },
    succeeded() {
      nextMs = firstMs
      until = Number.NEGATIVE_INFINITY
    },
  }
}

const firstRetryMs = 5_000

export async function repeatCheck(options: {
  readonly everyMs: number
  readonly clock: Clock
  readonly signal: AbortSignal
  /** The check; never rejects before `signal` aborts. */
  readonly check: () => Promise<boolean>
  readonly random?: () => number
}): Promise<void> {
  const { everyMs, clock, signal, check, random = Math.random } = options
  let retryMs = firstRetryMs
  while (!signal.aborted) {
    const isWell = await check()
    const waitMs = isWell ? everyMs : Math.min(retryMs, everyMs)
    retryMs = isWell ? firstRetryMs : retryMs * 2
    await clock.sleep(waitMs * (1 + 0.1 * random()), signal)
  }
}

export type Soon<T> = T | Promise<T>

/** Calls `then` with the value: at once if it is there. */
export const after = <A, B>(value: Soon<A>, then: (value: A) => Soon<B>): Soon<B> =>
  value instanceof Promise ? value.then(then) : then(value)
