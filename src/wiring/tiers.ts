// The tiers in lookup order as one stack: configured ones, and the local stores.
import type { LocalStore, Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import { cancelled } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Shelf } from '../names/shared-records.ts'
import { type GuardedTier, guarded } from '../retrieval/tiers/guarded-tier.ts'
import { createPinsTier, createTierStack, Layer, type TierStack } from '../retrieval/tiers/tier-stack.ts'
import type { StoreReader } from '../store/store.ts'
import type { Lease, WiringContext } from './components.ts'

export type Tiers = ReturnType<typeof wireTiers>

export function wireTiers(
  context: WiringContext,
  configured: readonly Tier[],
  providers: readonly Provider[],
  /** The store of the data folder. */
  store: Pick<StoreReader, 'blocks'>,
  /** Blocks that only the owner of the data folder has at this moment. */
  waiting?: { readonly store: LocalStore },
) {
  const { clock, log, lease } = context
  const guards: GuardedTier[] = []
  const tiers = configured.map((tier) => {
    const { persistent, shared, trusted } = tier.traits
    if (trusted && !persistent && !shared) return tier
    const guard = lease.take('guard', [tier], () => guarded(tier, { clock, log }))
    guards.push(guard)
    return guard
  })
  const pinsOf = (of: object, name: string, store: LocalStore, keeps: boolean): Tier =>
    lease.take('pins', [of], () => guarded(createPinsTier(name, store, { keeps, log }), { clock, log }))
  const pins = providers.flatMap((provider) =>
    provider.store ? [pinsOf(provider, provider.name, provider.store, true)] : [],
  )
  // Includes uploads that are acknowledged and not yet at every provider, also those that a
  // previous gateway acknowledged with other providers.
  if (!providers.some((one) => one.store === store.blocks)) pins.push(pinsOf(store, 'uploads', store.blocks, false))
  if (waiting) pins.push(pinsOf(waiting, 'owner', waiting.store, false))
  // Pins come before any cache except memory: they are as near, and complete.
  const isMemory = ({ traits }: Tier) => !traits.persistent
  const order = [...tiers.filter(isMemory), ...pins, ...tiers.filter((tier) => !isMemory(tier))]
  const layers = order.map((tier) => takeLayer(context, tier))
  const stacks = everyStack(lease)
  const stack = lease.take(
    'stack',
    layers,
    () => {
      const made = createTierStack(layers, { clock, log })
      stacks.add(made)
      return made
    },
    (closed) => {
      stacks.delete(closed)
      return closed.close()
    },
  )
  lease.take(
    'first probe',
    [stack],
    () => probeOnce(stack, log),
    (look) => look.end(),
  )
  return {
    stack,
    /** Names, fastest first. */
    names: stack.stats().map(({ tier }) => tier),
    /** Each tier, in lookup order. */
    layers,
    /** Tiers that may be slow or unavailable. */
    guards,
    /** Storage of name records shared by instances. */
    shelves: guards.filter((guard): guard is GuardedTier & Shelf => guard.records !== undefined),
    /** Usage of the tiers that know it. */
    usage: () => configured.flatMap((tier) => (tier.usage ? [{ tier: tier.name, usage: tier.usage() }] : [])),
  }
}

/**
 * Includes gateways before a reload that still answer: each has its own tiers if these were
 * changed.
 */
export const everyStack = (lease: Lease): Set<TierStack> => lease.take('every stack', [], () => new Set<TierStack>())

/**
 * Takes over its write queue, whose blocks no other gateway of this process could read otherwise.
 */
function takeLayer({ config, clock, log, lease }: WiringContext, tier: Tier): Layer {
  const { writeQueueBytes: maxBytes } = config.cache
  return lease.take(
    'layer',
    [tier, maxBytes],
    () => new Layer({ tier, clock, log, maxBytes }),
    (layer) => layer.close(),
  )
}

/** Logs a store that fails now. The gateway starts all the same, since the store may recover. */
function probeOnce(stack: TierStack, log: Log): { end(): Promise<void> } {
  const ending = new AbortController()
  const look = stack.probeAll(ending.signal).then(
    (failures) => {
      for (const { tier, failure } of failures) log('warn', 'tier.unusable', { tier, why: failure.message })
    },
    () => {},
  )
  return {
    end() {
      ending.abort(cancelled('the gateway is closing'))
      return look
    },
  }
}
