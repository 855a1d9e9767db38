// What a configuration names, made: providers, tiers and upstreams, each by the registry of its kind. No I/O yet.
import type { Provider } from '../../backends/pinning/contract.ts'
import { providerKinds } from '../../backends/pinning/index.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import { tierKinds } from '../../backends/tiers/index.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import { upstreamKinds } from '../../backends/upstreams/index.ts'
import type { Clock } from '../clock.ts'
import type { Config } from '../config/load.ts'
import { Failure } from '../failure.ts'
import type { Log } from '../observe/log.ts'

export type Member = {
  readonly upstream: Upstream
  readonly perMinute: number | undefined
  readonly perCidPerMinute: number | undefined
}

export type Parts = {
  readonly providers: readonly Provider[]
  /** The fastest first, as configured; neither guarded nor proved. */
  readonly tiers: readonly Tier[]
  readonly members: readonly Member[]
}

export function createParts(config: Config, { log, clock }: { readonly log: Log; readonly clock: Clock }): Parts {
  const { data, pinning, cache, retrieval } = config
  const { userAgent } = retrieval
  return {
    providers: pinning.providers.map(({ use, name, options }) =>
      kindOf(providerKinds, use).create(options, { name, userAgent, data, log, clock }),
    ),
    tiers: cache.tiers.map(({ use, name, options }) =>
      kindOf(tierKinds, use).create(options, { name, data, log, clock }),
    ),
    members: retrieval.upstreams.map(({ use, name, options, perMinute, perCidPerMinute }) => ({
      upstream: kindOf(upstreamKinds, use).create(options, { name, userAgent, log, clock }),
      perMinute,
      perCidPerMinute,
    })),
  }
}

function kindOf<Kind>(kinds: Readonly<Record<string, Kind>>, use: string): Kind {
  const kind = kinds[use]
  if (!kind) throw new Failure('malformed', `there is no ${use}`, { source: 'ours' })
  return kind
}
