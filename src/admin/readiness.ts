// The response of /readyz. Reads work whatever happens to providers, tiers and upstreams, so only a
// shutdown makes a gateway unready; uploads are reported separately.
import type { Check, Checks } from './checks.ts'

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
  const well = seen.filter(({ ok }) => ok).length
  const wanted = confirm === 'all' ? providers : confirm
  const isOpen = providers - (seen.length - well) >= wanted
  const byProviders = providers === 0 ? false : queue || well >= wanted ? true : isOpen ? undefined : false
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
