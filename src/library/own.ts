// Tiers, upstreams and providers of a program. Verifies that they fulfil the contracts before
// anything uses them.
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import { type Complaint, ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import type { Own } from '../wiring/wiring-context.ts'

/**
 * A program's own backends, in addition to the configured ones. The gateway uses them, and never
 * closes one.
 */
export type OwnBackends = {
  /** Asked after the configured tiers: those in memory first. */
  readonly tiers?: readonly Tier[] | undefined
  /** Raced with the configured upstreams, ordered by speed. */
  readonly upstreams?: readonly Upstream[] | undefined
  /**
   * Receive every upload along with the configured providers; `pinning.minConfirmations` counts all of them.
   */
  readonly providers?: readonly Provider[] | undefined
}

const promised = {
  tiers: { methods: ['get', 'put', 'has', 'delete', 'close'], traits: ['persistent', 'shared', 'trusted'] },
  upstreams: { methods: ['block', 'dag', 'probe', 'close'], traits: ['dag'] },
  providers: { methods: ['pin', 'unpin', 'status', 'probe', 'close'], traits: ['takesBytes', 'local'] },
} as const

type KindName = keyof typeof promised

/** Throws a ConfigError that names the argument: `option providers[0]: …`. */
export function ownOf(said: OwnBackends): Own {
  const wrong = (Object.keys(promised) as KindName[]).flatMap((kind) => lookAt(kind, said[kind]))
  if (wrong.length > 0) throw new ConfigError(wrong)
  const { tiers = [], upstreams = [], providers = [] } = said
  return { tiers, upstreams, providers }
}

function lookAt(kind: KindName, list: unknown): Complaint[] {
  if (list === undefined) return []
  if (!Array.isArray(list)) return [`option ${kind}: is not valid (expected a list)`]
  return list.flatMap((one, index) => missing(kind, one).map((what) => `option ${kind}[${index}]: ${what}`))
}

function missing(kind: KindName, one: unknown): string[] {
  if (typeof one !== 'object' || one === null) return ['is not valid (expected an object)']
  const of = (key: string): unknown => Reflect.get(one, key)
  const wrong: string[] = []
  const name = of('name')
  if (typeof name !== 'string' || !/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(name))
    wrong.push('`name` is not valid (expected up to 64 letters, digits, dots, dashes or underscores)')
  for (const method of promised[kind].methods)
    if (typeof of(method) !== 'function') wrong.push(`\`${method}\` is missing (expected a method)`)
  const traits = of('traits')
  const known = typeof traits === 'object' && traits !== null ? traits : {}
  for (const trait of promised[kind].traits)
    if (typeof Reflect.get(known, trait) !== 'boolean')
      wrong.push(`\`traits.${trait}\` is missing (expected true or false)`)
  if (kind === 'upstreams' && typeof Reflect.get(known, 'canBlock') !== 'function')
    wrong.push('`traits.canBlock` is missing (expected a method)')
  return wrong
}

/** Throws a ConfigError for names that collide, or backends that do not fit the configuration. */
export function refuseBeside(own: Own, { cache, retrieval, pinning, upload }: Config): void {
  const twice = (kind: KindName, configured: readonly { readonly name: string }[]): string[] => {
    const names = new Set(configured.map(({ name }) => name))
    return own[kind].flatMap(({ name }, index) => {
      const isTaken = names.has(name)
      names.add(name)
      return isTaken ? [`option ${kind}[${index}]: "${name}" is used twice (expected a name of its own)`] : []
    })
  }
  const wrong: Complaint[] = [
    ...twice('tiers', cache.tiers),
    ...twice('upstreams', retrieval.upstreams),
    ...twice('providers', pinning.providers),
  ]
  const most = pinning.providers.length + own.providers.length
  if (most > 0 && pinning.minConfirmations !== 'all' && pinning.minConfirmations > most)
    wrong.push({
      path: ['pinning', 'minConfirmations'],
      what: `expected at most ${most}, the number of providers, or all`,
    })
  if (pinning.providers.length === 0 && most > 0 && !own.providers.some(({ traits }) => traits.takesBytes))
    wrong.push(
      'option providers: no provider is given the bytes (expected one that takes bytes beside those that fetch them)',
    )
  if (upload.forwardTo && own.providers.length > 0)
    wrong.push('option providers: they get nothing beside `upload.forwardTo` (expected none)')
  if (wrong.length > 0) throw new ConfigError(wrong)
}
