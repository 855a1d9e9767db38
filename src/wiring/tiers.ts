// The tiers in lookup order as one stack: configured ones, and the local stores.
import type { LocalStore, Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import { cancelled } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Shelf } from '../names/shared-records.ts'
import { GuardedTier } from '../retrieval/tiers/guarded-tier.ts'
import { createPinsTier, TierStack } from '../retrieval/tiers/tier-stack.ts'
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
  const { log, lease } = context
  const tiers = configured.map((tier) => takeGuard(context, tier))
  const pinsOf = (of: object, name: string, store: LocalStore, keeps: boolean): GuardedTier =>
    takeGuard(
      context,
      lease.take('pins', [of], () => createPinsTier(name, store, keeps)),
    )
  const pins = providers.flatMap((provider) =>
    provider.store ? [pinsOf(provider, provider.name, provider.store, true)] : [],
  )
  // Includes uploads that are acknowledged and not yet at every provider, also those that a
  // previous gateway acknowledged with other providers.
  if (!providers.some((one) => one.store === store.blocks)) pins.push(pinsOf(store, 'uploads', store.blocks, false))
  if (waiting) pins.push(pinsOf(waiting, 'owner', waiting.store, false))
  // Pins come before any cache except memory: they are as near, and complete.
  const isMemory = ({ traits }: GuardedTier) => !traits.persistent
  const all = [...tiers.filter(isMemory), ...pins, ...tiers.filter((tier) => !isMemory(tier))]
  const stacks = everyStack(lease)
  const stack = lease.take(
    'stack',
    all,
    () => {
      const made = new TierStack(all)
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
    () => probeOnce(all, log),
    (look) => look.end(),
  )
  const guards = tiers.filter(({ writeBehind }) => writeBehind)
  return {
    stack,
    /** Names, fastest first. */
    names: all.map(({ name }) => name),
    /** In lookup order. */
    all,
    /** Configured tiers that may be slow or unavailable. */
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
function takeGuard({ config, clock, log, lease }: WiringContext, tier: Tier): GuardedTier {
  const { writeQueueBytes: maxBytes } = config.cache
  return lease.take(
    'guard',
    [tier, maxBytes],
    () => new GuardedTier(tier, { clock, log, maxBytes }),
    (guard) => guard.close(),
  )
}

/** Logs a store that fails now. The gateway starts all the same, since the store may recover. */
function probeOnce(tiers: readonly GuardedTier[], log: Log): { end(): Promise<unknown> } {
  const ending = new AbortController()
  const probes = tiers.map((tier) =>
    tier.probe(ending.signal).catch((error: unknown) => {
      if (ending.signal.aborted) return
      log('warn', 'tier.unusable', { tier: tier.name, why: tier.outage(error).message })
    }),
  )
  return {
    end() {
      ending.abort(cancelled('the gateway is closing'))
      return Promise.all(probes)
    },
  }
}
