// The answer of /readyz. Reads work whatever happens to providers, tiers and upstreams, so only stopping makes a
// gateway unready; whether uploads can be confirmed is told separately.
import type { Check, Checks } from './checks.ts'

export type Readiness = {
  readonly ready: boolean
  readonly draining: boolean
  /** The disk and enough providers passed their last check; undefined: not all were checked yet. */
  readonly uploads: boolean | undefined
  readonly checks: readonly Check[]
}

/** The name of a check, beside those of providers: whether uploads can be taken on this disk. */
export const diskCheck = 'data folder'

export function readiness(options: {
  readonly draining: boolean
  readonly providers: number
  readonly confirm: number | 'all'
  /** Uploads are kept here where too few providers can be reached. */
  readonly queue: boolean
  readonly checks: Pick<Checks, 'list'>
  readonly tiers: readonly { readonly name: string; readonly isDown: boolean }[]
  readonly upstreams: readonly { readonly name: string; readonly state: string }[]
  /** Files of the data folder that were damaged, and what became of what they said. It makes nothing unready. */
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
