// The tiers in the order in which they are asked, as one stack: what is configured, and what lies on this machine anyway.
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import { type GuardedTier, guarded } from '../retrieval/guarded-tier.ts'
import { proved } from '../retrieval/proved-tier.ts'
import { createTierStack, type TierStack } from '../retrieval/tier-stack.ts'
import { createPinsTier } from '../upload/pins-tier.ts'
import type { Spools } from '../upload/spool.ts'
import type { Whole } from './whole.ts'

export type Tiers = {
  readonly stack: TierStack
  /** Those that may be slow or away. */
  readonly guards: readonly GuardedTier[]
  /** Blocks that were not what they should be, by tier. */
  readonly corrupt: ReadonlyMap<string, number>
}

// What is pinned here may be nowhere else, and a disk that is busy with uploads can be slow.
const pinsMs = 10_000

export function wireTiers(
  { config, clock, log }: Whole,
  bare: readonly Tier[],
  {
    providers,
    left,
    spools,
  }: { readonly providers: readonly Provider[]; readonly left: readonly Provider[]; readonly spools: Spools },
): Tiers {
  const corrupt = new Map<string, number>()
  const onCorrupt = (tier: string) => corrupt.set(tier, (corrupt.get(tier) ?? 0) + 1)
  const guards: GuardedTier[] = []
  const tiers = bare.map((tier) => {
    if (tier.traits.trusted) return tier
    const guard = guarded(tier, { clock, log })
    guards.push(guard)
    return proved(guard, { log, onCorrupt })
  })
  // A file that cannot be read says nothing about the next one, and the next one may be nowhere else.
  const onThisDisk = (tier: Tier) => guarded(tier, { clock, log, silenceOnly: true, deadlineMs: pinsMs })
  const pins = [...providers, ...left].flatMap(({ name, store }) =>
    store ? [onThisDisk(createPinsTier(name, store, { keeps: true, log }))] : [],
  )
  // What is acknowledged and not yet everywhere, where no provider of ours keeps it on this disk.
  if (providers.length === 0 || providers.some(({ traits }) => !traits.local))
    pins.push(onThisDisk(createPinsTier('uploads', spools.store, { keeps: false, log })))
  // What is pinned here is looked for before any cache but memory: it is as near, and it is surely whole.
  const isMemory = ({ traits }: Tier) => !traits.persistent
  const layers = [...tiers.filter(isMemory), ...pins, ...tiers.filter((tier) => !isMemory(tier))]
  return { stack: createTierStack(layers, { clock, log, fillBytes: config.cache.fillBytes }), guards, corrupt }
}
