// Upstreams as members of a pool, each with a health of its own, and a retrieval over them.
import type { Upstream } from '../../backends/upstreams/contract.ts'
import type { Clock } from '../../src/core/clock.ts'
import { type Log, silentLog } from '../../src/core/log.ts'
import { createLoopScheduler } from '../../src/retrieval/loop-scheduler.ts'
import { createNegativeCache } from '../../src/retrieval/negative-cache.ts'
import { createRetrieval, type RetrievalOptions } from '../../src/retrieval/retrieval.ts'
import type { TierStack } from '../../src/retrieval/tiers/tier-stack.ts'
import { createPool, type Member } from '../../src/retrieval/upstreams/pool.ts'
import { UpstreamHealth } from '../../src/retrieval/upstreams/upstream-health.ts'
import { scriptedTier, stackOf } from './scripted-tier.ts'

export function membersOf(upstreams: readonly Upstream[], clock: Clock, log: Log = silentLog): Member[] {
  const turns = createLoopScheduler(clock)
  return upstreams.map((upstream) => {
    const { name, traits } = upstream
    return { upstream, health: new UpstreamHealth({ name, clock, turns, log, connections: traits.connections }) }
  })
}

type RetrievalParts = Partial<Omit<RetrievalOptions, 'pool' | 'clock'>> & { readonly timeoutMs?: number }

/** As it is configured by default, over these upstreams and a tier in memory, which holds `held`. */
export function retrievalOver(
  upstreams: readonly Upstream[],
  clock: Clock,
  { timeoutMs = 4750, stack: given, ...more }: RetrievalParts = {},
) {
  const memory = scriptedTier('memory', { persistent: false, trusted: true })
  const stack: TierStack = given ?? stackOf([memory], { clock })
  const pool = createPool({ members: membersOf(upstreams, clock), hedge: 'auto', clock, timeoutMs })
  const retrieval = createRetrieval({
    ...{ stack, pool, clock, turns: createLoopScheduler(clock), log: silentLog },
    ...{ deadlineMs: 5000, blockDeadlineMs: 15_000, keepLookingMs: 60_000, readAheadBytes: 64 * 1024 * 1024 },
    notFound: createNegativeCache({ initialTtlMs: 5000, maxTtlMs: 60_000, clock }),
    ...more,
  })
  return { retrieval, pool, stack, held: memory.held }
}
