// Checks providers, tiers and upstreams in the background, so that /readyz responds at once and
// causes no load on them.
import { type Clock, repeatCheck, withDeadline } from '../core/clock.ts'
import { cancelled, Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'

export type Check = {
  /** `provider local`, `tier s3`, `upstream one`. */
  readonly name: string
  readonly ok: boolean
  readonly why?: string
  /** The duration of the check. */
  readonly ms?: number
}

export type Looked = { readonly name: string; readonly look: (signal: AbortSignal) => Promise<void> }

const lookMs = 10_000

/** Runs one check with a timeout; never rejects. */
export async function lookAt({ name, look }: Looked, clock: Clock, signal?: AbortSignal): Promise<Check> {
  const began = clock.monotonic()
  const late = () => new Failure('timeout', `it did not answer within ${lookMs / 1000} s`, { source: 'ours' })
  try {
    await withDeadline({ ms: lookMs, clock, signal, late }, look)
    return { name, ok: true, ms: Math.round(clock.monotonic() - began) }
  } catch (error) {
    const why = error instanceof Failure ? error.message : 'internal error'
    return { name, ok: false, why, ms: Math.round(clock.monotonic() - began) }
  }
}

export interface Checks {
  /** The last result of each part that has been checked. */
  list(): readonly Check[]
  close(): void
}

export function startChecks(
  looked: readonly Looked[],
  options: { readonly everyMs: number; readonly clock: Clock; readonly log: Log },
): Checks {
  const { everyMs, clock, log } = options
  const closing = new AbortController()
  const last = new Map<string, Check>()

  async function look(one: Looked): Promise<boolean> {
    const check = await lookAt(one, clock, closing.signal)
    if (closing.signal.aborted) return false
    const before = last.get(one.name)
    if (check.ok !== (before?.ok ?? true))
      log(check.ok ? 'info' : 'warn', check.ok ? 'check.ok' : 'check.failed', { part: one.name, why: check.why })
    last.set(one.name, check)
    return check.ok
  }

  if (everyMs > 0) {
    for (const one of looked)
      repeatCheck({ everyMs, clock, signal: closing.signal, check: () => look(one) }).catch((error: unknown) => {
        if (!closing.signal.aborted) log('error', 'check.error', { part: one.name, error: String(error) })
      })
  }
  return { list: () => [...last.values()], close: () => closing.abort(cancelled('the gateway is closing')) }
}
