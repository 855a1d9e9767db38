// Repeats a check: on a schedule while it succeeds, soon and then with back-off while it fails. Imports leaves only.
import type { Clock } from './clock.ts'

const firstRetryMs = 5_000

export async function watch(options: {
  readonly everyMs: number
  readonly clock: Clock
  readonly signal: AbortSignal
  /** The check; it never rejects while `signal` holds. */
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
