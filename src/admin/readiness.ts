// The health checks of providers and the disk, which run in the background so that /readyz responds
// at once, and the response of /readyz. Reads work whatever happens to providers, tiers and
// upstreams, so only a shutdown makes a gateway unready; uploads are reported separately.
import { type Clock, repeatCheck, withDeadline } from '../core/clock.ts'
import { cancelled, Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Check } from './dashboard/shape.ts'

export type Readiness = {
  readonly ready: boolean
  readonly draining: boolean
  /** True if the disk and enough providers passed their last check; undefined before that. */
  readonly uploads: boolean | undefined
  readonly checks: readonly Check[]
}

/** The name of the check for uploads to the data folder, next to those of providers. */
export const diskCheck = 'data folder'

export function readiness(options: {
  readonly draining: boolean
  readonly providers: number
  readonly confirm: number | 'all'
  /** Uploads are accepted and queued if too few providers are reachable. */
  readonly queue: boolean
  readonly checks: Pick<Checks, 'list'>
  readonly tiers: readonly { readonly name: string; readonly isDown: boolean }[]
  readonly upstreams: readonly { readonly name: string; readonly state: string }[]
  /** Damaged files of the data folder, and the consequences. Does not affect readiness. */
  readonly damage: readonly { readonly name: string; readonly why: string | undefined }[]
}): Readiness {
  const { draining, providers, confirm, queue, tiers, upstreams } = options
  const all = options.checks.list()
  const disk = all.find(({ name }) => name === diskCheck)
  const seen = all.filter((one) => one !== disk)
  const healthy = seen.filter(({ ok }) => ok).length
  const wanted = confirm === 'all' ? providers : confirm
  const mayStillSuffice = providers - (seen.length - healthy) >= wanted
  const byProviders = providers === 0 ? false : queue || healthy >= wanted ? true : mayStillSuffice ? undefined : false
  return {
    ready: !draining,
    draining,
    uploads: disk?.ok === false ? false : byProviders,
    checks: [
      ...all,
      ...tiers.map(({ name, isDown }) => ({
        name: `tier ${name}`,
        ok: !isDown,
        ...(isDown && { why: 'it failed recently and is skipped for now' }),
      })),
      ...upstreams.map(({ name, state }) => ({
        name: `upstream ${name}`,
        ok: state === 'ready',
        ...(state !== 'ready' && { why: state }),
      })),
      ...options.damage.flatMap(({ name, why }) => (why === undefined ? [] : [{ name, ok: false, why }])),
    ],
  }
}

export type CheckTarget = { readonly name: string; readonly check: (signal: AbortSignal) => Promise<void> }

const checkMs = 10_000

/** Runs one check with a timeout; never rejects. */
export async function runCheck({ name, check }: CheckTarget, clock: Clock, signal?: AbortSignal): Promise<Check> {
  const began = clock.monotonic()
  const late = () => new Failure('timeout', `it did not answer within ${checkMs / 1000} s`, { source: 'ours' })
  try {
    await withDeadline({ ms: checkMs, clock, signal, late }, check)
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
  targets: readonly CheckTarget[],
  options: { readonly everyMs: number; readonly clock: Clock; readonly log: Log },
): Checks {
  const { everyMs, clock, log } = options
  const closing = new AbortController()
  const last = new Map<string, Check>()

  async function check(one: CheckTarget): Promise<boolean> {
    const check = await runCheck(one, clock, closing.signal)
    if (closing.signal.aborted) return false
    const before = last.get(one.name)
    if (check.ok !== (before?.ok ?? true))
      log(check.ok ? 'info' : 'warn', check.ok ? 'check.ok' : 'check.failed', { part: one.name, why: check.why })
    last.set(one.name, check)
    return check.ok
  }

  if (everyMs > 0) {
    for (const one of targets)
      repeatCheck({ everyMs, clock, signal: closing.signal, check: () => check(one) }).catch((error: unknown) => {
        if (!closing.signal.aborted) log('error', 'check.error', { part: one.name, error: String(error) })
      })
  }
  return { list: () => [...last.values()], close: () => closing.abort(cancelled('the gateway is closing')) }
}
