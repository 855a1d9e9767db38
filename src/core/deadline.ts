// A deadline and a caller's signal around one piece of work. When either ends, the work's own
// signal aborts, so that abandoned work stops.
import type { Clock } from './clock.ts'
import type { Failure } from './failure.ts'

export type DeadlineOptions = {
  readonly ms: number
  readonly clock: Clock
  /** The caller's signal; the call rejects with its reason. */
  readonly signal?: AbortSignal | undefined
  readonly late: () => Failure
  /**
   * Counts only time in which the event loop was idle: while this process is busy, the response may
   * already be in one of its buffers.
   */
  readonly onlyIdle?: boolean
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
  const after = options.onlyIdle ? afterIdle : afterAll
  const cancel = after(options.clock, options.ms, () => stop(options.late()))
  signal?.addEventListener('abort', leave, { once: true })
  try {
    return await Promise.race([work(own.signal), stopped.promise])
  } finally {
    cancel()
    signal?.removeEventListener('abort', leave)
  }
}

type After = (clock: Clock, ms: number, action: () => void) => () => void
const afterAll: After = (clock, ms, action) => clock.after(ms, action)

const mostTimes = 3
const nearEnough = 0.05

/** Fires after `ms` of idle event-loop time, and after three times `ms` in any case. */
const afterIdle: After = (clock, ms, action) => {
  const [beganAt, idleBefore] = [clock.monotonic(), clock.idle()]
  const ring = () => {
    const waited = clock.idle() - idleBefore
    const left = Math.min(ms - waited, mostTimes * ms - (clock.monotonic() - beganAt))
    if (left <= ms * nearEnough) return action()
    stop = clock.after(left, ring)
  }
  let stop = clock.after(ms, ring)
  return () => stop()
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

const heldUpMs = 50
const graceMs = 250

/**
 * A timer with a grace period after a stall of this process, so that input which arrived during the
 * stall is read first.
 */
export function onceLate(clock: Clock, ms: number, action: () => void): () => void {
  const dueAt = clock.monotonic() + ms
  let stop = clock.after(ms, () => {
    if (clock.monotonic() - dueAt < heldUpMs) return action()
    stop = clock.after(Math.min(ms, graceMs), action)
  })
  return () => stop()
}
