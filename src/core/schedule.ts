// Repeats a check: at a fixed interval while it succeeds, with exponential backoff while it fails.
import type { Clock } from './clock.ts'

const firstRetryMs = 5_000

export async function watch(options: {
  readonly everyMs: number
  readonly clock: Clock
  readonly signal: AbortSignal
  /** The check; never rejects before `signal` aborts. */
  readonly look: () => Promise<boolean>
  readonly random?: () => number
}): Promise<void> {
  const { everyMs, clock, signal, look, random = Math.random } = options
  let retryMs = firstRetryMs
  while (!signal.aborted) {
    const isWell = await look()
    const waitMs = isWell ? everyMs : Math.min(retryMs, everyMs)
    retryMs = isWell ? firstRetryMs : retryMs * 2
    await clock.sleep(waitMs * (1 + 0.1 * random()), signal)
  }
}
